"""Each trigger by itself, and how a group is cut into writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.metrics.journal import FlushReason
from bookie_pod.storage.journal.group_commit import flush_reason, slices
from bookie_pod.storage.journal.options import JournalOptions

DEFAULT = JournalOptions()


@pytest.mark.parametrize(
    ("options", "entries", "nbytes", "age_ms", "expected"),
    [
        (DEFAULT, 0, 0, 1e9, None),
        (DEFAULT, 1, 100, 1.99, None),
        (DEFAULT, 1, 100, 2.0, FlushReason.MAX_WAIT),
        (DEFAULT, 1, 524_288, 0, None),
        (DEFAULT, 1, 524_289, 0, FlushReason.MAX_OUTSTANDING),
        (DEFAULT, 1, 524_289, 5, FlushReason.MAX_WAIT),
        (DEFAULT, 1 << 20, 1, 0, None),
        (JournalOptions(group_entries=10), 10, 1, 0, None),
        (JournalOptions(group_entries=10), 11, 1, 0, FlushReason.MAX_OUTSTANDING),
        (JournalOptions(group_bytes=0), 1, 1 << 30, 0, None),
        (JournalOptions(group_bytes=0, group_entries=10), 11, 1, 0, FlushReason.MAX_OUTSTANDING),
        (JournalOptions(flush_when_queue_empty=True), 1, 1, 0, FlushReason.EMPTY_QUEUE),
        (JournalOptions(flush_when_queue_empty=True), 0, 0, 9, None),
        (JournalOptions(flush_when_queue_empty=True), 1, 600_000, 0, FlushReason.MAX_OUTSTANDING),
        (JournalOptions(max_group_wait_ms=0), 1, 1, 0, FlushReason.EMPTY_QUEUE),
        (JournalOptions(max_group_wait_ms=-1), 1, 1, 0, FlushReason.EMPTY_QUEUE),
    ],
)
def test_triggers(
    options: JournalOptions, entries: int, nbytes: int, age_ms: float, expected: FlushReason | None
) -> None:
    assert flush_reason(options, entries, nbytes, age_ms) is expected


@given(
    batches=st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), max_size=12),
    limit=st.integers(1, 100),
)
def test_slices_keep_every_byte_in_order_and_stay_small(batches: list[list[bytes]], limit: int) -> None:
    runs = list(slices(((pieces, sum(map(len, pieces))) for pieces in batches), limit))
    assert b"".join(b"".join(run) for run in runs) == b"".join(b"".join(pieces) for pieces in batches)
    for run in runs:
        assert run
        assert sum(map(len, run)) <= limit or len([piece for piece in run if piece]) == 1


def test_slices_leave_the_pieces_of_a_batch_alone() -> None:
    pieces = [b"a", b"b"]
    assert list(slices([(pieces, 2), ([b"c"], 1)], 10)) == [[b"a", b"b", b"c"]]
    assert pieces == [b"a", b"b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 3}, "journalFormatVersionToWrite is 3"),
        ({"version": 7}, "journalFormatVersionToWrite is 7"),
        ({"alignment": 256}, "journalAlignmentSize is 256"),
        ({"alignment": 1000}, "journalAlignmentSize is 1000"),
        ({"alignment": 4096, "preallocate_bytes": 2048}, "journalPreAllocSizeMB is 2048 bytes"),
        ({"max_file_bytes": 0}, "max_file_bytes is 0"),
    ],
)
def test_options_that_cannot_work(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JournalOptions(**changes)  # type: ignore[arg-type]


def test_preallocation_is_rounded_down_to_the_alignment() -> None:
    assert JournalOptions(preallocate_bytes=10_000, alignment=4096).preallocation_step == 8192
