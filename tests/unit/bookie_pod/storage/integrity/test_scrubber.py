"""The scrubber's position, register and timing: across stops, crashes and restarts."""

from __future__ import annotations

import errno
import json
import random
import threading
from collections.abc import Sequence
from contextlib import suppress

import pytest

from bookie_pod.storage.gc.throttle import ScrubPace, ScrubStopped
from bookie_pod.storage.integrity.journal_scrub import JournalScrub
from bookie_pod.storage.integrity.ledger_scrub import ROWS_AT_ONCE
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind, QuarantineRegister, from_json, to_json
from bookie_pod.storage.integrity.scrub import Scrubber
from bookie_pod.storage.integrity.scrub_part import (
    STATE_FILE,
    ScrubMemory,
    ScrubPart,
    ScrubPhase,
    ScrubPosition,
    ScrubStateFile,
)
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.errors import EntryDamaged
from tests.support.journal_rig import DIRECTORY, JournalRig, an_add, small_options
from tests.support.memory_files import Died, MemoryFiles
from tests.support.scrub_rig import ScrubRig, signed
from tests.support.storage_engine import MemoryBookie, put

DAMAGE = Damage(DamageKind.ENTRY, "broken", 7, 3, 4, (7 << 32) | 1028, 5, 1)


class TestRegister:
    def test_a_damage_is_found_once_and_keeps_when_it_was_found(self) -> None:
        register = QuarantineRegister()
        assert register.add(DAMAGE)
        assert not register.add(Damage(DamageKind.ENTRY, "broken", 7, 3, 4, DAMAGE.location, 99, 2))
        (known,) = register.damages()
        assert (known.found_ms, known.seen_in_pass) == (5, 2)
        assert DAMAGE.location in register.locations
        assert set(register.held_logs()) == {7}

    def test_a_pass_forgets_what_it_did_not_meet(self) -> None:
        register = QuarantineRegister([DAMAGE, Damage(DamageKind.LOG, "torn", 8, seen_in_pass=2)])
        held = register.locations
        assert register.end_pass(2, lambda damage: False) == [DAMAGE]
        assert held == set(), "the read path looks at this very set"
        assert register.held_logs() == {8: "torn"}

    def test_it_is_bounded(self) -> None:
        register = QuarantineRegister(limit=2)
        for entry_id in range(5):
            register.add(Damage(DamageKind.ENTRY, "broken", 1, 1, entry_id, (1 << 32) | entry_id))
        assert (len(register), register.overflowed) == (2, 3)
        register.end_pass(0)
        assert register.overflowed == 0

    def test_repaired_entries_are_forgotten(self) -> None:
        register = QuarantineRegister([DAMAGE])
        register.discard([DAMAGE])
        assert (len(register), register.held_logs()) == (0, {})

    def test_a_damaged_copy_beside_a_sound_one_is_refused_while_its_log_exists(self) -> None:
        register = QuarantineRegister([DAMAGE])
        register.discard([DAMAGE])
        assert register.locations == {DAMAGE.location}
        again = QuarantineRegister(superseded=register.superseded())
        again.end_pass(5)
        assert again.locations == {DAMAGE.location}
        again.end_pass(6, log_exists=lambda log_id: log_id != 7)
        assert again.locations == set()

    def test_json_there_and_back(self) -> None:
        assert from_json(json.loads(json.dumps(to_json(DAMAGE)))) == DAMAGE


class TestStateFile:
    def test_there_and_back(self) -> None:
        files = MemoryFiles()
        files.makedirs("/d")
        memory = ScrubMemory(ScrubPosition(3, ScrubPhase.INDEX, 4, 5, 6, 7, True, 8, 9), [DAMAGE], [1, 2])
        ScrubStateFile(files, "/d").write(memory)
        assert ScrubStateFile(files, "/d").read() == memory

    @pytest.mark.parametrize(
        "content", [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "pass": "x"}', b"[" * 100_000]
    )
    def test_nonsense_is_an_empty_state(self, content: bytes) -> None:
        files = MemoryFiles()
        files.makedirs("/d")
        files.write_bytes(f"/d/{STATE_FILE}", content)
        assert ScrubStateFile(files, "/d").read() == ScrubMemory()

    def test_a_disk_that_takes_no_state_ends_no_pass(self) -> None:
        rig = ScrubRig()
        rig.write([1], 3)
        rig.files.faults.fail("overwrite", path=STATE_FILE)
        assert rig.run() == []
        assert rig.scrub.position.completed_ms == rig.now
        rig.storage.close()


def test_damage_is_refused_after_a_restart_before_any_pass() -> None:
    rig = ScrubRig()
    rig.write([1], 5)
    path, position = rig.place(1, 3)
    rig.flip(path, position + 60)
    rig.run()
    rig.restart()
    with pytest.raises(EntryDamaged):
        rig.storage.read(1, 3)
    assert rig.storage.read(1, 2) == signed(1, 2)
    rig.storage.close()


