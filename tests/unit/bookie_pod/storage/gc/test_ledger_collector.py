"""Which ledgers go: every doubt keeps."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from bookie_pod.ledgers.registry import Ledgers
from bookie_pod.storage.engines.interface import Consent
from bookie_pod.storage.gc.fenced_deleted import NAME as FENCED
from bookie_pod.storage.gc.fenced_deleted import FencedAndDeleted, fenced_files
from bookie_pod.storage.gc.ledger_collector import DELETIONS_PER_TURN
from bookie_pod.storage.gc.storage import READS_PER_REQUEST
from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable, StorageFault
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.support.gc_rig import BOOKIE, FAST, GcRig
from tests.support.storage_engine import KEY, entry

OTHER = ("other:3181",)
SOMEBODY_ELSES = 1000
UNVERIFIED = replace(FAST, verify_metadata=False)
OVER_REPLICATED = replace(FAST, overreplicated_wait_time_ms=1)


def _rig(ledgers: int, options=FAST) -> GcRig:
    rig = GcRig(options)
    rig.write(range(ledgers), 3)
    rig.metadata.ledgers[SOMEBODY_ELSES] = OTHER
    rig.now += 5
    return rig


def _left(rig: GcRig) -> set[int]:
    return set(rig.storage.ledger_ids())


# --- scan and compare ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("span", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("options", [FAST, UNVERIFIED], ids=["verified", "trusted"])
def test_exactly_those_that_the_service_does_not_have_go(span: int, options) -> None:
    rig = _rig(20, options)
    rig.metadata.span = span
    gone = {0, 1, 5, 6, 7, 12, 19}
    rig.delete(*gone)
    assert rig.gc.run_pass().ledgers_deleted == len(gone)
    assert _left(rig) == set(range(20)) - gone


def test_ledgers_above_the_last_range_and_a_listing_that_does_not_reach_them() -> None:
    rig = _rig(4)
    rig.delete(3)
    del rig.metadata.ledgers[SOMEBODY_ELSES]
    whole = rig.metadata.ranges

    def without_the_last():
        *spans, _ = whole()
        yield from spans

    rig.metadata.ranges = without_the_last
    assert rig.gc.run_pass().ledgers_deleted == 0
    assert _left(rig) == {0, 1, 2, 3}
    rig.metadata.ranges = whole
    assert rig.gc.run_pass().ledgers_deleted == 1
    assert _left(rig) == {0, 1, 2}


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_listing_that_breaks_off(after: int) -> None:
    rig = _rig(9)
    rig.delete(0, 4, 8)
    rig.metadata.fail_listing_after = after
    rig.gc.run_pass()
    covered = {0: set(), 1: {0}, 2: {0, 4}, 3: {0, 4, 8}}[after]
    assert {0, 4, 8} - _left(rig) == covered
    assert _left(rig) >= set(range(9)) - {0, 4, 8}


def test_a_service_of_another_cluster_is_asked_nothing() -> None:
    rig = _rig(4)
    rig.metadata.foreign = True
    rig.metadata.ledgers = {7: OTHER}
    result = rig.gc.run_pass()
    assert _left(rig) == {0, 1, 2, 3}
    assert (result.ledgers_deleted, result.logs_deleted, rig.metadata.reads) == (0, 0, 0)


def test_a_service_of_another_cluster_has_no_say_about_ledgers_that_only_logs_know() -> None:
    """The ledger index lost a row, and the service is a wrong one: neither may cost the log."""
    rig = _rig(1)
    part = rig.storage.directories[0]
    part.ledgers.delete(0)
    rig.storage.flush()
    rig.metadata.foreign = True
    rig.metadata.ledgers = {7: OTHER}
    for _ in range(3):
        assert rig.gc.run_pass().logs_deleted == 0
    assert rig.metadata.reads == 0
    (usage,) = rig.gc.usages()
    assert usage.in_doubt == usage.total


class TestListingThatLies:
    def test_a_ledger_that_names_this_bookie_stays(self) -> None:
        rig = _rig(4)
        rig.metadata.listing = {0: None, SOMEBODY_ELSES: None}
        assert rig.gc.run_pass().ledgers_deleted == 0
        assert _left(rig) == {0, 1, 2, 3}

    def test_so_does_one_whose_metadata_cannot_be_read(self) -> None:
        rig = _rig(4)
        rig.delete(1, 2)
        rig.metadata.unreadable = {1}
        assert rig.gc.run_pass().ledgers_deleted == 1
        assert _left(rig) == {0, 1, 3}

    @pytest.mark.parametrize("state", list(LedgerState))
    def test_one_that_lives_elsewhere_goes_if_it_is_closed(self, state: LedgerState) -> None:
        rig = _rig(2)
        rig.metadata.ledgers[1] = OTHER
        rig.metadata.state = state
        rig.metadata.listing = {0: None, SOMEBODY_ELSES: None}
        rig.gc.run_pass()
        assert _left(rig) == ({0} if state is LedgerState.CLOSED else {0, 1})

    def test_without_verification_the_listing_is_trusted(self) -> None:
        rig = _rig(4, UNVERIFIED)
        rig.metadata.listing = {0: None, SOMEBODY_ELSES: None}
        assert rig.gc.run_pass().ledgers_deleted == 3

    def test_an_empty_one_not_even_then(self) -> None:
        rig = _rig(4, UNVERIFIED)
        rig.metadata.listing = {}
        for _ in range(3):
            assert rig.gc.run_pass().ledgers_deleted == 0

    def test_two_empty_ones_count_only_one_after_the_other(self) -> None:
        rig = _rig(2)
        rig.delete(0, 1)
        del rig.metadata.ledgers[SOMEBODY_ELSES]
        assert rig.gc.run_pass().ledgers_deleted == 0
        rig.metadata.ledgers[SOMEBODY_ELSES] = OTHER
        rig.metadata.unreadable = {0, 1}
        assert rig.gc.run_pass().ledgers_deleted == 0
        del rig.metadata.ledgers[SOMEBODY_ELSES]
        rig.metadata.unreadable = set()
        assert rig.gc.run_pass().ledgers_deleted == 0
        assert rig.gc.run_pass().ledgers_deleted == 2


def test_a_ledger_that_was_made_while_the_listing_ran_stays() -> None:
    rig = _rig(3)
    whole = rig.metadata.ranges

    def slow():
        for number, span in enumerate(whole()):
            if number == 0:
                rig.write([1, 50], 1, first=3)  # behind the listing's back
            yield span

    rig.metadata.ranges = slow
    assert rig.gc.run_pass().ledgers_deleted == 0
    assert _left(rig) == {0, 1, 2, 50}


def test_a_ledger_that_cannot_be_deleted_does_not_keep_the_others() -> None:
    rig = _rig(3)
    rig.delete(0, 1, 2)
    storage = rig.storage.directories[0]
    plain = storage.delete_ledger

    def delete(ledger_id: int, consent: Consent) -> None:
        if ledger_id == 1:
            raise StorageFault("not this one")
        plain(ledger_id, consent)

    storage.delete_ledger = delete
    result = rig.gc.run_pass()
    assert (result.ledgers_deleted, result.logs_deleted) == (2, 0)
    assert result.errors == ["deleting ledgers: 1 could not be deleted here"]
    assert _left(rig) == {1}
    del storage.delete_ledger
    assert rig.gc.run_pass().logs_deleted == 1


def test_many_ledgers_are_deleted_in_few_turns_of_the_loop_and_none_is_long() -> None:
    rig = _rig(300)
    rig.delete(*range(299))
    storage = rig.storage.directories[0]
    plain, turns = storage.in_one_turn, []

    def turn(work: Callable[[], None]) -> None:
        before = len(storage.ledgers.ledger_ids())
        plain(work)
        turns.append(before - len(storage.ledgers.ledger_ids()))

    storage.in_one_turn = turn
    rig.metadata.span = 1000
    assert rig.gc.run_pass().ledgers_deleted == 299
    assert max(turns) == DELETIONS_PER_TURN
    assert len(turns) == -(-299 // DELETIONS_PER_TURN)


def test_metadata_operations_are_paid_for() -> None:
    rig = GcRig()
    paid: list[int] = []
    rig.gc._ledgers._pay = lambda: paid.append(1)
    rig.write(range(20), 1)
    rig.metadata.ledgers[SOMEBODY_ELSES] = OTHER
    rig.delete(*range(10))
    rig.gc.run_pass()
    assert rig.metadata.reads == 10
    assert len(paid) >= 1 + 20 // rig.metadata.span, "those that are read with one request are one operation"


# --- over-replicated ----------------------------------------------------------------------------------------


def test_a_ledger_that_no_ensemble_places_here_goes() -> None:
    rig = _rig(3, OVER_REPLICATED)
    rig.metadata.ledgers[1] = OTHER
    rig.metadata.ledgers[2] = (*OTHER, BOOKIE)
    assert rig.gc.run_pass().ledgers_deleted == 1
    assert _left(rig) == {0, 2}


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_one_that_is_not_closed_stays(state: LedgerState) -> None:
    rig = _rig(2, OVER_REPLICATED)
    rig.metadata.ledgers[1] = OTHER
    rig.metadata.state = state
    assert rig.gc.run_pass().ledgers_deleted == 0


def test_one_that_is_given_back_while_its_lock_was_waited_for_stays() -> None:
    rig = _rig(2, OVER_REPLICATED)
    rig.metadata.ledgers[1] = OTHER
    plain = rig.metadata.re_replication_lock

    def lock(ledger_id: int):
        rig.metadata.ledgers[ledger_id] = (BOOKIE,)  # the worker that held it has finished
        return plain(ledger_id)

    rig.metadata.re_replication_lock = lock
    assert rig.gc.run_pass().ledgers_deleted == 0


def test_one_whose_named_bookies_lack_copies_stays() -> None:
    """They may have left since they were named, or never have got what they were to get."""
    rig = _rig(3, OVER_REPLICATED)
    rig.metadata.ledgers |= {1: OTHER, 2: OTHER}
    rig.metadata.torsos = {1}
    assert rig.gc.run_pass().ledgers_deleted == 1
    assert _left(rig) == {0, 1}


def test_one_whose_lock_has_ended_meanwhile_stays() -> None:
    rig = _rig(3, OVER_REPLICATED)
    rig.metadata.ledgers |= {1: OTHER, 2: OTHER}
    rig.metadata.locks_that_end = {2}
    assert rig.gc.run_pass().ledgers_deleted == 1
    assert _left(rig) == {0, 2}


def test_one_that_is_placed_here_while_its_copies_are_looked_at_stays() -> None:
    """A recovery by hand takes no lock."""
    rig = _rig(3, OVER_REPLICATED)
    rig.metadata.ledgers[1] = OTHER

    def is_whole_elsewhere(ledger_id: int) -> bool:
        rig.metadata.ledgers[ledger_id] = (*OTHER, BOOKIE)
        return True

    rig.metadata.is_whole_elsewhere = is_whole_elsewhere
    assert rig.gc.run_pass().ledgers_deleted == 0
    assert _left(rig) == {0, 1, 2}


def test_one_that_cannot_be_read_ends_the_search_and_keeps_all() -> None:
    rig = _rig(3, OVER_REPLICATED)
    rig.metadata.ledgers |= {1: OTHER, 2: OTHER}
    rig.metadata.unreadable = {0}
    assert rig.gc.run_pass().ledgers_deleted == 0
    assert rig.gc.state().last_errors == (
        "deleting ledgers: the search for over-replicated ledgers ended early: ledger 0 cannot be read",
    )
    rig.metadata.unreadable = set()
    assert rig.gc.run_pass().ledgers_deleted == 2  # at once, not an interval later
    assert rig.gc.state().last_errors == ()


def test_one_whose_metadata_is_damaged_does_not_keep_the_others() -> None:
    """It stays so until somebody mends it: the ledgers behind it would stay as long."""
    rig = _rig(3, OVER_REPLICATED)
    rig.metadata.ledgers |= {1: OTHER, 2: OTHER}
    plain = rig.metadata.read

    def read(ledger_id: int):
        if ledger_id == 0:
            raise MetadataDamaged("no ledger metadata")
        return plain(ledger_id)

    rig.metadata.read = read
    result = rig.gc.run_pass()
    assert (result.ledgers_deleted, result.errors) == (2, [])
    assert _left(rig) == {0}


def test_a_lock_that_cannot_be_taken_ends_the_search() -> None:
    rig = _rig(2, OVER_REPLICATED)
    rig.metadata.ledgers[1] = OTHER

    def lock(ledger_id: int):
        raise MetadataUnavailable("no answer")

    rig.metadata.re_replication_lock = lock
    assert rig.gc.run_pass().ledgers_deleted == 0
    assert _left(rig) == {0, 1}


# --- fenced ledgers -----------------------------------------------------------------------------------------


def _fence(rig: GcRig, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        rig.storage.set_ledger(ledger_id, replace(rig.storage.ledger(ledger_id), fenced=True))


def _on_disk(rig: GcRig) -> FencedAndDeleted:
    """What is remembered after a power cut at this moment."""
    return FencedAndDeleted(
        fenced_files(rig.bookie.files.crash(random.Random(0)), rig.bookie.directories), now_ms=lambda: rig.now
    )


@pytest.mark.parametrize("options", [FAST, UNVERIFIED, OVER_REPLICATED], ids=["verified", "trusted", "elsewhere"])
@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_that_a_ledger_was_fenced_is_durable_before_it_is_deleted(engine: str, options) -> None:
    """A flush that has nothing to do with the collection may make the deletion durable at once."""
    rig = GcRig(options, engine=engine)
    rig.write(range(6), 2)
    rig.now += 5
    rig.metadata.ledgers[SOMEBODY_ELSES] = OTHER
    _fence(rig, 1, 2, 4)
    rig.delete(1, 3)
    if options is OVER_REPLICATED:
        rig.metadata.ledgers[4] = OTHER
    else:
        rig.delete(4)
    known: dict[int, bool] = {}
    delete = rig.gc._storage.delete_ledger

    def watched(ledger_id: int, consent: Consent) -> None:
        known[ledger_id] = _on_disk(rig).was_fenced(ledger_id)
        delete(ledger_id, consent)

    rig.gc._storage.delete_ledger = watched
    rig.gc.run_pass()
    assert known == {1: True, 3: False, 4: True}
    assert not _on_disk(rig).was_fenced(2)


@pytest.mark.parametrize("options", [FAST, OVER_REPLICATED], ids=["gone", "elsewhere"])
def test_a_fenced_ledger_stays_as_long_as_no_disk_takes_that_it_was_fenced(options) -> None:
    rig = _rig(4, options)
    _fence(rig, 1)
    if options is OVER_REPLICATED:
        rig.metadata.ledgers |= {1: OTHER, 2: OTHER}
    else:
        rig.delete(1, 2)
    rig.bookie.files.faults.fail("write", "create", "overwrite", errno=28, path=f"{rig.bookie.directories[0]}/{FENCED}")
    result = rig.gc.run_pass()
    assert result.ledgers_deleted == 1
    assert "deleting ledgers: 1 could not be deleted here" in result.errors
    assert _left(rig) == {0, 1, 3}
    rig.bookie.files.faults.clear()
    rig.now += 5
    assert rig.gc.run_pass().ledgers_deleted == 1
    assert _on_disk(rig).was_fenced(1)


@pytest.mark.parametrize("options", [FAST, OVER_REPLICATED], ids=["gone", "elsewhere"])
def test_ledger_that_is_fenced_in_the_middle_stays_until_the_next_search(options) -> None:
    rig = _rig(2, options)
    if options is OVER_REPLICATED:
        rig.metadata.ledgers[1] = OTHER
    else:
        rig.delete(1)
    storage = rig.gc._storage
    watch = storage.watch

    def watch_and_fence(ledger_ids: Collection[int]) -> None:
        watch(ledger_ids)
        _fence(rig, 1)

    storage.watch = watch_and_fence
    assert (rig.gc.run_pass().ledgers_deleted, _left(rig)) == (0, {0, 1})
    storage.watch = watch
    rig.now += 5
    assert rig.gc.run_pass().ledgers_deleted == 1
    assert _on_disk(rig).was_fenced(1)


@pytest.mark.parametrize("options", [FAST, OVER_REPLICATED], ids=["gone", "elsewhere"])
def test_fences_of_many_ledgers_are_remembered_together(options) -> None:
    count = READS_PER_REQUEST + 1
    rig = _rig(count, options)
    _fence(rig, *range(count))
    if options is OVER_REPLICATED:
        rig.metadata.ledgers |= dict.fromkeys(range(count), OTHER)
    else:
        rig.delete(*range(count))
    written: list[int] = []
    for copy in rig.fenced._copies:
        copy.write = lambda ids, at, plain=copy.write: written.append(len(ids)) or plain(ids, at)
    assert rig.gc.run_pass().ledgers_deleted == count
    assert written == ([count] if options is FAST else [READS_PER_REQUEST, count])


# --- ids that come back -------------------------------------------------------------------------------------


def test_a_ledger_is_known_to_have_been_another_one_before_it_is_gone() -> None:
    rig = _rig(2)
    rig.delete(1)
    known: list[bool] = []
    rig.storage.on_ledger_deleted(lambda ledger_id, fenced, next_log: known.append(ledger_id in rig.gc._deleted))
    assert rig.gc.run_pass().ledgers_deleted == 1
    assert known == [True]


@pytest.mark.parametrize("hot", [False, True], ids=["cold", "hot"])
@pytest.mark.parametrize("options", [FAST, UNVERIFIED, OVER_REPLICATED], ids=["verified", "trusted", "elsewhere"])
@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_one_that_is_made_anew_behind_the_word_of_the_service_stays(engine: str, options, hot: bool) -> None:
    """And its entries are acknowledged. `hot`: whoever writes it has its dict since before."""
    rig = GcRig(options, engine=engine)
    ledgers = Ledgers(rig.storage, 1)
    rig.write([1, 2], 3, mark=b"a")
    rig.metadata.ledgers[SOMEBODY_ELSES] = OTHER
    rig.now += 5
    if options is OVER_REPLICATED:
        rig.metadata.ledgers[1] = OTHER
    else:
        rig.delete(1)
    if hot:
        _add(ledgers, entry(1, 7))
    storage = rig.gc._storage
    delete = storage.delete_ledger

    def late(ledger_id: int, consent: Consent) -> None:
        rig.metadata.ledgers[1] = None
        _add(ledgers, entry(1, 8, mark=b"b"))
        delete(ledger_id, consent)

    storage.delete_ledger = late
    result = rig.gc.run_pass()
    assert (result.ledgers_deleted, _left(rig)) == (0, {1, 2})
    assert rig.storage.read(1, 8) == entry(1, 8, mark=b"b")
    assert 1 not in rig.gc._deleted
    storage.delete_ledger = delete
    rig.now += 5
    assert rig.gc.run_pass().ledgers_deleted == 0


def test_a_writer_that_has_not_heard_of_a_deletion_keeps_its_ledger_until_it_is_silent() -> None:
    rig = _rig(2)
    ledgers = Ledgers(rig.storage, 1)
    rig.delete(1)
    storage = rig.gc._storage
    delete = storage.delete_ledger

    def while_it_writes(ledger_id: int, consent: Consent) -> None:
        _add(ledgers, entry(1, 8))
        delete(ledger_id, consent)

    storage.delete_ledger = while_it_writes
    assert [rig.gc.run_pass().ledgers_deleted for _ in range(3)] == [0, 0, 0]
    storage.delete_ledger = delete
    assert rig.gc.run_pass().ledgers_deleted == 1
    assert _left(rig) == {0}


def _add(ledgers: Ledgers, data: bytes) -> None:
    """As an add does: the hot way if the ledger is."""
    ledger_id, entry_id = struct.unpack_from(">qq", data)
    state = ledgers.for_write(ledger_id, KEY)
    state.key_journaled = True
    ledgers.heat(state)
    assert state.hot_key is not None
    state.entries[entry_id] = data
    ledgers.storage.account(ledger_id, len(data), 1)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_entries_of_an_earlier_life_get_no_row_in_the_next(engine: str, restarts: bool) -> None:
    rig = GcRig(engine=engine)
    rig.metadata.ledgers[SOMEBODY_ELSES] = OTHER
    rig.write([1, 2, 3], 10, mark=b"a")
    rig.delete(1)
    rig.gc.run_pass()
    if restarts:
        rig.restart()
    rig.write([1], 2, mark=b"b")
    rig.delete(2)
    rig.write([4], 1)
    if restarts:
        rig.restart()
    assert rig.force().logs_compacted == 1
    assert list(rig.readable(1)) == [0, 1]
    assert all(b"b" in data for data in rig.readable(1).values())


def test_a_ledger_that_came_back_is_not_taken_for_deleted_when_the_index_loses_it() -> None:
    rig = GcRig()
    rig.metadata.ledgers[SOMEBODY_ELSES] = OTHER
    rig.write([1, 2], 3)
    rig.delete(1)
    rig.gc.run_pass()
    again = rig.write([1], 3)
    rig.gc.run_pass()
    rig.storage.directories[0].ledgers.delete(1)
    rig.storage.flush()
    for _ in range(2):
        rig.force()
        assert rig.logs.exists(again)
        rig.restart()


def test_deleted_ledgers_are_not_asked_for_again_and_forgotten_with_their_logs() -> None:
    rig = _rig(10)
    rig.write(range(100, 150), 2)
    rig.delete(*range(10), *range(100, 110))
    rig.gc.run_pass()
    assert rig.metadata.reads == 20
    rig.gc.run_pass()
    rig.restart()
    rig.gc.run_pass()
    assert rig.metadata.reads == 20
    assert len(rig.gc._deleted) == 10  # of the first log nothing is left
    rig.delete(*range(110, 150))
    rig.gc.run_pass()
    rig.gc.run_pass()
    assert len(rig.gc._deleted) == 0


def test_a_ledger_elsewhere_that_only_logs_know_is_asked_for_once_a_pass() -> None:
    rig = _rig(3)
    rig.write([0, 1, 2], 3, first=3)
    storage = rig.storage.directories[0]
    storage.delete_ledger(1)
    rig.metadata.ledgers[1] = OTHER
    for number in range(1, 4):
        rig.gc.run_pass()
        assert rig.metadata.reads == number
    rig.metadata.ledgers[1] = None  # it is given back: its entries count again
    rig.gc.run_pass()
    assert any(usage.in_doubt for usage in rig.gc.usages())


def test_a_pass_that_deletes_thousands_asks_for_many_of_them_at_once() -> None:
    rig = _rig(1000)
    rig.metadata.span = 100
    rig.delete(*range(1000))
    paid: list[int] = []
    rig.gc._metadata_rate.pay = lambda entries, nbytes: paid.append(entries)  # type: ignore[method-assign]
    assert rig.gc.run_pass().ledgers_deleted == 1000
    assert sum(paid) < 60
