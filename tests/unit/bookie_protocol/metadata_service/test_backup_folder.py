"""Which backups of a folder go when a new one was read back."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.moving.backup_folder import BackupFolder

HOUR = 3600.0
NOW = 1_800_000_000.0


def backed_up(folder: Path, at: float, keep: int) -> None:
    """Run as the command does."""
    backups = BackupFolder(str(folder), "a")
    path = Path(backups.new_path(at))
    path.write_bytes(b"")
    backups.keep_newest(keep, str(path))


def test_runs_that_overlap_do_not_remove_each_others_backups(tmp_path: Path) -> None:
    slow, fast = BackupFolder(str(tmp_path), "a"), BackupFolder(str(tmp_path), "a")
    first, second = Path(slow.new_path(NOW)), Path(fast.new_path(NOW + HOUR))
    for path in (first, second):
        path.write_bytes(b"")
    assert fast.keep_newest(1, str(second)) == []
    assert slow.keep_newest(1, str(first)) == []
    assert {first, second} == set(tmp_path.iterdir())


def test_backups_of_a_clock_that_was_ahead_go_before_those_of_now(tmp_path: Path) -> None:
    for number in range(3):
        backed_up(tmp_path, NOW + 1000 * HOUR + number, 3)
    for number in range(3):
        backed_up(tmp_path, NOW + number * HOUR, 3)
    wanted = {Path(BackupFolder(str(tmp_path), "a").new_path(NOW + number * HOUR)).name for number in range(3)}
    assert {each.name for each in tmp_path.iterdir()} == wanted


def test_a_folder_with_the_name_of_a_backup_is_left_alone(tmp_path: Path) -> None:
    odd = Path(BackupFolder(str(tmp_path), "a").new_path(NOW))
    odd.mkdir()
    for number in range(1, 4):
        backed_up(tmp_path, NOW + number * HOUR, 1)
    assert odd.is_dir()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("odd", ["", "a/b", "..", "a b", "a\n", "é", "x" * 201])
def test_ids_that_no_file_can_be_named_after_are_refused(tmp_path: Path, odd: str) -> None:
    with pytest.raises(InvalidConfiguration):
        BackupFolder(str(tmp_path), odd)


def test_unfinished_files_go_once_no_process_writes_them(tmp_path: Path) -> None:
    killed, running = (tmp_path / f"metadata-a-20200101T000000Z.{n}.part" for n in ("00aa", "00bb"))
    for each in (killed, running):
        each.touch()
    with running.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        BackupFolder(str(tmp_path), "a").new_path(NOW)
        assert list(tmp_path.iterdir()) == [running]
    BackupFolder(str(tmp_path), "a").new_path(NOW)
    assert list(tmp_path.iterdir()) == []


def test_without_locks_unfinished_files_go_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    old, recent = (tmp_path / f"metadata-a-20200101T000000Z.{n}.part" for n in ("00aa", "00bb"))
    for each, age in ((old, 86_401), (recent, 86_399)):
        each.touch()
        os.utime(each, (NOW - age, NOW - age))
    monkeypatch.setattr(fcntl, "flock", no_locks)
    BackupFolder(str(tmp_path), "a").new_path(NOW)
    assert list(tmp_path.iterdir()) == [recent]
