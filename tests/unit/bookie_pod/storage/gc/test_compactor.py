"""Compaction: what a crash leaves at each step, by us or by the reference, and what ends it."""

from __future__ import annotations

import posixpath
import random
import struct
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from bookie_pod.metrics.gc import GcMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.entry_log.compaction import CompactionLog
from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.entry_log.interface import DigestUnknown, Row
from bookie_pod.storage.gc.compactor import IndexNotMoved
from bookie_pod.storage.gc.live_entries import LogDamaged
from bookie_pod.storage.gc.schedule import Compaction
from bookie_pod.storage.gc.throttle import CollectionStopped
from bookie_protocol.errors import NoSuchEntry, NoWritableDirectory, StorageFault
from tests.support.gc_rig import FAST, MINOR, GcRig
from tests.support.memory_faults import Died
from tests.support.memtable_engine import ENGINES as MEMTABLE_ENGINES
from tests.support.storage_engine import MemoryBookie, entry, put, small_options

ENGINES = ["db", *MEMTABLE_ENGINES]
PLAIN = replace(FAST, transactional_compaction=False)
FIRST, SIZE = 1024, 104


def _entries(count: int, ledger_id: int = 1) -> dict[int, bytes]:
    return {each: entry(ledger_id, each, 100) for each in range(count)}


def _half_dead(engine: str = "db", options=FAST) -> tuple[GcRig, int]:
    """A log of ledgers 1 and 2, of which 2 is deleted."""
    rig = GcRig(options, engine=engine)
    log_id = rig.write([1, 2], 10)
    rig.metadata.ledgers[99] = None
    rig.delete(2)
    assert rig.gc.run_pass().ledgers_deleted == 1
    return rig, log_id


def _names(rig: GcRig, word: str = "compact") -> list[str]:
    folder = rig.bookie.directories[0]
    return sorted(name for name in rig.bookie.files.listdir(folder) if word in name)


def _compact_by_hand(rig: GcRig, source: int, steps: int, entries: int = 10) -> int:
    """A transactional compaction of ledger 1 that is left after some of its steps; the new log's id."""
    target = rig.logs.begin_compaction(source, 0)
    target.append_run(1, [entry(1, each, 100) for each in range(entries)])
    if steps >= 1:
        target.mark_compacted()
    if steps >= 2:
        target.make_available()
    return target.log_id


# --- what a crash leaves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_compaction_that_a_crash_interrupted_is_thrown_away_or_finished(engine: str, steps: int) -> None:
    rig, source = _half_dead(engine)
    target = _compact_by_hand(rig, source, steps)
    assert len(_names(rig)) == 1
    rig.restart()
    assert rig.readable(1) == _entries(10)
    result = rig.gc.run_pass()
    assert result.errors == []
    assert _names(rig) == []
    assert rig.readable(1) == _entries(10)
    assert (rig.logs.exists(source), rig.logs.exists(target)) == (steps == 0, steps > 0)
    rig.restart()
    assert rig.readable(1) == _entries(10)


def test_one_that_died_between_index_and_second_name_is_finished() -> None:
    rig, source = _half_dead()
    rig.bookie.faults.fail("unlink", path=".compacted", times=1)
    result = rig.force()
    assert "cannot remove" in str(result.errors)
    assert rig.logs.exists(source)  # its rows have moved, and nothing points to it any more
    assert rig.readable(1) == _entries(10)
    assert len(_names(rig)) == 1
    rig.bookie.faults.clear()
    assert rig.gc.run_pass().errors == []
    assert _names(rig) == []
    assert not rig.logs.exists(source)
    assert rig.readable(1) == _entries(10)


