"""What is said, marked and taken back of one ledger: by a look, by a second one, and by one at a mark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_client.replication.check import LedgerChecker, LedgerReport, ReplicaVerdict
from bookie_client.replication.lists import LISTS_TO_GIVE_UP
from bookie_client.replication.tail import Tail
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor.ledgers_check import LedgersCheck
from bookie_pod.autorecovery.auditor.marking import Marked
from bookie_pod.autorecovery.auditor.replicas_check import ReplicasCheck
from bookie_pod.autorecovery.auditor.sweep import Look, Suspect
from bookie_pod.autorecovery.auditor.withdrawals import Withdrawals
from bookie_protocol.errors import (
    BookieTimeout,
    BookieUnavailable,
    LedgerDeleted,
    MetadataDamaged,
    MetadataExists,
    NoSuchLedger,
    PodkeeperError,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.findings import Finding, Reason, absences
from bookie_protocol.metadata_service.under_replication import LedgerLock, UnderreplicatedLedger
from bookie_protocol.versioned import Identity
from bookie_protocol.wire.availability import Availability, decode_availability, encode_availability
from tests.support.auditor_rig import ledger
from tests.unit.bookie_pod.autorecovery.worker.reports import LEDGER, metadata_of, report_of

GOOD, EMPTY, LOST = ReplicaVerdict.GOOD, ReplicaVerdict.EMPTY, ReplicaVerdict.LOST
MISSING, DAMAGED, UNREACHABLE = ReplicaVerdict.MISSING, ReplicaVerdict.DAMAGED, ReplicaVerdict.UNREACHABLE
UNTOLD = ReplicaVerdict.UNTOLD


class Known:
    """Bookies that are lost, and those that are away; all others are there."""

    def __init__(self, lost: str = "", away: str = "") -> None:
        self.lost, self.away = set(lost), set(lost) | set(away)
        self.expected: list[set[str]] = []

    def is_lost(self, bookie: str) -> bool:
        return bookie.partition(":")[0] in self.lost

    def is_available(self, bookie: str) -> bool:
        return bookie.partition(":")[0] not in self.away

    def expect(self, bookies: Collection[str]) -> None:
        self.expected.append(set(bookies))


class Marker:
    def __init__(self, outcome: Marked = Marked.NEW) -> None:
        self.outcome = outcome
        self.marked: list[tuple[int, list[str]]] = []

    async def mark(self, ledger_id: int, findings: Collection[Finding]) -> Marked:
        return await self.mark_lost(ledger_id, {finding.bookie for finding in findings})

    async def mark_lost(self, ledger_id: int, bookies: Collection[str]) -> Marked:
        self.marked.append((ledger_id, sorted(bookies)))
        return self.outcome


def shown(look: Look) -> Look:
    """With bookies in the place of findings."""
    return Look(look.counts, frozenset((first, each.bookie) for first, each in look.suspects), look.later)  # type: ignore[misc]


def suspects_of(*named: tuple[int, str]) -> frozenset[Suspect]:
    return frozenset((first, Finding(bookie, Reason.MISSING, ((first, first),))) for first, bookie in named)


# --- the check of all ledgers -----------------------------------------------------------------------------------


class Checker(LedgerChecker):
    """Reports what it is told."""

    def __init__(self, report: LedgerReport | Exception) -> None:
        self.report = report
        self.findings: list[Collection[Finding]] = []

    async def check(self, ledger_id: int, *, findings: Collection[Finding] = ()) -> LedgerReport:
        self.findings.append(tuple(findings))
        if isinstance(self.report, Exception):
            raise self.report
        return self.report

    async def make_durable(self, report: LedgerReport, bookies: Collection[str]) -> str | None:
        return None

    async def tail(self, report: LedgerReport, doubts: Collection[Finding]) -> Tail:
        return Tail()


def ledgers_check(
    report: LedgerReport | Exception, known: Known, marker: Marker
) -> tuple[LedgersCheck, list[tuple[int, int]]]:
    counted: list[tuple[int, int]] = []
    metrics: Any = SimpleNamespace(ledger_checked=lambda *counts: counted.append(counts))
    its: Any = known
    marks: Any = marker
    return LedgersCheck(Checker(report), marks, its, metrics, ReplicationThrottle()), counted


TWO = metadata_of({0: "abc", 50: "abd"})


@pytest.mark.parametrize(
    ("verdicts", "known", "counts", "suspects", "marked"),
    [
        ({}, Known(), {}, set(), []),
        ({"a": MISSING}, Known(), {"suspicious": 1}, {(0, "a"), (50, "a")}, []),
        ({"d": DAMAGED}, Known(), {"suspicious": 1}, {(50, "d")}, []),
        ({"a": UNREACHABLE}, Known(), {"unreachable": 1}, set(), []),
        ({"a": UNTOLD}, Known(), {"suspicious": 1}, {(0, "a"), (50, "a")}, []),
        ({"a": LOST}, Known(lost="a"), {"marked": 1}, set(), [(LEDGER, ["a"])]),
        ({"a": LOST, "b": LOST}, Known(lost="b", away="a"), {"marked": 1}, set(), [(LEDGER, ["b"])]),
        ({"a": LOST}, Known(away="a"), {}, set(), []),
    ],
)
async def test_what_a_look_at_a_ledger_brings(
    verdicts: dict[str, ReplicaVerdict],
    known: Known,
    counts: dict[str, int],
    suspects: set[tuple[int, str]],
    marked: list[tuple[int, list[str]]],
) -> None:
    marker = Marker()
    check, counted = ledgers_check(report_of(TWO, verdicts), known, marker)
    assert shown(await check.look(LEDGER)) == Look({"ledgers": 1, **counts}, frozenset(suspects))  # type: ignore[arg-type]
    assert marker.marked == marked
    assert counted == [(2, 4)]
    assert known.expected[-1] == {bookie for bookie, verdict in verdicts.items() if verdict is LOST}


async def test_an_end_that_is_not_known_is_told() -> None:
    report = report_of(metadata_of({0: "abc"}, None), lac_error=BookieUnavailable("nobody answers"))
    check, _ = ledgers_check(report, Known(), Marker())
    assert (await check.look(LEDGER)).counts == {"ledgers": 1, "could_not_tell": 1}


@pytest.mark.parametrize(
    ("error", "counts"),
    [(LedgerDeleted("gone"), {"deleted": 1}), (MetadataDamaged("what"), {"ledgers": 1, "could_not_tell": 1})],
)
async def test_what_cannot_be_checked_is_counted(error: Exception, counts: dict[str, int]) -> None:
    check, _ = ledgers_check(error, Known(), Marker())
    assert await check.look(LEDGER) == Look(counts)
    counts.pop("ledgers", None)
    assert await check.look_again(LEDGER, suspects_of((0, "a"))) == Look(counts)


@pytest.mark.parametrize(
    ("outcome", "look"),
    [(Marked.NEW, Look({"marked": 1})), (Marked.ALREADY, Look()), (Marked.LOCKED, Look(later=True))],
)
async def test_what_is_missing_twice_is_marked(outcome: Marked, look: Look) -> None:
    marker = Marker(outcome)
    check, _ = ledgers_check(report_of(TWO, {"a": MISSING, "d": MISSING}), Known(), marker)
    assert await check.look_again(LEDGER, suspects_of((0, "a"), (0, "b"), (0, "d"))) == look
    assert marker.marked == [(LEDGER, ["a"])], "of the same segment"
    assert await check.look_again(LEDGER, suspects_of((0, "b"))) == Look({"withdrawn": 1})
    assert await check.finish() == {}


async def test_the_second_look_is_at_the_very_entries_and_the_mark_keeps_them() -> None:
    """With 10 % a check finds one bad entry of 300 now and then; a second sample would not meet it again."""
    report = report_of(TWO, {"a": DAMAGED}, entries={"a": 37})
    checker, marked = Checker(report), list[Collection[Finding]]()

    class Keeps(Marker):
        async def mark(self, ledger_id: int, findings: Collection[Finding]) -> Marked:
            marked.append(findings)
            return Marked.NEW

    its: Any = SimpleNamespace(ledger_checked=lambda *counts: None)
    known: Any = Known()
    marks: Any = Keeps()
    check = LedgersCheck(checker, marks, known, its, ReplicationThrottle())
    look = await check.look(LEDGER)
    await check.look_again(LEDGER, look.suspects)
    assert checker.findings[0] == ()
    assert {each.runs for each in checker.findings[1]} == {((37, 37),)}
    assert [(each.bookie, each.reason, each.runs) for each in marked[0]] == [("a", Reason.DAMAGED, ((37, 37),))]


# --- the check of replicas --------------------------------------------------------------------------------------


class Cluster:
    """One ledger, its mark, and what bookies say they store."""

    def __init__(self, metadata: LedgerMetadata, stored: dict[str, Collection[int] | PodkeeperError]) -> None:
        self.metadata = metadata
        self.stored = stored
        self.mark: UnderreplicatedLedger | None = None
        self.asked: list[str] = []
        self.ledgers = self.under_replication = self

    async def read(self, ledger_id: int) -> Any:
        return SimpleNamespace(value=self.metadata)

    async def ask(self, bookie: str, ledger_id: int) -> Availability:
        self.asked.append(bookie)
        found = self.stored.get(bookie, range(100))
        if isinstance(found, PodkeeperError):
            raise found
        return decode_availability(encode_availability(sorted(found)))

    def check(self, known: Known, marker: Marker, *, marks: bool = True) -> ReplicasCheck:
        service: Any = SimpleNamespace(ledgers=self, under_replication=SimpleNamespace(read=self._mark))
        its: Any = marker
        return ReplicasCheck(
            service,
            self.ask,
            self._end,
            its,
            known,
            metadata_pace=ReplicationThrottle(),
            pace=ReplicationThrottle(),
            marks=marks,
        )

    async def _end(self, metadata: LedgerMetadata) -> tuple[int, PodkeeperError | None]:
        """Nothing is confirmed."""
        return -1, None

    async def _mark(self, ledger_id: int) -> UnderreplicatedLedger | None:
        return self.mark


B0 = frozenset({(0, "b0:1")})


@pytest.mark.parametrize(
    ("stored", "known", "counts", "suspects"),
    [
        ({}, Known(), {}, frozenset()),
        ({"b0:1": range(1, 10)}, Known(), {"suspicious": 1, "short_of_write_quorum": 1}, B0),
        ({"b0:1": NoSuchLedger("none")}, Known(), {"suspicious": 1, "short_of_write_quorum": 1}, B0),
        ({"b0:1": BookieUnavailable("no")}, Known(), {"could_not_tell": 1}, frozenset()),
        ({"b0:1": BookieTimeout("no")}, Known(), {"could_not_tell": 1}, frozenset()),
        ({}, Known(away=["b0"]), {"could_not_tell": 1}, frozenset()),  # type: ignore[arg-type]
        ({}, Known(lost=["b0"]), {"suspicious": 1, "short_of_write_quorum": 1}, B0),  # type: ignore[arg-type]
        (
            {"b0:1": (), "b1:1": BookieUnavailable("no")},
            Known(),
            {"suspicious": 1, "could_not_tell": 1, "short_of_write_quorum": 1},
            B0,
        ),
    ],
)
async def test_what_bookies_say_they_store_is_compared(
    stored: dict[str, Collection[int] | PodkeeperError],
    known: Known,
    counts: dict[str, int],
    suspects: frozenset[tuple[int, str]],
) -> None:
    """What is short is counted by the second look, if the first one suspects anything."""
    cluster = Cluster(ledger(1, (0, "012")), stored)
    look = await cluster.check(known, Marker()).look(1)
    short = {name: count for name, count in counts.items() if name.startswith("short")}
    assert shown(look) == Look(
        {"ledgers": 1, **{name: count for name, count in counts.items() if name not in short}},
        suspects,  # type: ignore[arg-type]
    )
    if suspects:
        marker = Marker()
        assert await cluster.check(known, marker).look_again(1, look.suspects) == Look({**short, "marked": 1})
        assert marker.marked == [(1, ["b0:1"])]
        assert await cluster.check(known, marker, marks=False).look_again(1, look.suspects) == Look(short)
        assert await cluster.check(known, Marker(Marked.LOCKED)).look_again(1, look.suspects) == Look(short, later=True)
        assert await cluster.check(known, Marker(Marked.ALREADY)).look_again(1, look.suspects) == Look(short)
        assert await cluster.check(known, marker).look_again(1, suspects_of((0, "b1:1"))) == Look({"withdrawn": 1})
        assert len(marker.marked) == 1


@pytest.mark.parametrize(
    ("gone", "short"),
    [
        (("b0:1",), {"short_of_write_quorum"}),
        (("b0:1", "b1:1"), {"short_of_write_quorum", "short_of_ack_quorum"}),
        (("b0:1", "b1:1", "b2:1"), {"short_of_write_quorum", "short_of_ack_quorum", "short_no_copy"}),
    ],
)
async def test_how_short_of_copies_an_entry_is(gone: tuple[str, ...], short: set[str]) -> None:
    cluster = Cluster(ledger(1, (0, "012")), {bookie: range(9) for bookie in gone})
    suspects = suspects_of(*((0, bookie) for bookie in gone))
    look = await cluster.check(Known(), Marker()).look_again(1, suspects)
    assert look.counts == {**dict.fromkeys(short, 1), "marked": 1}


@pytest.mark.parametrize(
    ("metadata", "mark", "look"),
    [
        (ledger(1, (0, "012"), last=None), None, Look({"open": 1})),
        (ledger(1, (0, "012")), UnderreplicatedLedger(1, ("b9:1",)), Look({"marked_before": 1})),
        (ledger(1, (0, "012"), last=-1), None, Look({"ledgers": 1})),
    ],
)
async def test_of_some_ledgers_nobody_is_asked(
    metadata: LedgerMetadata, mark: UnderreplicatedLedger | None, look: Look
) -> None:
    cluster = Cluster(metadata, {})
    cluster.mark = mark
    assert await cluster.check(Known(), Marker()).look(1) == look
    assert cluster.asked == []


@pytest.mark.parametrize(("last", "asked"), [(4, "012"), (5, "01234")])
async def test_a_segment_behind_the_last_entry_stores_nothing(last: int, asked: str) -> None:
    cluster = Cluster(ledger(1, (0, "012"), (5, "034"), last=last), {})
    assert (await cluster.check(Known(), Marker()).look(1)).counts == {"ledgers": 1}
    assert cluster.asked == [f"b{digit}:1" for digit in asked]


async def test_who_is_silent_so_often_in_a_row_is_asked_no_more() -> None:
    cluster = Cluster(ledger(1, (0, "012")), {"b0:1": BookieTimeout("no answer")})
    check = cluster.check(Known(), Marker())
    for _ in range(LISTS_TO_GIVE_UP - 1):
        await check.look(1)
    cluster.stored = {}
    assert (await check.look(1)).counts == {"ledgers": 1}, "it has answered"
    cluster.stored = {"b0:1": BookieTimeout("no answer")}
    cluster.asked.clear()
    for _ in range(LISTS_TO_GIVE_UP + 2):
        assert (await check.look(1)).counts == {"ledgers": 1, "could_not_tell": 1}
    assert cluster.asked.count("b0:1") == LISTS_TO_GIVE_UP
    assert cluster.asked.count("b1:1") == LISTS_TO_GIVE_UP + 2


# --- marks that are taken back ----------------------------------------------------------------------------------


class Marks:
    """Marks of some ledgers; those in `locked` are a worker's."""

    def __init__(self, *marks: UnderreplicatedLedger) -> None:
        self.stored = {mark.ledger_id: mark for mark in marks}
        self.locked: set[int] = set()
        self.unmarked: set[int] = set()
        """Whose mark is gone when their lock is taken."""
        self.replicated: list[int] = []
        self.released: list[int] = []

    async def list(self, chosen: Callable[[Collection[str]], bool]) -> AsyncGenerator[UnderreplicatedLedger, None]:
        for mark in list(self.stored.values()):
            if chosen(mark.replicas):
                yield mark

    async def read(self, ledger_id: int) -> UnderreplicatedLedger | None:
        return self.stored.get(ledger_id)

    async def lock(self, ledger_id: int, *, timeout: float | None = None) -> LedgerLock:
        if ledger_id in self.locked:
            raise MetadataExists("a worker is at it")
        return LedgerLock(ledger_id, None if ledger_id in self.unmarked else Identity(0, 1), 1)

    async def mark_replicated(self, lock: LedgerLock) -> bool:
        self.replicated.append(lock.ledger_id)
        return True

    async def release(self, lock: LedgerLock, *, timeout: float | None = None) -> None:
        self.released.append(lock.ledger_id)


