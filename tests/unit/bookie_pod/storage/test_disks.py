"""Disk states: thresholds, hysteresis, index directories, disks that fail.

Room that is held for a start on a full disk.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from bookie_pod.config.sections.gc import DisksConfig
from bookie_pod.storage.disks import (
    FULL_FILE,
    RESERVE,
    DiskMonitor,
    DiskVerdict,
    StartReserves,
    disk_space,
    fullest_share,
    give_up_reserves,
)
from bookie_pod.storage.entry_log.directories import DiskState
from bookie_pod.storage.files import DiskUsage
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index_rebuild.swap import remove_tree
from bookie_protocol.errors import ResourcesShort, StorageFault
from tests.support.memory_files import MemoryFiles

TOTAL = 1_000_000
OPTIONS = DisksConfig(
    usage_threshold=0.9,
    usage_warn_threshold=0.8,
    usage_lwm_threshold=0.7,
    check_interval_ms=10,
    min_usable_for_high_priority_bytes=50_000,
)


class Disks:
    """Directories with the usage that a test says."""

    def __init__(self, *ledgers: str, indexes: tuple[str, ...] = (), options: DisksConfig = OPTIONS) -> None:
        self.files = MemoryFiles()
        self.used: dict[str, float] = dict.fromkeys((*ledgers, *indexes), 0.0)
        self.devices = {path: number for number, path in enumerate(self.used)}
        for path in self.used:
            self.files.makedirs(path)
        self.files.usage = self._usage  # type: ignore[method-assign]
        self.reports: list[tuple[str, DiskState]] = []
        self.verdicts: list[DiskVerdict] = []
        self.failures: list[BaseException] = []
        self.changed = threading.Event()
        self._make = lambda: DiskMonitor(
            self.files,
            ledgers,
            options,
            report=lambda path, state: self.reports.append((path, state)),
            on_verdict=self.verdicts.append,
            on_failure=self._fail,
            index_directories=indexes,
        )
        self.monitor = self._make()

    def restart(self) -> None:
        self.monitor = self._make()

    def lose(self, path: str) -> None:
        remove_tree(self.files, path)

    def _usage(self, path: str) -> DiskUsage:
        return DiskUsage(TOTAL, round(TOTAL * (1 - self.used[path])), self.devices[path])

    def _fail(self, error: BaseException) -> None:
        self.failures.append(error)
        self.changed.set()

    def check(self, **used: float) -> tuple[DiskState, ...]:
        for name, share in used.items():
            self.used["/" + name] = share
        self.monitor.check()
        return tuple(self.monitor.states.values())


W, A, F = DiskState.WRITABLE, DiskState.ALMOST_FULL, DiskState.FULL


def test_thresholds_of_one_disk_and_its_way_back() -> None:
    disks = Disks("/a")
    states = [disks.check(a=share)[0] for share in (0.5, 0.8, 0.81, 0.9, 0.91, 0.95, 0.85, 0.71, 0.69, 0.95, 0.5)]
    assert states == [W, W, A, A, F, F, F, F, W, F, W]
    assert [state for _, state in disks.reports] == states  # told at every check


def test_a_restart_between_the_marks_makes_no_full_disk_writable() -> None:
    disks = Disks("/a", "/b")
    assert disks.check(a=0.95, b=0.95) == (F, F)
    disks.restart()
    assert disks.check(a=0.75, b=0.75) == (F, F)
    disks.restart()
    assert disks.check(a=0.6, b=0.6) == (W, W)
    disks.restart()
    assert disks.check(a=0.75, b=0.75) == (W, W), "it was not full any more"
    disks.files.faults.fail("create", "write", "sync", path=FULL_FILE, errno=errno.ENOSPC)
    assert disks.check(a=1.0, b=0.5) == (F, W), "a disk without room for a name is full all the same"


def test_one_of_two_comes_back_at_the_threshold() -> None:
    """The low-water mark holds only while nothing at all is writable."""
    disks = Disks("/a", "/b")
    assert disks.check(a=0.95, b=0.5) == (F, W)
    assert disks.check(a=0.9) == (A, W)
    assert disks.check(a=0.95, b=0.95) == (F, F)
    assert disks.check(a=0.6) == (F, F)  # together still 0.775
    assert disks.check(b=0.75) == (W, W)  # together 0.675
    assert disks.verdicts[-1].full == 0


def test_verdicts() -> None:
    disks = Disks("/a", "/b")
    disks.check(a=0.96, b=0.5)
    verdict = disks.verdicts[-1]
    assert (verdict.writable, verdict.full, verdict.high_priority_room) == (1, 1, True)
    assert verdict.full_directories == ("/a",)
    assert verdict.usage == pytest.approx({"/a": 0.96, "/b": 0.5})
    disks.check(b=0.96)
    assert not disks.verdicts[-1].high_priority_room
    assert disks.verdicts[-1].writable == 0


def test_index_disks_count_and_are_reported() -> None:
    disks = Disks("/a", "/b", indexes=("/i",))
    disks.check(i=0.95)
    verdict = disks.verdicts[-1]
    assert (verdict.writable, verdict.full, verdict.full_directories) == (0, 1, ("/i",))
    assert not verdict.high_priority_room  # recovery adds need their index as well
    assert disks.reports == [("/a", DiskState.WRITABLE), ("/b", DiskState.WRITABLE), ("/i", DiskState.FULL)]
    disks.check(i=0.75)
    assert disks.verdicts[-1].writable == 0  # above its low-water mark
    disks.check(i=0.6)
    assert disks.verdicts[-1].writable == 1


def test_directories_of_one_device_count_once() -> None:
    disks = Disks("/a", "/b", "/c")
    disks.devices.update({"/a": 1, "/b": 1, "/c": 2})
    disks.check(a=0.95, b=0.95, c=0.95)
    # Twice the same disk at 0.85 and the other at 0.5: together 0.675, not 0.733.
    assert disks.check(a=0.85, b=0.85, c=0.5) == (A, A, W)
    disks.used.update({"/a": 0.25, "/b": 0.25, "/c": 0.75})
    assert disk_space(disks.files, ["/a", "/b", "/c"]) == (2 * TOTAL, TOTAL)
    assert fullest_share(disks.files, ["/a", "/b", "/c"]) == 0.75


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=40))
def test_no_flapping(history: list[tuple[float, float]]) -> None:
    """Full above the threshold, always; back only below the low-water mark if everything was full."""
    disks = Disks("/a", "/b")
    before = (W, W)
    for a, b in history:
        now = disks.check(a=a, b=b)
        for state, share in zip(now, (a, b), strict=True):
            share = round(share * TOTAL) / TOTAL
            if share > OPTIONS.usage_threshold + 1e-6:
                assert state is F
            if state is F and share < OPTIONS.usage_threshold - 1e-6:
                assert before == (F, F)
                assert (a + b) / 2 >= OPTIONS.usage_lwm_threshold - 1e-6
        before = now


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda disks: disks.lose("/a"), "is gone"),
        (lambda disks: disks.files.faults.fail("is_dir", path="/a"), "be used"),
        (lambda disks: setattr(disks.files, "is_accessible", lambda path: False), "written"),
    ],
    ids=["gone", "I/O error", "read-only"],
)
def test_a_disk_that_failed(break_it: Callable[[Disks], None], says: str) -> None:
    disks = Disks("/a")
    disks.check()
    break_it(disks)
    with pytest.raises(StorageFault, match=f"/a.*{says}"):
        disks.monitor.check()


def test_the_monitor_looks_by_itself_and_ends_with_a_failure() -> None:
    disks = Disks("/a")
    disks.monitor.start()
    disks.lose("/a")
    assert disks.changed.wait(10)
    assert isinstance(disks.failures[0], StorageFault)
    disks.monitor.stop()
    assert len(disks.failures) == 1


def test_an_unforeseen_fault_is_no_silent_end() -> None:
    disks = Disks("/a")
    disks.files.usage = lambda path: {}[path]  # type: ignore[method-assign]
    disks.monitor.start()
    assert disks.changed.wait(10)
    assert isinstance(disks.failures[0], KeyError)
    disks.monitor.stop()


def test_real_folders(tmp_path: object) -> None:
    files = PosixFiles()
    assert files.is_accessible(str(tmp_path))
    assert not files.is_accessible(f"{tmp_path}/nothing")
    total, free = disk_space(files, [str(tmp_path), f"{tmp_path}/."])
    assert 0 <= free <= total


class TestOneFailedDirectoryOfSeveral:
    def make(self, *, ledgers: tuple[str, ...] = ("/a", "/b"), indexes: tuple[str, ...] = ()) -> Disks:
        disks = Disks(*ledgers, indexes=indexes)
        self.failed: list[str] = []
        disks.monitor = DiskMonitor(
            disks.files,
            ledgers,
            OPTIONS,
            report=lambda path, state: disks.reports.append((path, state)),
            on_verdict=disks.verdicts.append,
            on_failure=disks._fail,
            index_directories=indexes,
            on_failed_directory=lambda path, failure: self.failed.append(path),
        )
        return disks

    def test_it_is_given_up_once_and_for_good(self) -> None:
        disks = self.make()
        disks.check(a=0.5)
        disks.lose("/a")
        disks.check()
        assert (self.failed, list(disks.monitor.failed)) == (["/a"], ["/a"])
        assert disks.reports[-1] == ("/b", W)
        assert ("/a", F) not in disks.reports, "whoever was told that it failed does so, once it is not used"
        assert (disks.verdicts[-1].writable, disks.verdicts[-1].full) == (1, 0)
        disks.files.makedirs("/a")
        disks.check()
        assert self.failed == ["/a"]
        assert disks.reports[-1] == ("/b", W)
        assert ("/a", W) not in disks.reports[-2:]
        disks.check(b=0.95)
        assert (disks.verdicts[-1].writable, disks.verdicts[-1].full) == (0, 1)
        disks.check(b=0.1)
        assert disks.verdicts[-1].writable == 1

    def test_one_whose_writes_fail_is_given_up_by_whoever_wrote(self) -> None:
        disks = self.make()
        disks.check()
        disks.monitor.give_up("/a", StorageFault("10 flushes failed"))
        disks.monitor.give_up("/a", StorageFault("10 flushes failed"))
        assert (self.failed, list(disks.monitor.failed)) == (["/a"], ["/a"])
        disks.check()
        assert (disks.verdicts[-1].writable, disks.verdicts[-1].full) == (1, 0)
        with pytest.raises(StorageFault, match="10 flushes"):
            disks.monitor.give_up("/b", StorageFault("10 flushes failed"))

    def test_one_that_is_given_up_during_a_check_gets_no_state_again(self) -> None:
        disks = self.make()
        disks.check()
        disks.reports.clear()
        usage = disks.files.usage

        def gives_up(path: str) -> DiskUsage:
            if path == "/b":  # the monitor has looked at the other one
                disks.monitor.give_up("/a", StorageFault("10 flushes failed"))
            return usage(path)

        disks.files.usage = gives_up  # type: ignore[method-assign]
        disks.check(a=0.95)
        assert [path for path, _ in disks.reports] == ["/b"]
        assert disks.monitor.states["/a"] is W
        assert (disks.verdicts[-1].writable, disks.verdicts[-1].full) == (1, 0)

    def test_a_journal_disk_that_fills_meanwhile_makes_the_bookie_read_only(self) -> None:
        """The journal is not trimmed while a directory has failed: what is left must not end with it."""
        disks = self.make()
        disks.monitor._journal_states["/j"] = W
        disks.used["/j"], disks.devices["/j"] = 0.97, 9
        disks.files.makedirs("/j")
        disks.check()
        assert disks.verdicts[-1].writable == 2
        disks.monitor.give_up("/a", StorageFault("10 flushes failed"))
        disks.check()
        verdict = disks.verdicts[-1]
        assert (verdict.writable, verdict.high_priority_room, verdict.full_directories) == (0, False, ("/j",))

    def test_the_last_one_ends_the_bookie(self) -> None:
        disks = self.make()
        disks.lose("/a")
        disks.check()
        disks.lose("/b")
        with pytest.raises(StorageFault, match=r"/b .*gone"):
            disks.check()

    def test_the_only_one_ends_the_bookie(self) -> None:
        disks = self.make(ledgers=("/a",))
        disks.lose("/a")
        with pytest.raises(StorageFault, match=r"/a .*gone"):
            disks.check()

    def test_an_index_directory_ends_the_bookie(self) -> None:
        disks = self.make(indexes=("/i",))
        disks.lose("/i")
        with pytest.raises(StorageFault, match=r"/i .*gone"):
            disks.check()


class TestJournalDisks:
    def make(self) -> tuple[Disks, DiskMonitor]:
        disks = Disks("/a", "/j")
        return disks, DiskMonitor(
            disks.files,
            ["/a"],
            OPTIONS,
            report=lambda path, state: disks.reports.append((path, state)),
            on_verdict=disks.verdicts.append,
            on_failure=disks._fail,
            journal_directories=["/j"],
        )

    def test_their_usage_shows_and_changes_no_mode(self) -> None:
        disks, monitor = self.make()
        disks.used["/j"] = 0.97
        with capture_logs() as logs:
            monitor.check()
            monitor.check()
        assert [(each["event"], each["state"]) for each in logs] == [("journal disk state", "FULL")]
        assert monitor.usage["/j"] == pytest.approx(0.97)
        assert (disks.verdicts[-1].writable, disks.verdicts[-1].full) == (1, 0)
        assert disks.reports == [("/a", W), ("/a", W)]

    def test_one_that_is_gone_ends_the_bookie(self) -> None:
        disks, monitor = self.make()
        disks.lose("/j")
        with pytest.raises(StorageFault, match=r"/j .*gone"):
            monitor.check()


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EAGAIN])
def test_a_look_for_which_the_machine_lacks_something_is_no_failed_disk(number: int) -> None:
    """What was seen before holds until the next look. At the first look there is nothing of the kind."""
    disks = Disks("/a", "/b")
    disks.check(a=0.95)
    disks.files.faults.fail("is_dir", path="/a", errno=number)
    assert disks.check(b=0.85) == (F, A)
    assert disks.verdicts[-1].writable == 1
    disks.restart()
    with pytest.raises(ResourcesShort):
        disks.monitor.check()


FOLDER, OTHER = "/a/current", "/b/current"
AT = f"{FOLDER}/{RESERVE}"
DISK_BYTES = 1 << 20
HELD = DISK_BYTES // 64
WARN = 0.75
PAGE = 4096


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    for folder in (FOLDER, OTHER):
        made.makedirs(folder)
        made.set_capacity(folder, DISK_BYTES)
    return made


def hold(files: MemoryFiles) -> None:
    StartReserves(files).hold(FOLDER, files.usage(FOLDER), WARN)


def fill(files: MemoryFiles, leave: int) -> None:
    files.write_bytes(f"{FOLDER}/ballast", bytes(files.usage(FOLDER).usable - leave))


def test_it_is_held_given_up_on_a_full_disk_and_held_again(files: MemoryFiles) -> None:
    hold(files)
    assert files.usage(FOLDER).usable == DISK_BYTES - HELD
    give_up_reserves(files, [FOLDER, OTHER])
    assert files.exists(AT), "there is room"
    fill(files, leave=HELD - PAGE)
    give_up_reserves(files, [FOLDER, OTHER, "/gone"])
    assert files.usage(FOLDER).usable == 2 * HELD - PAGE
    hold(files)
    assert not files.exists(AT), "the disk is still full"
    files.unlink(f"{FOLDER}/ballast")
    hold(files)
    assert files.size(AT) == HELD


def test_what_a_crash_has_left_of_it_is_made_whole(files: MemoryFiles) -> None:
    files.write_bytes(AT, b"")
    hold(files)
    assert files.size(AT) == HELD


def test_it_makes_no_disk_almost_full(files: MemoryFiles) -> None:
    fill(files, leave=DISK_BYTES // 4 + HELD - PAGE)
    hold(files)
    assert not files.exists(AT)
    files.write_bytes(f"{FOLDER}/ballast", bytes(DISK_BYTES - DISK_BYTES // 4 - HELD))
    hold(files)
    assert files.exists(AT)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_room_that_somebody_else_was_quicker_to_take_is_looked_for_again(files: MemoryFiles, number: int) -> None:
    reserves = StartReserves(files)
    files.faults.fail("allocate", path=RESERVE, errno=number)
    reserves.hold(FOLDER, files.usage(FOLDER), WARN)
    assert not files.exists(AT)
    files.faults.clear()
    reserves.hold(FOLDER, files.usage(FOLDER), WARN)
    assert files.size(AT) == HELD


def test_a_file_system_that_refuses_is_asked_once_and_keeps_nothing(files: MemoryFiles) -> None:
    reserves = StartReserves(files)
    files.faults.fail("allocate", path=RESERVE, errno=errno.EOPNOTSUPP)
    for _ in range(2):
        reserves.hold(FOLDER, files.usage(FOLDER), WARN)
        assert not files.exists(AT)
    assert files.faults.counts["allocate"] == 1
