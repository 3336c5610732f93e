"""All collectors of a bookie: what disks do to them (reference bookie behaviour, section 6.6), and their threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from bookie_pod.config.load import load_config
from bookie_pod.config.model import BookieConfig
from bookie_pod.node.garbage_collection import GarbageCollection
from bookie_pod.storage.entry_log.directories import DiskState
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.schedule import Compaction, CompactionRule, CompactionSchedule, Force
from tests.support.gc_rig import FAST, GcRig

WRITABLE, ALMOST, FULL = DiskState.WRITABLE, DiskState.ALMOST_FULL, DiskState.FULL


def _collection(count: int = 2, *, force: bool = False) -> GarbageCollection:
    collectors = {f"/l{number}/current": GcRig().gc for number in range(count)}
    return GarbageCollection(collectors, force_when_full=force)


def _suspended(collector: GarbageCollector) -> tuple[bool, bool]:
    return collector.schedule.major_suspended, collector.schedule.minor_suspended


@pytest.mark.parametrize(
    ("states", "major", "minor"),
    [
        ([ALMOST], True, False),
        ([FULL], True, True),
        ([ALMOST, FULL], True, True),
        ([FULL, ALMOST], True, False),
        ([FULL, ALMOST, FULL], True, True),
        ([FULL, WRITABLE], False, False),
        ([ALMOST, WRITABLE], False, False),
        ([FULL, ALMOST, WRITABLE], False, False),
        ([WRITABLE], False, False),
    ],
)
def test_suspension_follows_the_disk_of_the_directory(states: list[DiskState], major: bool, minor: bool) -> None:
    collection = _collection()
    for state in states:
        for _ in range(3):  # every check reports
            collection.on_disk("/l1/current", state)
    other, this = collection.collectors
    assert _suspended(this) == (major, minor)
    assert _suspended(other) == (False, False)
    assert (collection.major_suspended, collection.minor_suspended) == (major, minor)
    full = states[-1] is FULL
    assert (this.force_pending, other.force_pending) == (full, False)  # to make room, until there is some
    assert (this.schedule.to_make_room(), other.schedule.to_make_room()) == (Compaction.MAJOR if full else None, None)


def test_without_transactional_compaction_nothing_is_compacted_on_a_full_disk() -> None:
    collector = GcRig().gc
    collection = GarbageCollection({"/a/current": collector}, force_when_full=False, make_room=False)
    collection.on_disk("/a/current", FULL)
    assert _suspended(collector) == (True, True)
    assert not collector.force_pending
    assert collector.schedule.to_make_room() is None
    assert collector.schedule.disk_full, "deleted ledgers need no grace"
    collection.on_disk("/a/current", WRITABLE)
    assert not collector.schedule.disk_full


def test_what_an_operator_holds_back_makes_no_room_on_a_full_disk() -> None:
    collection = _collection(1)
    (collector,) = collection.collectors
    collection.suspend(major=True)
    collection.on_disk("/l0/current", FULL)
    assert collector.schedule.to_make_room() is Compaction.MINOR
    collection.suspend(minor=True)
    assert collector.schedule.to_make_room() is None
    collection.resume(major=True)
    assert collector.schedule.to_make_room() is Compaction.MAJOR


def test_what_an_operator_has_set_lasts_until_the_disk_changes() -> None:
    collection = _collection(1)
    collection.suspend(major=True, minor=True)
    collection.on_disk("/l0/current", WRITABLE)
    assert (collection.major_suspended, collection.minor_suspended) == (True, True)
    collection.resume(minor=True)
    assert (collection.major_suspended, collection.minor_suspended) == (True, False)
    collection.on_disk("/l0/current", ALMOST)
    collection.on_disk("/l0/current", WRITABLE)
    assert (collection.major_suspended, collection.minor_suspended) == (False, False)


@pytest.mark.parametrize("state", [ALMOST, FULL])
def test_a_full_disk_forces_a_pass_if_told_to(state: DiskState) -> None:
    collection = _collection(force=True)
    collection.on_disk("/l0/current", state)
    first, second = collection.collectors
    assert (first.force_pending, second.force_pending) == (True, False)
    assert _suspended(first) == (False, False)
    collection.on_disk("/l0/current", WRITABLE)
    assert not first.force_pending


def test_room_again_does_not_take_back_what_an_operator_has_asked_for() -> None:
    collection = _collection(1, force=True)
    collection.on_disk("/l0/current", ALMOST)
    (collector,) = collection.collectors
    collector.run_pass()
    collection.force(major=True)
    collection.on_disk("/l0/current", WRITABLE)
    assert collector.force_pending


def test_one_collector_for_all_directories_hears_of_each() -> None:
    collector = GcRig().gc
    collection = GarbageCollection({"/a/current": collector, "/b/current": collector}, force_when_full=False)
    assert collection.collectors == [collector]
    assert collection.folders_of(collector) == ["/a/current", "/b/current"]
    collection.on_disk("/b/current", FULL)
    assert _suspended(collector) == (True, True)
    collection.on_disk("/a/current", ALMOST)
    assert collector.schedule.to_make_room() is not None  # the other one is full still
    collection.on_disk("/b/current", ALMOST)
    assert collector.schedule.to_make_room() is None


def test_forces_are_not_queued() -> None:
    rig = GcRig()
    rig.write([1], 1)
    during: list[tuple[bool, bool]] = []

    def look() -> None:
        during.append((rig.gc.state().force_compacting, rig.gc.request(Force(major=True))))

    rig.metadata.check_instance = look
    assert rig.gc.request(Force(minor=True))
    assert not rig.gc.request(Force(major=True))
    assert rig.gc.run_pass().compaction is not None
    assert rig.gc.state().minor_count == 1
    rig.gc.run_pass()  # one that nobody asked for: another can be asked for in the middle of it
    assert during == [(True, False), (False, True)]
    assert not rig.gc.request(Force())
    rig.gc.run_pass()
    assert rig.gc.request(Force())


# --- configuration ------------------------------------------------------------------------------------------


def test_rates_are_those_of_the_chosen_kind_and_can_change_while_it_runs() -> None:
    config = BookieConfig()
    assert config.gc.compaction_rate == config.gc.compaction_rate_by_bytes
    by_entries = replace(config, gc=replace(config.gc, throttle_by_bytes=False, major_compaction_threshold=0.5))
    collection = _collection(1)
    collection.reconfigure(by_entries)
    (collector,) = collection.collectors
    assert (collector._rate.rate, collector._rate.by_bytes) == (config.gc.compaction_rate_by_entries, False)
    assert collector.schedule.major == CompactionRule(0.5, 86_400)


def test_intervals_of_the_configuration_are_seconds_or_milliseconds_as_their_keys_say() -> None:
    settings = {"entryLocationCompactionInterval": "3600", "gcOverreplicatedLedgerWaitTime": "7000", "gcWaitTime": "9"}
    gc = load_config(environ={}, overrides=settings).gc
    assert (gc.entry_location_compaction_interval_s, gc.overreplicated_wait_time_ms, gc.wait_time_ms) == (3600, 7000, 9)
    schedule = CompactionSchedule.of(gc)
    assert (schedule.minor, schedule.major) == (CompactionRule(0.2, 3600), CompactionRule(0.8, 86_400))


# --- threads ------------------------------------------------------------------------------------------------


@contextmanager
def _started(rig: GcRig) -> Iterator[threading.Event]:
    """The collector's thread; the event is set at the end of its first pass."""
    ended, plain = threading.Event(), rig.gc.run_pass

    def run_pass():
        try:
            return plain()
        finally:
            ended.set()

    rig.gc.run_pass = run_pass
    rig.gc.start()
    try:
        yield ended
    finally:
        rig.gc.stop()
        rig.storage.close()


