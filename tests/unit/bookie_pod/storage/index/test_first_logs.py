"""In which logs the entries of a life may lie."""

from __future__ import annotations

import pytest

from bookie_pod.storage.index.index_file import decode_header, encode_header
from bookie_pod.storage.index.ledger_data import FirstLogs, LedgerRecord, LedgerRecords, decode, encode
from bookie_pod.storage.log_ids import MAX_LOG_ID, is_before
from bookie_protocol.keys import NO_LIFE, life_of, life_of_copies, with_unnamed

KEY = bytes(range(20))
NEWEST = (1 << 32) - 1


class _Logs:
    def __init__(self, oldest: int, newest: int) -> None:
        self.oldest, self.newest = oldest, newest

    def records(self) -> LedgerRecords:
        records = LedgerRecords()
        records.name_logs(FirstLogs(lambda: self.oldest, lambda: self.newest, lambda log_id: None))
        return records


def test_a_new_ledger_may_share_the_logs_that_are_open() -> None:
    records = _Logs(4, 6).records()
    records.put(1, LedgerRecord(KEY))
    assert records.set_master_key(2, KEY).first_log == 4
    assert [records.first_log(each) for each in (1, 2, 3)] == [4, 4, 0]


def test_one_whose_id_was_deleted_by_this_process_shares_none() -> None:
    logs = _Logs(4, 6)
    records = logs.records()
    for ledger_id in (1, 2):
        records.put(ledger_id, LedgerRecord(KEY))
        records.delete(ledger_id)
    records.put(1, LedgerRecord(KEY))
    logs.newest = 9
    records.put(2, LedgerRecord(KEY))
    records.put(3, LedgerRecord(KEY))
    assert [records.first_log(each) for each in (1, 2, 3)] == [8, 8, 4]


def test_nor_with_one_that_had_not_reached_its_first_log_when_it_was_deleted() -> None:
    """A flush may be about to begin that log for it, in which the next life must not begin."""
    records = _Logs(4, 6).records()
    first_logs = []
    for _ in range(3):
        records.put(1, LedgerRecord(KEY))
        first_logs.append(records.first_log(1))
        assert records.delete(1) == first_logs[-1] + (4 if first_logs == [4] else 2)
    assert first_logs == [4, 8, 10]


def test_an_earlier_process_tells_where_the_next_life_may_begin() -> None:
    records = _Logs(4, 3).records()
    records.deleted_before(1, 9)
    records.deleted_before(2, 3)
    records.put(1, LedgerRecord(KEY))
    records.put(2, LedgerRecord(KEY))
    assert [records.first_log(each) for each in (1, 2)] == [9, 4]


def test_logs_that_wrap() -> None:
    records = _Logs(MAX_LOG_ID - 1, MAX_LOG_ID - 1).records()
    for first_log in (MAX_LOG_ID - 1, 1, 3):
        records.put(1, LedgerRecord(KEY))
        assert records.first_log(1) == first_log
        records.delete(1)


def test_a_life_keeps_its_first_log() -> None:
    logs = _Logs(4, 6)
    records = logs.records()
    records.put(1, LedgerRecord(b""))
    logs.oldest = 6
    records.set_master_key(1, KEY)
    records.put(1, LedgerRecord(KEY, fenced=True))
    assert records.first_log(1) == 4


def test_what_was_found_again_may_lie_in_any_log() -> None:
    records = _Logs(4, 6).records()
    records.put(1, LedgerRecord(KEY, first_log=0))
    records.put(1, LedgerRecord(KEY, limbo=True))
    assert records.first_log(1) == 0


def test_the_number_of_dead_that_are_remembered_is_bounded() -> None:
    logs = _Logs(4, 6)
    records = logs.records()
    for ledger_id in range(1 << 17):
        records.put(ledger_id, LedgerRecord(KEY))
        records.delete(ledger_id)
    records.put(3, LedgerRecord(KEY))
    assert records.first_log(3) == 8, "whichever were forgotten"
    logs.oldest = logs.newest = 8
    records.put(2, LedgerRecord(KEY))
    assert records.first_log(2) == 8


def test_the_dead_whose_logs_take_no_entries_any_more_are_forgotten() -> None:
    logs = _Logs(4, 6)
    records = logs.records()
    for ledger_id in range(5000):
        records.put(ledger_id, LedgerRecord(KEY))
        records.delete(ledger_id)
        logs.oldest = logs.newest = ledger_id
    assert records._first_logs is not None
    assert len(records._first_logs._next) < 1024


@pytest.mark.parametrize("first_log", [0, 1, 17, NEWEST])
@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("lac", [None, bytes(36)])
@pytest.mark.parametrize("key", [b"", KEY, bytes(200)])
@pytest.mark.parametrize(
    "life",
    [NO_LIFE, life_of(1), life_of(-1), life_of_copies(-1), with_unnamed(life_of(1)), with_unnamed(life_of_copies(1))],
    ids=["none", "1", "-1", "copies", "writer and unnamed", "copies and unnamed"],
)
def test_both_formats_hold_it(key: bytes, lac: bytes | None, fenced: bool, first_log: int, life: bytes) -> None:
    record = LedgerRecord(key, fenced, False, lac, first_log, life)
    stored = decode(encode(record))
    assert (stored, stored.first_log, stored.life) == (record, first_log, life)
    decoded = decode_header(encode_header(record))
    assert decoded is not None
    assert (decoded[1], decoded[1].first_log, decoded[1].life) == (record, first_log, life)


def test_a_header_has_the_life_that_copies_named_in_a_place_of_its_own() -> None:
    """A bookie that looks for that of a writer alone finds none."""
    lives = [encode_header(LedgerRecord(KEY, life=life))[484:500] for life in (life_of_copies(1), life_of(1))]
    assert lives == [(1 << 64).to_bytes(16, "big"), (1).to_bytes(16, "big")]


def test_a_header_that_has_no_room_for_it_says_any_log() -> None:
    record = LedgerRecord(bytes(range(245)) * 2, first_log=17, life=life_of(1))
    decoded = decode_header(encode_header(record))
    assert decoded is not None
    assert (decoded[1], decoded[1].first_log, decoded[1].life) == (record, 0, NO_LIFE)


def test_a_header_that_has_no_room_for_a_life_says_the_first_log() -> None:
    record = LedgerRecord(KEY, explicit_lac=bytes(456), first_log=17, life=life_of(1))
    decoded = decode_header(encode_header(record))
    assert decoded is not None
    assert (decoded[1], decoded[1].first_log, decoded[1].life) == (record, 17, NO_LIFE)


@pytest.mark.parametrize(
    ("log_id", "first", "older"),
    [(3, 4, True), (4, 4, False), (5, 4, False), (3, 0, False), (MAX_LOG_ID, 2, True), (2, MAX_LOG_ID, False)],
)
def test_which_log_is_older(log_id: int, first: int, older: bool) -> None:
    assert is_before(log_id, first) is older
