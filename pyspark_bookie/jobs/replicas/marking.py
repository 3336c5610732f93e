"""Telling auto-recovery of copies that are missing: marks of the under-replication tree.

Invariants
- Only what was seen twice is marked, and only what the bookie itself said or gave: LOST copies are the auditor's, who
  waits for the delay that protects restarts; what is UNREACHABLE is never marked. NAMED is what a person asked for.
- A ledger whose mark names the bookies already is left as it is, unless somebody has locked it: a worker may be at it,
  and have read the ledger too early. Then the mark is renewed, so that it outlives its round.
- Nothing that was found is dropped because somebody has the ledger's lock, as nobody inspects it again after this job:
  it is marked all the same, which costs a worker another check.
- An ensemble that breaks the placement policy is marked with no bookie named.

Event loop only. Raises `MetadataUnavailable`.

Sources: reference metadata layout, section 10.2; reference auto-recovery, sections 4 and 17.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from enum import Enum

from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable, PodkeeperError
from bookie_protocol.metadata_service.interface import MetadataService
from pyspark_bookie.jobs.replicas.findings import Finding, Verdict

MARKED_VERDICTS = frozenset({Verdict.MISSING, Verdict.DAMAGED, Verdict.DIVERGENT, Verdict.NAMED})


class Marked(Enum):
    """What became of a mark."""

    NEW = "marked"
    ALREADY = "marked before"
    UNREADABLE = "cannot be marked"


async def mark_findings(service: MetadataService, findings: Sequence[Finding]) -> dict[int, Marked]:
    """Mark the ledgers of these findings that want it; what became of each."""
    bookies: dict[int, set[str]] = {}
    for finding in findings:
        if finding.verdict in MARKED_VERDICTS:
            bookies.setdefault(finding.ledger_id, set()).add(finding.bookie)
        elif finding.verdict is Verdict.MISPLACED:
            bookies.setdefault(finding.ledger_id, set())
    return {ledger_id: await mark(service, ledger_id, missing) for ledger_id, missing in sorted(bookies.items())}


async def mark(service: MetadataService, ledger_id: int, missing: Collection[str]) -> Marked:
    """Mark these bookies' copies as missing; none: the placement policy is not met."""
    marks = service.under_replication
    try:
        # The lock first: whoever takes it from now on checks the ledger after this was found.
        is_locked = await marks.locked_by(ledger_id) is not None
        found = await marks.read(ledger_id)
        if (
            found is not None
            and set(missing) <= set(found.replicas)
            and (not is_locked or await marks.renew(ledger_id))
        ):
            return Marked.ALREADY
        await marks.mark(ledger_id, sorted(missing), ctime_ms=int(time.time() * 1000))
    except MetadataUnavailable:
        raise
    except (MetadataDamaged, PodkeeperError):
        return Marked.UNREADABLE
    return Marked.NEW
