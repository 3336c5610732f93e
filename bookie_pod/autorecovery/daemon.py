"""Auto-recovery in one process: a candidate for the auditor and a replication worker, kept running together.

    daemon = AutoRecovery(service.session, {"auditor": auditor.run, "replication worker": worker.run}, progress)
    await daemon.start()
    reason = await daemon.watch()      # the session with the metadata service does not come back: use another one;
                                       # or `dead` tells that a part is not kept any more
    await daemon.stop()

Unlike the reference's it does not end with its session, nor leave a process behind that does nothing: parts begin
again, and `complaint` reports a part that does not come back; the probes of the process show it. A part is a coroutine
function that works until it is cancelled. What it holds in the metadata service (locks, the auditor's vote) ends with
the session, so at an expiry it is cancelled and started again in the next session, which the metadata service opens by
itself.

Invariants
- A part never runs without a session, nor twice at a time.
- Between two starts of a part that fails lie `FIRST_PAUSE_S` to `LONGEST_PAUSE_S` seconds.
- `complaint` names a part that has not been running for `PATIENCE_S` seconds, and why.

Event loop only.

Source: docs/internals/auto-recovery.md, section 1; apache/bookkeeper issues 2302 and 2471 say what an idle one costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from bookie_pod.autorecovery.worker.progress import WorkerProgress, WorkerStatus
from bookie_protocol.metadata_service.interface import Session, SessionState
from bookie_protocol.shown import one_line

WATCH_INTERVAL_S: Final = 1.0
REOPEN_AFTER: Final = 6.0
"""Session time-outs without a connection after which the session is given up."""
SHORTEST_REOPEN_S: Final = 30.0
STUCK_S: Final = 1800.0
"""A worker that works on ledgers and shows no progress for so long is stuck: every request has a time-out."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
STEADY_S: Final = 300.0
"""A part that ran for so long begins again after the first pause."""
PATIENCE_S: Final = 60.0

_log = structlog.get_logger(__name__)


class SessionWatch:
    """A watch over the session: whether there is one, and since when there is none. `close` ends the listening."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._connected = asyncio.Event()
        self._expired = asyncio.Event()
        self.lost_at: float | None = None
        """Time at which the connection was lost, by the event loop's clock; None: there is a connection."""
        self._remove = session.add_listener(self._changed)
        self._changed(session.state)

    @property
    def state(self) -> SessionState:
        return self._session.state

    @property
    def expired(self) -> asyncio.Event:
        """Set when the session of now ends."""
        return self._expired

    async def connected(self) -> None:
        """Wait until there is a session."""
        await self._connected.wait()

    def away(self) -> float:
        """Seconds without a connection."""
        return 0.0 if self.lost_at is None else self._loop.time() - self.lost_at

    def close(self) -> None:
        self._remove()

    def _changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self.lost_at = None
            self._connected.set()
            return
        if self.lost_at is None:
            self.lost_at = self._loop.time()
        if state in (SessionState.EXPIRED, SessionState.CLOSED):
            self._connected.clear()
            self._expired.set()
            self._expired = asyncio.Event()


@dataclass(frozen=True, slots=True)
class PartStatus:
    """`down_for`: seconds; None: it runs."""

    name: str
    is_running: bool
    down_for: float | None
    last_error: str


