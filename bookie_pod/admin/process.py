"""The admin API of a process without a bookie: what is about the cluster, and about auto-recovery here.

Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bookie_pod.admin.autorecovery_view import AutoRecoveryView
from bookie_pod.admin.client import AdminClient
from bookie_pod.admin.cluster_ledgers import ClusterLedgers
from bookie_pod.admin.cluster_view import ClusterView
from bookie_pod.admin.decommission_jobs import Decommissions
from bookie_pod.admin.facts_view import FactsView
from bookie_pod.admin.ports import AdminPorts
from bookie_pod.config.model import BookieConfig
from bookie_protocol.errors import Refused
from bookie_protocol.metadata_service.interface import MetadataService

if TYPE_CHECKING:
    from bookie_pod.autorecovery.start import RunningAutoRecovery


class ProcessAdministration:
    """`ports`; `stop` before the metadata service is closed."""

    def __init__(
        self, metadata: MetadataService, config: BookieConfig, find: Callable[[], RunningAutoRecovery | None]
    ) -> None:
        self._client = AdminClient(metadata, config)
        self._decommissions = Decommissions(self._client, config)
        none: Any = _NoBookie()
        self.ports = AdminPorts(
            node=none,
            gc=none,
            integrity=none,
            settings=none,
            cluster=ClusterView(self._client),
            ledgers=ClusterLedgers(self._client),
            decommission=self._decommissions,
            auto_recovery=AutoRecoveryView(metadata, find),
            facts=FactsView(metadata, config),
        )

    async def stop(self) -> None:
        """End jobs, close the client."""
        await self._decommissions.stop()
        await self._client.close()


class _NoBookie:
    """Stands for the ports of a bookie, which no path that is served here asks for."""

    def __getattr__(self, name: str) -> Any:
        raise Refused("this process runs no bookie")
