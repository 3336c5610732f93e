"""The reasons of a mark, and failed attempts to repair its ledger: the part of a mark for which Java has no format.

A mark of Java's layout names bookies. It cannot say that entry 137 is damaged, so a repair would decide again, with a
weaker check, whether anything is wrong. A `Finding` keeps the reason, and a mark goes only when the reason was checked:
`entries_to_read` says what that takes. A `Failure` is one worker's failed attempt.

Both are stored in the mark itself, as a comment of its text, which Java's parser skips
(`tree.under_replication.formats`). So a finding and its mark are made, changed and removed by one write. Java's auditor
drops the comment when it adds a bookie to a mark; its own marks have none. Such a mark says `Reason.UNKNOWN` of all its
bookies, and everything that these hold is read.

Invariants
- A record is small: at most `MAX_FINDINGS` findings of `MAX_RUNS` runs, and `MAX_FAILURES` failures. Runs are joined
  until they fit, so that they cover what was found and more. A finding for which there is no room makes its bookie one
  of which everything is read.
- A finding is never weakened by another one, nor by the lack of room for it: findings of one bookie are joined, and
  `Reason.UNKNOWN` counts as every reason that it may stand for (`entries_to_read`, `distrusted`).

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

MAX_FINDINGS: Final = 32
MAX_RUNS: Final = 16
MAX_FAILURES: Final = 6
MAX_ENTRIES: Final = 20
"""Entries that a failure names."""
MAX_TEXT: Final = 160
ENOUGH_WORKERS: Final = 3
"""If so many workers failed, the trouble is not one worker's own."""

Runs = tuple[tuple[int, int], ...]
"""First and last entry of each run, ascending and apart from each other."""


class Reason(Enum):
    """The reason why copies of a bookie need work."""

    ABSENT = "absent"
    """The bookie was registered nowhere."""
    MISSING = "missing"
    """The bookie denied entries."""
    DAMAGED = "damaged"
    """Entries failed their digest, or the bookie could not read them."""
    DIVERGENT = "divergent"
    """Entries differ from the other copies, which are right."""
    UNTOLD = "untold"
    """The bookie said, again and again, that it cannot tell what it holds of this ledger."""
    UNKNOWN = "unknown"
    """The mark has no recorded reason."""

    @property
    def is_fault(self) -> bool:
        """Return True if the bookie lacked entries, or gave wrong ones; or may have: an unknown reason counts as each
        of these."""
        return self not in (Reason.ABSENT, Reason.UNTOLD)


_NOT_ANSWERED_BY_READING: Final = frozenset({Reason.DIVERGENT, Reason.UNTOLD})


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding about one bookie's copies. `runs`: the entries; none: all of them, except for `ABSENT`. `finder`:
    the part that found it, for people."""

    bookie: str
    reason: Reason
    runs: Runs = ()
    finder: str = ""


class Trouble(Enum):
    """The kind of failure of an attempt to repair a ledger."""

    NO_COPY = "no copy"
    """All bookies that should have an entry were asked, and none gave it. This holds for every worker."""
    UNREACHABLE = "unreachable"
    """This worker got no answer from any bookie. The trouble may be its own."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Failure:
    """One worker's last attempt. `times`: attempts of all workers up to this one; `entries`: those without a copy."""

    worker: str
    trouble: Trouble
    times: int = 1
    entries: tuple[int, ...] = ()
    reason: str = ""


def all_of(bookies: Iterable[str]) -> tuple[Finding, ...]:
    """Findings after which everything that these bookies hold is read."""
    return tuple(Finding(bookie, Reason.UNKNOWN) for bookie in bookies)


def absences(bookies: Iterable[str], finder: str = "") -> tuple[Finding, ...]:
    """Findings that these bookies are registered nowhere."""
    return tuple(Finding(bookie, Reason.ABSENT, (), finder) for bookie in bookies)


def distrusted(findings: Iterable[Finding]) -> frozenset[str]:
    """Return the bookies that lost entries by these findings, or may have: their "no such entry" does not count."""
    return frozenset(each.bookie for each in findings if each.reason.is_fault)


def entries_to_read(findings: Iterable[Finding]) -> Runs | None:
    """The entries of one bookie that have to be read, beyond the usual look, to answer these findings; None: all."""
    runs: list[tuple[int, int]] = []
    for finding in findings:
        if finding.reason is Reason.ABSENT:
            continue
        if finding.reason is Reason.UNKNOWN or not finding.runs:
            return None
        runs += finding.runs
    return joined_runs(runs, MAX_FINDINGS * MAX_RUNS)


