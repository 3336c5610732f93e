"""The collector's thread, what is asked of it, and what it says while it works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_pod.storage.gc.collection_pass import COMPACTING_INDEX
from bookie_pod.storage.gc.reports import PassResult
from bookie_pod.storage.gc.schedule import CompactionRule, Force
from bookie_pod.storage.gc.throttle import CollectionStopped
from bookie_protocol.errors import StorageFailed
from tests.support.gc_rig import FAST, MAJOR, MINOR, GcRig
from tests.support.storage_engine import entry, put


def _lives(rig: GcRig, monkeypatch: pytest.MonkeyPatch, *endings: BaseException | None) -> list[float | None]:
    """Let its thread's work run here, with passes that end like this; how long it waited before each."""
    gc, left, waits = rig.gc, list(endings), list[float | None]()

    def run_pass() -> PassResult:
        if (ending := left.pop(0)) is not None:
            raise ending
        return PassResult()

    def wait_for(until: Callable[[], bool], timeout: float | None = None) -> bool:
        waits.append(timeout)
        if not left:
            gc._stopped.set()
        return until()

    monkeypatch.setattr(gc, "run_pass", run_pass)
    monkeypatch.setattr(gc._wake, "wait_for", wait_for)
    gc._run()
    assert not left
    return waits


