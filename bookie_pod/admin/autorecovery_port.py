"""What the admin API needs of auto-recovery, in the words of its answers. The node implements the port.

Event loop only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol

from bookie_protocol.admin_api.autorecovery import AutoRecoveryProcessState, CheckSummary

CheckName = Literal["bookies", "ledgers", "placement", "replicas"]


class AutoRecoveryPort(Protocol):
    """Auto-recovery of the cluster, through the metadata service, and of this process."""

    async def is_enabled(self) -> bool: ...
    async def set_enabled(self, enabled: bool) -> None:
        """What is so already stays so."""
        ...

    async def auditor(self) -> str | None: ...
    def marks(self, missing: str | None, excluding: str | None) -> AsyncGenerator[tuple[int, Sequence[str]], None]:
        """Marked ledgers and the bookies that their marks name: with `missing` among them, without `excluding`."""
        ...

    async def delay(self) -> int | None:
        """Seconds; None: nobody set it."""
        ...

    async def set_delay(self, seconds: int) -> None: ...
    async def trigger_audit(self) -> None:
        """`Refused` where it would be in vain."""
        ...

    async def checks(self) -> Sequence[CheckSummary]: ...
    async def force_checks(self, checks: Sequence[CheckName]) -> None:
        """Run them now."""
        ...

    def here(self) -> AutoRecoveryProcessState | None:
        """None: this process does not run auto-recovery."""
        ...
