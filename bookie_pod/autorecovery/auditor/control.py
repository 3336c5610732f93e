"""What operators ask of the auditor, wherever it runs: through the metadata service.

Event loop only. Raises `MetadataError`, and `Refused` where the request would be in vain.

Sources: reference auto-recovery, sections 3.3, 4 and 14.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bookie_pod.autorecovery.auditor.runs import AuditRecords, Check, Runs
from bookie_pod.autorecovery.auditor.schedule import wall_clock_ms
from bookie_protocol.errors import MetadataExists, MetadataNotFound, Refused
from bookie_protocol.metadata_service.interface import MetadataService

LONG_AGO_MS: Final = 21 * 86_400_000
"""How far back Apache's shell puts the time of the last run, so that Java's next auditor runs the check at once."""
FORCIBLE: Final = (Check.LEDGERS, Check.PLACEMENT, Check.REPLICAS)


async def set_enabled(service: MetadataService, enabled: bool) -> None:
    """Enable or disable auto-recovery in the whole cluster; what is so already stays so."""
    marks = service.under_replication
    try:
        await (marks.enable() if enabled else marks.disable())
    except (MetadataExists, MetadataNotFound):
        if await marks.is_enabled() is not enabled:
            raise


async def trigger_audit(service: MetadataService) -> str:
    """Have the auditor mark, now, what names anybody who is absent, whatever the delay. Returns the auditor's id."""
    marks = service.under_replication
    if not await marks.is_enabled():
        raise Refused("auto-recovery is disabled: nothing is audited until it is enabled")
    auditor = await service.auditor_election.current_auditor()
    if auditor is None:
        raise Refused("there is no auditor: run auto-recovery somewhere (`bookie autorecovery`)")
    if not await marks.ask_for_audit():
        raise Refused(f"the auditor, {auditor}, has only just been elected: ask again in a moment")
    return auditor


async def force_checks(service: MetadataService, checks: Iterable[Check]) -> None:
    """Have these checks run now: ours at once, Java's when an auditor is elected next."""
    now = wall_clock_ms()
    records = AuditRecords(service)
    for check in checks:
        if check.node is not None:
            await service.under_replication.set_check_time(check.node, now - LONG_AGO_MS)
        await records.request(check, now)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is known of a check, wherever the auditor runs. Times in ms since the epoch; None: never."""

    check: Check
    runs: Runs
    last_complete_ms: int | None
    """As Java's auditors note it too."""
    requested_ms: int | None


async def recorded_checks(service: MetadataService) -> tuple[Recorded, ...]:
    """All checks, as the last auditors left them."""
    records = AuditRecords(service)
    found = []
    for check in Check:
        runs = await records.read(check)
        if check.node is None:
            last = runs.last.finished_ms if runs.last is not None else None
        else:
            last = await service.under_replication.check_time(check.node)
        found.append(Recorded(check, runs, last, await records.requested_ms(check)))
    return tuple(found)
