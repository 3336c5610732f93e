"""The upkeep of the storage while clients are served: garbage collection, the scrubber, data-integrity checks.

Invariants
- Nothing of it runs before the bookie is registered, and all of it has ended before the storage is closed.
- It gives way while clients wait for the disks (`under_pressure`, which any thread may ask).

Threads: event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from bookie_pod.admin.client import ClusterClient
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.journal import current_folders
from bookie_pod.ledgers.operations import LedgerOperations
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.garbage_collection import GarbageCollection, make_collection
from bookie_pod.node.gc_metadata import LoopGcMetadata
from bookie_pod.node.integrity.service import Integrity, IntegrityParts
from bookie_pod.node.metadata_witness import MetadataWitness
from bookie_pod.node.processes.background import BackgroundTasks
from bookie_pod.server.tcp.read_lanes import ReadLanes
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.files import Files
from bookie_pod.storage.journal.journal import Journal
from bookie_protocol.errors import MetadataError, PodkeeperError
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from bookie_client.replication.check import LedgerChecker

PRESSURE_BYTES: Final = 8 * 1024 * 1024
"""Bytes waiting for one journal's sync from which on what can wait gives way."""
PRESSURE_READ_S: Final = 0.02
"""Seconds from which on a read that is still under way makes it give way: longer than one takes on a disk that has
nothing else to do, rotating ones included."""


class Upkeep:
    """`collection` and `integrity` of one bookie."""

    def __init__(
        self,
        collection: GarbageCollection,
        integrity: Integrity,
        elsewhere: CopiesElsewhere,
        witness: MetadataWitness,
        check_service: Callable[[], Awaitable[None]],
    ) -> None:
        self.witness = witness
        self.check_service: Final = check_service
        """Raises `MetadataError` unless the metadata service is that of this bookie's cluster, and was not put back."""
        self._elsewhere = elsewhere
        self.collection = collection
        self.integrity = integrity

    def steps(self) -> Iterator[tuple[str, object | None]]:
        """The threads, and what each is at; None: nothing."""
        for collector in self.collection.collectors:
            yield collector.step()
        yield "scrubber", self.integrity.scrubber.step()

    def start(self) -> None:
        self.collection.start()
        self.integrity.start()

    async def stop(self) -> None:
        """End at the next safe place."""
        await self.integrity.stop()
        await self.collection.stop()
        await self._elsewhere.close()
        await self.witness.stop()


async def make_upkeep(
    config: BookieConfig,
    files: Files,
    storage: LedgerStorage,
    operations: LedgerOperations,
    journals: Sequence[Journal],
    lanes: Sequence[ReadLanes],
    metadata: MetadataService,
    bookie_id: str,
    instance_id: str | None,
    registry: Registry,
    tasks: BackgroundTasks,
    writable: Callable[[], bool],
) -> Upkeep:
    """Make everything, start nothing but the watch of the metadata service. `instance_id`: that of the bookie's cookie.
    `writable`: whether repairs may be written now."""
    elsewhere = CopiesElsewhere(metadata, config)
    folder = current_folders(config.directories.ledger)[0]
    witness = MetadataWitness(metadata, files, folder, bookie_id, storage.ledger_ids)
    await witness.begin()
    tasks.assist("watch of the metadata service", witness.follow)
    blocking = LoopGcMetadata(
        metadata,
        tasks.loop,
        bookie_id,
        instance_id,
        timeout=2 * config.metadata.zk_timeout_ms / 1000,
        is_whole=elsewhere.is_whole,
        check_history=witness.check,
    )
    busy = under_pressure(journals, lanes)
    collection = make_collection(
        config, files, storage, blocking, registry, busy, operations.ledgers.fenced_and_deleted, blocking.close
    )
    integrity = Integrity(
        IntegrityParts(
            config=config,
            files=files,
            storage=storage,
            operations=operations,
            collectors=collection.collectors,
            metadata=metadata,
            blocking_metadata=blocking,
            registry=registry,
            tasks=tasks,
            under_pressure=busy,
            writable=writable,
        )
    )
    return Upkeep(collection, integrity, elsewhere, witness, blocking.check_service)


def under_pressure(journals: Sequence[Journal], lanes: Sequence[ReadLanes]) -> Callable[[], bool]:
    """Tells whether clients wait for the disks: their adds for a sync, or their reads."""
    return lambda: (
        any(journal.queued_bytes > PRESSURE_BYTES for journal in journals)
        or any(each.waited_s > PRESSURE_READ_S for each in lanes)
    )


class CopiesElsewhere:
    """`is_whole` until `close`."""

    def __init__(self, metadata: MetadataService, config: BookieConfig) -> None:
        self._client = ClusterClient(metadata, config)
        self._config = config
        self._checker: LedgerChecker | None = None

    async def is_whole(self, ledger_id: int) -> bool:
        """Return whether every named bookie is registered, and gives every entry that it should have undamaged.

        All of them are read: a list of entries is no copy. Raises `MetadataError`.
        """
        client = await self._client.get()
        if self._checker is None:
            from bookie_client.replication.check import CheckOptions, LedgerChecker
            from bookie_pod.client_options import copying_throttle

            throttle = copying_throttle(self._config.auto_recovery)
            self._checker = LedgerChecker(client, CheckOptions(verification_percentage=100, throttle=throttle))
        try:
            report = await self._checker.check(ledger_id)
        except MetadataError:
            raise
        except PodkeeperError:
            return False  # deleted meanwhile: the other search's
        return report.is_healthy

    async def close(self) -> None:
        await self._client.close()
