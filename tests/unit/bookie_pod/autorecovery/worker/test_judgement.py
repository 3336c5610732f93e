"""Which findings a worker acts upon."""

from __future__ import annotations

import pytest

from bookie_client.replication.check import ReplicaVerdict, denying
from bookie_pod.autorecovery.worker import judgement
from bookie_protocol.errors import BookieUnavailable
from tests.unit.bookie_pod.autorecovery.worker.reports import metadata_of, report_of

LOST, MISSING = ReplicaVerdict.LOST, ReplicaVerdict.MISSING
DAMAGED, UNREACHABLE, EMPTY = ReplicaVerdict.DAMAGED, ReplicaVerdict.UNREACHABLE, ReplicaVerdict.EMPTY


@pytest.mark.parametrize(
    ("verdict", "named", "bad"),
    [
        (LOST, {"a"}, True),
        (LOST, {"b"}, False),
        (MISSING, {"b"}, True),
        (DAMAGED, set(), True),
        (UNREACHABLE, {"a"}, False),
        (EMPTY, {"a"}, False),
    ],
)
def test_what_wants_a_new_copy(verdict: ReplicaVerdict, named: set[str], bad: bool) -> None:
    report = report_of(metadata_of({0: "abc"}), {"a": verdict})
    assert judgement.bad_positions(report.fragments[0], named) == ({0: "a"} if bad else {})


@pytest.mark.parametrize(
    ("verdict", "named", "stays"),
    [(LOST, "a", True), (LOST, "b", False), (UNREACHABLE, "a", True), (UNREACHABLE, "b", False), (MISSING, "b", True)],
)
def test_when_a_mark_may_go(verdict: ReplicaVerdict, named: str, stays: bool) -> None:
    report = report_of(metadata_of({0: "abc"}), {"a": verdict})
    left = judgement.what_is_left(report, {named})
    assert (left is not None) is stays
    assert left is None or "segment at entry 0: a " in left


def test_a_mark_stays_while_the_end_is_not_known() -> None:
    report = report_of(metadata_of({0: "abc"}, None), lac=-1, lac_error=BookieUnavailable("nobody answers"))
    assert judgement.what_is_left(report, set()) == "the end of the ledger is not known: nobody answers"


@pytest.mark.parametrize(
    ("last_entry", "verdicts", "waits"),
    [
        (None, {"c": LOST}, True),
        (None, {"c": MISSING}, True),
        (None, {"a": LOST}, False),  # of a segment that the writer has left
        (None, {"d": LOST}, False),  # went a moment ago, the mark does not name it
        (None, {"c": UNREACHABLE}, False),
        (None, {}, False),  # a bookie that is read-only is none of the verdicts
        (99, {"c": LOST}, False),
    ],
)
def test_when_a_writer_is_waited_for(last_entry: int | None, verdicts: dict[str, ReplicaVerdict], waits: bool) -> None:
    report = report_of(metadata_of({0: "abe", 50: "bcd"}, last_entry), verdicts)
    assert (judgement.waits_for(report, {"a", "c"}) is not None) is waits


def test_whose_no_counts_for_nothing() -> None:
    report = report_of(metadata_of({0: "abcd"}), {"a": MISSING, "b": DAMAGED, "c": LOST, "d": UNREACHABLE})
    assert denying(report) == {"a", "b"}
    assert judgement.may_be_read_later(report.fragments[0], 3)
    assert not judgement.may_be_read_later(report_of(metadata_of({0: "abc"}), {"a": LOST}).fragments[0], 3)
