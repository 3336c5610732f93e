"""Whether a ledger has all the copies that its metadata name: asked of its bookies before a surplus copy goes.

The client is opened by the first ledger that asks for it. Event loop only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie_pod.admin.client import ClusterClient
from bookie_pod.config.model import BookieConfig
from bookie_protocol.errors import MetadataError, PodkeeperError
from bookie_protocol.metadata_service.interface import MetadataService

if TYPE_CHECKING:
    from bookie_client.replication.check import LedgerChecker


class CopiesElsewhere:
    """`is_whole` until `close`."""

    def __init__(self, metadata: MetadataService, config: BookieConfig) -> None:
        self._client = ClusterClient(metadata, config)
        self._config = config
        self._checker: LedgerChecker | None = None

    async def is_whole(self, ledger_id: int) -> bool:
        """Whether every named bookie is registered and has every copy that it should have. Raises `MetadataError`."""
        client = await self._client.get()
        if self._checker is None:
            from bookie_client.replication.check import CheckOptions, LedgerChecker
            from bookie_pod.autorecovery.copy_options import copying_throttle

            throttle = copying_throttle(self._config.auto_recovery)
            self._checker = LedgerChecker(client, CheckOptions(throttle=throttle))
        try:
            named = (await client.metadata(ledger_id)).all_bookies()
            report = await self._checker.check(ledger_id, complete=named)
        except MetadataError:
            raise
        except PodkeeperError:
            return False  # deleted meanwhile: the other search's
        return report.is_healthy

    async def close(self) -> None:
        await self._client.close()
