"""The parts of the admin API: a room for each subject, in a process with a bookie and in one without.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from bookie_pod.admin.autorecovery import AutoRecoveryView
from bookie_pod.admin.bookie import ThisBookie
from bookie_pod.admin.client import ClusterClient
from bookie_pod.admin.cluster import ClusterView
from bookie_pod.admin.cookies import StoredCookies
from bookie_pod.admin.decommission_jobs import Decommissions
from bookie_pod.admin.facts import FactsView
from bookie_pod.admin.gc import Collectors
from bookie_pod.admin.index import IndexCompactions
from bookie_pod.admin.ledger_search import LedgerFinder
from bookie_pod.admin.ledgers import ClusterLedgers
from bookie_pod.admin.sanity import SanityTest
from bookie_pod.admin.settings import Settings
from bookie_pod.admin.streams import StreamsView
from bookie_pod.admin.watching import Watching
from bookie_pod.config.model import BookieConfig
from bookie_pod.node.garbage_collection import GarbageCollection
from bookie_pod.node.integrity.service import Integrity
from bookie_pod.node.metadata_witness import MetadataWitness
from bookie_pod.node.mode import BookieMode
from bookie_pod.node.registration import RegistrationManager
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.status import NodeStatus
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.files import Files
from bookie_pod.storage.journal.journal import Journal
from bookie_protocol.metadata_service.interface import MetadataService

if TYPE_CHECKING:
    from bookie_pod.autorecovery.start import RunningAutoRecovery


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBookie:
    """The parts of a bookie that serves."""

    config: BookieConfig
    """Configuration with which it started."""
    files: Files
    metadata: MetadataService
    bookie_id: str
    port: int
    address: str
    """Host and port that clients get."""
    storage: LedgerStorage
    journals: Sequence[Journal]
    gc: GarbageCollection
    witness: MetadataWitness
    integrity: Integrity
    mode: BookieMode
    registration: RegistrationManager
    status: NodeStatus
    flush: Callable[[], Awaitable[None]]
    """Makes everything durable that was acknowledged."""
    find_auto_recovery: Callable[[], RunningAutoRecovery | None] = lambda: None
    """Auto-recovery, if this bookie runs it and it has started."""


class ClusterRooms:
    """The part of the API that any process serves: the cluster, and auto-recovery here. Call `stop` before the
    metadata service is closed."""

    def __init__(
        self,
        metadata: MetadataService,
        config: BookieConfig,
        find_auto_recovery: Callable[[], RunningAutoRecovery | None],
    ) -> None:
        self._client = ClusterClient(metadata, config)
        self.cluster = ClusterView(self._client)
        self.ledgers = ClusterLedgers(self._client)
        self.finder = LedgerFinder(metadata)
        self.streams = StreamsView(self._client)
        self.decommission = Decommissions(self._client, config)
        self.cookies = StoredCookies(metadata)
        self.auto_recovery = AutoRecoveryView(metadata, find_auto_recovery)
        self.facts = FactsView(metadata, config)
        self.watching = Watching(metadata, config.http)
        self.own_bookie: str | None = None
        """Id of the bookie of this process; None: it has none."""

    async def stop(self) -> None:
        """End jobs, close the client."""
        await self.watching.stop()
        await self.decommission.stop()
        await self._client.close()


class BookieRooms(ClusterRooms):
    """The bookie besides. `stop` before its storage is closed."""

    def __init__(self, bookie: RunningBookie) -> None:
        super().__init__(bookie.metadata, bookie.config, bookie.find_auto_recovery)
        self.own_bookie = bookie.bookie_id
        self.settings = Settings(bookie.config, bookie.gc.reconfigure)
        self.gc = Collectors(bookie.gc, bookie.witness)
        self.integrity = bookie.integrity
        self.indexes = IndexCompactions(_indexes(bookie.storage))
        self.node = ThisBookie(bookie, self.settings, SanityTest(self._client, bookie.bookie_id))

    async def stop(self) -> None:
        """Wait for a compaction of an index that runs, too."""
        await super().stop()
        await asyncio.to_thread(self.indexes.stop)


def _indexes(storage: LedgerStorage) -> dict[str, Callable[[], None]]:
    if not isinstance(storage, DbLedgerStorage):
        return {}
    return {directory.locations.path: directory.locations.compact for directory in storage.directories}


OfCluster: TypeAlias = Context[ClusterRooms]
OfBookie: TypeAlias = Context[BookieRooms]
"""The context of handlers."""