def test_a_source_that_somebody_holds_stays_though_nothing_points_to_it() -> None:
    rig, source = _half_dead()
    rig.bookie.faults.fail("unlink", path=".compacted", times=1)
    rig.force()
    rig.bookie.faults.clear()
    rig.gc.excluded = lambda: {source: "the scrubber found damage"}
    rig.gc.run_pass()
    assert rig.logs.exists(source)
    rig.gc.excluded = dict
    rig.force()
    assert not rig.logs.exists(source)
    assert rig.readable(1) == _entries(10)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_copy_that_lacks_entries_does_not_cost_its_source(engine: str) -> None:
    """The reference's scan ends without a word where a log is damaged; what it copied then is not everything."""
    rig, source = _half_dead(engine)
    _compact_by_hand(rig, source, 1, entries=6)
    rig.restart()
    rig.gc.run_pass()
    assert rig.logs.exists(source)
    assert rig.readable(1) == _entries(10)
    assert rig.force().logs_compacted == 1  # the other four
    assert not rig.logs.exists(source)
    assert rig.readable(1) == _entries(10)


@pytest.mark.parametrize("where", [FIRST, FIRST + 3 * SIZE, FIRST + 3 * SIZE + 4 + 7])
def test_a_damaged_copy_is_quarantined_and_its_source_stays(where: int) -> None:
    rig, source = _half_dead()
    target = _compact_by_hand(rig, source, 2)
    rig.flip(target, where)
    rig.restart()
    for again in (False, True):
        assert bool(rig.gc.run_pass().errors) != again, "it is looked at once"
        assert list(rig.gc.state().quarantined) == [target]
        assert rig.readable(1) == _entries(10)
        assert rig.logs.exists(source)
    assert rig.force().logs_compacted == 1  # into a third one
    assert rig.readable(1) == _entries(10)


@pytest.mark.parametrize("damaged", [True, False], ids=["damaged", "unreadable"])
def test_a_copy_that_is_damaged_while_it_is_made_is_thrown_away(damaged: bool) -> None:
    rig, source = _half_dead()
    plain = type(rig.logs).begin_compaction

    def begin(source_id: int, live_bytes: int):
        target = plain(rig.logs, source_id, live_bytes)
        finish = target.mark_compacted

        def mark() -> None:
            finish()
            if not damaged:
                rig.bookie.faults.fail("open", path=f"/{target.log_id:x}.log", times=1)
                return
            name = posixpath.join(rig.bookie.directories[0], _names(rig)[0])
            rig.bookie.files.corrupt(name, FIRST + SIZE, struct.pack(">i", 3))

        target.mark_compacted = mark
        return target

    rig.logs.begin_compaction = begin
    result = rig.force()
    assert "was thrown away" in str(result.errors)
    assert (result.logs_compacted, result.logs_deleted) == (0, 0)
    assert rig.logs.log_ids() == [source]
    assert _names(rig) == []
    del rig.logs.begin_compaction
    assert rig.force().logs_compacted == 1
    assert rig.readable(1) == _entries(10)


def test_a_copy_whose_source_is_gone_is_a_log_like_others() -> None:
    rig, source = _half_dead()
    target = _compact_by_hand(rig, source, 2)
    rig.bookie.faults.fail("unlink", path=".compacted")
    rig.gc.run_pass()
    rig.bookie.faults.clear()
    path = rig.path(source)
    rig.storage.close()
    rig.bookie.files.unlink(path)
    rig.open()
    assert rig.gc.run_pass().errors == []
    assert rig.logs.log_ids() == [target]
    assert rig.readable(1) == _entries(10)


def test_leftovers_of_the_transactional_form_are_finished_when_it_is_switched_off() -> None:
    rig, source = _half_dead(options=PLAIN)
    _compact_by_hand(rig, source, 1)
    rig.restart()
    rig.gc.run_pass()
    assert _names(rig) == []
    assert not rig.logs.exists(source)
    assert rig.readable(1) == _entries(10)


def test_a_ledger_that_was_deleted_since_the_copy_was_made_gets_no_rows() -> None:
    rig, source = _half_dead()
    _compact_by_hand(rig, source, 1)
    rig.restart()
    rig.storage.delete_ledger(1)
    rig.delete(1)
    rig.gc.run_pass()
    assert rig.storage.ledger(1) is None
    assert list(rig.parts.rows(1)) == []
    assert rig.logs.log_ids() == []


