"""Which backups of a folder go when a new one was read back."""

from __future__ import annotations

from pathlib import Path

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
