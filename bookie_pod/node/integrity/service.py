"""The integrity services that run beside a serving bookie, and the checks before it serves.

They are the scrubber, the repair of what it finds, rebuilds of indexes, and the copying of what was lost.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.journal import current_folders
from bookie_pod.config.sections.network import NetworkConfig
from bookie_pod.ledgers.operations import LedgerOperations
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.scrub import ScrubMetrics
from bookie_pod.node.gc_metadata import LoopGcMetadata
from bookie_pod.node.identity.cookie_check import StoredCookie
from bookie_pod.node.identity.earlier_life import EarlierLife
from bookie_pod.node.identity.published import check_cookies
from bookie_pod.node.integrity.full_check import DataIntegrityCheck, LocalCopies
from bookie_pod.node.integrity.lost_cookies import LostCookies, find_lost_cookies
from bookie_pod.node.integrity.preboot import forget_marks, newest_ledger, run_preboot_check
from bookie_pod.node.integrity.scrubbing import AfterPass, make_rebuilder, make_scrubber
from bookie_pod.node.processes.background import BackgroundTasks
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.index_rebuild.rebuilder import IndexRebuilder
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_pod.storage.integrity.scrub import Scrubber
from bookie_pod.storage.integrity.scrub_part import ScrubPart
from bookie_protocol.errors import PodkeeperError
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from bookie_pod.node.integrity.replicas import Replicas

_log = structlog.get_logger(__name__)

Found = Sequence[tuple[ScrubPart, Damage]]


class ScrubRepair:
    """The repair after a scrub: entries that are damaged here are fetched from other bookies and stored again.

    Invariants
    - A damaged entry stays refused until its new copy is durable here and has a place of its own in the index.
    - One repair at a time; what could not be fetched stays damaged, and the next pass asks for it again.

    `connect()` gives the replicas; `flush()` makes the index rows of new copies durable.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Replicas]],
        copies: LocalCopies,
        flush: Callable[[], None],
        metrics: ScrubMetrics,
    ) -> None:
        self._connect = connect
        self._copies = copies
        self._flush = flush
        self._metrics = metrics
        self._lock = asyncio.Lock()

    async def run(self, found: Found) -> None:
        """Repair what can be repaired. Never raises but for cancellation."""
        wanted: dict[int, list[tuple[ScrubPart, Damage]]] = defaultdict(list)
        for part, damage in found:
            if damage.kind is DamageKind.ENTRY:
                wanted[damage.ledger_id].append((part, damage))
        if not wanted or self._lock.locked():
            return
        async with self._lock:
            try:
                replicas = await self._connect()
            except PodkeeperError as error:
                _log.warning("damaged entries are not repaired now", reason=str(error))
                return
            for ledger_id, damages in wanted.items():
                try:
                    await self._ledger(replicas, ledger_id, damages)
                except PodkeeperError as error:
                    _log.warning("damaged entries of a ledger stay damaged", ledger=ledger_id, reason=str(error))

    async def _ledger(self, replicas: Replicas, ledger_id: int, damages: Found) -> None:
        by_entry = {damage.entry_id: (part, damage) for part, damage in damages}
        metadata = await replicas.metadata(ledger_id)
        stored: list[tuple[ScrubPart, Damage]] = []
        async for found in replicas.fetch(metadata, sorted(by_entry)):
            if found.entry is None:
                _log.warning(
                    "a damaged entry stays damaged", ledger=ledger_id, entry=found.entry_id, reason=str(found.error)
                )
                continue
            await self._copies.store(metadata, found.entry_id, found.entry)
            stored.append(by_entry[found.entry_id])
        await self._copies.settle()
        if not stored:
            return
        await asyncio.to_thread(self._flush)
        for part in {part for part, _ in stored}:
            mine = [damage for other, damage in stored if other is part]
            await asyncio.to_thread(part.repaired, mine)
        self._metrics.repaired(len(stored))
        _log.info("damaged entries were fetched from other bookies", ledger=ledger_id, entries=len(stored))