def test_an_entry_that_was_written_anew_since_the_copy_was_made_keeps_its_row() -> None:
    rig, source = _half_dead()
    _compact_by_hand(rig, source, 2)
    newer = rig.write([1], 1, mark=b"n")
    before = rig.parts.location_of(1, 0)
    assert before >> 32 == newer
    rig.gc.run_pass()
    assert rig.parts.location_of(1, 0) == before
    assert rig.storage.read(1, 0) == entry(1, 0, 100, b"n")


# --- what ends it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [FAST, PLAIN], ids=["transactional", "plain"])
def test_an_index_that_cannot_be_written_ends_the_compaction(engine: str, options) -> None:
    """Going on would leave one copy of each log, and fill the disk."""
    rig = GcRig(options, engine=engine)
    sources = [rig.write([1, 2], 5, first=5 * number) for number in range(4)]
    rig.delete(2)
    rig.metadata.ledgers[99] = None
    rig.gc.run_pass()
    plain = rig.parts.__class__.move

    def move(self, moves):
        raise StorageFault("the index is broken")

    rig.parts.__class__.move = move
    try:
        for _ in range(3):
            result = rig.force()
            assert result.logs_compacted == 0
            assert all(rig.logs.exists(source) for source in sources)
            assert len(_names(rig)) <= 1
            assert rig.readable(1) == _entries(20)
    finally:
        rig.parts.__class__.move = plain
    assert rig.force().errors == []
    assert rig.readable(1) == _entries(20)
    assert not any(rig.logs.exists(source) for source in sources)


def test_a_disk_without_room_ends_it() -> None:
    rig = GcRig(FAST, MemoryBookie(options=small_options()))
    sources = [rig.write([1, 2], 5, first=5 * number) for number in range(3)]
    rig.delete(2)
    tried = []

    def begin(source_id: int, live_bytes: int):
        tried.append(source_id)
        raise NoWritableDirectory("full")

    rig.logs.begin_compaction = begin
    result = rig.force()
    assert (result.errors, len(tried)) == (["full"], 1)
    assert all(rig.logs.exists(source) for source in sources)


