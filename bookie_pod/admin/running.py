"""Puts together what the HTTP admin API reaches, and takes it down.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bookie_pod.admin.autorecovery_view import AutoRecoveryView
from bookie_pod.admin.client import AdminClient
from bookie_pod.admin.cluster_ledgers import ClusterLedgers
from bookie_pod.admin.cluster_view import ClusterView
from bookie_pod.admin.collectors import Collectors
from bookie_pod.admin.decommission_jobs import Decommissions
from bookie_pod.admin.facts_view import FactsView
from bookie_pod.admin.index_compaction import IndexCompactions
from bookie_pod.admin.integrity_view import IntegrityView
from bookie_pod.admin.ports import AdminPorts
from bookie_pod.admin.sanity import SanityTest
from bookie_pod.admin.settings_view import Settings
from bookie_pod.admin.this_bookie import BookieParts, ThisBookie
from bookie_pod.config.model import BookieConfig
from bookie_pod.node import options
from bookie_pod.node.gc.collection import GarbageCollection
from bookie_pod.node.identity.leaving import is_under_way
from bookie_pod.node.identity.published import check_cookies
from bookie_pod.node.integrity.service import Integrity
from bookie_pod.node.mode import BookieMode
from bookie_pod.node.registration import RegistrationManager
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
    files: Files
    metadata: MetadataService
    bookie_id: str
    port: int
    address: str
    storage: LedgerStorage
    journals: Sequence[Journal]
    gc: GarbageCollection
    integrity: Integrity
    mode: BookieMode
    registration: RegistrationManager
    status: NodeStatus
    flush: Callable[[], Awaitable[None]]
    """A checkpoint now."""
    find_auto_recovery: Callable[[], RunningAutoRecovery | None] = lambda: None
    """Auto-recovery, if this bookie runs it and it has started."""


class Administration:
    """The ports of one bookie; `stop` before its storage is closed."""

    def __init__(self, bookie: RunningBookie) -> None:
        self._client = AdminClient(bookie.metadata, bookie.config)
        self._decommissions = Decommissions(self._client, bookie.config)
        self._indexes = IndexCompactions(_indexes(bookie.storage))
        settings = Settings(bookie.config, bookie.gc.reconfigure)

        async def accept_new_directories(config: BookieConfig) -> None:
            directories = replace(config.directories, allow_storage_expansion=True)
            await check_cookies(
                replace(config, directories=directories),
                bookie.metadata,
                bookie.files,
                bookie.bookie_id,
                options.address_options(bookie.config, bookie.port),
            )

        parts = BookieParts(
            bookie_id=bookie.bookie_id,
            address=bookie.address,
            config=lambda: settings.config,
            started_with=bookie.config,
            files=bookie.files,
            status=bookie.status,
            mode=bookie.mode,
            registration=bookie.registration,
            journals=bookie.journals,
            indexes=self._indexes,
            sanity=SanityTest(self._client, bookie.bookie_id),
            check_cookies=accept_new_directories,
            flush=bookie.flush,
            is_leaving=lambda began_ms: is_under_way(bookie.metadata, bookie.bookie_id, began_ms),
        )
        self.ports = AdminPorts(
            ThisBookie(parts),
            Collectors(bookie.gc),
            IntegrityView(bookie.integrity),
            ClusterView(self._client),
            ClusterLedgers(self._client),
            settings,
            self._decommissions,
            AutoRecoveryView(bookie.metadata, bookie.find_auto_recovery),
            FactsView(bookie.metadata, bookie.config),
        )

    async def stop(self) -> None:
        """Close the client, and wait for a compaction of an index that runs."""
        await self._decommissions.stop()
        await self._client.close()
        await asyncio.to_thread(self._indexes.stop)


def _indexes(storage: LedgerStorage) -> dict[str, Callable[[], None]]:
    if not isinstance(storage, DbLedgerStorage):
        return {}
    return {directory.locations.path: directory.locations.compact for directory in storage.directories}
