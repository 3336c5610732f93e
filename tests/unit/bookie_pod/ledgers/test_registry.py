"""Ledger states: made on demand, keys, eviction, what deletion leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.ledgers.registry import Ledgers
from bookie_pod.ledgers.state import LAC_NONE, LAC_UNKNOWN, LacWaiters
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.gc.fenced_deleted import REMEMBERED_S, FencedAndDeleted
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_protocol.errors import BadRequest, LedgerFenced, NoSuchLedger, Unauthorized
from bookie_protocol.keys import is_unknown_key
from tests.support.clock import Clock
from tests.support.frames import KEY, NO_KEY, OTHER_KEY, entry, lac_packet
from tests.support.storage_engine import MemoryBookie
from tests.unit.bookie_pod.ledgers.waiters import Waiter


@pytest.fixture
def storage() -> Iterator[DbLedgerStorage]:
    engine = MemoryBookie().open()
    yield engine
    engine.close()


def hot(ledgers: Ledgers, ledger_id: int) -> None:
    """As after a first add: the key is journaled."""
    state = ledgers.for_write(ledger_id, KEY)
    state.key_journaled = True
    ledgers.heat(state)
    assert state.hot_key == KEY


def test_an_unknown_ledger_is_made_by_a_write_only(storage: DbLedgerStorage) -> None:
    ledgers = Ledgers(storage, 1)
    with pytest.raises(NoSuchLedger):
        ledgers.for_read(7)
    state = ledgers.for_write(7, KEY)
    assert storage.ledger(7) == LedgerRecord(KEY)
    assert state is ledgers.for_read(7) is ledgers.for_write(7, KEY)
    assert (state.lac, state.lac_known) == (LAC_NONE, True)


@pytest.mark.parametrize("wrong", [OTHER_KEY, NO_KEY, b"", KEY[:-1]], ids=["other", "zeros", "empty", "prefix"])
@pytest.mark.parametrize("loaded", [False, True], ids=["in memory", "loaded"])
def test_every_other_key_is_refused_an_empty_one_too(storage: DbLedgerStorage, wrong: bytes, loaded: bool) -> None:
    ledgers = Ledgers(storage, 1)
    ledgers.for_write(7, KEY)
    if loaded:
        ledgers.states.clear()
    with pytest.raises(Unauthorized):
        ledgers.for_write(7, wrong)
    assert ledgers.for_write(7, KEY).key == KEY


def test_the_first_key_replaces_an_unknown_one(storage: DbLedgerStorage) -> None:
    ledgers = Ledgers(storage, 1)
    state = ledgers.for_write(7, b"")
    state.key_journaled = True
    assert ledgers.for_write(7, b"") is state  # still nobody's
    assert ledgers.for_write(7, KEY) is state
    assert state.key == KEY
    assert not state.key_journaled  # the journal knows the old one
    assert storage.ledger(7) == LedgerRecord(KEY)
    with pytest.raises(Unauthorized):
        ledgers.for_write(7, b"")


@pytest.mark.parametrize("ledger_id", [-1, -0xEEFD, -(2**63)])
def test_a_negative_ledger_is_never_made(storage: DbLedgerStorage, ledger_id: int) -> None:
    """-1 marks the ledgers map of an entry log, -0xeefd the flags of the ledger index."""
    with pytest.raises(BadRequest, match="negative"):
        Ledgers(storage, 2).for_write(ledger_id, KEY)
    assert storage.ledger(ledger_id) is None


@pytest.mark.parametrize("loaded", [False, True], ids=["in memory", "stored only"])
def test_made_fenced_is_only_what_does_not_exist(storage: DbLedgerStorage, loaded: bool) -> None:
    ledgers = Ledgers(storage, 1)
    state = ledgers.for_write(7, KEY)
    if loaded:
        ledgers.states.clear()
    ledgers.create_fenced(7, OTHER_KEY)
    assert storage.ledger(7) == LedgerRecord(KEY)
    assert ledgers.states == ({} if loaded else {7: state})
    ledgers.create_fenced(8, KEY)
    assert storage.ledger(8) == LedgerRecord(KEY, fenced=True)


def test_a_loaded_state_knows_what_the_storage_knows(storage: DbLedgerStorage) -> None:
    storage.set_ledger(3, LedgerRecord(KEY, fenced=True, limbo=True, explicit_lac=lac_packet(3, 8)))
    state = Ledgers(storage, 1, journaled_keys={3}).for_read(3)
    assert (state.key, state.fenced, state.limbo, state.key_journaled) == (KEY, True, True, True)
    assert (state.lac, state.explicit_lac) == (8, lac_packet(3, 8))
    assert not state.lac_known  # the last entry may carry a higher one
    storage.set_ledger(4, LedgerRecord(KEY))
    assert Ledgers(storage, 1).for_read(4).lac == LAC_UNKNOWN


def test_journals_of_ledgers(storage: DbLedgerStorage) -> None:
    ledgers = Ledgers(storage, 3)
    assert [ledgers.journal_of(ledger_id) for ledger_id in (0, 1, 2, 3, 4)] == [0, 1, 2, 0, 1]


def test_a_swap_cools_every_hot_state(storage: DbLedgerStorage) -> None:
    ledgers = Ledgers(storage, 1)
    for ledger_id in (1, 2):
        hot(ledgers, ledger_id)
        ledgers.states[ledger_id].entries[0] = entry(ledger_id, 0)
        storage.account(ledger_id, 39, 1)
    storage.flush()
    assert ledgers.states[1].hot_key is None
    assert ledgers.states[2].hot_key is None
    hot(ledgers, 1)
    assert ledgers.states[1].entries is storage.active_entries(1)


def test_what_keeps_a_state_cold(storage: DbLedgerStorage) -> None:
    ledgers = Ledgers(storage, 1)
    state = ledgers.for_write(1, KEY)
    someone = LacWaiters()
    someone.add(Waiter(0))
    for attribute, value, good in [
        ("fenced", True, False),
        ("key_journaled", False, True),
        ("key", NO_KEY, KEY),
        ("waiters", someone, None),
    ]:
        state.key_journaled = True
        setattr(state, attribute, value)
        ledgers.heat(state)
        assert state.hot_key is None, attribute
        setattr(state, attribute, good)
    state.key_journaled = True
    ledgers.heat(state)
    assert state.hot_key == KEY


def test_limbo_that_the_storage_sets_is_left_by_its_one_way_only(storage: DbLedgerStorage) -> None:
    ledgers = Ledgers(storage, 1)
    hot(ledgers, 7)
    state = ledgers.states[7]
    storage.set_ledger(7, LedgerRecord(KEY, limbo=True))
    state.fenced = True
    ledgers.record(state)  # as a fence, an explicit LAC or a key that is learnt does
    assert storage.ledger(7) == LedgerRecord(KEY, fenced=True, limbo=True)
    assert state.limbo
    ledgers.leave_limbo(7)
    ledgers.record(state)
    assert storage.ledger(7) == LedgerRecord(KEY, fenced=True)
    assert not state.limbo


def test_deletion_cools_wakes_and_forgets(storage: DbLedgerStorage) -> None:
    ledgers = Ledgers(storage, 1)
    storage.on_ledger_deleted(ledgers.forget)
    hot(ledgers, 5)
    hot(ledgers, 6)
    woken: list[bool] = []
    ledgers.states[5].add_waiter(Waiter(10, woken.append))
    state = ledgers.states[5]
    storage.delete_ledger(5)
    assert woken == [False]
    assert state.hot_key is None
    assert ledgers.states[6].hot_key is None  # the dicts of its directory are void
    with pytest.raises(NoSuchLedger):
        ledgers.for_read(5)
    assert ledgers.for_write(5, OTHER_KEY) is not state  # it was not fenced: it may be made anew


def test_fenced_and_deleted_is_remembered_for_seven_days_since_the_last_look(storage: DbLedgerStorage) -> None:
    clock = Clock()
    ledgers = Ledgers(storage, 1, fenced_and_deleted=FencedAndDeleted(clock=clock))
    storage.on_ledger_deleted(ledgers.forget)
    storage.set_ledger(5, LedgerRecord(KEY, fenced=True))  # nobody asked for it since the start
    storage.delete_ledger(5)
    for error in (LedgerFenced, NoSuchLedger):
        with pytest.raises(error):
            ledgers.for_write(5, KEY, deleted=error)
    clock.now += REMEMBERED_S - 1
    with pytest.raises(LedgerFenced):
        ledgers.for_write(5, KEY, deleted=LedgerFenced)
    clock.now += REMEMBERED_S - 1
    with pytest.raises(NoSuchLedger):
        ledgers.for_read(5)
    with pytest.raises(LedgerFenced):
        ledgers.for_write(5, KEY, deleted=LedgerFenced)
    clock.now += REMEMBERED_S + 1
    assert not ledgers.for_write(5, KEY, deleted=LedgerFenced).fenced


def test_the_memory_is_bounded_and_drops_the_oldest(storage: DbLedgerStorage) -> None:
    ledgers = Ledgers(storage, 1, fenced_and_deleted=FencedAndDeleted(limit=2))
    storage.on_ledger_deleted(ledgers.forget)
    for ledger_id in (1, 2):
        storage.set_ledger(ledger_id, LedgerRecord(KEY, fenced=True))
        storage.delete_ledger(ledger_id)
    with pytest.raises(NoSuchLedger):
        ledgers.for_write(1, KEY)  # a look makes it the newest
    storage.set_ledger(3, LedgerRecord(KEY, fenced=True))
    storage.delete_ledger(3)
    assert ledgers.for_write(2, KEY)
    for ledger_id in (1, 3):
        with pytest.raises(NoSuchLedger):
            ledgers.for_write(ledger_id, KEY)


@given(st.lists(st.sampled_from(["plain", "hot", "waited for", "being fenced", "fenced"]), min_size=20, max_size=60))
def test_states_in_use_are_never_evicted(kinds: list[str]) -> None:
    loop = asyncio.new_event_loop()
    storage = MemoryBookie().open()
    try:
        ledgers = Ledgers(storage, 1, states_max=10)
        held = {}
        for ledger_id, kind in enumerate(kinds):
            state = ledgers.for_write(ledger_id, KEY)
            if kind == "hot":
                hot(ledgers, ledger_id)
            elif kind == "waited for":
                state.add_waiter(Waiter(3))
            elif kind in ("being fenced", "fenced"):
                state.fenced, state.fence_durable = True, loop.create_future()
                ledgers.record(state)
                if kind == "fenced":
                    state.fence_durable.set_result(None)
            if kind not in ("plain", "fenced"):
                held[ledger_id] = state
        for ledger_id, state in held.items():
            assert ledgers.states[ledger_id] is state
        assert len(ledgers.states) <= max(10, len(held) + 10)
        for ledger_id, kind in enumerate(kinds):  # what was evicted comes back as it was
            assert ledgers.for_read(ledger_id).fenced == (kind in ("being fenced", "fenced"))
            assert ledgers.for_write(ledger_id, KEY).key == KEY
    finally:
        storage.close()
        loop.close()


def test_a_full_table_drops_its_oldest_tenth(storage: DbLedgerStorage) -> None:
    ledgers = Ledgers(storage, 1, states_max=20)
    for ledger_id in range(21):
        ledgers.for_write(ledger_id, KEY)
    assert list(ledgers.states) == list(range(3, 21))


@given(st.binary(max_size=30))
def test_unknown_keys(key: bytes) -> None:
    assert is_unknown_key(key) == (key.strip(b"\0") == b"")
