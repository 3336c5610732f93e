"""Parts that are kept running, and what is told when they are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from structlog.testing import capture_logs

from bookie_pod.autorecovery import daemon as daemon_module
from bookie_pod.autorecovery.daemon import AutoRecovery
from bookie_pod.autorecovery.worker.progress import Phase, WorkerProgress
from bookie_protocol.metadata_service.interface import Session, SessionState
from tests.support.until import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_module, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(daemon_module, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(daemon_module, "PATIENCE_S", 0.2)
    monkeypatch.setattr(daemon_module, "SHORTEST_REOPEN_S", 0.1)
    monkeypatch.setattr(daemon_module, "STUCK_S", 0.2)


@pytest.fixture
async def session() -> Session:
    made = Session(0.01)
    made.move(SessionState.CONNECTED)
    return made


class Part:
    """Runs until it is told otherwise."""

    def __init__(self) -> None:
        self.starts = 0
        self.running = 0
        self.end: Callable[[], None] | None = None
        self._wake = asyncio.Event()

    async def run(self) -> None:
        self.starts += 1
        self.running += 1
        try:
            while self.end is None:
                self._wake.clear()
                await self._wake.wait()
            self.end()
        finally:
            self.running -= 1

    def fail(self, end: Callable[[], None]) -> None:
        self.end = end
        self._wake.set()


def broken() -> None:
    raise RuntimeError("broken")


@pytest.fixture
async def part() -> Part:
    return Part()


@pytest.fixture
async def daemon(session: Session, part: Part) -> AsyncIterator[AutoRecovery]:
    made = AutoRecovery(session, {"auditor": part.run}, WorkerProgress(), watch_interval=0.01)
    await made.start()
    yield made
    await made.stop()
    assert part.running == 0


async def test_a_part_runs(daemon: AutoRecovery, part: Part) -> None:
    await until(lambda: part.running == 1)
    await until(lambda: daemon.status().parts[0].down_for is None)
    (status,) = daemon.status().parts
    assert (status.name, status.is_running) == ("auditor", True)
    assert daemon.complaint() is None


async def test_it_begins_again_after_a_failure(daemon: AutoRecovery, part: Part) -> None:
    await until(lambda: part.running == 1)
    part.fail(broken)
    await until(lambda: part.starts >= 3)
    assert part.running <= 1
    await until(lambda: daemon.complaint() is not None)
    assert "the auditor has not been running for" in (daemon.complaint() or "")
    assert "RuntimeError('broken')" in (daemon.complaint() or "")
    part.end = None
    await until(lambda: daemon.complaint() is None)


async def test_one_that_ends_by_itself_begins_again(daemon: AutoRecovery, part: Part) -> None:
    await until(lambda: part.running == 1)
    part.fail(lambda: None)
    await until(lambda: part.starts >= 2)
    assert daemon.status().parts[0].last_error == "it ended by itself"


async def test_it_begins_again_in_the_next_session(daemon: AutoRecovery, part: Part, session: Session) -> None:
    await until(lambda: part.running == 1)
    session.move(SessionState.EXPIRED)
    await until(lambda: part.running == 0)
    await asyncio.sleep(0.05)
    assert part.starts == 1, "there is no session to work in"
    session.move(SessionState.CONNECTED)
    await until(lambda: part.running == 1)
    assert part.starts == 2


async def test_a_short_loss_of_the_connection_disturbs_nobody(
    daemon: AutoRecovery, part: Part, session: Session
) -> None:
    await until(lambda: part.running == 1)
    session.move(SessionState.SUSPENDED)
    session.move(SessionState.CONNECTED)
    await asyncio.sleep(0.05)
    assert (part.starts, part.running) == (1, 1)


async def test_a_session_that_does_not_come_back_ends_the_watch(
    daemon: AutoRecovery, part: Part, session: Session
) -> None:
    watching = asyncio.create_task(daemon.watch())
    await until(lambda: part.running == 1)
    session.move(SessionState.EXPIRED)
    async with asyncio.timeout(5):
        assert "no connection to the metadata service" in await watching
    await until(lambda: daemon.complaint() is not None)
    assert "session with the metadata service is expired" in (daemon.complaint() or "")


async def test_a_stuck_worker_is_told(session: Session, part: Part) -> None:
    progress = WorkerProgress()
    daemon = AutoRecovery(session, {"replication worker": part.run}, progress)
    await daemon.start()
    note = progress.begin(1)
    progress.enter(note, Phase.COPYING)
    await until(lambda: daemon.complaint() is not None)
    assert "is stuck" in (daemon.complaint() or "")
    progress.copied(note, 1, 100)
    assert daemon.complaint() is None
    progress.enter(note, Phase.BACKING_OFF, wait=1000)
    await asyncio.sleep(0.25)
    assert daemon.complaint() is None, "nothing is to be done"
    await daemon.stop()


async def test_a_part_that_nobody_keeps_any_more_ends_the_watch(daemon: AutoRecovery, part: Part) -> None:
    await until(lambda: part.running == 1)
    assert daemon.dead() is None
    daemon._tasks[0].cancel()
    async with asyncio.timeout(10):
        assert await daemon.watch() == daemon.dead() == daemon.complaint() == "the auditor is dead: it was cancelled"
    with capture_logs() as told:
        assert await daemon.watch() == daemon.dead()
    assert told == [], "once is enough: a bookie watches on"