@dataclass(frozen=True, slots=True)
class IntegrityParts:
    """The parts of the bookie that integrity needs."""

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
    """The integrity services of one bookie, made before it serves, so that no client reads known damage."""

    def __init__(self, parts: IntegrityParts) -> None:
        self._parts = parts
        self._copies = LocalCopies(
            parts.operations, parts.metadata.ledgers, busy=parts.under_pressure, writable=parts.writable
        )
        self._replicas: Replicas | None = None
        self._connecting = asyncio.Lock()
        self.data_check = DataIntegrityCheck(
            parts.storage,
            parts.operations.ledgers,
            parts.metadata.ledgers,
            parts.blocking_metadata.bookie_id,
            self.replicas,
            self._copies,
        )
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
        self.rebuilder: IndexRebuilder = make_rebuilder(
            parts.config,
            parts.files,
            parts.storage,
            parts.collectors,
            parts.blocking_metadata,
            parts.registry,
            parts.under_pressure,
            parts.tasks.on_loop(self.data_check.request),
        )
        self.checks_data = parts.config.integrity.data_integrity_checking
        """True if the configuration asks for the check; a bookie that lost everything checks all the same."""
        parts.registry.scope("bookie").gauge("LEDGERS_IN_LIMBO", lambda: float(self.data_check.state.in_limbo))

    def _after_pass(self, instruments: ScrubMetrics) -> AfterPass:
        parts = self._parts
        repair = ScrubRepair(self.replicas, self._copies, parts.storage.flush, instruments)

        def on_loop(found: Found) -> None:
            self.data_check.request_if_doubted()
            if parts.config.integrity.local_scrub_repair:
                parts.tasks.assist("scrub repair", lambda: repair.run(found))

        return parts.tasks.on_loop(on_loop)

    async def replicas(self) -> Replicas:
        """The copies on other bookies; connected when they are needed first. Raises MetadataUnavailable."""
        async with self._connecting:
            if self._replicas is None:
                # These take a while to load, and are rarely needed.
                from bookie_pod.client_options import client_options
                from bookie_pod.node.integrity.replicas import Replicas

                parts = self._parts
                options = client_options(parts.config)
                replicas = Replicas(parts.metadata, parts.blocking_metadata.bookie_id, options)
                await replicas.start()
                self._replicas = replicas
            return self._replicas

    def start(self) -> None:
        """The bookie serves."""
        self.scrubber.start()
        self._parts.tasks.assist("data integrity check", self.data_check.serve)

    async def stop(self) -> None:
        """End what runs, at the next safe place."""
        await asyncio.to_thread(self.rebuilder.close)
        await asyncio.to_thread(self.scrubber.stop)
        if self._replicas is not None:
            await self._replicas.close()


async def check_cookies_and_find_losses(
    config: BookieConfig, metadata: MetadataService, files: Files, bookie_id: str, address: NetworkConfig
) -> tuple[LostCookies | None, StoredCookie]:
    """Return the check of cookies at the start; with `dataIntegrityChecking` it may leave some to be stamped by
    `check_losses`. Return those, and the stored cookie. Raises InvalidCookie, MetadataUnavailable."""
    if config.integrity.data_integrity_checking:
        lost = await find_lost_cookies(config, metadata, files, bookie_id, address)
        if lost is not None:
            return lost, replace(lost.stored, cookie=lost.expected)
    return None, await check_cookies(config, metadata, files, bookie_id, address)


async def check_losses(
    config: BookieConfig,
    metadata: MetadataService,
    files: Files,
    storage: LedgerStorage,
    bookie_id: str,
    lost: LostCookies | None,
    set_back: Sequence[str],
    *,
    unclean: bool,
) -> int:
    """Put in limbo what may be lost, between opening the storage and replaying the journals. `set_back`: folders that
    are of an earlier time.

    Returns the highest id of a ledger that may be older than what this bookie holds; -1: none is. Raises InvalidCookie,
    MetadataError, StorageFault.
    """
    earlier = EarlierLife(files, current_folders(config.directories.ledger))
    if config.integrity.accept_earlier_disks:
        _log.warning(
            "directories that were set back count, and what they lost is denied: remove acceptEarlierDisks after the"
            " first start",
            folders=set_back,
        )
    if lost is not None:
        reason = f"cookies were lost: {', '.join(lost.missing) or 'in the metadata service'}"
    elif set_back and not config.integrity.accept_earlier_disks:
        reason = (
            f"{', '.join(set_back)} was set back to an earlier time, and what was stored since is not there (if the"
            " whole cluster was restored, restore it again and start with acceptEarlierDisks=true)"
        )
    elif config.integrity.data_integrity_checking and unclean and not config.journal.write_data:
        reason = "the bookie did not stop cleanly, and its journal holds no entries (journalWriteData=false)"
    elif await asyncio.to_thread(earlier.is_unknown):
        reason = "the bookie is new, and ledgers name an earlier one of its id"
    else:
        return await asyncio.to_thread(earlier.newest)
    newest = await doubt_everything(config, metadata, files, storage, bookie_id, reason)
    if lost is not None:
        journals = current_folders(config.directories.journal)
        ledgers = current_folders(config.directories.ledger)
        gone = [folder for folder in journals if folder in lost.missing]
        if gone:
            await asyncio.to_thread(forget_marks, files, journals, ledgers)
        await lost.stamp()
    return newest


async def doubt_everything(
    config: BookieConfig, metadata: MetadataService, files: Files, storage: LedgerStorage, bookie_id: str, reason: str
) -> int:
    """Put every ledger in limbo that the metadata place here: what is lost may be of any. Durable on return.

    Returns what `check_losses` does. Raises MetadataError, StorageFault."""
    earlier = EarlierLife(files, current_folders(config.directories.ledger))
    newest = await newest_ledger(metadata.ledgers)
    await run_preboot_check(storage, metadata.ledgers, bookie_id, reason)
    await asyncio.to_thread(earlier.note, newest)
    return newest
