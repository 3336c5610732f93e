"""The one rule of healing: which copies want work, given why a ledger is marked, and when its mark may go.

A mark is removed only if a check answered everything that it asks for (`LedgerChecker.check` with its findings), and no
bookie reports a missing or damaged copy. Workers, the auditor's withdrawals and the Spark job go by this rule and by no
other.

- A bookie that is registered nowhere is replaced only if the mark names it. One that went a moment ago is the auditor's
  business, which marks the ledger again when the delay that protects restarts is over. In a segment that is not closed
  the mark has to say that it is absent: no writer is fenced for a bookie that was marked for entries that it lacks, and
  that restarts again.
- No writer is fenced for copies that are missing or damaged while its ack quorum of every entry is left.
- A bookie that cannot tell what it holds is replaced only if that was found before.
- What a bookie itself says is missing, or gives damaged, is restored whichever bookies the mark names: it holds no
  delay up.
- Of the bookies that the mark names everything must have been seen. What others cannot tell is another finding.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from bookie_client.replication.check import FAULTS, FragmentReport, LedgerReport, ReplicaFinding, ReplicaVerdict
from bookie_protocol.metadata_service.findings import Finding, Reason, Trouble

_HOW: Final = {
    ReplicaVerdict.LOST: "is registered nowhere",
    ReplicaVerdict.MISSING: "lost its copies",
    ReplicaVerdict.DAMAGED: "has damaged copies",
    ReplicaVerdict.DIVERGENT: "has copies that differ from the others",
    ReplicaVerdict.UNREACHABLE: "does not answer, so nobody can tell what it has",
    ReplicaVerdict.UNTOLD: "cannot tell what it has",
}

REASONS: Final = {
    ReplicaVerdict.LOST: Reason.ABSENT,
    ReplicaVerdict.MISSING: Reason.MISSING,
    ReplicaVerdict.DAMAGED: Reason.DAMAGED,
    ReplicaVerdict.DIVERGENT: Reason.DIVERGENT,
    ReplicaVerdict.UNTOLD: Reason.UNTOLD,
}
"""The reason that a mark gives for a bookie, by the verdict on it."""

_GONE: Final = {Reason.ABSENT, Reason.UNKNOWN}
"""Reasons after which a bookie that is registered nowhere counts as lost everywhere; Java's auditors record none."""


def _is_bad(found: ReplicaFinding, doubts: Collection[Finding], *, is_closed: bool) -> bool:
    """Return True if a new copy is wanted now. `is_closed`: whether the segment is."""
    reasons = {each.reason for each in doubts if each.bookie == found.bookie}
    if found.verdict is ReplicaVerdict.LOST:
        return bool(reasons if is_closed else reasons & _GONE)
    if found.verdict is ReplicaVerdict.UNTOLD:
        return Reason.UNTOLD in reasons
    return found.verdict.is_bad


def bad_positions(report: FragmentReport, doubts: Collection[Finding]) -> dict[int, str]:
    """Positions that want a new copy now, and their bookies."""
    is_closed = report.fragment.is_closed
    return {found.position: found.bookie for found in report.findings if _is_bad(found, doubts, is_closed=is_closed)}


def findings_of(report: FragmentReport, positions: Collection[int]) -> list[Finding]:
    """Return the findings that a mark of these positions contains."""
    return [
        Finding(
            found.bookie, REASONS[found.verdict], () if found.entry_id is None else ((found.entry_id, found.entry_id),)
        )
        for found in report.findings
        if found.position in positions
    ]


def faulty_entries(report: FragmentReport) -> set[int]:
    """Entries of which some copy was seen to be missing or wrong."""
    return {found.entry_id for found in report.findings if found.verdict in FAULTS and found.entry_id is not None}


def waits_for(report: LedgerReport, doubts: Collection[Finding]) -> str | None:
    """Return why only the writer of a ledger, or a recovery, can continue it: a bookie of its end is lost, or fewer
    good copies are left there than the ack quorum. None: neither is so."""
    last = report.fragments[-1]
    if last.fragment.is_closed:
        return None
    bad, quorums = bad_positions(last, doubts), last.fragment.quorums
    most = max(len(bad.keys() & set(quorums.write_set(start))) for start in range(quorums.ensemble))
    for found in last.findings:
        if found.position in bad and (found.verdict is ReplicaVerdict.LOST or most > quorums.write - quorums.ack):
            return f"the ledger is {report.metadata.value.state.name}, and {found.bookie} {_HOW[found.verdict]}"
    return None


def what_is_left(report: LedgerReport, doubts: Collection[Finding]) -> str | None:
    """Return why the mark of a ledger must stay, in one line; None if it may be removed."""
    if report.lac_error is not None:
        return f"the end of the ledger is not known: {report.lac_error}"
    named = {each.bookie for each in doubts}
    for fragment in report.fragments:
        for found in fragment.findings:
            unsettled = found.verdict.is_unknown or found.verdict is ReplicaVerdict.LOST
            if (unsettled and found.bookie in named) or found.verdict in FAULTS:
                where = f"segment at entry {fragment.fragment.first_entry}"
                return f"{where}: {found.bookie} {_HOW[found.verdict]} {found.detail}".rstrip()
    return _behind_the_end(report, doubts)


def _behind_the_end(report: LedgerReport, doubts: Collection[Finding]) -> str | None:
    """Entries behind the last add confirmed of an open ledger are not compared: their copies are read alone, by
    `replication.tail`."""
    metadata = report.metadata.value
    if metadata.is_closed:
        return None
    for each in doubts:
        compares = each.reason is Reason.DIVERGENT and each.bookie in metadata.last_ensemble
        if compares and each.runs and each.runs[-1][1] > report.lac:
            return f"entry {each.runs[-1][1]} of {each.bookie} lies behind the last add confirmed, {report.lac}"
    return None


def trouble_of(report: LedgerReport) -> Trouble:
    """The kind of a failure, as far as a look at the ledger tells: whether any bookie said something of its copies."""
    silent = (ReplicaVerdict.LOST, ReplicaVerdict.EMPTY, ReplicaVerdict.UNREACHABLE)
    verdicts = [found.verdict for each in report.fragments for found in each.findings]
    nobody = ReplicaVerdict.UNREACHABLE in verdicts and all(verdict in silent for verdict in verdicts)
    return Trouble.UNREACHABLE if nobody else Trouble.OTHER


def registered(report: FragmentReport) -> frozenset[str]:
    """Return the bookies that were registered at the look: what they do not tell now they may tell later."""
    return frozenset(found.bookie for found in report.findings if found.verdict is not ReplicaVerdict.LOST)


def may_be_read_later(report: FragmentReport, entry_id: int) -> bool:
    """Return True if a bookie that should have the entry did not answer: the entry cannot be called lost then."""
    return any(position in report.unknown for position in report.fragment.write_set(entry_id))
