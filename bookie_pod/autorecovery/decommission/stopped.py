"""A bookie that is stopped: the audit that the reference asks for first.

Where auto-recovery runs, its workers and the coordinator then share the ledgers by their locks; where it does not, the
coordinator copies alone.

Threads: event loop.

Source: reference auto-recovery, sections 3.3 and 8.
"""

from __future__ import annotations

from bookie_protocol.errors import Refused
from bookie_protocol.metadata_service.interface import MetadataService


async def trigger_audit(service: MetadataService) -> None:
    """Ask the elected auditor for an audit now. `Refused`: auto-recovery is disabled, or there is no auditor."""
    marks = service.under_replication
    if not await marks.is_enabled():
        raise Refused("auto-recovery is disabled, so no audit can be asked for")
    if await service.auditor_election.current_auditor() is None:
        raise Refused("no auditor is elected, so no audit can be asked for")
    await marks.set_lost_bookie_recovery_delay(await marks.lost_bookie_recovery_delay() or 0)