@pytest.mark.parametrize(("index", "collectors", "first"), [(0, 2, 1.5), (1, 2, 2.0), (0, 1, 2.0)])
def test_first_passes_are_spread_over_one_more_wait_time(
    index: int, collectors: int, first: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = GcRig(replace(FAST, wait_time_ms=1000), index=index, collectors=collectors)
    assert _lives(rig, monkeypatch, None, None) == [first, 1.0, 1.0]


def test_whatever_becomes_of_a_pass_another_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = GcRig(replace(FAST, wait_time_ms=1000))
    assert _lives(rig, monkeypatch, StorageFailed("the disk"), ValueError("ours"), None) == [2.0, 1.0, 1.0, 1.0]


def test_one_that_was_stopped_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(_lives(GcRig(), monkeypatch, None, CollectionStopped())) == 2


def test_a_request_wakes_the_thread_and_a_stop_ends_it() -> None:
    rig = GcRig(replace(FAST, wait_time_ms=3_600_000))
    rig.write([1], 2)
    rig.gc.start()
    (thread,) = [each for each in threading.enumerate() if each.name == "gc-0"]
    assert rig.gc.state().last_pass is None
    rig.now += 5000
    assert rig.gc.since_pass_s == 5.0
    assert rig.gc.request(MINOR)
    while rig.gc.force_pending:
        time.sleep(0.0005)
    assert rig.gc.state().last_pass is not None
    assert rig.gc.since_pass_s == 0.0
    rig.gc.stop()
    assert not thread.is_alive()
    with pytest.raises(CollectionStopped):
        rig.gc.run_pass()


def test_one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = GcRig()
    assert (rig.gc.force_pending, rig.gc.is_idle) == (False, True)
    assert rig.gc.request(MINOR)
    assert (rig.gc.force_pending, rig.gc.state().force_compacting) == (True, True)
    assert not rig.gc.request(MAJOR)
    inside: list[tuple[bool, bool]] = []

    def run(force: Force, result: PassResult) -> None:
        inside.append((rig.gc.request(force), rig.gc.force_pending))

    monkeypatch.setattr(rig.gc._collection_pass, "run", run)
    rig.gc.run_pass()
    assert inside == [(False, True)]
    assert not rig.gc.force_pending
    monkeypatch.setattr(rig.gc._collection_pass, "run", lambda force, result: inside.append((force is None, True)))
    rig.gc.run_pass()
    assert inside[1:] == [(True, True)], "a request is one pass"


def test_only_what_a_full_disk_has_asked_for_is_taken_back() -> None:
    rig = GcRig()
    rig.gc.cancel_request()
    for force, left in ((Force(by_disk=True), False), (MINOR, True)):
        assert rig.gc.request(force)
        rig.gc.cancel_request()
        assert rig.gc.force_pending == left


def test_other_rules_and_rates_count_from_now_on() -> None:
    rig = GcRig()
    wanted = replace(
        FAST,
        minor_compaction_threshold=0.3,
        minor_compaction_interval_s=60,
        major_compaction_threshold=0.9,
        major_compaction_interval_s=600,
        force_allow_compaction=True,
        throttle_by_bytes=False,
        compaction_rate_by_entries=77,
        metadata_op_rate_limit=88,
        wait_time_ms=5,
    )
    rig.gc.reconfigure(wanted)
    assert rig.gc.options == wanted
    schedule = rig.gc.schedule
    assert (schedule.minor, schedule.major, schedule.force_allowed) == (
        CompactionRule(0.3, 60),
        CompactionRule(0.9, 600),
        True,
    )
    assert (rig.gc._rate.rate, rig.gc._rate.by_bytes) == (77, False)
    assert (rig.gc._metadata_rate.rate, rig.gc._metadata_rate.by_bytes) == (88, False)


def test_what_it_is_at() -> None:
    rig = GcRig()
    assert rig.gc.step() == ("gc-0", None)
    reclaimer = rig.gc._reclaimer
    reclaimer.phase = "measuring entry logs"
    steps = [rig.gc.step()[1]]
    for moves_on in (
        lambda: setattr(reclaimer, "progress", (1, 2)),
        rig.gc._breathe,
        lambda: rig.gc._rate.pay(0, 0),
        lambda: rig.gc._metadata_rate.pay(0, 0),
    ):
        moves_on()
        steps.append(rig.gc.step()[1])
    assert None not in steps
    assert len(set(steps)) == 5, "each of them is a step"
    reclaimer.phase = COMPACTING_INDEX
    assert rig.gc.step() == ("gc-0", None)


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("where", ["flush", "rotate", "settle", "move"])
def test_a_storage_that_cannot_go_on_ends_the_pass(
    where: str, transactional: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = GcRig(replace(FAST, transactional_compaction=transactional))
    rig.write(range(10), 5)
    rig.delete(*range(5))
    rig.gc.run_pass()

    def fails(*_: object) -> None:
        raise StorageFailed("it has to end")

    if where == "rotate":
        monkeypatch.setattr(rig.logs, "rotate", fails)
        monkeypatch.setattr(rig.logs, "current_sizes", lambda: {99: {777: 10}})
    else:
        monkeypatch.setattr(rig.gc._storage, where, fails)
    assert rig.gc.request(MAJOR)
    with pytest.raises(StorageFailed):
        rig.gc.run_pass()
    state = rig.gc.state()
    assert state.last_pass is not None
    assert [("it has to end" in error) for error in state.last_errors] == [True]
    assert (state.last_pass.logs_compacted, state.major_compacting) == (0, False)
    assert rig.gc.is_idle


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize(("most", "turns"), [(1, 20), (7, 3), (20, 1), (100, 1)])
def test_the_index_is_moved_in_turns_of_so_many_entries(
    transactional: bool, most: int, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = GcRig(replace(FAST, compaction_max_outstanding=most, transactional_compaction=transactional))
    log_id = rig.write(range(10), 4)
    rig.delete(*range(5))
    storage = rig.gc._storage
    sizes: list[int] = []
    move = storage.move
    monkeypatch.setattr(storage, "move", lambda moves: (sizes.append(len(moves)), move(moves))[1])
    assert rig.force(MAJOR).logs_compacted == 1
    assert sum(sizes) == 20
    if transactional:
        assert len([size for size in sizes if size]) == turns
        assert max(sizes) <= most
    else:
        assert max(sizes) < most + 4, "no more than one run beyond it"
    assert not rig.logs.exists(log_id)
    for ledger_id in range(5, 10):
        assert len(rig.readable(ledger_id)) == 4


def test_a_log_that_holds_other_bytes_per_ledger_than_its_map_says_is_not_compacted() -> None:
    rig = GcRig()
    log_id = rig.write([1, 2], 10)
    rig.delete(2)
    assert rig.gc.run_pass().errors == []
    rig.flip(log_id, rig.first + 10 * 104 + 4 + 7, 64)  # a dead entry of ledger 2 is one of ledger 66 now
    result = rig.force(MAJOR)
    assert (result.logs_compacted, result.logs_deleted) == (0, 0)
    assert "does not hold the bytes per ledger that it was measured to have" in rig.gc.state().quarantined[log_id]
    assert len(rig.readable(1)) == 10


def test_a_log_that_somebody_removed_is_forgotten() -> None:
    rig = GcRig()
    gone, left = rig.write([1], 5), rig.write([2], 5)
    rig.gc.run_pass()
    assert [usage.log_id for usage in rig.gc.usages()] == [gone, left]
    rig.logs.delete(gone)
    rig.gc.run_pass()
    assert [usage.log_id for usage in rig.gc.usages()] == [left]


def test_a_dead_log_whose_map_is_proved_goes_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = GcRig()
    rig.write([1], 5)
    rig.metadata.ledgers[99] = ("other:3181",)
    rig.delete(1)
    monkeypatch.setattr(rig.logs, "scan_sizes", lambda *_: pytest.fail("it was read"))
    assert rig.gc.run_pass().logs_deleted == 1


@pytest.mark.parametrize(
    ("interval", "passed", "deleted"), [(0, 10_000, 0), (-1, 10_000, 0), (1000, 999, 0), (1000, 1000, 1)]
)
def test_when_ledgers_that_live_elsewhere_are_searched_for(interval: int, passed: int, deleted: int) -> None:
    rig = GcRig(replace(FAST, overreplicated_wait_time_ms=interval))
    rig.write([1, 2], 2)
    rig.metadata.ledgers[1] = ("other:3181",)
    rig.now += passed
    assert rig.gc.run_pass().ledgers_deleted == deleted


def test_a_log_that_was_left_alone_delays_what_is_forgotten_for_one_pass() -> None:
    rig = GcRig()
    held = rig.write([1, 2], 3)
    rig.delete(1)
    rig.gc.excluded = lambda: {held: "its bits"}
    rig.gc.run_pass()
    rig.write([3], 1)
    rig.gc.run_pass()
    assert 1 in rig.gc._deleted, "it may be in the log that is held"
    rig.gc.excluded = dict
    assert rig.force(MAJOR).logs_compacted == 1
    rig.gc.run_pass()
    assert 1 not in rig.gc._deleted


def test_what_may_be_in_a_quarantined_log_is_remembered_until_that_is_gone() -> None:
    rig = GcRig()
    damaged = rig.write([1, 2], 10)
    rig.restart()
    rig.flip(damaged, rig.first)  # the length of the first entry
    rig.delete(2)
    rig.force()
    assert damaged in rig.gc.state().quarantined
    rig.metadata.ledgers[3] = None
    put(rig.storage, entry(3, 0, 10))  # in a log that is written to, which is not looked at either
    rig.storage.flush()
    for _ in range(2):
        rig.gc.run_pass()
        assert 2 in rig.gc._deleted
    rig.logs.delete(damaged)
    rig.write([4], 1)
    rig.gc.run_pass()
    assert 2 not in rig.gc._deleted, "nobody holds any of it"
