"""Damaged logs, maps and rows: nothing goes on their word, nothing wrong is served, and the damage can be seen."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from bookie_pod.storage.entry_log.format import make_location, split_location
from bookie_protocol.errors import EntryDamaged, StorageFault
from tests.support.gc_rig import FAST, MAJOR, GcRig
from tests.support.memtable_engine import ENGINES
from tests.support.production import production
from tests.support.storage_engine import MemoryBookie, entry, put

SIZE = 104
"""Bytes of one entry in a log."""


def _entries(ledger_id: int, count: int) -> dict[int, bytes]:
    return {each: entry(ledger_id, each, 100) for each in range(count)}


# --- ledgers map --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", [False, True], ids=["our log", "log of the reference"])
def test_no_flipped_bit_of_a_ledgers_map_costs_a_log_with_live_entries(reference: bool) -> None:
    """Ledger 4 lives, 5 is gone: a map that says 5 instead of 4 says that nothing lives."""
    rig = GcRig()
    log_id = rig.write([4], 3)
    rig.write([5, 99], 1)
    rig.delete(5)
    rig.gc.run_pass()  # from now on 5 is known to be gone
    rig.restart()
    if reference:
        rig.bookie.files.corrupt(rig.path(log_id), 20, bytes(8))
    end = rig.map_offset(log_id)
    for number in range(2, 16 * 8, 3):  # of each byte some, and each of some byte
        at, bit = end + 24 + number // 8, number % 8
        rig.flip(log_id, at, 1 << bit)
        rig.gc.run_pass()
        assert rig.readable(4) == _entries(4, 3), (at, bit)
        rig.flip(log_id, at, 1 << bit)
        rig.restart()
    assert not rig.gc.state().quarantined


def test_a_log_of_the_reference_in_which_nothing_lives_is_scanned_before_it_goes() -> None:
    rig = GcRig()
    log_id = rig.write([4], 3)
    rig.write([99], 1)
    rig.bookie.files.corrupt(rig.path(log_id), 20, bytes(8))
    rig.restart()
    rig.delete(4)
    assert rig.gc.run_pass().logs_deleted == 1
    assert not rig.logs.exists(log_id)


def test_a_map_and_entries_that_disagree_quarantine_the_log() -> None:
    rig = GcRig(bookie=MemoryBookie.without_read_cache())
    log_id = rig.write([4, 5], 3)
    rig.delete(5)
    rig.flip(log_id, rig.first + 4 + 7)  # the first entry's ledger id: 4 becomes 5
    result = rig.force()
    assert (result.logs_compacted, result.logs_deleted) == (0, 0)
    assert log_id in rig.gc.state().quarantined
    with pytest.raises(EntryDamaged):
        rig.storage.read(4, 0)
    assert rig.storage.read(4, 1) == entry(4, 1, 100)


# --- framing and entries ------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "active at a crash"])
@pytest.mark.parametrize("size", [0, 7, 99, 101, 120, 1 << 30, -1])
@pytest.mark.parametrize("engine", ["db", *ENGINES])
def test_a_size_word_that_was_overwritten(engine: str, size: int, closed: bool) -> None:
    """Scenario A31: what lies behind it stays readable; other logs are compacted."""
    rig = GcRig(engine=engine)
    damaged = rig.write([1, 2, 3], 10)
    other = rig.write([4, 5], 10)
    rig.restart()
    if not closed:
        rig.forget_map(damaged)
    # The entries of a drain lie by ledger: 1 first. Of ledger 1 the fifth is hit.
    rig.bookie.files.corrupt(rig.path(damaged), rig.first + 4 * SIZE, struct.pack(">i", size))
    rig.delete(2, 5)
    for _ in range(2):
        rig.force()
        assert list(rig.gc.state().quarantined) == [damaged]
        assert "quarantined" in rig.gc.report(damaged).reason
        assert not rig.logs.exists(other)
        for ledger_id in (1, 3):
            for entry_id, expected in _entries(ledger_id, 10).items():
                if (ledger_id, entry_id) != (1, 4):  # of that one its digest tells the client
                    assert rig.storage.read(ledger_id, entry_id) == expected
        assert rig.readable(4) == _entries(4, 10)
        rig.restart()
    rig.delete(1, 3)  # even then: nobody has seen what lies behind the damage
    rig.force()
    assert rig.logs.exists(damaged)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "active at a crash"])
@pytest.mark.parametrize("length", [0, 4 * SIZE, 4 * SIZE + 50, 29 * SIZE + 103])
def test_a_tail_that_was_cut(length: int, closed: bool) -> None:
    rig = GcRig()
    damaged = rig.write([1, 2, 3], 10)
    rig.restart()
    if not closed:
        rig.forget_map(damaged)
    end = rig.first + length
    rig.cut(damaged, end)
    rig.delete(1)
    rig.metadata.ledgers[99] = None
    result = rig.force()
    between_entries = length % SIZE == 0
    if closed or not between_entries:
        assert list(rig.gc.state().quarantined) == [damaged]
        assert rig.logs.exists(damaged)
        assert (result.logs_compacted, result.logs_deleted) == (0, 0)
    for entry_id in range(10):
        location = rig.parts.location_of(3, entry_id)
        if split_location(location)[0] == damaged and split_location(location)[1] + 100 > end:
            with pytest.raises(StorageFault):  # never "no such entry"
                rig.storage.read(3, entry_id)
        else:  # what lies before the cut is whole, and stays whatever was collected
            assert rig.storage.read(3, entry_id) == _entries(3, 10)[entry_id]


@pytest.mark.parametrize("where", ["ledger id", "entry id"])
@pytest.mark.parametrize("bit", [0, 1, 3, 6])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "active at a crash"])
def test_the_head_of_a_live_entry_that_was_flipped(where: str, bit: int, closed: bool) -> None:
    rig = GcRig()
    log_id = rig.write([1, 2], 10)
    rig.restart()
    if not closed:
        rig.forget_map(log_id)
    rig.delete(2)
    rig.flip(log_id, rig.first + 5 * SIZE + 4 + (7 if where == "ledger id" else 15), 1 << bit)
    result = rig.force()
    assert (result.logs_compacted, result.logs_deleted) == (0, 0)
    assert "entry 5 of ledger 1" in rig.gc.state().quarantined[log_id] or "bytes per ledger" in str(
        rig.gc.state().quarantined[log_id]
    )
    with pytest.raises(EntryDamaged):
        rig.storage.read(1, 5)
    for entry_id in set(range(10)) - {5}:
        assert rig.storage.read(1, entry_id) == entry(1, entry_id, 100)


def test_the_body_of_an_entry_is_its_writers_business_but_what_the_scrubber_has_found_stays_where_it_is() -> None:
    rig = GcRig(bookie=MemoryBookie.without_read_cache())
    log_id = rig.write([1, 2], 10)
    rig.delete(2)
    rig.flip(log_id, rig.first + 5 * SIZE + 60)
    rig.gc.excluded = lambda: {log_id: "broken"}
    assert rig.force().logs_compacted == 0
    assert rig.logs.exists(log_id)
    rig.gc.excluded = dict
    assert rig.force().logs_compacted == 1
    damaged = bytearray(entry(1, 5, 100))
    damaged[56] ^= 1
    assert rig.storage.read(1, 5) == bytes(damaged)  # as it was before: the digest is the client's


@pytest.mark.parametrize("form", ["transactional", "plain"])
def test_what_the_scrubber_finds_in_the_middle_of_a_compaction_is_passed_over(form: str) -> None:
    """Both logs were measured when all was well; by the turn of the second one it is held."""
    rig = GcRig(replace(FAST, transactional_compaction=form == "transactional"))
    first, second, third = (rig.write([1, 2], 5, first=5 * number) for number in range(3))
    rig.delete(2)
    rig.gc.excluded = lambda: {} if rig.logs.exists(first) else {second: "the scrubber found damage"}
    result = rig.force()
    assert (result.logs_compacted, result.logs_deleted, result.errors) == (2, 2, [])
    assert [rig.logs.exists(each) for each in (first, second, third)] == [False, True, False]
    assert not rig.gc.state().quarantined
    rig.gc.excluded = dict
    assert rig.force().logs_compacted == 1
    assert not rig.logs.exists(second)
    assert rig.readable(1) == _entries(1, 15)


@pytest.mark.parametrize("at", [0, 3, 7, 11, 15, 16, 18, 19, 20, 24, 27])
def test_a_flipped_bit_of_a_log_header(at: int) -> None:
    rig = GcRig()
    log_id = rig.write([1, 2], 10)
    rig.restart()
    rig.delete(2)
    rig.flip(log_id, at, 4)
    rig.force()
    assert rig.readable(1) == _entries(1, 10)
    rig.restart()
    assert rig.readable(1) == _entries(1, 10)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "active at a crash"])
@pytest.mark.parametrize("step", [1, 3], ids=["all entries", "a third of the entries"])
@pytest.mark.parametrize("swallowed", [1, 2])
@pytest.mark.parametrize("engine", ["db", *ENGINES])
def test_a_size_word_that_swallows_the_next_entries_of_its_ledger(
    engine: str, swallowed: int, step: int, closed: bool
) -> None:
    """The sum of bytes stays the same, and each entry that is hidden can be read at its place."""
    rig = GcRig(engine=engine)
    for entry_id in range(0, 10 * step, step):
        put(rig.storage, entry(1, entry_id, 100))
    log_id = rig.write([2, 3], 20)
    rig.metadata.ledgers[1] = None
    rig.restart()
    if not closed:
        rig.forget_map(log_id)
    rig.bookie.files.corrupt(rig.path(log_id), rig.first + 4 * SIZE, struct.pack(">i", 100 + swallowed * SIZE))
    rig.delete(2, 3)
    result = rig.force()
    assert (result.logs_compacted, result.logs_deleted) == (0, 0)
    assert f"entry {5 * step} of ledger 1" in rig.gc.state().quarantined[log_id]
    for number in set(range(10)) - {4}:
        assert rig.storage.read(1, number * step) == entry(1, number * step, 100)


@pytest.mark.parametrize("engine", ["db", *ENGINES])
@pytest.mark.parametrize("others_live", [False, True])
def test_a_size_word_that_swallows_the_only_entry_of_a_ledger(engine: str, others_live: bool) -> None:
    """In a log without a map nothing but the index knows that the ledger is there."""
    rig = GcRig(engine=engine)
    put(rig.storage, entry(1, 0, 100), entry(2, 0, 100))
    log_id = rig.write([3, 4], 20)
    rig.metadata.ledgers |= {1: None, 2: None}
    rig.restart()
    rig.forget_map(log_id)
    rig.bookie.files.corrupt(rig.path(log_id), rig.first, struct.pack(">i", 100 + SIZE))
    rig.delete(1, 3)
    if not others_live:
        rig.delete(4)
    result = rig.force(MAJOR)
    assert (result.logs_compacted, result.logs_deleted) == (0, 0)
    assert "entry 0 of ledger 2 should be at" in rig.gc.state().quarantined[log_id]
    assert rig.storage.read(2, 0) == entry(2, 0, 100)


# --- rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bit", [0, 2, 7, 31, 32, 33, 40, 62])
def test_a_flipped_bit_of_a_row(bit: int) -> None:
    """A copy goes only if the index points to another one *that is there*."""
    rig = GcRig(bookie=MemoryBookie.without_read_cache())
    log_id = rig.write([1, 2], 10)
    other = rig.write([3, 99], 10)
    rig.delete(2)
    rig.gc.run_pass()
    right = rig.parts.location_of(1, 5)
    rig.set_row(1, 5, right ^ 1 << bit)
    with pytest.raises(StorageFault):
        rig.storage.read(1, 5)
    rig.force()
    assert rig.logs.exists(other)
    if split_location(right ^ 1 << bit)[0] == log_id:
        # It points into the log itself, where no entry begins: compaction has the entry and heals the row.
        assert not rig.gc.state().quarantined
    assert rig.readable(1) == _entries(1, 10)


def test_a_row_of_another_log_that_points_here_by_mistake_keeps_both() -> None:
    rig = GcRig()
    log_id = rig.write([1, 2], 10)
    later = rig.write([1, 2], 10, first=10)
    rig.delete(2)
    rig.set_row(1, 10, make_location(log_id, rig.first + 4))
    rig.force()
    assert log_id in rig.gc.state().quarantined
    assert not rig.logs.exists(later)
    assert rig.readable(1) == _entries(1, 20)  # compaction of the later log has met entry 10


def test_a_header_that_points_nowhere_and_a_torn_end_are_no_damage_to_keep_a_log_for() -> None:
    """What a power cut leaves of a log that was written: the index knows nothing behind it, so its space comes back."""
    bookie = MemoryBookie(options=production(entry_log_preallocation=False, direct_io_entry_logger=False))
    rig = GcRig(bookie=bookie)
    log_id = rig.write([1, 2], 10)
    path = rig.path(log_id)
    rig.forget_map(log_id)
    file = rig.bookie.files.open(path, writable=True)
    file.pwrite(struct.pack(">iqq", 100, 1, 10) + bytes(50), rig.first + 20 * SIZE)
    file.close()
    rig.restart()
    rig.delete(2)
    assert rig.force().logs_compacted == 1
    assert not rig.gc.state().quarantined
    assert rig.readable(1) == _entries(1, 10)


def test_holes_that_a_power_cut_left_in_a_log_are_no_damage_to_keep_it_for() -> None:
    rig = GcRig()
    log_id = rig.write([1, 2], 10)
    path = rig.path(log_id)
    file = rig.bookie.files.open(path, writable=True)
    file.pwrite(entry(7, 0, 500), rig.logs.size(log_id) + 512)  # sectors came in another order
    file.close()
    _flip_to_unclosed(rig, path)
    rig.restart()
    rig.delete(2)
    assert rig.force().logs_compacted == 1
    assert not rig.gc.state().quarantined
    assert rig.readable(1) == _entries(1, 10)


def _flip_to_unclosed(rig: GcRig, path: str) -> None:
    rig.bookie.files.corrupt(path, 8, bytes(20))


def test_a_quarantine_is_remembered_and_ends_when_the_log_is_removed_by_hand() -> None:
    rig = GcRig()
    log_id = rig.write([1, 2], 10)
    rig.restart()
    rig.bookie.files.corrupt(rig.path(log_id), rig.first, struct.pack(">i", 7))
    rig.delete(2)
    rig.force()
    assert log_id in rig.gc.state().quarantined
    rig.restart()
    assert log_id in rig.gc.state().quarantined
    path = rig.path(log_id)
    rig.storage.close()
    rig.bookie.files.unlink(path)
    rig.open()
    rig.gc.run_pass()
    assert not rig.gc.state().quarantined
    rig.restart()
    assert not rig.gc.state().quarantined


# --- a lost index -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reference", [False, True], ids=["our logs", "logs of the reference"])
def test_an_index_that_was_lost_makes_no_log_garbage(reference: bool) -> None:
    """No row is left of anything. What the metadata service places here stays; what it deleted long ago goes."""
    rig = GcRig()
    mixed, whole, dead = rig.write([1, 2], 10), rig.write([3], 10), rig.write([4], 10)
    rig.restart()
    if reference:
        for log_id in (mixed, whole, dead):
            rig.bookie.files.corrupt(rig.path(log_id), 20, bytes(8))
    for ledger_id in range(1, 5):
        rig.storage.delete_ledger(ledger_id)
    rig.storage.flush()
    rig.delete(2, 4)
    before = {log_id: rig.bookie.files.read_bytes(rig.path(log_id)) for log_id in (mixed, whole)}
    for _ in range(3):
        rig.force()
        assert {log_id: rig.bookie.files.read_bytes(rig.path(log_id)) for log_id in (mixed, whole)} == before
        assert not rig.logs.exists(dead)
        assert "not in the index here" in rig.gc.report(mixed).reason
        rig.restart()
    rig.metadata.down = True
    rig.force()
    assert rig.logs.exists(mixed)
    assert rig.logs.exists(whole)


@pytest.mark.parametrize("engine", ["db", *ENGINES])
@pytest.mark.parametrize("form", ["transactional", "plain", "interrupted"])
@pytest.mark.parametrize("whole_log", [True, False])
def test_no_entry_of_a_former_ledger_takes_the_place_of_a_damaged_one(engine: str, form: str, whole_log: bool) -> None:
    rig = GcRig(replace(FAST, transactional_compaction=form != "plain"), engine=engine)
    source = rig.write([1, 2, 7], 10)
    rig.delete(2)
    if form == "interrupted":
        target = rig.logs.begin_compaction(source, 0)
        target.append_run(1, [entry(1, each, 100) for each in range(10)])
        target.mark_compacted()
        target.make_available()
    rig.storage.delete_ledger(1)
    rig.write([1], 10, mark=b"n")
    row = rig.parts.location_of(1, 3)
    log_id, position = split_location(row)
    if whole_log:
        path = rig.path(log_id)
        rig.storage.close()
        rig.bookie.files.unlink(path)
        rig.open()
    else:
        rig.flip(log_id, position + 7)
        rig.restart()
    rig.force()
    assert rig.parts.location_of(1, 3) == row
    with pytest.raises(StorageFault):
        rig.storage.read(1, 3)
