"""The blocking steps that bring a bookie's storage up: opened, filled from the journals, checked.

Invariants
- A cancelled start ends only after the step that runs has: the step uses what would be closed. A long step asks
  `cancelled` now and then and ends early; as long as it asks it makes progress.
- With `localConsistencyCheckOnStartup` a row that does not lead to its entry ends the start. An entry without a row
  does not: that is also what a ledger leaves that was removed from this bookie and came back; it is logged.

Threads: event loop; the steps, and `cancelled`, which they ask, run on threads of their own.

Source: docs/internals/bookie-behaviour.md, section 8.2; docs/internals/on-disk-formats.md, section 14.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, Final, TypeVar

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.journal import current_folders
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.integrity.scrubbing import finish_rebuilds
from bookie_pod.node.parts import StorageSide, open_storage_side
from bookie_pod.node.recovery import ReplayCancelled, ReplayedJournals, replay_journals
from bookie_pod.storage.disks import give_up_reserves
from bookie_pod.storage.engines.interface import LedgerStorage, OnLoop
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.storage import collected
from bookie_pod.storage.integrity.consistency import ConsistencyCheck, ConsistencyReport, FindingKind
from bookie_protocol.errors import StorageFault

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")
MAX_LOGGED = 20
ASK_CANCELLED_S: Final = 0.5
"""Seconds between two looks at whether the start was given up, in a step that waits."""


class StorageStart:
    """`side` is there after `open`."""

    def __init__(self, config: BookieConfig, files: Files, on_loop: OnLoop, registry: Registry) -> None:
        self.side: StorageSide
        self._config = config
        self._files = files
        self._on_loop = on_loop
        self._registry = registry
        self._steps = BlockingSteps()
        self._tells = False
        """A step runs that asks now and then whether to go on."""

    def step(self) -> object | None:
        """Another one while a replay or a check comes nearer to its end; None: neither goes on."""
        return (self._steps.asked, *self.side.storage.flushing()) if self._tells else None

    async def open(self, phase: str) -> StorageSide:
        """The right engine on the directories, or a refusal. Raises StartupError, StorageFault."""

        def open_it() -> None:
            directories = self._config.directories
            give_up_reserves(self._files, current_folders((*directories.ledger, *directories.index)))
            finish_rebuilds(self._config, self._files)
            self.side = open_storage_side(self._config, self._files, self._on_loop, self._registry)

        await self._steps.run(phase, open_it)
        return self.side

    def close(self) -> None:
        """Blocks. Also while, or before, it was opened in vain."""
        if hasattr(self, "side"):
            self.side.storage.close()

    async def replay(self, phase: str, doubt: Callable[[str], Coroutine[Any, Any, None]]) -> ReplayedJournals:
        """All journals into the storage. `doubt` puts everything in limbo if records of them had to be left out, for a
        reason that it is given."""
        loop = asyncio.get_running_loop()

        def give_up(reason: str) -> None:
            self._steps.wait_for(asyncio.run_coroutine_threadsafe(doubt(reason), loop))

        def replay() -> ReplayedJournals:
            return replay_journals(
                self._files,
                self.side.storage,
                journal_folders=current_folders(self._config.directories.journal),
                ledger_folders=current_folders(self._config.directories.ledger),
                give_up=give_up if self._config.journal.skip_invalid_record else None,
                cancelled=self._steps.cancelled,
            )

        return await self._telling(phase, replay)

    async def check(self, enter: Callable[[str], None]) -> None:
        """`localConsistencyCheckOnStartup`."""
        if self._config.integrity.consistency_check_on_startup:
            phase = "checking the storage"
            enter(phase)
            await self._telling(phase, lambda: check_consistency(self.side.storage, self._steps.cancelled))

    async def _telling(self, phase: str, work: Callable[[], _T]) -> _T:
        self._tells = True
        try:
            return await self._steps.run(phase, work)
        finally:
            self._tells = False


class BlockingSteps:
    """The steps of one start."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self.asked = 0
        """The number of times that a step asked whether to go on."""

    def cancelled(self) -> bool:
        """Return whether the start was given up. Any thread."""
        self.asked += 1
        return self._cancelled.is_set()

    def wait_for(self, asked: Future[None]) -> None:
        """Wait, in a step, for what the event loop does. Raises `ReplayCancelled`, and what that raises."""
        while not asked.done():
            wait([asked], ASK_CANCELLED_S)
            if self.cancelled():
                asked.cancel()
                raise ReplayCancelled("the start was given up")
        asked.result()

    async def run(self, phase: str, work: Callable[[], _T]) -> _T:
        """Run one step; returns and raises what it does."""
        running = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._cancelled.set()
            await asyncio.wait([running])
            if not running.cancelled() and (error := running.exception()) is not None:
                _log.info("start cancelled", phase=phase, reason=str(error))
            raise


class CheckCancelled(StorageFault):
    """Raised when the bookie was stopped while it checked."""


def check_consistency(storage: LedgerStorage, cancelled: Callable[[], bool] = lambda: False) -> ConsistencyReport:
    """Check everything. `StorageFault` with one line if something is damaged."""
    check = ConsistencyCheck(collected(storage), max_findings=MAX_LOGGED)
    while check.step():
        if cancelled():
            raise CheckCancelled("the consistency check was interrupted")
    report = check.report
    for finding in report.findings:
        _log.error("storage is inconsistent", kind=finding.kind.value, detail=finding.detail)
    _log.info(
        "storage checked",
        ledgers=report.ledgers,
        rows=report.rows,
        entries=report.entries,
        damages=report.damages,
        unindexed=report.unindexed,
    )
    if report.damages:
        first = next((found for found in report.findings if found.kind is not FindingKind.NO_ROW), None)
        raise StorageFault(
            f"localConsistencyCheckOnStartup found {report.damages} damages, such as: "
            f"{first.detail if first else 'see the log'}; see `bookie disk check`, and `bookie disk rebuild-locations` "
            "or let the cluster repair this bookie and start it with localConsistencyCheckOnStartup=false"
        )
    return report
