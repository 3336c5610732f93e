"""Everything about integrity that runs beside a serving bookie: the scrubber, and the repair of what it finds.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bookie_pod.config.model import BookieConfig
from bookie_pod.ledgers.operations import LedgerOperations
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.scrub import ScrubInstruments
from bookie_pod.node.background import BackgroundTasks
from bookie_pod.node.gc.metadata import LoopGcMetadata
from bookie_pod.node.integrity.local_copies import LocalCopies
from bookie_pod.node.integrity.repair import ScrubRepair
from bookie_pod.node.integrity.scrubbing import AfterPass, make_scrubber
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.integrity.scrub import Scrubber
from bookie_protocol.metadata_service.interface import MetadataService

if TYPE_CHECKING:
    from bookie_pod.node.integrity.replicas import Replicas


@dataclass(frozen=True, slots=True)
class IntegrityParts:
    """What integrity needs of the bookie."""

    config: BookieConfig
    files: Files
    storage: LedgerStorage
    operations: LedgerOperations
    collectors: Sequence[GarbageCollector]
    metadata: MetadataService
    blocking_metadata: LoopGcMetadata
    registry: Registry
    tasks: BackgroundTasks
    under_pressure: Callable[[], bool]
    """Clients wait for the disks. Any thread."""
    writable: Callable[[], bool]
    """The disks have room for adds of recovery."""


class Integrity:
    """One per bookie: made before it serves, so that nobody reads what is known to be damaged."""

    def __init__(self, parts: IntegrityParts) -> None:
        self._parts = parts
        self._copies = LocalCopies(parts.operations, busy=parts.under_pressure, writable=parts.writable)
        self._replicas: Replicas | None = None
        self._connecting = asyncio.Lock()
        self.scrubber: Scrubber = make_scrubber(
            parts.config,
            parts.files,
            parts.storage,
            parts.collectors,
            parts.blocking_metadata,
            parts.registry,
            parts.under_pressure,
            self._after_pass,
        )

    def _after_pass(self, instruments: ScrubInstruments) -> AfterPass | None:
        parts = self._parts
        if not parts.config.integrity.local_scrub_repair:
            return None
        repair = ScrubRepair(self.replicas, self._copies, parts.storage.flush, instruments)
        return parts.tasks.on_loop(lambda found: parts.tasks.run(repair.run(found)))

    async def replicas(self) -> Replicas:
        """The copies on other bookies; connected when they are needed first. Raises MetadataUnavailable."""
        async with self._connecting:
            if self._replicas is None:
                from bookie_pod.node.integrity.replicas import Replicas  # takes a while to load, and is rarely needed

                replicas = Replicas(self._parts.metadata, self._parts.blocking_metadata.bookie_id)
                await replicas.start()
                self._replicas = replicas
            return self._replicas

    def start(self) -> None:
        """The bookie serves."""
        self.scrubber.start()

    async def stop(self) -> None:
        """End what runs, at the next safe place."""
        await asyncio.to_thread(self.scrubber.stop)
        if self._replicas is not None:
            await self._replicas.close()