class SupervisedPart:
    """One part. `keep` until cancelled."""

    def __init__(self, name: str, run: Callable[[], Awaitable[None]], session: SessionWatch) -> None:
        self.name = name
        self._run = run
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._down_since: float | None = self._loop.time()
        self._last_error = ""

    def status(self) -> PartStatus:
        down_for = None if self._down_since is None else self._loop.time() - self._down_since
        return PartStatus(self.name, self._task is not None, down_for, self._last_error)

    def complaint(self) -> str | None:
        """Return why this part needs attention; None: it runs, or has not been away for long."""
        if self._down_since is None or self._loop.time() - self._down_since < PATIENCE_S:
            return None
        why = self._last_error or f"the session with the metadata service is {self._session.state.value}"
        return f"the {self.name} has not been running for {self._loop.time() - self._down_since:.0f} s: {why}"

    async def keep(self) -> None:
        """Run the part, again and again."""
        pause = FIRST_PAUSE_S
        while True:
            await self._session.connected()
            began = self._loop.time()
            if await self._run_once():
                pause = FIRST_PAUSE_S
                continue
            if self._loop.time() - began >= STEADY_S:
                pause = FIRST_PAUSE_S
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _run_once(self) -> bool:
        """Run the part once; return whether it ended only because its session did."""
        expired = self._session.expired
        running = self._loop.create_task(self._until_it_ends(), name=self.name)
        session_end = self._loop.create_task(expired.wait())
        self._task = running
        steady = self._loop.call_later(FIRST_PAUSE_S, self._is_up)
        try:
            await asyncio.wait({running, session_end}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            steady.cancel()
            for task in (running, session_end):
                task.cancel()
            await asyncio.gather(running, session_end, return_exceptions=True)
            self._task = None
            self._down_since = self._loop.time() if self._down_since is None else self._down_since
        return self._judge(running, expired.is_set())

    def _is_up(self) -> None:
        self._down_since = None

    async def _until_it_ends(self) -> None:
        await self._run()

    def _judge(self, running: asyncio.Task[None], expired: bool) -> bool:
        error = None if running.cancelled() else running.exception()
        if expired:
            self._last_error = ""
            _log.warning("metadata session expired: the part begins again in the next one", part=self.name)
            return True
        self._last_error = "it ended by itself" if error is None else one_line(repr(error))
        _log.error("part of auto-recovery ended, it begins again", part=self.name, exc_info=error)
        return False


async def cancel_and_wait(tasks: list[asyncio.Task[None]]) -> None:
    """End these, whatever they do."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class AutoRecoveryStatus:
    """This process's part of auto-recovery."""

    session: SessionState
    parts: tuple[PartStatus, ...]
    complaint: str | None
    worker: WorkerStatus


class AutoRecovery:
    """`start`, `stop`; once. `parts`: by name, what works until it is cancelled."""

    def __init__(
        self,
        session: Session,
        parts: Mapping[str, Callable[[], Awaitable[None]]],
        worker: WorkerProgress,
        worker_complaint: Callable[[], str | None] = lambda: None,
        *,
        watch_interval: float = WATCH_INTERVAL_S,
    ) -> None:
        self._session = SessionWatch(session)
        self._reopen_after = max(SHORTEST_REOPEN_S, REOPEN_AFTER * session.default_timeout)
        self._parts = [SupervisedPart(name, run, self._session) for name, run in parts.items()]
        self._worker = worker
        self._worker_complaint = worker_complaint
        self._interval = watch_interval
        self._tasks: list[asyncio.Task[None]] = []
        self._told: str | None = None
        """The complaint that was logged; a bookie goes on watching, whatever `watch` returns."""

    async def start(self) -> None:
        """Begin; returns at once."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(part.keep(), name=f"keeper of the {part.name}") for part in self._parts]

    async def stop(self) -> None:
        """End all parts: locks are given back, the vote is taken back. Calling it again is fine."""
        tasks, self._tasks = self._tasks, []
        await cancel_and_wait(tasks)
        self._session.close()

    async def watch(self) -> str:
        """Look after the parts until the session is beyond hope, or a part is `dead`; returns why."""
        while True:
            complaint = self.complaint()
            if (complaint is None) != (self._told is None):
                if complaint is not None:
                    _log.error("auto-recovery does not work", reason=complaint)
                else:
                    _log.info("auto-recovery works again")
            self._told = complaint
            if (dead := self.dead()) is not None:
                return dead
            if self._session.away() >= self._reopen_after:
                return f"no connection to the metadata service for {self._session.away():.0f} s"
            await asyncio.sleep(self._interval)

    def complaint(self) -> str | None:
        """Return what is wrong in one line, for probes; None: nothing."""
        if (dead := self.dead()) is not None:
            return dead
        for part in self._parts:
            if (complaint := part.complaint()) is not None:
                return complaint
        idle = self._worker.clock() - self._worker.moved_at
        if self._worker.is_busy() and idle >= STUCK_S:
            return f"the replication worker is stuck: it works on ledgers without progress for {idle:.0f} s"
        return self._worker_complaint()

    def dead(self) -> str | None:
        """Return which part will not be started again, and why; None: all are kept. Only another process brings it
        back."""
        for part, task in zip(self._parts, self._tasks, strict=False):
            if task.done():
                return f"the {part.name} is dead: {_why(task)}"
        return None

    def status(self) -> AutoRecoveryStatus:
        """A snapshot."""
        return AutoRecoveryStatus(
            self._session.state,
            tuple(part.status() for part in self._parts),
            self.complaint(),
            self._worker.status(),
        )


def _why(task: asyncio.Task[None]) -> str:
    if task.cancelled():
        return "it was cancelled"
    error = task.exception()
    return "it ended" if error is None else one_line(repr(error))
