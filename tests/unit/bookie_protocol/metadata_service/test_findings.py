"""The part of a mark that tells why it was set, and what became of attempts to repair its ledger."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.errors import UNREADABLE
from bookie_protocol.metadata_service.findings import (
    ENOUGH_WORKERS,
    MAX_ENTRIES,
    MAX_FAILURES,
    MAX_FINDINGS,
    Failure,
    Finding,
    Reason,
    Trouble,
    absences,
    all_of,
    binding,
    covers,
    distrusted,
    entries_to_read,
    from_stored,
    joined,
    joined_runs,
    plain,
    to_stored,
    with_failure,
)
from bookie_protocol.metadata_service.tree.under_replication import formats
from bookie_protocol.metadata_service.under_replication import UnderreplicatedLedger

runs = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20)).map(lambda at: (at[0], at[0] + at[1])), max_size=40)
findings = st.builds(Finding, st.sampled_from(["b1:1", "b2:1", "b3:1"]), st.sampled_from(list(Reason)), runs.map(tuple))
failures = st.builds(
    Failure,
    st.text(max_size=12),
    st.sampled_from(list(Trouble)),
    st.integers(1, 9),
    st.lists(st.integers(0, 99), max_size=30).map(tuple),
    st.text(max_size=300),
)


def entries(of: object) -> set[int]:
    return {entry for first, last in of for entry in range(first, last + 1)}  # type: ignore[attr-defined]


@given(runs, st.integers(1, 5))
def test_joined_runs_cover_everything_and_are_few(some: list[tuple[int, int]], most: int) -> None:
    found = joined_runs(some, most)
    assert entries(found) >= entries(some)
    assert len(found) <= most
    assert all(before[1] + 1 < after[0] for before, after in pairwise(found))


@given(st.lists(findings, max_size=30), st.lists(findings, max_size=10))
def test_what_is_joined_answers_everything(some: list[Finding], more: list[Finding]) -> None:
    both = joined(some, more)
    assert covers(both, [*some, *more])
    for bookie in {each.bookie for each in (*some, *more)}:
        needed = entries_to_read(each for each in (*some, *more) if each.bookie == bookie)
        got = entries_to_read(each for each in both if each.bookie == bookie)
        assert got is None or (needed is not None and entries(got) >= entries(needed))


@given(st.lists(findings, max_size=30), st.lists(findings, max_size=10))
def test_one_that_lost_entries_is_distrusted_whatever_the_mark_says(some: list[Finding], more: list[Finding]) -> None:
    """Also if it said nothing of reasons, and so has everything already."""
    before = UnderreplicatedLedger(7, ("b1:1",), findings=joined(some)).doubts
    after = before if covers(before, more) else joined(before, more)
    assert distrusted(after) >= distrusted(before) | distrusted(more)


@given(st.lists(findings, max_size=12), st.lists(failures, max_size=4))
def test_what_is_stored_is_read_again_by_us_and_skipped_by_others(some: list[Finding], failed: list[Failure]) -> None:
    before, noted = joined(some), ()
    for failure in failed:
        noted = with_failure(noted, failure)
    data = formats.encode_mark([each.bookie for each in before], 5, before, noted)
    mark = formats.decode_mark(7, data, "mark")
    assert covers(mark.doubts, before)
    assert mark.failures == noted
    assert b"\\" not in data
    assert len(data) < 16 * 1024


def test_a_finding_that_has_no_room_makes_its_bookie_one_of_which_all_is_read() -> None:
    many = joined(Finding(f"b{i}:1", Reason.DAMAGED, ((i, i),)) for i in range(MAX_FINDINGS + 5))
    assert len(many) == MAX_FINDINGS
    mark = formats.decode_mark(7, formats.encode_mark([f"b{i}:1" for i in range(MAX_FINDINGS + 5)], None, many), "mark")
    assert distrusted(mark.doubts) == set(mark.replicas)
    assert {each.bookie for each in mark.doubts if each.reason is Reason.UNKNOWN} == {
        f"b{i}:1" for i in range(MAX_FINDINGS, MAX_FINDINGS + 5)
    }


def test_an_absence_asks_for_no_entry_and_no_reason_asks_for_all() -> None:
    assert entries_to_read(absences(["a"])) == ()
    assert entries_to_read(all_of(["a"])) is None
    assert entries_to_read([*absences(["a"]), Finding("a", Reason.DAMAGED, ((3, 4),))]) == ((3, 4),)
    assert entries_to_read([Finding("a", Reason.DAMAGED, ((3, 4),)), Finding("a", Reason.MISSING)]) is None


def test_findings_that_reading_does_not_answer_have_room_first() -> None:
    many = [Finding(f"b{i}:1", Reason.DAMAGED, ((i, i),)) for i in range(MAX_FINDINGS)]
    divergent = Finding("last:1", Reason.DIVERGENT, ((3, 3),))
    assert divergent in joined(many, [divergent])


def test_what_covers_what() -> None:
    damaged = Finding("a", Reason.DAMAGED, ((3, 9),))
    assert covers([damaged], [Finding("a", Reason.DAMAGED, ((5, 5),))])
    assert not covers([damaged], absences(["a"])), "a bookie of an open segment is left only if the mark says so"
    assert covers(all_of(["a"]), absences(["a"]))
    assert not covers([damaged], [Finding("a", Reason.DAMAGED, ((10, 10),))])
    assert not covers(absences(["a"]), [damaged])
    assert covers(all_of(["a"]), [damaged])
    assert not covers(all_of(["a"]), [Finding("a", Reason.DIVERGENT, ((3, 3),))])
    assert not covers(all_of(["a"]), [Finding("a", Reason.UNTOLD)])
    assert not covers([damaged], absences(["b"]))


def test_each_workers_last_failure_is_kept_and_tries_are_counted_together() -> None:
    noted: tuple[Failure, ...] = ()
    for turn in range(MAX_FAILURES + 3):
        noted = with_failure(noted, Failure(f"w{turn % 7}", Trouble.UNREACHABLE, entries=tuple(range(99))))
    assert len(noted) == MAX_FAILURES
    assert noted[-1].times == MAX_FAILURES + 3
    assert len({each.worker for each in noted}) == MAX_FAILURES
    assert len(noted[-1].entries) == MAX_ENTRIES


def test_who_rests_after_whose_failure() -> None:
    mine, other = Failure("me", Trouble.UNREACHABLE, 1), Failure("w1", Trouble.UNREACHABLE, 2)
    lost = Failure("w2", Trouble.NO_COPY, 3)
    assert binding([], "me") is None
    assert binding([mine], "me") == mine
    assert binding([other], "me") is None
    assert binding([other, lost], "me") == lost
    assert binding([Failure(f"w{i}", Trouble.OTHER, i) for i in range(ENOUGH_WORKERS)], "me") is not None


@pytest.mark.parametrize(
    "stored", [[], 7, {"found": [["damaged"]]}, {"found": [["damaged", "a", [[1]]]]}, {"failed": [["w", "x", "y"]]}]
)
def test_what_nobody_can_read_counts_as_no_record(stored: object) -> None:
    with pytest.raises(UNREADABLE):
        from_stored(stored)
    data = b'replica: "a"\n# podkeeper ' + json.dumps(stored).encode() + b"\n"
    assert formats.decode_mark(7, data, "mark").doubts == all_of(["a"])


def test_reasons_of_a_later_release_ask_for_more_not_less() -> None:
    found, failed = from_stored({"found": [["haunted", "a", [[1, 1]]]], "failed": [["w", "bored", 2]]})
    assert entries_to_read(found) is None
    assert failed == (Failure("w", Trouble.OTHER, 2),)


def test_of_a_bookie_with_more_findings_than_are_read_no_reason_is_known() -> None:
    others = [["damaged", f"b{i}:1"] for i in range(MAX_FINDINGS - 1)]
    data = {"found": [*others, ["absent", "last:1"], ["missing", "last:1"]]}
    text = "".join(f'replica: "{name}"\n' for _, name in data["found"]) + f"# podkeeper {json.dumps(data)}\n"
    assert "last:1" in distrusted(formats.decode_mark(7, text.encode(), "mark").doubts)


def test_text_is_harmless() -> None:
    assert plain('a "b" \\ c\n' + "x" * 999).startswith("a 'b' ' c'x")
    assert to_stored([Finding('b"1', Reason.DAMAGED)], []) == {}
