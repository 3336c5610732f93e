"""Adds, fences, explicit LACs and forces: what goes into the journal, in which order, and who is told when."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bookie_pod.ledgers.state import LAC_UNKNOWN
from bookie_pod.storage.index.ledger_data import MAX_EXPLICIT_LAC_BYTES, MAX_KEY_BYTES, LedgerRecord
from bookie_pod.storage.journal.format import RecordKind, deletion_record
from bookie_protocol.errors import (
    BadRequest,
    LedgerFenced,
    NoSuchLedger,
    StorageFault,
    Unauthorized,
)
from tests.support.frames import KEY, NO_KEY, OTHER_KEY, entry, lac_packet
from tests.support.server_rig import HeldJournal, ServerRig

KEY_RECORD, FENCE, LAC, ENTRY = RecordKind.KEY, RecordKind.FENCE, RecordKind.EXPLICIT_LAC, RecordKind.ENTRY


@pytest.fixture
async def rig() -> AsyncIterator[ServerRig]:
    made = ServerRig(journals=[HeldJournal(), HeldJournal()])
    yield made
    made.close()


def add(rig: ServerRig, ledger_id: int, entry_id: int, key: bytes = KEY, *, recovery: bool = False) -> list[object]:
    """One add in a lane of its own, submitted; the list gets what `done` is called with."""
    done: list[object] = []
    lanes = rig.operations.lanes()
    stored = entry(ledger_id, entry_id)
    lane = rig.operations.add(lanes, ledger_id, entry_id, entry_id - 1, key, stored, recovery=recovery)
    rig.operations.submit(lane, 1, done.append)
    return done


async def test_an_add_is_in_memory_at_once_and_answered_after_the_journal(rig: ServerRig) -> None:
    done = add(rig, 2, 0)
    assert rig.storage.cached(2, 0) == entry(2, 0)
    assert done == []
    rig.journal.acknowledge()
    assert done == [None]


async def test_the_key_record_comes_first_and_once(rig: ServerRig) -> None:
    add(rig, 2, 0)
    add(rig, 2, 1)
    add(rig, 3, 0)
    assert rig.journals[0].records == [(KEY_RECORD, 2), (ENTRY, 2), (ENTRY, 2)]
    assert rig.journals[1].records == [(KEY_RECORD, 3), (ENTRY, 3)]


@pytest.mark.parametrize("unknown", [NO_KEY, b""], ids=["zeros", "empty"])
async def test_an_unknown_key_is_journaled_too(rig: ServerRig, unknown: bytes) -> None:
    """Replay takes entries without a key record for those of a deleted ledger."""
    add(rig, 2, 0, unknown)
    add(rig, 2, 1, unknown)
    assert rig.journal.records == [(KEY_RECORD, 2), (ENTRY, 2), (ENTRY, 2)]
    assert rig.ledgers.states[2].hot_key is None


async def test_a_key_that_becomes_known_is_journaled_once_more(rig: ServerRig) -> None:
    add(rig, 2, 0, b"")
    add(rig, 2, 1, KEY)
    assert rig.journal.records == [(KEY_RECORD, 2), (ENTRY, 2)] * 2
    assert rig.ledgers.states[2].hot_key == KEY


async def test_key_before_fence_and_explicit_lac(rig: ServerRig) -> None:
    rig.operations.fence(2, KEY)
    rig.operations.write_lac(4, KEY, lac_packet(4, 9), lambda error: None)
    assert rig.journal.records == [(KEY_RECORD, 2), (FENCE, 2), (KEY_RECORD, 4), (LAC, 4)]


async def test_key_before_fence_also_behind_an_add_that_the_storage_refused(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody submits the lane of an add that failed, and a replay leaves out the fence of a ledger without a key."""

    def refuse(ledger_id: int) -> dict[int, bytes]:
        raise StorageFault("the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(rig.storage, "active_entries", refuse)
        with pytest.raises(StorageFault):
            add(rig, 2, 0)
    rig.operations.fence(2, KEY)
    assert rig.journal.records == [(KEY_RECORD, 2), (FENCE, 2)]


async def test_after_a_fence_no_ordinary_add_is_admitted(rig: ServerRig) -> None:
    add(rig, 2, 0)
    rig.operations.fence(2, KEY)
    assert rig.ledgers.states[2].hot_key is None
    with pytest.raises(LedgerFenced):
        add(rig, 2, 1)
    assert rig.storage.cached(2, 1) is None
    record = rig.storage.ledger(2)
    assert record is not None
    assert record.fenced
    assert add(rig, 2, 1, recovery=True) == []
    assert rig.storage.cached(2, 1) == entry(2, 1)


async def test_concurrent_fences_wait_for_one_record(rig: ServerRig) -> None:
    first, second = rig.operations.fence(2, KEY), rig.operations.fence(2, KEY)
    assert first is second
    assert rig.journal.records.count((FENCE, 2)) == 1
    assert not first.done()
    rig.journal.acknowledge()
    assert first.result() is None


async def test_a_fence_that_nobody_waits_for_any_more_is_journaled_all_the_same(rig: ServerRig) -> None:
    told: list[bool] = []
    rig.operations.on_acknowledged = lambda: told.append(True)
    rig.operations.fence(2, KEY).cancel()
    rig.journal.acknowledge()
    assert (rig.journal.records, told) == ([(KEY_RECORD, 2), (FENCE, 2)], [True])
    with pytest.raises(LedgerFenced):
        add(rig, 2, 0)


async def test_a_fence_that_was_loaded_is_journaled_before_it_is_called_durable(rig: ServerRig) -> None:
    """The copy of a fenced ledger may have been written a moment ago, and be in memory only."""
    rig.storage.set_ledger(2, LedgerRecord(KEY, fenced=True))
    durable = rig.operations.fence(2, KEY)
    assert not durable.done()
    assert rig.journal.records == [(KEY_RECORD, 2), (FENCE, 2)]
    rig.journal.acknowledge()
    assert durable.done()
    assert rig.operations.fence(2, KEY) is durable


async def test_a_fence_needs_the_key(rig: ServerRig) -> None:
    for key in (b"", NO_KEY):
        with pytest.raises(Unauthorized):
            rig.operations.fence(2, key)
    assert rig.storage.ledger(2) is None
    add(rig, 2, 0)
    with pytest.raises(Unauthorized):
        rig.operations.fence(2, OTHER_KEY)
    assert not rig.ledgers.states[2].fenced


async def test_a_ledger_that_was_begun_without_a_key_can_be_fenced_without_one(rig: ServerRig) -> None:
    """Else nobody could ever close it."""
    add(rig, 2, 0, NO_KEY)
    rig.storage.set_ledger(4, LedgerRecord(NO_KEY))  # from before this process
    rig.storage.set_ledger(6, LedgerRecord(b""))
    for ledger_id in (2, 4):
        for key in (b"", KEY, bytes(2)):
            with pytest.raises(Unauthorized):
                rig.operations.fence(ledger_id, key)
        rig.operations.fence(ledger_id, NO_KEY)
        with pytest.raises(LedgerFenced):
            add(rig, ledger_id, 1, NO_KEY)
        add(rig, ledger_id, 1, NO_KEY, recovery=True)
    with pytest.raises(Unauthorized):
        rig.operations.fence(6, NO_KEY)


async def test_a_fence_that_cannot_be_journaled_fails_for_all_who_wait(rig: ServerRig) -> None:
    rig.journal.error = StorageFault("disk on fire")
    for _ in range(2):
        durable = rig.operations.fence(2, KEY)
        assert rig.ledgers.states[2].fenced
        assert isinstance(durable.exception(), StorageFault)


async def test_explicit_lacs_last_one_wins_lac_only_grows(rig: ServerRig) -> None:
    done: list[object] = []
    rig.operations.write_lac(2, KEY, lac_packet(2, 9), done.append)
    rig.operations.write_lac(2, KEY, lac_packet(2, 5), done.append)
    state = rig.ledgers.states[2]
    assert (state.lac, state.explicit_lac) == (9, lac_packet(2, 5))
    assert done == []
    rig.journal.acknowledge()
    assert done == [None, None]
    rig.operations.fence(2, KEY)
    rig.operations.write_lac(2, KEY, lac_packet(2, 11), done.append)  # allowed on fenced ledgers
    record = rig.storage.ledger(2)
    assert record is not None
    assert record.fenced
    assert record.explicit_lac == lac_packet(2, 11)


@pytest.mark.parametrize("packet", [b"", lac_packet(2, 1)[:15], lac_packet(3, 1)], ids=["empty", "short", "other"])
async def test_bad_lac_packets(rig: ServerRig, packet: bytes) -> None:
    with pytest.raises(BadRequest):
        rig.operations.write_lac(2, KEY, packet, lambda error: None)
    assert rig.journal.batches == []


async def test_lac_of_a_fenced_and_deleted_ledger(rig: ServerRig) -> None:
    rig.operations.fence(2, KEY)
    rig.storage.delete_ledger(2)
    with pytest.raises(NoSuchLedger):
        rig.operations.write_lac(2, KEY, lac_packet(2, 1), lambda error: None)
    with pytest.raises(NoSuchLedger):
        rig.operations.fence(2, KEY)
    with pytest.raises(LedgerFenced):
        add(rig, 2, 1)


async def test_a_fenced_and_deleted_ledger_can_be_copied_back_and_stays_fenced(rig: ServerRig) -> None:
    """Else it could never be healed here: every attempt would renew the memory of its deletion."""
    rig.operations.fence(2, KEY)
    rig.storage.delete_ledger(2)
    rig.journal.batches.clear()
    add(rig, 2, 1, recovery=True)
    assert rig.storage.read(2, 1) == entry(2, 1)
    assert rig.journal.records == [(KEY_RECORD, 2), (FENCE, 2), (ENTRY, 2)]
    with pytest.raises(LedgerFenced):
        add(rig, 2, 2)
    record = rig.storage.ledger(2)
    assert record is not None
    assert record.fenced


@pytest.mark.parametrize("first", [KEY, NO_KEY], ids=["known", "unknown"])
async def test_a_key_that_no_engine_can_store_is_refused_before_anything_is_acknowledged(
    rig: ServerRig, first: bytes
) -> None:
    longest = b"k" * MAX_KEY_BYTES
    add(rig, 2, 0, longest)
    add(rig, 4, 0, first)
    batches = len(rig.journal.batches)
    for ledger_id in (4, 6):
        with pytest.raises((BadRequest, Unauthorized)):
            add(rig, ledger_id, 1, longest + b"k")
        with pytest.raises((BadRequest, Unauthorized)):
            rig.operations.fence(ledger_id, longest + b"k")
        with pytest.raises((BadRequest, Unauthorized)):
            rig.operations.write_lac(ledger_id, longest + b"k", lac_packet(ledger_id, 1), lambda error: None)
    assert len(rig.journal.batches) == batches
    assert rig.storage.ledger(6) is None
    assert rig.storage.ledger(4) == LedgerRecord(first)


async def test_a_lac_packet_that_no_engine_can_store_is_refused(rig: ServerRig) -> None:
    packet = lac_packet(2, 1).ljust(MAX_EXPLICIT_LAC_BYTES, b"d")
    rig.operations.write_lac(2, KEY, packet, lambda error: None)
    with pytest.raises(BadRequest):
        rig.operations.write_lac(2, KEY, packet + b"d", lambda error: None)
    record = rig.storage.ledger(2)
    assert record is not None
    assert record.explicit_lac == packet


async def test_an_entry_id_that_the_engine_cannot_store_is_refused(rig: ServerRig) -> None:
    rig.storage.max_entry_id = 1000
    add(rig, 2, 1000)
    with pytest.raises(BadRequest, match="1001"):
        add(rig, 2, 1001)
    assert rig.journal.records == [(KEY_RECORD, 2), (ENTRY, 2)]


async def test_force_is_a_marker_in_the_ledgers_own_journal(rig: ServerRig) -> None:
    done: list[object] = []
    rig.operations.force(3, done.append)
    assert rig.journals[0].batches == []
    (batch,) = rig.journals[1].batches
    assert (list(batch.pieces), batch.sync) == ([], True)
    rig.journals[1].acknowledge()
    assert done == [None]


@pytest.mark.parametrize("entry_id", [-1, -0x1000, -(2**63)])
async def test_negative_entries_are_refused(rig: ServerRig, entry_id: int) -> None:
    """They are the journal's own records: -0x1000 is a key."""
    with pytest.raises(BadRequest):
        add(rig, 2, entry_id)
    assert rig.journal.batches == []


async def test_limbo_takes_adds_unless_the_fence_may_be_lost(rig: ServerRig) -> None:
    state = rig.ledgers.for_write(2, KEY)
    state.limbo = True
    add(rig, 2, 0)
    state.fenced = True
    state.cool_down()
    with pytest.raises(LedgerFenced):
        add(rig, 2, 1)
    add(rig, 2, 1, recovery=True)
    assert [rig.storage.cached(2, each) for each in range(2)] == [entry(2, 0), entry(2, 1)]


async def test_recovery_adds_do_not_settle_how_far_a_loaded_ledger_is_confirmed(rig: ServerRig) -> None:
    add(rig, 2, 0)
    rig.ledgers.states.clear()
    add(rig, 2, 5, recovery=True)
    assert not rig.ledgers.states[2].lac_known
    add(rig, 2, 9)
    assert rig.ledgers.states[2].lac_known


@pytest.mark.parametrize(("lac", "known"), [(-2, False), (-1, True), (2, True), (3, False), (2**62, False)])
async def test_a_lac_that_cannot_be_right_is_told_to_nobody_and_its_entry_stored(
    rig: ServerRig, lac: int, known: bool
) -> None:
    add(rig, 2, 0)
    rig.ledgers.states.clear()
    rig.operations.add(rig.operations.lanes(), 2, 3, lac, KEY, entry(2, 3), recovery=False)
    assert rig.storage.cached(2, 3) == entry(2, 3)
    state = rig.ledgers.states[2]
    assert (state.lac, state.lac_known) == ((lac, True) if known else (LAC_UNKNOWN, False))


async def test_without_data_in_the_journal_adds_are_answered_at_once() -> None:
    rig = ServerRig(write_data=False)
    assert add(rig, 2, 0) == [None]
    assert add(rig, 2, 1) == [None]
    assert rig.journal.records == [(KEY_RECORD, 2)]
    rig.operations.fence(2, KEY)
    assert rig.journal.records == [(KEY_RECORD, 2), (FENCE, 2)]
    rig.close()


@pytest.mark.parametrize("write_data", [True, False])
async def test_whatever_took_room_in_a_journal_tells_that_it_is_there_again(write_data: bool) -> None:
    """A burst of deletions, or of keys, fills a journal; the adds that wait then have nothing else to wait for."""
    rig = ServerRig(write_data=write_data)
    told: list[bool] = []
    rig.operations.on_acknowledged = lambda: told.append(True)
    if write_data:
        rig.operations.forget(2, False, 0)
    else:
        add(rig, 2, 0)
    assert len(rig.journal.waiting) == 1
    rig.journal.acknowledge()
    assert told == [True]
    rig.close()


async def test_after_a_journal_failure_nothing_is_acknowledged(rig: ServerRig) -> None:
    rig.journal.error = StorageFault("gone")
    done = add(rig, 2, 0)
    assert len(done) == 1
    assert isinstance(done[0], StorageFault)


async def test_a_deletion_is_journaled_and_nobody_waits_for_it(rig: ServerRig) -> None:
    told: list[bool] = []
    rig.operations.on_acknowledged = lambda: told.append(True)
    rig.operations.forget(3, False, 7)
    (batch,) = rig.journals[1].batches
    assert (rig.journals[1].records, batch.sync) == ([(RecordKind.DELETION, 3)], False)
    rig.journals[1].acknowledge()
    assert told == [True], "there is room for others again"
    rig.journals[1].error = StorageFault("the disk is gone")
    rig.operations.forget(5, False, 7)


async def test_a_deletion_is_journaled_without_data_in_the_journal_too() -> None:
    """Keys and fences are, and would be those of the next ledger with that id."""
    rig = ServerRig(write_data=False)
    rig.operations.forget(2, False, 7)
    (batch,) = rig.journal.batches
    assert batch.pieces[1::2] == deletion_record(2, 7)[1::2]
    rig.close()


async def test_a_lane_that_was_handed_over_is_empty(rig: ServerRig) -> None:
    lanes = rig.operations.lanes()
    lane = rig.operations.add(lanes, 2, 0, -1, KEY, entry(2, 0), recovery=False)
    lane.answers.append(b"answer")
    lane.counted = 1
    handed_over = lane.specials, lane.data, lane.answers
    assert rig.operations.submit(lane, 1, lambda error: None) == 4 + len(entry(2, 0))
    assert (lane.specials, lane.data, lane.answers, lane.counted) == ([], [], [], 0)
    assert all(handed_over), "what is with the journal is not touched"
