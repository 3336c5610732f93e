"""Which findings on a marked ledger a worker acts upon, given the bookies that its mark names.

A mark names bookies whose copies an auditor found missing, after the delay that protects restarts. So a bookie that is
registered nowhere is replaced only if the mark names it; one that went a moment ago is the auditor's business, which
marks the ledger again when the delay is over. (The reference replaces it at once, and fences writers for it.) What a
bookie itself says is missing, or gives damaged, is restored whoever the mark names: it holds no delay up.

A mark may go when nothing of that kind is left, and everything could be seen of the bookies that it names.

Only the writer, or a recovery, may change the last segment of an open ledger. A live writer replaces a lost bookie by
itself at its next add. So a ledger whose last segment lacks copies is left to its writer for the grace period, then
looked at again, and recovered only if nothing changed (`bookie_client.replication.check`). From then on it is
repaired like any other.

What counts is whether copies of the last segment are lost, or its bookie is. Here this differs from the reference: it
also fences a ledger that happens to be marked and has a merely read-only (or restarting) bookie in its last ensemble. A
read-only bookie serves what it has and has told the writer to leave: nothing is lost, nothing has to be copied, and the
mark can go. Fencing would end a sound application's writer for no gain. Bookies that are being emptied are the business
of their decommission, which closes the open ledgers in its way by itself. Nor is a bookie that is registered and does
not answer a reason: it may be back in a moment, and when its session has ended it is lost.

Pure; any thread.

Source: reference auto-recovery, sections 6.2, step 4, and 6.3.
"""

from __future__ import annotations

from collections.abc import Collection

from bookie_client.replication.check import FragmentReport, LedgerReport, ReplicaFinding, ReplicaVerdict

_HOW: dict[ReplicaVerdict, str] = {
    ReplicaVerdict.LOST: "is registered nowhere",
    ReplicaVerdict.MISSING: "lost its copies",
    ReplicaVerdict.DAMAGED: "has damaged copies",
    ReplicaVerdict.UNREACHABLE: "does not answer, so nobody can tell what it has",
}


def is_bad(found: ReplicaFinding, named: Collection[str]) -> bool:
    """A new copy is wanted now."""
    return found.verdict.is_bad and (found.verdict is not ReplicaVerdict.LOST or found.bookie in named)


def bad_positions(report: FragmentReport, named: Collection[str]) -> dict[int, str]:
    """Positions that want a new copy now, and their bookies."""
    return {found.position: found.bookie for found in report.findings if is_bad(found, named)}


def waits_for(report: LedgerReport, named: Collection[str]) -> str | None:
    """Why only the writer of a ledger, or a recovery, can go on with it; None: nothing is wrong at its end."""
    for fragment in report.fragments:
        for found in fragment.findings:
            if not fragment.fragment.is_closed and is_bad(found, named):
                return f"the ledger is {report.metadata.value.state.name}, and {found.bookie} {_HOW[found.verdict]}"
    return None


def what_is_left(report: LedgerReport, named: Collection[str]) -> str | None:
    """Why the mark of a ledger must stay, in one line; None: it may go."""
    if report.lac_error is not None:
        return f"the end of the ledger is not known: {report.lac_error}"
    for fragment in report.fragments:
        for found in fragment.findings:
            unknown = found.verdict is ReplicaVerdict.UNREACHABLE and found.bookie in named
            if unknown or is_bad(found, named):
                where = f"segment at entry {fragment.fragment.first_entry}"
                return f"{where}: {found.bookie} {_HOW[found.verdict]} {found.detail}".rstrip()
    return None


def may_be_read_later(report: FragmentReport, entry_id: int) -> bool:
    """Whether a bookie that should have the entry did not answer: then nobody can say that the entry is lost."""
    return any(position in report.unknown for position in report.fragment.write_set(entry_id))