@pytest.mark.parametrize("stop_after", range(0, 45, 8))
def test_a_pass_goes_on_where_it_was_stopped(stop_after: int) -> None:
    rig = ScrubRig()
    for log in range(4):
        rig.write([1, 2], 3, first=3 * log)
    rig.run()
    whole, rig.paid = rig.paid, 0
    assert whole >= 48
    rig.files.unlink(f"/ledgers0/{STATE_FILE}")
    rig.restart()
    path, position = rig.place(2, 4)
    rig.flip(path, position + 60)
    rig.stop_after = stop_after
    with pytest.raises(ScrubStopped):
        rig.run()
    assert rig.scrub.is_interrupted
    rig.stop_after, first = None, rig.paid
    rig.restart()
    assert rig.scrub.is_interrupted
    assert [(each.ledger_id, each.entry_id) for each in rig.run()] == [(2, 4)]
    assert rig.paid <= whole + 2, f"{first} and {rig.paid - first} are more than one pass"
    assert rig.scrub.position.number == 1
    rig.storage.close()


def test_what_a_pass_has_skipped_before_it_was_stopped_counts_when_it_goes_on() -> None:
    rig = ScrubRig()
    rig.write([1], 3)
    rig.write([2], 3)
    path, _ = rig.place(1, 0)
    rig.flip(path, 0)
    assert [each.kind for each in rig.run()] == [DamageKind.LOG]
    rig.restart()
    rig.files.faults.fail("open", path=path, errno=errno.EMFILE)
    rig.stop_after = rig.paid + 1
    with pytest.raises(ScrubStopped):
        rig.run()
    rig.files.faults.clear()
    rig.stop_after = None
    rig.restart()
    assert [each.kind for each in rig.run()] == [DamageKind.LOG]
    assert rig.scrub.register.held_logs()
    assert rig.scrub.position.number == 2
    rig.storage.close()


def test_a_crash_anywhere_in_a_pass_loses_no_damage_for_long() -> None:
    bookie = MemoryBookie()
    base = ScrubRig(bookie)
    base.write([1, 2], 4)
    base.write([3], 4)
    path, position = base.place(2, 1)
    base.flip(path, position + 60)
    base.storage.close()

    def crashed(seed: int) -> MemoryBookie:
        return bookie.crash(random.Random(seed))

    counted = ScrubRig(crashed(0))
    before = counted.files.operations
    counted.run()
    steps = counted.files.operations - before
    counted.storage.close()
    assert steps > 5
    for step in range(steps):
        after = crashed(step)
        rig = ScrubRig(after)
        rig.files.faults.die_at(rig.files.operations + step)
        with suppress(Died):
            rig.run()
        again = ScrubRig(after.crash(random.Random(step)))
        assert [(each.ledger_id, each.entry_id) for each in again.run()] == [(2, 1)], step
        again.storage.close()


class TestJournals:
    def test_only_files_below_the_mark_are_read(self) -> None:
        with JournalRig(options=small_options(max_size_bytes=4096)) as rig:
            for entry_id in range(40):
                rig.add(an_add(1, entry_id, b"x" * 400))
        ids = sorted(int(name.split(".")[0], 16) for name in rig.journals())
        assert len(ids) > 3
        mark = LogMark(ids[2], 512)
        stopped = threading.Event()
        pace = ScrubPace(stopped, entries_per_second=0, bytes_per_second=0)
        scrub = JournalScrub(rig.files, DIRECTORY, lambda: mark, pace, now_ms=lambda: 7)
        assert scrub.run()
        assert scrub.counts.journals == 2
        assert isinstance(rig.files, MemoryFiles)
        for journal_id in (ids[0], ids[3]):
            rig.files.corrupt(f"{DIRECTORY}/{journal_id:x}.txn", 700, b"\x55")
        scrub.run()
        assert [(each.kind, each.file_id) for each in scrub.register.damages()] == [(DamageKind.JOURNAL, ids[0])]
        rig.files.unlink(f"{DIRECTORY}/{ids[0]:x}.txn")
        scrub.run()
        assert scrub.register.damages() == []


