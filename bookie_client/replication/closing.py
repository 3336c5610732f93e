"""Closing a ledger whose writer is gone, on behalf of healing: fence it, find its end, and write that down.

A reader who recovers a ledger believes a bookie that says "no such entry". Who heals has to be more careful: it is
called because bookies were lost, and one that came back under its id with empty disks denies entries which were
acknowledged. With its word, and that of bookies which never got them, a ledger could be closed below them. So the
ledger is checked first, and whoever denies entries that were confirmed, or gives them damaged, is not believed about
any other: then the recovery fails rather than cuts off, and the ledger stays IN_RECOVERY until somebody who knows is
back.

Replication workers, decommissions, `recover`, the data integrity check and the Spark jobs close ledgers in this way and
in no other.

Event loop only.

Source: reference auto-recovery, section 6.3.
"""

from __future__ import annotations

from bookie_client.access import access_to
from bookie_client.client import Client
from bookie_client.recovery.recovery import recover_ledger
from bookie_client.replication.check import LedgerReport, ReplicaVerdict
from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.model import LedgerMetadata


async def close_checked(client: Client, report: LedgerReport, password: bytes | None = None) -> LedgerMetadata:
    """The metadata of the closed ledger. `report`: of a check a moment ago; `password`: None: what the ledger recorded.

    Raises as `recover_ledger`; after `RecoveryFailed` it can be tried again.
    """
    stored = await client.stored_metadata(report.ledger_id)
    access = access_to(stored.value, password, DigestType.CRC32C)
    return (await recover_ledger(client.context, stored, access, denying(report))).value


def denying(report: LedgerReport) -> frozenset[str]:
    """Bookies that deny, or cannot read, entries which they must have."""
    verdicts = (ReplicaVerdict.MISSING, ReplicaVerdict.DAMAGED)
    return frozenset(
        found.bookie for fragment in report.fragments for found in fragment.findings if found.verdict in verdicts
    )