def test_the_first_pass_comes_by_itself() -> None:
    with _started(GcRig(replace(FAST, wait_time_ms=1))) as ended:
        assert ended.wait(30)


def test_a_start_tells_what_both_compactions_do() -> None:
    rules = {"minor_compaction_threshold": 0.3, "minor_compaction_interval_s": 7200}
    rules |= {"major_compaction_threshold": 0.7, "major_compaction_interval_s": 0}
    with capture_logs() as logs, _started(GcRig(replace(FAST, wait_time_ms=10_000_000, **rules))):
        pass
    told = {"log_level": "info", "enabled": True, "threshold": 0.3, "interval_s": 7200}
    assert {"event": "minor compaction", **told} in logs
    told = {"log_level": "info", "enabled": False, "threshold": 0.7, "interval_s": 0}
    assert {"event": "major compaction", **told} in logs


def test_a_forced_pass_comes_at_once() -> None:
    rig = GcRig(replace(FAST, wait_time_ms=10_000_000))
    with _started(rig) as ended:
        assert not ended.is_set()
        rig.gc.request(Force())
        assert ended.wait(30)


def test_a_pass_that_fails_for_a_reason_of_ours_does_not_end_the_thread() -> None:
    rig = GcRig(replace(FAST, wait_time_ms=10_000_000))

    def broken() -> None:
        raise ZeroDivisionError

    rig.metadata.check_instance = broken
    rig.write([1], 1)
    with _started(rig) as ended:
        rig.gc.request(Force())
        assert ended.wait(30)
        ended.clear()
        rig.gc.request(Force())
        assert ended.wait(30)


async def test_a_stop_ends_what_the_collectors_wait_for() -> None:
    waiting, released = threading.Event(), threading.Event()
    rig = GcRig(replace(FAST, wait_time_ms=10_000_000))
    rig.write([1], 1)

    def hang() -> None:
        waiting.set()
        assert released.wait(60)

    rig.metadata.check_instance = hang
    collection = GarbageCollection({"/a/current": rig.gc}, force_when_full=False, interrupt=released.set)
    collection.start()
    collection.force()
    while not waiting.wait(0.01):
        pass
    await collection.stop()
    assert rig.gc.state().phase == "waiting"
    rig.storage.close()


def test_a_stop_ends_a_throttled_compaction_at_once() -> None:
    rig = GcRig(replace(FAST, wait_time_ms=10_000_000, compaction_rate_by_bytes=1))
    source = rig.write([1, 2], 50)
    rig.metadata.ledgers[99] = None
    rig.delete(2)
    compacting = threading.Event()
    plain = rig.logs.begin_compaction

    def begin(source_id: int, live_bytes: int):
        compacting.set()
        return plain(source_id, live_bytes)

    rig.logs.begin_compaction = begin
    with _started(rig):
        rig.gc.request(Force(major=True))
        assert compacting.wait(30)
        rig.gc.stop()
        assert rig.gc.state().major_count == 0
        assert rig.logs.exists(source)
        assert len(rig.readable(1)) == 50