class TestScrubber:
    def make(self, rig: ScrubRig, interval_s: float, **more: object) -> Scrubber:
        return Scrubber(
            [rig.scrub],
            rig.stopped,
            interval_s=interval_s,
            now_ms=lambda: rig.now,
            random=random.Random(1),
            **more,  # type: ignore[arg-type]
        )

    def test_a_requested_pass_runs_and_tells(self) -> None:
        rig = ScrubRig()
        rig.write([1], 3)
        path, position = rig.place(1, 1)
        rig.flip(path, position + 60)
        done = threading.Event()
        told: list[Damage] = []

        def after(found: Sequence[tuple[ScrubPart, Damage]]) -> None:
            told.extend(damage for _, damage in found)
            done.set()

        scrubber = self.make(rig, 0, after_pass=after)
        scrubber.start()
        assert scrubber.state().next_pass_ms is None
        assert scrubber.request()
        assert done.wait(20)
        scrubber.stop()
        assert [each.entry_id for each in told] == [1]
        state = scrubber.state()
        assert (state.enabled, len(state.damages), state.parts[0].number) == (False, 1, 1)
        rig.storage.close()

    def test_what_is_damaged_is_handed_on_before_anything_of_it_is_read_again(self) -> None:
        rig = ScrubRig()
        rig.write([1], 3)
        path, _ = rig.place(1, 1)
        rig.restart()
        rig.files.faults.fail("pread", path=path)
        reads: list[int] = []

        def after(found: Sequence[tuple[ScrubPart, Damage]]) -> None:
            told.extend(damage.entry_id for _, damage in found if damage.kind is DamageKind.ENTRY)
            reads.append(rig.files.faults.counts["pread"])

        told: list[int] = []
        scrubber = self.make(rig, 0, after_pass=after)
        scrubber.run_pass()
        assert told == [0, 1, 2]
        assert rig.files.faults.counts["pread"] > reads[0]
        rig.storage.close()

    @pytest.mark.parametrize("seed", range(5))
    def test_the_next_pass_is_half_to_one_and_a_half_intervals_away_restarts_included(self, seed: int) -> None:
        rig = ScrubRig()
        rig.write([1], 1)
        rig.run()
        done = rig.now
        rig.restart()
        rig.now += 10_000
        scrubber = Scrubber(
            [rig.scrub], rig.stopped, interval_s=100, now_ms=lambda: rig.now, random=random.Random(seed)
        )
        scrubber.start()
        due = scrubber.state().next_pass_ms
        scrubber.stop()
        assert due is not None
        assert done + 50_000 <= due <= done + 150_000
        rig.storage.close()

    def test_an_interrupted_pass_goes_on_at_once(self) -> None:
        rig = ScrubRig()
        rig.write([1], 10)
        rig.stop_after = 4
        with pytest.raises(ScrubStopped):
            rig.run()
        rig.stop_after = None
        rig.restart()
        done = threading.Event()
        scrubber = self.make(rig, 1_000_000, after_pass=lambda found: done.set())
        scrubber.start()
        assert done.wait(20)
        scrubber.stop()
        assert rig.scrub.position.number == 1
        rig.storage.close()

    def test_a_stop_ends_a_throttled_pass_at_once(self) -> None:
        rig = ScrubRig()
        rig.write([1], 50)
        rig.scrub._pace = ScrubPace(rig.stopped, entries_per_second=0.001, bytes_per_second=0)
        scrubber = self.make(rig, 0)
        scrubber.start()
        scrubber.request()
        while not rig.scrub.is_interrupted:
            threading.Event().wait(0.001)
        scrubber.stop()
        assert rig.scrub.is_interrupted
        rig.storage.close()


class TestPace:
    def test_both_limits_hold(self) -> None:
        now = [0.0]

        class Stopped(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                now[0] += timeout or 0
                return False

        pace = ScrubPace(Stopped(), entries_per_second=100, bytes_per_second=1000, clock=lambda: now[0])
        for _ in range(100):
            pace.pay(1, 1)
        assert 0.8 < now[0] < 1.2
        for _ in range(10):
            pace.pay(1, 500)
        assert 5 < now[0] < 7

    def test_it_gives_way(self) -> None:
        now = [0.0]

        class Stopped(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                now[0] += timeout or 0
                return False

        pace = ScrubPace(
            Stopped(), entries_per_second=100, bytes_per_second=0, under_pressure=lambda: True, clock=lambda: now[0]
        )
        for _ in range(100):
            pace.pay(1, 1)
        assert now[0] > 8

    def test_without_limits_it_pauses_under_pressure(self) -> None:
        waits: list[float | None] = []

        class Stopped(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                waits.append(timeout)
                return False

        pace = ScrubPace(Stopped(), entries_per_second=0, bytes_per_second=0, under_pressure=lambda: True)
        for _ in range(640):
            pace.pay(1, 1)
        assert len(waits) == 10


@pytest.mark.parametrize("count", [ROWS_AT_ONCE, 2 * ROWS_AT_ONCE, 3])
def test_a_ledger_that_has_the_last_entry_id_there_is_ends(count: int) -> None:
    """Its rows fill the lists in which they are read, so that somebody asks for what is behind it."""
    rig = ScrubRig()
    last = (1 << 63) - 1
    put(rig.storage, *(signed(5, entry_id) for entry_id in range(last - count + 1, last + 1)))
    put(rig.storage, signed(6, 0))
    rig.storage.flush()
    assert rig.scrub.run()
    assert rig.scrub.counts.rows == count + 1