def withdrawing(marks: Marks, checker: Checker, known: Known) -> Withdrawals:
    service: Any = SimpleNamespace(under_replication=marks)
    return Withdrawals(service, checker, known)


ABSENT = UnderreplicatedLedger(LEDGER, ("a",), findings=absences("a"))


@pytest.mark.parametrize(
    ("mark", "taken_back"),
    [
        (ABSENT, True),
        (UnderreplicatedLedger(LEDGER, ("a", "b"), 9, None, absences("ab")), True),
        (UnderreplicatedLedger(LEDGER, ("a", "d"), 9, None, absences("ad")), False),
        (UnderreplicatedLedger(LEDGER, ("a", "b"), 9, None, absences("a")), False),
        (UnderreplicatedLedger(LEDGER, ("a",), 9), False),
        (UnderreplicatedLedger(LEDGER, ("a",), 9, None, (Finding("a", Reason.DAMAGED, ((7, 7),)),)), False),
        (
            UnderreplicatedLedger(LEDGER, ("a",), 9, None, (*absences("a"), Finding("a", Reason.DAMAGED, ((7, 7),)))),
            False,
        ),
        (UnderreplicatedLedger(LEDGER, (), 9), False),
    ],
    ids=["it", "both", "one is away", "one unexplained", "no reason", "a check's", "and a check's", "placement"],
)
async def test_only_marks_from_absences_that_are_over_are_looked_at(
    mark: UnderreplicatedLedger, taken_back: bool
) -> None:
    """Whoever came back when, and whatever any clock says. `d` is away."""
    marks, checker = Marks(mark), Checker(report_of(metadata_of({0: "abcd"})))
    made = withdrawing(marks, checker, Known(away="d"))
    made.request()
    assert await made.withdraw() == made.withdrawn == int(taken_back)
    assert marks.replicated == [LEDGER] * taken_back
    assert checker.findings == [mark.findings] * taken_back