def test_a_log_that_cannot_be_read_does_not_keep_the_others() -> None:
    rig = GcRig()
    first, second = (rig.write([1, 2], 5, first=5 * number) for number in range(2))
    rig.delete(2)
    rig.gc.run_pass()
    rig.bookie.faults.fail("open", path=posixpath.basename(rig.path(first)))
    result = rig.force()
    assert (result.logs_compacted, len(result.errors)) == (1, 1)
    assert rig.logs.exists(first)
    assert not rig.logs.exists(second)
    rig.bookie.faults.clear()
    assert rig.force().logs_compacted == 1
    assert rig.readable(1) == _entries(10)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_emptiest_tenth_comes_first_and_in_it_the_oldest_log(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where time or room runs out, what was done has given back most."""
    rig = GcRig(engine=engine)
    live = (70, 12, 45, 19, 5, 41)
    """Percent of each log."""
    logs = []
    for percent in live:
        ledger_id = 2 * len(logs)
        put(rig.storage, *(entry(ledger_id, each, 100) for each in range(percent)))
        rig.metadata.ledgers[ledger_id] = None
        logs.append(rig.write([ledger_id + 1], 100 - percent))
    rig.delete(*range(1, 2 * len(live), 2))
    rig.gc.run_pass()
    assert {each.log_id: round(100 * each.usage()) for each in rig.gc.usages()} == dict(zip(logs, live, strict=True))
    expected = [logs[at] for at in (4, 1, 3, 2, 5, 0)]
    assert [each.log_id for each in rig.gc.candidates(0.8)] == expected
    order: list[int] = []
    begin = rig.logs.begin_compaction

    def noted(source_id: int, live_bytes: int) -> CompactionLog:
        order.append(source_id)
        return begin(source_id, live_bytes)

    monkeypatch.setattr(rig.logs, "begin_compaction", noted)
    assert rig.force().logs_compacted == len(live)
    assert order == expected


def test_the_time_budget_ends_it_after_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = GcRig(replace(FAST, major_compaction_max_time_ms=1000))
    for number in range(6):
        rig.write([1, 2], 5, first=5 * number)
    rig.delete(2)
    now = chain([0.0, 0.999], repeat(1.0))  # as it begins, before the first log, before the second
    monkeypatch.setattr("bookie_pod.storage.gc.reclaimer.time", SimpleNamespace(monotonic=partial(next, now)))
    assert rig.force().logs_compacted == 1
    assert rig.gc.state().major_count == 1
    assert rig.gc.forecast().major.logs == 5


def test_a_compaction_that_was_stopped_is_due_again_after_the_restart() -> None:
    """Scenario A4: a bookie that is restarted in the middle of every compaction compacts all the same."""
    rig = GcRig(replace(FAST, compaction_rate_by_bytes=1))
    rig.write([1, 2], 10)
    rig.delete(2)
    rig.metadata.ledgers[99] = None
    rig.now += 100_000_000
    rig.gc._reclaimer._compactor._pay = _StopAt(rig, 5)
    with pytest.raises(Exception, match=r"^$"):
        rig.gc.run_pass()
    assert _names(rig) == []
    rig.options = FAST
    rig.restart()
    assert rig.gc.state().major_count == 0
    result = rig.gc.run_pass()
    assert (result.compaction, result.logs_compacted) == (Compaction.MAJOR, 1)
    assert rig.readable(1) == _entries(10)


class _StopAt:
    def __init__(self, rig: GcRig, calls: int) -> None:
        self._rig, self._left = rig, calls

    def __call__(self, entries: int, nbytes: int) -> None:
        self._left -= 1
        if not self._left:
            self._rig.gc._stopped.set()
        self._rig.gc._check_stopped()


# --- beside others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [FAST, PLAIN], ids=["transactional", "plain"])
def test_whatever_happens_in_the_middle_of_a_copy(engine: str, options) -> None:
    """Entries written anew, a flush, a deletion, a ledger made anew: between any two entries of the copy."""
    moment = 0
    while True:
        moment += 1
        rig = GcRig(options, engine=engine)
        rig.write([1, 2, 3, 4], 5)
        rig.metadata.ledgers[99] = None
        rig.delete(2, 3)
        rig.gc.run_pass()
        rng = random.Random(moment)
        calls = 0

        def pay(entries: int, nbytes: int, rig: GcRig = rig, rng: random.Random = rng, moment: int = moment) -> None:
            nonlocal calls
            calls += 1
            if calls != moment:
                return
            rig.metadata.ledgers[3] = None
            put(rig.storage, entry(1, 2, 100), entry(1, 7, 100), entry(3, 1, 100, b"n"))
            rig.storage.delete_ledger(4)
            if rng.random() < 0.6:
                rig.storage.flush()
            if rng.random() < 0.3:
                rig.logs.rotate()
                rig.logs.sync()

        rig.gc._reclaimer._compactor._pay = pay
        rig.delete(4)
        assert rig.force().errors == []
        if calls < moment:
            break
        for restarted in (False, True):
            if restarted:
                rig.storage.flush()
                rig.restart()
                assert rig.force().errors == []
            assert rig.readable(1) == {key: value for key, value in _entries(8).items() if key not in (5, 6)}
            assert rig.readable(3) == {1: entry(3, 1, 100, b"n")}
            assert rig.storage.ledger(4) is None
        rig.storage.close()
    assert moment > 10


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reader_between_look_up_and_read(engine: str) -> None:
    rig, source = _half_dead(engine)
    rig.gc.run_pass()
    rig.restart()
    logs = rig.storage.directories[0].logs if engine == "db" else rig.storage.logs
    plain, moved = logs.read_run, False

    def read(*at: int) -> list[Row]:
        nonlocal moved
        if not moved:
            moved = True
            assert rig.force().logs_compacted == 1
        return plain(*at)

    logs.read_run = read
    assert rig.storage.read(1, 3) == entry(1, 3, 100)
    assert moved
    assert not rig.logs.exists(source)
    for entry_id in range(10):  # read-ahead has not brought anything from elsewhere
        assert rig.storage.read(1, entry_id) == entry(1, entry_id, 100)
    with pytest.raises(NoSuchEntry):
        rig.storage.read(1, 10)


def test_plain_compaction_beside_a_flush_whose_sync_fails() -> None:
    """The log that compaction had appended to is given up: the old places stay."""
    rig, source = _half_dead(options=PLAIN)
    compactor = rig.gc._reclaimer._compactor
    settle = compactor._settle

    def settle_after_a_failure() -> None:
        compactor._settle = settle
        put(rig.storage, *(entry(1, each, 100) for each in range(10, 14)))
        rig.bookie.faults.fail("datasync", path=".log", times=1)
        with pytest.raises(StorageFault):
            rig.storage.flush()
        rig.storage.flush()
        settle()

    compactor._settle = settle_after_a_failure
    result = rig.force()
    assert "given up" in str(result.errors)
    assert rig.logs.exists(source)
    assert rig.readable(1) == _entries(14)
    rig.bookie.faults.clear()
    assert rig.force().errors == []
    rig.restart()
    assert rig.readable(1) == _entries(14)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("moved", [0, 4])
def test_copies_of_a_plain_compaction_that_was_killed_are_collected(
    engine: str, moved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, source = _half_dead(engine, PLAIN)
    move = type(rig.parts).move

    def killed(self, moves):
        move(self, moves[:moved])
        raise StorageFault("killed")

    with monkeypatch.context() as patch:
        patch.setattr(type(rig.parts), "move", killed)
        rig.force()
    rig.logs.rotate()
    rig.logs.sync()
    left = rig.flushed[-1]
    assert left != source
    rig.forget_map(left)
    rig.restart()
    for _ in range(2):
        assert rig.force().errors == []
    rig.restart()
    assert not rig.logs.exists(source)
    assert [row[2] for each in rig.flushed for row in rig.logs.scan(each) if row[1] == 1] == list(range(10))
    assert rig.readable(1) == _entries(10)


def _copies_without_a_row(rig: GcRig, source: int) -> list[tuple[int, int]]:
    rig.logs.flush()
    return [
        (ledger_id, entry_id)
        for log_id in rig.logs.log_ids()
        if log_id != source
        for at, ledger_id, entry_id, _ in rig.logs.scan(log_id)
        if rig.parts.location_of(ledger_id, entry_id) != at
    ]


def _end_behind(rig: GcRig, copied: int, error: BaseException) -> None:
    """Let the next compaction end when so many entries were copied."""
    compactor, left = rig.gc._reclaimer._compactor, copied

    def end(entries: int, nbytes: int) -> None:
        nonlocal left
        left -= entries
        if left < 0:
            compactor._pay = pay
            raise error

    pay, compactor._pay = compactor._pay, end


ENDS = [
    CollectionStopped(),
    StorageFault("a bad sector"),
    DigestUnknown("the metadata service is away"),
    LogDamaged("the end is missing"),
    NoWritableDirectory("full"),
    MemoryError(),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("error", ENDS, ids=[type(each).__name__ for each in ENDS])
def test_plain_compaction_leaves_no_second_copy_whatever_ends_it(engine: str, error: Exception) -> None:
    rig = GcRig(PLAIN, engine=engine)
    source = rig.write([1, 2, 3], 10)
    rig.delete(2)
    rig.gc.run_pass()
    _end_behind(rig, 10, error)
    with suppress(CollectionStopped, MemoryError):
        rig.force()
    assert {split_location(row)[0] == source for _, row in [*rig.parts.rows(1), *rig.parts.rows(3)]} == {False, True}
    assert _copies_without_a_row(rig, source) == []
    assert rig.logs.exists(source)
    assert rig.readable(1) == _entries(10)


def test_published_copy_of_an_entry_without_a_row_is_not_given_to_the_next_ledger_of_its_id() -> None:
    rig, _ = _half_dead()
    rig.drop_row(1, 3)
    compactor = rig.gc._reclaimer._compactor
    plain = compactor._is_void

    def is_void(location: int, source_id: int, ledger_id: int, entry_id: int) -> bool:
        void = plain(location, source_id, ledger_id, entry_id)
        if entry_id == 3:
            rig.storage.delete_ledger(1)
            rig.write([1], 1, mark=b"n")
        return void

    compactor._is_void = is_void
    rig.force()
    assert rig.readable(1) == {0: entry(1, 0, 100, b"n")}


def test_plain_compaction_of_a_damaged_log_gives_no_entry_a_row() -> None:
    rig = GcRig(PLAIN)
    rig.write([1, 2, 3], 10)
    rig.delete(2)
    rig.gc.run_pass()
    rig.drop_row(1, 3)
    _end_behind(rig, 10, LogDamaged("the end is missing"))
    rig.force()
    assert rig.parts.location_of(1, 3) == 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("failing", ["move", "sync"])
def test_copies_that_the_index_could_not_follow_are_not_made_twice(
    engine: str, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, source = _half_dead(engine, PLAIN)
    copied = 0

    def fail(self, *_: object) -> None:
        raise StorageFault("full")

    def count(*args: object, plain=rig.logs.append_run, **options: bool) -> list[int]:
        nonlocal copied
        copied += len(args[2])
        return plain(*args, **options)

    monkeypatch.setattr(rig.logs, "append_run", count)
    with monkeypatch.context() as patch:
        patch.setattr(type(rig.parts) if failing == "move" else type(rig.logs), failing, fail)
        for _ in range(3):
            assert rig.force().logs_compacted == 0
    assert copied == 10
    assert rig.force().errors == []
    assert (copied, rig.logs.exists(source)) == (10, False)
    assert _copies_without_a_row(rig, source) == []
    assert rig.readable(1) == _entries(10)


@pytest.mark.parametrize("fails", [True, False])
def test_copy_of_an_entry_without_a_row_is_not_given_to_the_next_ledger_of_its_id(fails: bool) -> None:
    rig, _ = _half_dead(options=PLAIN)
    rig.drop_row(1, 3)
    compactor = rig.gc._reclaimer._compactor

    def settle_later(plain=compactor._settle) -> None:
        compactor._settle = plain
        rig.storage.delete_ledger(1)
        rig.write([1], 1, mark=b"n")
        if fails:
            raise IndexNotMoved("full")
        plain()

    compactor._settle = settle_later
    rig.force()
    rig.force()
    assert rig.readable(1) == {0: entry(1, 0, 100, b"n")}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("recreated", [True, False])
def test_plain_compaction_copies_nothing_of_a_former_ledger_into_logs_of_the_next(engine: str, recreated: bool) -> None:
    """It is deleted, and the log of its successor begins, while the compaction waits for its rate."""
    rig, _ = _half_dead(engine, PLAIN)
    compactor = rig.gc._reclaimer._compactor

    def wait(entries: int, nbytes: int, pay=compactor._pay) -> None:
        if entries:
            compactor._pay = pay
            rig.storage.delete_ledger(1)
            if recreated:
                put(rig.storage, entry(1, 0, 100, b"n"))
            for first in (0, 30, 60):
                rig.logs.rotate()
                put(rig.storage, *(entry(3, first + each, 100) for each in range(30)))
                rig.storage.flush()

    compactor._pay = wait
    rig.metadata.ledgers[3] = None
    assert rig.force().errors == []
    if not recreated:
        put(rig.storage, entry(1, 0, 100, b"n"))
    rig.storage.flush()
    rig.logs.rotate()
    rig.logs.sync()
    rig.delete(3)
    for _ in range(2):
        assert rig.force().errors == []
    assert rig.readable(1) == {0: entry(1, 0, 100, b"n")}


@pytest.mark.parametrize("engine", ENGINES)
def test_plain_compaction_that_is_killed_leaves_no_second_copy_in_a_complete_log(engine: str) -> None:
    """Only logs without a map are searched for superseded copies."""
    rig = GcRig(PLAIN, engine=engine)
    source = rig.write([1, 2, 3, 4], 10)
    rig.delete(2)
    rig.gc.run_pass()
    plain = rig.logs.append_run

    def fill(ledger_id: int, *args: object, **options: bool) -> list[int]:
        places = plain(ledger_id, *args, **options)
        if ledger_id == 3:
            rig.logs.rotate()
            rig.logs.sync()
        return places

    rig.logs.append_run = fill
    _end_behind(rig, 20, Died())
    with pytest.raises(Died):
        rig.force()
    assert _copies_without_a_row(rig, source) == []


def test_padding_of_logs_written_past_the_page_cache_is_stepped_over() -> None:
    rig = GcRig(bookie=MemoryBookie(options=small_options(direct_io=True)))
    for first in (0, 3, 6):
        for ledger_id in (1, 2):
            put(rig.storage, *(entry(ledger_id, each, 100) for each in range(first, first + 3)))
        rig.storage.flush()  # a block of its own, padded
    rig.metadata.ledgers |= {1: None, 99: None}
    rig.logs.rotate()
    rig.logs.sync()
    (source,) = rig.flushed
    rig.gc.run_pass()
    assert rig.force().logs_compacted == 1
    assert not rig.logs.exists(source)
    assert rig.readable(1) == _entries(9)


@pytest.mark.parametrize("transactional", [True, False])
def test_rows_that_are_left_of_a_deleted_ledger_keep_none_of_its_entries(transactional: bool) -> None:
    rig = GcRig(replace(FAST, transactional_compaction=transactional))
    log_id = rig.write([1, 2], 10)
    rows = list(rig.parts.rows(2))
    rig.delete(2)
    rig.gc.run_pass()
    for entry_id, location in rows:
        rig.set_row(2, entry_id, location)
    assert rig.force().logs_compacted == 1
    assert not rig.logs.exists(log_id)
    assert {row[1] for each in rig.logs.log_ids() for row in rig.logs.scan(each)} == {1}
    assert rig.readable(1) == _entries(10)


@pytest.mark.parametrize("transactional", [True, False])
def test_entries_that_are_dead_cost_nothing_of_a_rate_of_entries(transactional: bool) -> None:
    rig, _ = _half_dead(options=replace(FAST, throttle_by_bytes=False, transactional_compaction=transactional))
    paid = []
    rig.gc._reclaimer._compactor._pay = lambda entries, nbytes: paid.append(entries)
    rig.force()
    assert sum(paid) == 10


def test_metrics_tell_what_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, bool]] = []
    ended: list[Compaction] = []
    monkeypatch.setattr(GcMetrics, "compacted", lambda self, compaction: ended.append(compaction))

    class Metrics(GcMetrics):
        def reclaimed(self, nbytes: int, *, compacted: bool) -> None:
            told.append((nbytes, compacted))

    rig, source = _half_dead()
    size = rig.logs.size(source)
    rig.gc._reclaimer._metrics = Metrics(Registry(), None)
    assert rig.force().reclaimed_bytes == size - 10 * SIZE
    assert (told, ended) == ([(size - 10 * SIZE, True)], [Compaction.MAJOR])
    rig.delete(1)
    rig.gc.request(MINOR)
    rig.gc.run_pass()
    assert told[1][1] is False


def test_death_is_not_an_error_to_be_survived() -> None:
    rig, _ = _half_dead()
    rig.gc.run_pass()
    rig.bookie.faults.die_at(rig.bookie.files.operations)
    with pytest.raises(Died):
        rig.force()
