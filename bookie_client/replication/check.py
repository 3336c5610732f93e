"""Checking a ledger: which of its replicas are there.

    report = await LedgerChecker(client, CheckOptions(verification_percentage=10)).check(ledger_id)
    for fragment in report.bad_fragments:
        print(fragment.fragment.first_entry, fragment.bad)

Of each position the first and the last entry that striping puts there are read from exactly that bookie, and of those
between them as many percent as asked for, one at random of each equal part.

Invariants
- A bookie that does not answer, or cannot tell, is unreachable and never bad. Only its own word, its absence from the
  registry (see `registration`) or bytes that are not the entry make a replica bad.
- Digests are verified with the password that the ledger recorded. Where none is recorded, ids alone are compared.
- Entries behind the last add confirmed of an open ledger are not looked at: they are their writer's.
- Total loss is told: every position that should hold an entry and denies it is MISSING, also where the segment has but
  this one entry.
- At most `max_reads` reads are under way, and all pass the throttle.

Event loop only.

Source: reference auto-recovery, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie_client.client import Client
from bookie_client.replication.report import LedgerReport
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """How thorough a check is."""

    verification_percentage: int = 0
    """Of the entries between the first and the last (`auditorLedgerVerificationPercentage`); 100: all."""
    max_reads: int = 100
    """Reads under way (`inFlightReadEntryNumInLedgerChecker`, where -1 stands for no limit)."""
    throttle: ReplicationThrottle = field(default_factory=ReplicationThrottle)

    def __post_init__(self) -> None:
        if not 0 <= self.verification_percentage <= 100:
            raise BadRequest(f"verification_percentage must be from 0 to 100, not {self.verification_percentage}")
        if self.max_reads < 1:
            raise BadRequest(f"max_reads must be at least 1, not {self.max_reads}")


class LedgerChecker:
    """Checks ledgers, any number at the same time, within one bound of reads."""

    def __init__(self, client: Client, options: CheckOptions | None = None) -> None:
        self._client = client
        self.options = options or CheckOptions()

    async def check(self, ledger_id: int) -> LedgerReport:
        """Look at every fragment of a ledger.

        Raises `NoSuchLedger` (it was deleted), `MetadataUnavailable`, `MetadataDamaged`. What single bookies answer is
        in the report.
        """
        raise AssertionError("committed for its signature")
