"""A whole bookie in this process and on this event loop, with a metadata service of its own."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookie_pod.config.load import load_config
from bookie_pod.config.model import BookieConfig
from bookie_pod.node import bookie as bookie_module
from bookie_pod.node.bookie import Bookie
from bookie_pod.node.metadata import open_metadata
from tests.support.bookie_process import free_port, loopback_configuration
from tests.support.small_bookie import SMALL_BOOKIE


@asynccontextmanager
async def live_bookie(work: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[Bookie]:
    """Started in a new cluster, with an HTTP server; stopped at the end."""
    config = _config(work, settings)
    service = await open_metadata(config.metadata, str(config.metadata.service_uri), make_store=True)
    await service.cluster.initialize()
    await service.close()
    async with _started(config) as bookie:
        yield bookie


@asynccontextmanager
async def started_bookie(work: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[Bookie]:
    """As `live_bookie`, in the cluster of an earlier one, if there was one."""
    if (work / "metadata").exists():
        async with _started(_config(work, settings)) as bookie:
            yield bookie
    else:
        async with live_bookie(work, settings) as bookie:
            yield bookie


def _config(work: Path, settings: Mapping[str, str] | None) -> BookieConfig:
    return load_config(
        environ={},
        overrides={
            **loopback_configuration(work, f"file://{work}/metadata", free_port()),
            "httpServerEnabled": "true",
            "httpServerHost": "127.0.0.1",
            "httpServerPort": str(free_port()),
            **SMALL_BOOKIE,
            "numReadWorkerThreads": "2",
            **(settings or {}),
        },
    )


@asynccontextmanager
async def _started(config: BookieConfig) -> AsyncIterator[Bookie]:
    bookie = Bookie(config)
    with pytest.MonkeyPatch.context() as patch:
        # a process of its own would set aside what is there; here the collector has to find the bookie when it is gone
        patch.setattr(bookie_module, "gc", SimpleNamespace(collect=gc.collect, freeze=lambda: None))
        await bookie.start()
    try:
        yield bookie
    finally:
        await bookie.stop()
