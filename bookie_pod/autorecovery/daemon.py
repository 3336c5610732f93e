"""Auto-recovery in one process: a candidate for the auditor and a replication worker, kept running together.

    daemon = AutoRecovery(service.session, {"auditor": auditor.run, "replication worker": worker.run}, progress)
    await daemon.start()
    reason = await daemon.watch()      # the session with the metadata service does not come back: use another one;
                                       # or `dead` tells that a part is not kept any more
    await daemon.stop()

Unlike the reference's it does not end with its session, nor leave a process behind that does nothing: parts begin again
(`supervision`), and what does not come back is told by `complaint`, which the probes of the process show.

Event loop only.

Source: reference auto-recovery, section 1; apache/bookkeeper issues 2302 and 2471 say what an idle one costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from bookie_pod.autorecovery.supervision import PartStatus, SessionWatch, SupervisedPart, cancel_and_wait
from bookie_pod.autorecovery.worker.progress import WorkerProgress, WorkerStatus
from bookie_protocol.metadata_service.interface import Session, SessionState

WATCH_INTERVAL_S: Final = 1.0
REOPEN_AFTER: Final = 6.0
"""So many session time-outs without a connection, and the session is given up."""
SHORTEST_REOPEN_S: Final = 30.0
STUCK_S: Final = 1800.0
"""A worker that works on ledgers and shows no progress for so long is stuck: every request has a time-out."""

_log = structlog.get_logger(__name__)


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
        *,
        watch_interval: float = WATCH_INTERVAL_S,
    ) -> None:
        self._session = SessionWatch(session)
        self._reopen_after = max(SHORTEST_REOPEN_S, REOPEN_AFTER * session.default_timeout)
        self._parts = [SupervisedPart(name, run, self._session) for name, run in parts.items()]
        self._worker = worker
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
        """What is wrong in one line, for probes; None: nothing."""
        if (dead := self.dead()) is not None:
            return dead
        for part in self._parts:
            if (complaint := part.complaint()) is not None:
                return complaint
        idle = self._worker.clock() - self._worker.moved_at
        if self._worker.is_busy() and idle >= STUCK_S:
            return f"the replication worker is stuck: it works on ledgers without progress for {idle:.0f} s"
        return None

    def dead(self) -> str | None:
        """Which part nobody begins again, and why; None: all are kept. It takes another process to bring it back."""
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
    return "it ended" if error is None else " ".join(f"{error!r}".split())
