"""A bookie of a standalone cluster is ready when others see that it takes writes."""

import asyncio
from types import SimpleNamespace

import pytest

from bookie_pod.node.standalone import bookie_process
from bookie_pod.node.standalone.bookie_process import wait_ready
from bookie_protocol.errors import ServerStartFailed
from bookie_protocol.metadata_service.interface import BookieGroup


@pytest.mark.parametrize("used", [0.84, 0.95])
async def test_one_that_is_read_only_is_waited_for_unless_its_disk_is_full(monkeypatch, used):
    looks, writable = [], asyncio.Event()

    async def registered(metadata, bookie, group):
        if group is BookieGroup.WRITABLE:
            await writable.wait()

    async def answers(bookie):
        pass

    def disk_usage(path):
        looks.append(path)
        if len(looks) == 2:
            writable.set()
        return SimpleNamespace(free=1 - used, total=1)

    async def names():
        return []

    monkeypatch.setattr(bookie_process, "_SEEN_WITHIN_S", 0.001)
    monkeypatch.setattr(bookie_process, "_registered", registered)
    monkeypatch.setattr(bookie_process, "_answers", answers)
    monkeypatch.setattr(bookie_process.shutil, "disk_usage", disk_usage)
    metadata = SimpleNamespace(records=lambda kind: SimpleNamespace(names=names))
    process = SimpleNamespace(wait=asyncio.Event().wait)
    bookie = SimpleNamespace(bookie_id="bookie-1", directory="/data", grpc_port=None, process=process)
    if used < 0.95:
        await wait_ready(metadata, bookie, 10)
    else:
        with pytest.raises(ServerStartFailed):
            await wait_ready(metadata, bookie, 10)
    assert len(looks) == (2 if used < 0.95 else 1)
