"""Closing a ledger whose writer is gone on behalf of healing, by what a check of it found.

    report = await LedgerChecker(client).check(ledger_id)
    metadata = await close_checked(client, report)

A reader who recovers a ledger believes a bookie that says "no such entry". Healing has to be more careful: it runs
because bookies were lost, and one that came back under its id with empty disks denies entries which were acknowledged.
With its word, and that of bookies which never got them, a ledger could be closed below them. So

- every bookie of an entry's write set is heard before the entry counts as not there, because any copy decides against
  that. A silent bookie is waited for within the time-outs, and then counts for nothing, as everywhere;
- the ledger is checked first, and nothing is closed if the check could not see its end;
- a bookie is not believed about any other entry if it denies confirmed entries, or returns them damaged; if the check
  did not see it; or if the ledger's mark says, or may say, that it lost entries: they may have been filled in since;
- nor is one that the mark names because it was away, and that has nothing of the last segment now. What it denied is
  added to the mark first: the recovery may give it entries, which would look like its own the next time.

Then the recovery fails rather than cuts off, and the ledger stays IN_RECOVERY until a bookie that has the entries is
back. Replication workers, decommissions, `recover`, the data integrity check and the Spark jobs close ledgers in this
way and in no other.

Event loop only.

Source: docs/internals/auto-recovery.md, sections 5 and 6.3.
"""

from __future__ import annotations

import asyncio

from bookie_client.access import LedgerAccess, access_to
from bookie_client.client import Client
from bookie_client.reading.lac import LastEntry
from bookie_client.recovery.recovery import recover_ledger
from bookie_client.replication.check import FAULTS, LedgerReport, ReplicaVerdict
from bookie_protocol.digest import DigestType
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import NotThere, PodkeeperError, RecoveryFailed
from bookie_protocol.ledger_metadata.model import Ensemble, LedgerMetadata
from bookie_protocol.metadata_service.findings import Finding, Reason, distrusted


async def close_checked(client: Client, report: LedgerReport, password: bytes | None = None) -> LedgerMetadata:
    """Return the metadata of the closed ledger. `report`: of a check a moment ago; `password`: None: what the ledger
    recorded.

    Raises as `recover_ledger`; after `RecoveryFailed` it can be tried again, and the error names the way out if bookies
    that lost entries are part of the reason. `MetadataError`: its mark cannot be read, or added to.
    """
    marks = client.metadata_service.under_replication
    mark = await marks.read(report.ledger_id)
    stored = await client.stored_metadata(report.ledger_id)
    if stored.value.is_closed:
        return stored.value
    if report.lac_error is not None:
        raise RecoveryFailed(
            f"ledger {report.ledger_id} is not closed, because its bookies could not be checked first, try again when"
            f" they answer: {report.lac_error}"
        ) from report.lac_error
    access = access_to(stored.value, password, DigestType.CRC32C)
    ensemble = stored.value.last_ensemble
    doubts = () if mark is None else mark.doubts
    lost = denying(report) | distrusted(doubts)
    unproven = sorted(({each.bookie for each in doubts} - lost) & _with_verdicts(report, ReplicaVerdict.EMPTY))
    have_some = await asyncio.gather(*(_has_some(client, report, bookie, access) for bookie in unproven))
    if bare := [bookie for bookie, has_some in zip(unproven, have_some, strict=True) if has_some is False]:
        findings = [Finding(bookie, Reason.MISSING) for bookie in bare]
        await marks.mark(report.ledger_id, ctime_ms=None, findings=findings)
    silent = {bookie for bookie, has_some in zip(unproven, have_some, strict=True) if has_some is None}
    lost |= set(bare)
    doubted = lost | silent | _unseen(report, ensemble)
    try:
        return (await recover_ledger(client.context, stored, access, doubted, hears_all=True)).value
    except RecoveryFailed as error:
        names = ", ".join(sorted(lost.intersection(ensemble)))
        if not names:
            raise
        raise RecoveryFailed(
            f"ledger {report.ledger_id} lost entries on {names}, or may have, so only its other bookies can tell its"
            " end: bring them back, or if they are gone for good, close it behind the last entry that is left by"
            f" `bookie ledger recover {report.ledger_id}` ({error})"
        ) from error


def denying(report: LedgerReport) -> frozenset[str]:
    """Bookies that deny, or cannot read, entries which they must have."""
    return frozenset(
        found.bookie for fragment in report.fragments for found in fragment.findings if found.verdict in FAULTS
    )


# --- inside -----------------------------------------------------------------------------------------------------


async def _has_some(client: Client, report: LedgerReport, bookie: str, access: LedgerAccess) -> bool | None:
    """Return whether a bookie has any entry of the last segment, confirmed or not; None if it does not tell."""
    try:
        answer = await client.operations.read_entry(bookie, report.ledger_id, LAST_ENTRY)
        last = LastEntry.of(access.digest, report.ledger_id, answer.entry)
    except NotThere:
        return False
    except PodkeeperError:
        return None
    return last.entry_id >= report.fragments[-1].fragment.first_entry


def _unseen(report: LedgerReport, ensemble: Ensemble) -> frozenset[str]:
    """Bookies of this last ensemble that the check did not see; they may be back, without their entries."""
    silent = (verdict for verdict in ReplicaVerdict if verdict.is_unknown)
    unseen = _with_verdicts(report, ReplicaVerdict.LOST, *silent)
    return unseen | set(ensemble).difference(report.fragments[-1].fragment.ensemble)


def _with_verdicts(report: LedgerReport, *verdicts: ReplicaVerdict) -> frozenset[str]:
    """Bookies with these verdicts in the last segment."""
    return frozenset(found.bookie for found in report.fragments[-1].findings if found.verdict in verdicts)