@pytest.mark.parametrize(
    ("verdicts", "sound"),
    [
        ({}, True),
        ({"a": EMPTY}, True),
        ({"a": UNREACHABLE}, False),
        ({"a": UNTOLD}, False),
        ({"a": LOST}, False),
        ({"a": MISSING}, False),
        ({"b": UNREACHABLE}, True),
        ({"b": LOST}, True),
        ({"b": MISSING}, False),
        ({"c": DAMAGED}, False),
    ],
)
async def test_a_mark_stays_while_a_copy_is_missing(verdicts: dict[str, ReplicaVerdict], sound: bool) -> None:
    marks = Marks(ABSENT)
    made = withdrawing(marks, Checker(report_of(metadata_of({0: "abc"}), verdicts)), Known())
    await made.withdraw()
    assert (marks.replicated, marks.released) == ([LEDGER] * sound, [LEDGER])


@pytest.mark.parametrize("error", [LedgerDeleted("gone"), MetadataDamaged("what")])
async def test_a_mark_stays_if_nobody_can_tell(error: Exception) -> None:
    marks = Marks(ABSENT)
    made = withdrawing(marks, Checker(error), Known())
    assert await made.withdraw() == 0
    assert (marks.replicated, marks.released) == ([], [LEDGER])


@pytest.mark.parametrize("what", ["a worker is at it", "its mark is gone", "a check found something", "left again"])
async def test_what_happens_meanwhile_is_respected(what: str) -> None:
    marks, known = Marks(ABSENT), Known()
    marks.locked = {LEDGER} if what == "a worker is at it" else set()
    marks.unmarked = {LEDGER} if what == "its mark is gone" else set()

    class Slow(Checker):
        async def check(self, ledger_id: int, *, findings: Collection[Finding] = ()) -> LedgerReport:
            known.away.add("a")
            return await super().check(ledger_id, findings=findings)

    kind = Slow if what == "left again" else Checker
    made = withdrawing(marks, kind(report_of(metadata_of({0: "abc"}))), known)
    candidates = made._candidates

    async def then_found() -> AsyncGenerator[UnderreplicatedLedger, None]:
        async for mark in candidates():
            if what == "a check found something":
                marks.stored[LEDGER] = replace(mark, findings=(Finding("a", Reason.DAMAGED, ((7, 7),)),))
            yield mark

    made._candidates = then_found  # type: ignore[method-assign]
    assert await made.withdraw() == 0
    assert (marks.replicated, marks.released) == ([], [] if what == "a worker is at it" else [LEDGER])


async def test_requests_are_served_one_after_the_other() -> None:
    marks = Marks(ABSENT)
    made = withdrawing(marks, Checker(report_of(metadata_of({0: "abc"}))), Known())
    running = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    assert (made.is_running, marks.replicated) == (False, [])
    for number in (1, 2):
        made.request()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (made.is_running, marks.replicated) == (False, [LEDGER] * number)
    running.cancel()
    await asyncio.wait([running])
