"""How a bookie's process ends."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest

from bookie_pod.config.load import load_config
from bookie_pod.node.live_status import LiveStatus
from bookie_pod.node.processes import bookie as run
from bookie_protocol.errors import PodkeeperError, RegistrationFailed


class Left(Exception):
    """The process ended without waiting for anything."""


class Bookie:
    """Cannot start; `tidy` is set when it can be tidied up."""

    tidy: asyncio.Event
    error: Exception

    def __init__(self, config: object) -> None:
        self.status = LiveStatus(asyncio.get_running_loop().create_future())

    def watch(self, watch: object) -> None: ...
    def steps(self) -> tuple[()]:
        return ()

    def drop_clients(self) -> None: ...
    async def start(self) -> None:
        raise self.error

    async def abort(self) -> None:
        await self.tidy.wait()


async def ended(monkeypatch: pytest.MonkeyPatch, error: Exception, *, tidy: bool) -> BaseException:
    def leave(failure: PodkeeperError) -> NoReturn:
        raise Left from failure

    monkeypatch.setattr(run, "Bookie", Bookie)
    monkeypatch.setattr(run, "leave", leave)
    monkeypatch.setattr(run, "ABORT_S", 0.05)
    Bookie.tidy, Bookie.error = asyncio.Event(), error
    if tidy:
        Bookie.tidy.set()
    with pytest.raises(Exception) as caught:
        await run._run(load_config(None), asyncio.Event())
    Bookie.tidy.set()  # what the process would have taken along
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
    return caught.value


@pytest.mark.parametrize(
    ("error", "known"),
    [(RegistrationFailed("another has its id"), RegistrationFailed), (ValueError("a bug"), run.UnexpectedError)],
)
async def test_a_start_that_failed_waits_for_no_thread_that_hangs(
    monkeypatch: pytest.MonkeyPatch, error: Exception, known: type[Any]
) -> None:
    left = await ended(monkeypatch, error, tidy=False)
    assert isinstance(left, Left)
    assert isinstance(left.__cause__, known)
    assert isinstance(await ended(monkeypatch, error, tidy=True), known)
