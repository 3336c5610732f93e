"""On a full disk compaction uses what is left of it: most garbage first, what fits, again when others made room."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bookie_pod.storage.entry_log.directories import DiskState, LedgerDirStates
from bookie_pod.storage.entry_log.fitting import LEAST_FITTED_LOG_SIZE, fitted
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizesBuilder
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.gc.log_usage import LogUsage
from bookie_pod.storage.gc.schedule import Compaction
from tests.support.gc_rig import FAST, GcRig
from tests.support.memory_files import MemoryFiles
from tests.support.production import changed, production
from tests.support.storage_engine import MemoryBookie, entry, put, small_options

KEPT = 8_000
"""Bytes that a copy leaves."""
SIZE = 100


class FullDisk:
    """Logs of 100 entries of which some live, on a disk that has as much left as a test says."""

    def __init__(self, live: Mapping[str, tuple[int, int]]) -> None:
        """Name of a log -> its entries that live, and all of them."""
        options = changed(small_options(), min_usable_after_compaction_bytes=KEPT)
        self.files = MemoryFiles()
        self.bookie = MemoryBookie(options=options, files=self.files)
        self.rig = GcRig(FAST, self.bookie)
        self.logs: dict[str, int] = {}
        for number, (name, (alive, entries)) in enumerate(live.items()):
            put(self.rig.storage, *(entry(2 * number, each, SIZE) for each in range(alive)))
            self.rig.metadata.ledgers[2 * number] = None
            self.logs[name] = self.rig.write([2 * number + 1], entries - alive, SIZE)
        self.rig.delete(*range(1, 2 * len(live), 2))
        self.rig.gc.run_pass()  # before the disk is full
        self.alive = {2 * number: alive for number, (alive, _) in enumerate(live.values())}
        self.order: list[str] = []
        self._note_order()
        self.rig.gc.schedule.minor_suspended = self.rig.gc.schedule.major_suspended = True
        self.fill()

    def fill(self) -> None:
        self._report(DiskState.FULL)

    def _report(self, state: DiskState) -> None:
        self.bookie.states["/ledgers0"].report("/ledgers0", state)
        self.rig.gc.schedule.short_of_space = state is DiskState.FULL

    def use_id_again(self, name: str) -> None:
        """The deleted ledger of this log has a successor, so its entries here are superseded."""
        self._report(DiskState.WRITABLE)
        self.rig.write([2 * list(self.logs).index(name) + 1], 1, SIZE, mark=b"n")
        self.rig.gc.run_pass()
        self.fill()

    def let_look_superseded(self, name: str, entries: int) -> None:
        """A scan took so many entries of this log for superseded that live."""
        superseded = LedgerSizesBuilder()
        superseded.add(2 * list(self.logs).index(name), entries * (SIZE + 4))
        self.rig.gc._usages._superseded[self.logs[name]] = superseded.build()

    def usage(self, name: str) -> LogUsage:
        return next(each for each in self.rig.gc.usages() if each.log_id == self.logs[name])

    def _note_order(self) -> None:
        begin, names = self.rig.logs.begin_compaction, {log_id: name for name, log_id in self.logs.items()}

        def noted(source_id: int, live_bytes: int):
            made = begin(source_id, live_bytes)
            self.order.append(names[source_id])
            return made

        self.rig.logs.begin_compaction = noted  # type: ignore[method-assign]

    def leave(self, usable: int) -> None:
        """From now on so many bytes are left, and more when files go."""
        left = self.files.usage("/ledgers0")
        self.files.set_capacity("/", left.total - left.usable + usable)

    def check(self) -> None:
        """Everything that lives can be read."""
        for ledger_id, alive in self.alive.items():
            assert len(self.rig.readable(ledger_id)) == alive
        assert not [name for name in self.files.listdir("/ledgers0") if "compact" in name]


def test_most_garbage_comes_first() -> None:
    """In bytes, not as a share of the log."""
    disk = FullDisk({"half": (20, 40), "big": (60, 200), "small": (1, 20)})
    disk.leave(50_000)
    result = disk.rig.gc.run_pass()
    assert (disk.order, result.errors) == (["big", "half", "small"], [])
    assert result.compaction is Compaction.MAJOR
    assert disk.rig.gc.state().major_count == 1
    disk.check()


def test_a_log_that_does_not_fit_waits_until_others_have_made_room() -> None:
    disk = FullDisk({"big": (100, 300), "small": (30, 100), "tiny": (1, 60)})
    live = {each.log_id: each.remaining for each in disk.rig.gc.usages()}
    assert live[disk.logs["big"]] > 10_000
    disk.leave(live[disk.logs["small"]] + KEPT + 1)
    result = disk.rig.gc.run_pass()
    assert (disk.order, result.errors) == (["small", "tiny", "big"], [])
    assert result.logs_compacted == 3
    disk.check()


@pytest.mark.parametrize(
    "logs", [{"big": (100, 300), "small": (30, 100)}, {"small": (30, 300), "big": (100, 200)}], ids=" first ".join
)
def test_what_fits_nowhere_is_told_once_with_the_room_that_is_missing_and_stays(
    logs: dict[str, tuple[int, int]],
) -> None:
    disk = FullDisk(logs)
    live = {each.log_id: each.remaining for each in disk.rig.gc.usages()}
    disk.leave(live[disk.logs["small"]] + KEPT)
    result = disk.rig.gc.run_pass()
    assert disk.order == []
    (error,) = result.errors
    assert f"none has {live[disk.logs['small']] + KEPT} bytes left" in error
    assert "minUsableSizeAfterCompaction" in error
    assert disk.rig.gc.state().major_count == 0  # the interval did not begin anew
    disk.check()


def test_superseded_entries_need_no_room() -> None:
    disk = FullDisk({"half": (50, 100), "reused": (1, 100)})
    disk.use_id_again("reused")
    assert disk.usage("reused").remaining == disk.usage("reused").total
    forecast = disk.rig.gc.forecast()
    assert forecast.major.rewritten_bytes == sum(disk.usage(each).live_bytes for each in disk.logs)
    assert forecast.buckets[0].reclaimable_bytes == forecast.minor.reclaimable_bytes == 99 * (SIZE + 4)
    disk.leave(KEPT + 2 * SIZE)
    result = disk.rig.gc.run_pass()
    assert (disk.order, result.errors) == (["reused", "half"], [])
    disk.check()


def test_copy_that_outgrows_the_room_gives_way_to_others() -> None:
    """More of the log lives than was known."""
    disk = FullDisk({"wrong": (60, 100), "small": (10, 100)})
    disk.let_look_superseded("wrong", 59)
    disk.leave(KEPT + 2000)
    result = disk.rig.gc.run_pass()
    assert (disk.order, result.errors) == (["wrong", "small", "wrong"], [])
    disk.check()


def test_copy_that_outgrew_the_room_is_not_tried_again_before_there_is_some() -> None:
    disk = FullDisk({"wrong": (60, 100)})
    disk.let_look_superseded("wrong", 59)
    disk.leave(KEPT + 2000)
    for _ in range(2):
        assert len(disk.rig.gc.run_pass().errors) == 1
    assert disk.order == ["wrong"]
    disk.check()
    disk.leave(100_000)
    assert disk.rig.gc.run_pass().errors == []
    assert disk.order == ["wrong", "wrong"]
    disk.check()


@pytest.mark.parametrize("full", [True, False])
def test_what_did_not_fit_is_taken_up_by_the_first_pass_that_has_room(full: bool) -> None:
    """Not by one that is an interval later."""
    disk = FullDisk({"small": (1, 60), "big": (200, 300)})
    disk.rig.gc.schedule.short_of_space = full
    disk.rig.gc.schedule.minor_suspended = disk.rig.gc.schedule.major_suspended = False
    disk.rig.now += 1000 * (FAST.major_compaction_interval_s + 1)
    disk.leave(KEPT + 2000)
    result = disk.rig.gc.run_pass()
    assert (result.compaction, result.logs_compacted, len(result.errors)) == (Compaction.MAJOR, 1, 1)
    assert disk.rig.gc.state().major_count == 0
    disk.leave(100_000)
    disk.rig.gc.schedule.short_of_space = False
    result = disk.rig.gc.run_pass()
    assert (result.compaction, result.logs_compacted, result.errors) == (Compaction.MAJOR, 1, [])
    assert disk.order == ["small", "big"]
    assert disk.rig.gc.state().major_count == 1
    disk.check()


def test_a_compaction_that_is_due_makes_room_on_a_full_disk_too() -> None:
    """It stays due until everything fits: it must not keep those that fit from it all the time."""
    disk = FullDisk({"big": (100, 2000), "half": (30, 60)})
    disk.rig.gc.schedule.minor_suspended = disk.rig.gc.schedule.major_suspended = False
    disk.rig.now += 1000 * (FAST.major_compaction_interval_s + 1)
    live = {each.log_id: each.remaining for each in disk.rig.gc.usages()}
    disk.leave(live[disk.logs["half"]] + KEPT + 1)
    result = disk.rig.gc.run_pass()
    assert disk.order[0] == "half"
    assert result.compaction is Compaction.MAJOR
    disk.check()


@pytest.mark.parametrize("held", [(), (Compaction.MAJOR,), (Compaction.MAJOR, Compaction.MINOR)])
def test_an_operator_decides_what_may_be_compacted(held: tuple[Compaction, ...]) -> None:
    disk = FullDisk({"half": (50, 100), "nearly empty": (1, 100)})
    disk.leave(50_000)
    disk.rig.gc.schedule.held.update(held)
    disk.rig.gc.run_pass()
    assert disk.order == ["nearly empty", "half"][: 2 - len(held)]


def test_with_room_again_the_intervals_count() -> None:
    disk = FullDisk({"half": (50, 100)})
    disk.leave(50_000)
    disk.rig.gc.schedule.short_of_space = False
    disk.rig.gc.run_pass()
    assert disk.order == []


# --- how large logs are -------------------------------------------------------------------------------------

GIB = 1 << 30
PRODUCTION = production()


@pytest.mark.parametrize(
    ("disk", "limit"),
    [(1000 * GIB, GIB), (41 * GIB, GIB), (10 * GIB, GIB // 4), (GIB, GIB // 40), (1 << 20, LEAST_FITTED_LOG_SIZE)],
)
def test_logs_of_a_small_disk_fit_into_what_it_keeps_free(disk: int, limit: int) -> None:
    config = fitted(PRODUCTION, disk)
    assert config.ledger_storage.log_size_limit_bytes == pytest.approx(limit, rel=1e-6)
    assert config.disks.min_usable_for_entry_log_bytes == pytest.approx(limit * 1.2, rel=1e-5)
    assert config.disks.min_usable_after_compaction_bytes == pytest.approx(limit / 10, rel=1e-5)
    assert (config is PRODUCTION) == (limit == GIB)


def test_what_is_configured_smaller_stays() -> None:
    small = production(log_size_limit_bytes=LEAST_FITTED_LOG_SIZE // 2)
    assert fitted(small, GIB) is small


def test_a_logger_looks_at_the_smallest_of_its_disks() -> None:
    folders = ("/a", "/b", "/c")
    files = MemoryFiles(volumes=dict(zip(folders, (300 << 20, 100 << 20, 200 << 20), strict=True)))
    for folder in folders:
        files.makedirs(folder)
    logger = EntryLogger(files, LedgerDirStates(folders), production(entry_log_preallocation=False))
    assert logger.log_size_limit == int((100 << 20) * 0.05) // 2
    logger.close()
