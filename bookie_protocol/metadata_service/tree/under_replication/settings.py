"""What all auditors and workers of a cluster agree on: enabled or not, the recovery delay, when checks last ran.

Threads: event loop only.

Sources: reference metadata layout, sections 10, 10.5 and 10.6.
"""

from __future__ import annotations

from bookie_protocol.errors import MetadataExists, MetadataNotFound
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree.nodes import Node, Watch
from bookie_protocol.metadata_service.tree.under_replication import formats, names
from bookie_protocol.metadata_service.tree.under_replication.base import UnderReplicationBase
from bookie_protocol.metadata_service.tree.watching import changes
from bookie_protocol.metadata_service.under_replication import AuditorCheck
from bookie_protocol.metadata_service.versioned import Versioned


class Settings:
    """The nodes beside marks and locks."""

    def __init__(self, base: UnderReplicationBase) -> None:
        self._base = base
        self._tree = base.tree
        self._disable = f"{base.path}/{names.DISABLE}"
        self._delay = f"{base.path}/{names.LOST_BOOKIE_RECOVERY_DELAY}"

    # --- enabled ----------------------------------------------------------------------------------------------

    async def is_enabled(self, timeout: float | None, watch: Watch | None = None) -> bool:
        if await self._tree.exists(self._disable, watch=watch, timeout=timeout) is not None:
            return False
        await self._base.cluster.require(timeout=timeout)
        return True

    async def enable(self, timeout: float | None) -> None:
        try:
            await self._tree.delete(self._disable, timeout=timeout)
        except MetadataNotFound:
            await self._base.cluster.require(timeout=timeout)
            raise MetadataNotFound("auto-recovery is enabled already") from None

    async def disable(self, timeout: float | None) -> None:
        if not await self._base.write(names.DISABLE, b"", timeout, replace=False):
            raise MetadataExists("auto-recovery is disabled already")

    def watch_enabled(self) -> Subscription[bool]:
        return changes(lambda watch: self.is_enabled(None, watch), lambda enabled: enabled)

    # --- delay ------------------------------------------------------------------------------------------------

    async def delay(self, timeout: float | None) -> int | None:
        data = await self._base.read(names.LOST_BOOKIE_RECOVERY_DELAY, timeout)
        return None if data is None else formats.decode_delay(data, self._delay)

    async def initialize_delay(self, seconds: int, timeout: float | None) -> bool:
        return await self._write_delay(seconds, timeout, replace=False)

    async def set_delay(self, seconds: int, timeout: float | None) -> None:
        await self._write_delay(seconds, timeout, replace=True)

    async def _write_delay(self, seconds: int, timeout: float | None, *, replace: bool) -> bool:
        data = formats.encode_delay(seconds)
        return await self._base.write(
            names.LOST_BOOKIE_RECOVERY_DELAY, data, timeout, open_to_all=True, replace=replace
        )

    def watch_delay(self) -> Subscription[Versioned[int] | None]:
        def show(node: Node | None) -> Versioned[int] | None:
            return None if node is None else Versioned(formats.decode_delay(node.data, self._delay), node.stat.version)

        # A node that is made again starts at version 0 again, but not at the same time of creation: it is another one.
        return changes(lambda watch: self._base.cluster.watched(self._delay, watch), show)

    # --- checks -----------------------------------------------------------------------------------------------

    async def check_time(self, check: AuditorCheck, timeout: float | None) -> int | None:
        data = await self._base.read(check.value, timeout)
        return None if data is None else formats.decode_check_time(data, f"{self._base.path}/{check.value}")

    async def set_check_time(self, check: AuditorCheck, time_ms: int, timeout: float | None) -> None:
        await self._base.write(check.value, formats.encode_check_time(check, time_ms), timeout)
