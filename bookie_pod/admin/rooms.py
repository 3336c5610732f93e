"""The parts of the admin API: a room for each subject, in a process with a bookie and in one without.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from bookie_pod.admin.autorecovery import AutoRecoveryView
from bookie_pod.admin.bookie import RunningBookie, ThisBookie
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
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from bookie_pod.autorecovery.start import RunningAutoRecovery


class ClusterRooms(dict[type, object]):
    """The rooms that any process has, by their types: the cluster, and auto-recovery here. Call `stop` before
    the metadata service is closed."""

    def __init__(
        self,
        metadata: MetadataService,
        config: BookieConfig,
        find_auto_recovery: Callable[[], RunningAutoRecovery | None],
    ) -> None:
        super().__init__()
        self._client = ClusterClient(metadata, config)
        self._watching = Watching(metadata, config.http)
        self._decommissions = Decommissions(self._client, config)
        self._add(
            ClusterView(self._client),
            ClusterLedgers(self._client),
            LedgerFinder(metadata),
            StreamsView(self._client),
            self._decommissions,
            StoredCookies(metadata),
            AutoRecoveryView(metadata, find_auto_recovery),
            FactsView(metadata, config),
            self._watching,
        )

    def _add(self, *rooms: object) -> None:
        self.update({type(room): room for room in rooms})

    async def stop(self) -> None:
        """End jobs, close the client."""
        await self._watching.stop()
        await self._decommissions.stop()
        await self._client.close()


class BookieRooms(ClusterRooms):
    """The rooms of the bookie besides. `stop` before its storage is closed."""

    def __init__(self, bookie: RunningBookie) -> None:
        super().__init__(bookie.metadata, bookie.config, bookie.find_auto_recovery)
        settings = Settings(bookie.config, bookie.gc.reconfigure)
        self.node = ThisBookie(bookie, settings, SanityTest(self._client, bookie.bookie_id))
        self._indexes = IndexCompactions(_indexes(bookie.storage))
        self._add(self.node, settings, Collectors(bookie.gc, bookie.witness), bookie.integrity, self._indexes)

    async def stop(self) -> None:
        """Wait for a compaction of an index that runs, too."""
        await super().stop()
        await asyncio.to_thread(self._indexes.stop)


def _indexes(storage: LedgerStorage) -> dict[str, Callable[[], None]]:
    if not isinstance(storage, DbLedgerStorage):
        return {}
    return {directory.locations.path: directory.locations.compact for directory in storage.directories}
