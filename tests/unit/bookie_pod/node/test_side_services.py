"""What a bookie serves beside its own protocol ends it only when it can never start."""

from __future__ import annotations

import asyncio
import errno
from contextlib import AsyncExitStack
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
    """Stands for the start of the gRPC server: fails with these errors, one at a time, then there is none to be had."""

    def __init__(self, *errors: Exception) -> None:
        self.status: LiveStatus
        self.unready: list[str | None] = []
        self.errors = list(errors)
        self.ended = asyncio.Event()

    async def __call__(self, *_: Any, **__: Any) -> None:
        self.unready.append(self.status.opening)
        if self.errors:
            raise self.errors.pop(0)
        self.ended.set()


async def started(start: Start, monkeypatch: pytest.MonkeyPatch, failures: list[BaseException]) -> LiveStatus:
    monkeypatch.setattr(side_services, "start_grpc", start)
    monkeypatch.setattr(side_services, "ROOM_RETRY_S", 0)
    loop = asyncio.get_running_loop()
    status = start.status = LiveStatus(loop.create_future())
    config = load_config(None, overrides={"metadataServiceUri": "file:///nowhere"})
    async with AsyncExitStack() as undo:
        tasks = BackgroundTasks(loop, failures.append)
        services = SideServices(config, status, Registry(), undo, tasks)
        services.start_grpc(None, lambda: None)  # type: ignore[arg-type, return-value]
        async with asyncio.timeout(10):
            while not start.ended.is_set() and not failures:  # noqa: ASYNC110 - one of two things comes
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks.cancel()
    return status


async def test_a_service_without_descriptors_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    start = Start(OSError(errno.EMFILE, "Too many open files"), OSError(errno.ENOMEM, "Cannot allocate memory"))
    status = await started(start, monkeypatch, failures)
    assert (failures, start.errors, status.opening) == ([], [], None)
    assert start.unready == ["the gRPC port is not served yet"] * 3


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
