"""`bookie ledger doctor`: what is wrong with one ledger, and what helps.

It looks at the state of the ledger, the copies of each segment, its mark as under-replicated with what the workers met,
and the streams that list it. It changes nothing: no bookie is asked to fence the ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from bookie_client.replication.check import (
    CheckOptions,
    FragmentReport,
    LedgerChecker,
    LedgerReport,
    ReplicaVerdict,
)
from bookie_client.streams.store import ManifestStore
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.doctor.findings import Finding, State
from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.under_replication import UnderreplicatedLedger
from bookie_protocol.shown import time_text

_READABLE: Final = (ReplicaVerdict.GOOD, ReplicaVerdict.EMPTY)
_RANGES_SHOWN: Final = 4
_REMEDIES: Final = {
    ReplicaVerdict.LOST: "start it, or copy what it held: `bookie cluster recover {bookie}`",
    ReplicaVerdict.UNREACHABLE: "look at its log and at the network: its copies may be complete",
    ReplicaVerdict.UNTOLD: "it heals itself from the other copies; its log says when",
}
_HEALING: Final = "auto-recovery copies them: see `bookie cluster autorecovery status`"


class Examination(NamedTuple):
    """The findings. `could_not_tell`: some copies, or the end of the ledger, could not be looked at."""

    findings: list[Finding]
    could_not_tell: bool


async def examine(cluster: Cluster, ledger_id: int, percentage: int) -> Examination:
    """Look at the ledger, and read so many percent of its entries from each bookie beside the first and the last.

    Raises `NoSuchLedger`, `MetadataUnavailable`, `MetadataDamaged`.
    """
    report = await LedgerChecker(cluster.client, CheckOptions(verification_percentage=percentage)).check(ledger_id)
    findings = [_of_state(report), *_of_copies(report), *_of_bookies(report)]
    mark = await cluster.service.under_replication.read(ledger_id)
    if mark is not None:
        findings.append(await _of_mark(cluster, mark))
    return Examination([*findings, await _of_streams(cluster, ledger_id)], report.cannot_tell)


def _of_state(report: LedgerReport) -> Finding:
    metadata = report.metadata.value
    quorums = f"{metadata.write_quorum_size} copies, ack quorum {metadata.ack_quorum_size}"
    if metadata.is_closed:
        entries = metadata.last_entry_id + 1
        return Finding("state", State.OK, f"closed with {entries:,} entries of {metadata.length:,} bytes; {quorums}")
    if report.lac_error is not None:
        text = f"{metadata.state.value}; its last entry is unknown ({report.lac_error}); {quorums}"
        return Finding("state", State.PROBLEM, text, "start the bookies of its last segment")
    if metadata.state is LedgerState.IN_RECOVERY:
        text = f"fenced, and not closed yet: its writer can append no more; last add confirmed {report.lac}; {quorums}"
        remedy = f"unless a recovery is running: `bookie ledger recover {report.ledger_id}`"
        return Finding("state", State.WARNING, text, remedy)
    return Finding("state", State.OK, f"open for its writer; last add confirmed {report.lac}; {quorums}")


def _of_copies(report: LedgerReport) -> Iterator[Finding]:
    """One finding for each count of copies that is too low, with the segments that have so few."""
    metadata = report.metadata.value
    places: dict[tuple[int, int], list[str]] = defaultdict(list)
    for each in report.fragments:
        if each.fragment.count:
            places[_fewest(each, unknown=False), _fewest(each, unknown=True)].append(_range(each))
    whole = metadata.write_quorum_size
    for (fewest, perhaps), ranges in sorted(places.items()):
        if fewest >= whole:
            continue
        text = f"{_some(ranges)}: {fewest} of {whole} copies can be read"
        if perhaps == 0:
            remedy = "start the bookies that held them; what no bookie has any more is lost"
            yield Finding("copies", State.PROBLEM, text, remedy)
        elif fewest == 0:
            yield Finding("copies", State.PROBLEM, text, "bring the bookies back that do not answer")
        else:
            yield Finding("copies", State.WARNING, text)
    if all(fewest >= whole for fewest, _ in places):
        yield Finding("copies", State.OK, f"each entry has its {whole} copies")


def _fewest(report: FragmentReport, *, unknown: bool) -> int:
    """Return the copies of the entry with the fewest. `unknown` also counts those that could not be checked."""
    counted = {
        found.position
        for found in report.findings
        if found.verdict in _READABLE or (unknown and found.verdict.is_unknown)
    }
    fragment = report.fragment
    stripes = range(
        fragment.first_entry, min(fragment.last_entry, fragment.first_entry + fragment.quorums.ensemble) + 1
    )
    return min(len(counted.intersection(fragment.write_set(entry))) for entry in stripes)


def _of_bookies(report: LedgerReport) -> Iterator[Finding]:
    """One finding for each bookie and verdict, with the segments where it holds."""
    found: dict[tuple[str, ReplicaVerdict], list[tuple[str, str]]] = defaultdict(list)
    for fragment in report.fragments:
        for each in fragment.findings:
            if each.verdict not in _READABLE:
                entry = "" if each.entry_id is None else f"entry {each.entry_id}: "
                found[each.bookie, each.verdict].append((_range(fragment), f"{entry}{each.detail}"))
    for (bookie, verdict), places in sorted(found.items(), key=lambda each: (each[0][0], each[0][1].value)):
        text = f"{verdict.value}, {_some([ranges for ranges, _ in places])}"
        if places[0][1]:
            text += f" ({places[0][1]})"
        yield Finding(f"bookie {bookie}", State.WARNING, text, _REMEDIES.get(verdict, _HEALING).format(bookie=bookie))


async def _of_mark(cluster: Cluster, mark: UnderreplicatedLedger) -> Finding:
    marks = cluster.service.under_replication
    worker = await marks.locked_by(mark.ledger_id)
    if worker is not None:
        remedy = f"worker {worker} repairs it now"
    elif not await marks.is_enabled():
        remedy = "nothing is healed: `bookie cluster autorecovery enable`"
    elif mark.failures:
        remedy = "remove the reason; workers try again by themselves"
    else:
        remedy = "it waits for a worker: see `bookie cluster autorecovery status`"
    return Finding("mark", State.WARNING, _mark_text(mark), remedy)


def _mark_text(mark: UnderreplicatedLedger) -> str:
    if mark.damage is not None:
        return f"marked as under-replicated, and the mark cannot be read: {mark.damage}"
    why = ", ".join(f"{each.bookie} ({each.reason.value})" for each in mark.doubts) or "placement"
    since = "" if mark.ctime_ms is None else f" since {time_text(mark.ctime_ms)}"
    last = mark.failures[-1] if mark.failures else None
    failed = "" if last is None else f"; tried {last.times} times, last: {last.reason or last.trouble.value}"
    return f"marked as under-replicated{since}: {why}{failed}"


async def _of_streams(cluster: Cluster, ledger_id: int) -> Finding:
    try:
        listing = await ManifestStore(cluster.service).listing({ledger_id})
    except MetadataDamaged as error:
        return Finding("streams", State.WARNING, f"whether a stream lists it is not known: {error}")
    streams = ", ".join(sorted(listing.get(ledger_id, ())))
    return Finding("streams", State.OK, f"listed by {streams}: delete it there" if streams else "no stream lists it")


def _range(report: FragmentReport) -> str:
    fragment = report.fragment
    return f"{fragment.first_entry}-{fragment.last_entry}" if fragment.count else f"from {fragment.first_entry} on"


def _some(ranges: list[str]) -> str:
    more = f" and {len(ranges) - _RANGES_SHOWN} more segments" if len(ranges) > _RANGES_SHOWN else ""
    return f"entries {', '.join(ranges[:_RANGES_SHOWN])}{more}"
