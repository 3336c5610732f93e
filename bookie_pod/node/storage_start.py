"""The blocking steps that bring a bookie's storage up: opened, filled from the journals, checked.

A stop during one of them waits for it (a replay ends early): nothing is closed under its feet.

Threads: event loop; the steps run on threads of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.node import options
from bookie_pod.node.blocking_steps import BlockingSteps
from bookie_pod.node.consistency_check import check_consistency
from bookie_pod.node.integrity.rebuilding import finish_rebuilds
from bookie_pod.node.parts import StorageSide, open_storage_side
from bookie_pod.node.recovery import ReplayedJournals, replay_journals
from bookie_pod.storage.engines.interface import OnLoop
from bookie_pod.storage.files import Files
from bookie_pod.storage.reserve import give_up_reserves

_T = TypeVar("_T")


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
            give_up_reserves(self._files, options.current_folders((*directories.ledger, *directories.index)))
            finish_rebuilds(self._config, self._files)
            self.side = open_storage_side(self._config, self._files, self._on_loop, self._registry)

        await self._steps.run(phase, open_it)
        return self.side

    def close(self) -> None:
        """Blocks. Also while, or before, it was opened in vain."""
        if hasattr(self, "side"):
            self.side.storage.close()

    async def replay(self, phase: str) -> ReplayedJournals:
        """All journals into the storage."""

        def replay() -> ReplayedJournals:
            return replay_journals(
                self._files,
                self.side.storage,
                journal_folders=options.current_folders(self._config.directories.journal),
                ledger_folders=options.current_folders(self._config.directories.ledger),
                skip_invalid_records=self._config.journal.skip_invalid_record,
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
