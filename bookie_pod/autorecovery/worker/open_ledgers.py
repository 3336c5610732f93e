"""Ledgers that are not closed: when their writer is waited for, and when it is fenced.

Only the writer, or a recovery, may change the last segment of an open ledger. A live writer replaces a lost bookie by
itself at its next add. So a ledger whose last segment lacks copies is left to its writer for the grace period, then
looked at again, and recovered only if nothing changed: fenced, and closed at its true end. From then on it is repaired
like any other.

What counts is whether copies of the last segment are lost, or its bookie is lost (`judgement`). Here this differs from
the reference, which also fences a ledger that happens to be marked and has a merely read-only (or restarting) bookie in
its last ensemble. A read-only bookie serves what it has and has told the writer to leave: nothing is lost, nothing has
to be copied, and the mark can go. Fencing would end a sound application's writer for no gain. Bookies that are being
emptied are the business of their decommission, which closes the open ledgers in its way by itself. Nor is a bookie that
is registered and does not answer a reason: it may be back in a moment, and when its session has ended it is lost. A
ledger is really blocked only when its writer has not left a lost bookie within the grace period.

A bookie that denies entries which were confirmed has lost data, perhaps the last entry too. During the recovery its
"no such entry" counts for nothing, so that no ledger is closed below an entry that was acknowledged.

Event loop only.

Source: reference auto-recovery, sections 6.2, step 4, and 6.3.
"""

from __future__ import annotations

from bookie_client.access import access_to
from bookie_client.client import Client
from bookie_client.recovery.recovery import recover_ledger
from bookie_client.replication.report import LedgerReport
from bookie_pod.autorecovery.worker.judgement import denying
from bookie_protocol.digest import DigestType


async def recover(client: Client, report: LedgerReport) -> None:
    """Fence and close the ledger. Raises as `recover_ledger`; after `RecoveryFailed` it can be tried again."""
    stored = await client.stored_metadata(report.ledger_id)
    access = access_to(stored.value, None, DigestType.CRC32C)
    await recover_ledger(client.context, stored, access, denying(report))
