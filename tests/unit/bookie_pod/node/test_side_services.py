"""What a bookie serves beside its own protocol ends it only when it can never start."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from bookie_pod.config.load import load_config
from bookie_pod.metrics.registry import Registry
from bookie_pod.node import side_services
from bookie_pod.node.live_status import LiveStatus
from bookie_pod.node.processes.background import BackgroundTasks
from bookie_pod.node.side_services import SideServices
from bookie_protocol.errors import InvalidConfiguration


class Start:
    """Stands for the start of auto-recovery: fails with these errors, one at a time, then there is none to be had."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.ended = asyncio.Event()

    async def __call__(self, *_: Any, **__: Any) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.ended.set()


async def started(start: Start, monkeypatch: pytest.MonkeyPatch, failures: list[BaseException]) -> None:
    monkeypatch.setattr(side_services, "start_auto_recovery", start)
    monkeypatch.setattr(side_services, "ROOM_RETRY_S", 0)
    loop = asyncio.get_running_loop()
    status = LiveStatus(loop.create_future())
    config = load_config(None, overrides={"metadataServiceUri": "file:///nowhere"})
    async with AsyncExitStack() as undo:
        tasks = BackgroundTasks(loop, failures.append)
        services = SideServices(config, status, Registry(), undo, tasks)
        services.start_auto_recovery(None, "b1")  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            while not start.ended.is_set() and not failures:  # noqa: ASYNC110 - one of two things comes
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks.cancel()


async def test_a_service_without_descriptors_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    start = Start(OSError(errno.EMFILE, "Too many open files"), OSError(errno.ENOMEM, "Cannot allocate memory"))
    await started(start, monkeypatch, failures)
    assert (failures, start.errors) == ([], [])


def because(error: OSError) -> InvalidConfiguration:
    """What is made of a file of tokens or certificates that cannot be read."""
    made = InvalidConfiguration("grpcServerAuthTokenFile=/tokens: it cannot be read")
    made.__cause__ = error
    return made


async def test_what_comes_of_that_is_no_end_either(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    start = Start(
        because(OSError(errno.EMFILE, "Too many open files")),
        ImportError("cygrpc.so: cannot open shared object file: Too many open files"),
    )
    await started(start, monkeypatch, failures)
    assert (failures, start.errors) == ([], [])


@pytest.mark.parametrize("error", [because(FileNotFoundError(2, "No such file")), ModuleNotFoundError("no grpc")])
async def test_a_configuration_that_is_wrong_ends_the_bookie(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    failures: list[BaseException] = []
    await started(Start(error), monkeypatch, failures)
    assert failures == [error]


async def test_a_service_that_cannot_start_ends_the_bookie(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    start = Start(OSError(errno.EIO, "Input/output error"))
    await started(start, monkeypatch, failures)
    assert [type(failure) for failure in failures] == [OSError]


@pytest.mark.parametrize("content", ["", "viewer\n"])
async def test_a_file_of_tokens_with_which_no_grpc_starts_ends_the_bookie(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokens").write_text(content)
    keys = {"metadataServiceUri": "file:///nowhere", "grpcServerAuthTokenFile": str(tmp_path / "tokens")}
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as undo:
        tasks = BackgroundTasks(loop, lambda _: None)
        status = LiveStatus(loop.create_future())
        services = SideServices(load_config(None, overrides=keys), status, Registry(), undo, tasks)
        with pytest.raises(InvalidConfiguration):
            await services.start_grpc()
        tasks.cancel()


def test_a_bookie_loads_neither_grpc_nor_the_client() -> None:
    code = "import sys, bookie_pod.node.bookie; sys.exit(bool({'grpc', 'bookie_client'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