def joined(findings: Iterable[Finding], more: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """One finding for each bookie and reason, with the entries of all, within the bounds of a record."""
    found: dict[tuple[str, Reason], Finding] = {}
    for each in (*findings, *more):
        known = found.get((each.bookie, each.reason))
        if known is None:
            found[each.bookie, each.reason] = replace(each, runs=joined_runs(each.runs, MAX_RUNS))
        elif not known.runs or not each.runs:
            found[each.bookie, each.reason] = replace(known, runs=())
        else:
            found[each.bookie, each.reason] = replace(known, runs=joined_runs(known.runs + each.runs, MAX_RUNS))
    kept = list(found.values())
    if len(kept) <= MAX_FINDINGS:
        return tuple(kept)
    first = {each.bookie for each in kept if each.reason in _NOT_ANSWERED_BY_READING}
    kept.sort(key=lambda each: each.bookie not in first)
    dropped = {each.bookie for each in kept[MAX_FINDINGS:]}
    return tuple(each for each in kept[:MAX_FINDINGS] if each.bookie not in dropped)


def covers(known: Iterable[Finding], findings: Iterable[Finding]) -> bool:
    """Return True if a repair that answers all of `known` answers `findings` too."""
    before: dict[str, dict[Reason, Runs]] = {}
    for each in joined(known):
        before.setdefault(each.bookie, {})[each.reason] = each.runs
    return all(_is_covered(before.get(each.bookie, {}), each) for each in findings)


def _is_covered(known: Mapping[Reason, Runs], finding: Finding) -> bool:
    """`known`: the findings of the same bookie."""
    if Reason.UNKNOWN in known and finding.reason not in _NOT_ANSWERED_BY_READING:
        return True  # every copy is read; that compares none, and replaces no bookie that cannot tell
    if finding.reason not in known:
        return False
    runs = known[finding.reason]
    return not runs or (bool(finding.runs) and joined_runs(runs + finding.runs, MAX_RUNS) == runs)


def joined_runs(runs: Iterable[Sequence[int]], most: int) -> Runs:
    """Return the same entries as at most so many runs; where there are more, the smallest gaps are closed."""
    result: list[list[int]] = []
    for first, last in sorted((run[0], run[1]) for run in runs):
        if result and first <= result[-1][1] + 1:
            result[-1][1] = max(result[-1][1], last)
        else:
            result.append([first, last])
    if len(result) > most:
        gaps = sorted(range(1, len(result)), key=lambda at: result[at][0] - result[at - 1][1], reverse=True)
        starts = [0, *sorted(gaps[: most - 1])]
        ends = [*(at - 1 for at in starts[1:]), len(result) - 1]
        result = [[result[start][0], result[end][1]] for start, end in zip(starts, ends, strict=True)]
    return tuple((first, last) for first, last in result)


def with_failure(failures: Collection[Failure], failure: Failure) -> tuple[Failure, ...]:
    """Return the failures with this one in the place of the worker's last; the oldest go. `times` is counted here."""
    times = max((each.times for each in failures), default=0) + 1
    others = [each for each in failures if each.worker != failure.worker]
    now = replace(
        failure,
        worker=plain(failure.worker),
        times=times,
        entries=failure.entries[:MAX_ENTRIES],
        reason=plain(failure.reason),
    )
    return (*others[1 - MAX_FAILURES :], now)


def binding(failures: Collection[Failure], worker: str) -> Failure | None:
    """Return the failure for which this worker leaves the ledger alone for a while; None: it may try at once.

    A worker rests after its own failure. It rests after another's if no copy of an entry was left, or if so many
    workers failed that the cause cannot be one of them.
    """
    if len(failures) >= ENOUGH_WORKERS:
        return max(failures, key=lambda each: each.times)
    bound = [each for each in failures if each.worker == worker or each.trouble is Trouble.NO_COPY]
    return max(bound, key=lambda each: each.times, default=None)


def plain(text: str) -> str:
    """The text as one short line of printable ASCII without quotes and backslashes, which every parser skips alike."""
    shown = "".join(each if " " <= each <= "~" and each not in '"\\' else "'" for each in text[:MAX_TEXT])
    return shown.strip()


# --- the form in which they are stored ----------------------------------------------------------------------------


def to_stored(findings: Collection[Finding], failures: Collection[Failure]) -> dict[str, Any]:
    """Return the value that is stored as JSON."""
    stored: dict[str, Any] = {}
    # Of a bookie that is left out everything is read.
    explained = {each.bookie for each in findings if each.reason is not Reason.UNKNOWN}
    kept = [each for each in joined(findings) if each.bookie in explained and plain(each.bookie) == each.bookie]
    if kept:
        stored["found"] = [_stripped([each.reason.value, each.bookie, each.runs, plain(each.finder)]) for each in kept]
    if failures:
        stored["failed"] = [
            _stripped([each.worker, each.trouble.value, each.times, each.entries, each.reason]) for each in failures
        ]
    return stored


def from_stored(stored: Any) -> tuple[tuple[Finding, ...], tuple[Failure, ...]]:
    """Decode stored findings and failures. Raises one of `bookie_protocol.errors.UNREADABLE` for anything else."""
    findings = tuple(
        Finding(str(reason), _REASONS.get(name, Reason.UNKNOWN), _runs(_at(rest, 0, ())), str(_at(rest, 1, "")))
        for name, reason, *rest in stored.get("found", ())
    )
    failures = tuple(
        Failure(
            str(worker), _TROUBLES.get(name, Trouble.OTHER), int(times), _ids(_at(rest, 0, ())), str(_at(rest, 1, ""))
        )
        for worker, name, times, *rest in stored.get("failed", ())
    )
    return joined(findings), failures[-MAX_FAILURES:]


_REASONS: Final = {reason.value: reason for reason in Reason}
_TROUBLES: Final = {trouble.value: trouble for trouble in Trouble}


def _stripped(parts: list[Any]) -> list[Any]:
    """Remove empty parts at the end."""
    while parts and parts[-1] in ("", ()):
        parts.pop()
    return parts


def _at(parts: Sequence[Any], index: int, default: Any) -> Any:
    return parts[index] if index < len(parts) else default


def _runs(stored: Iterable[Sequence[Any]]) -> Runs:
    return joined_runs([(int(first), int(last)) for first, last in stored], MAX_RUNS)


def _ids(stored: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(each) for each in stored)[:MAX_ENTRIES]
