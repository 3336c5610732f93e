"""`lastMark`: order, bytes, the greatest of all directories, and never back."""

from __future__ import annotations

import errno
import random

import pytest

from bookie_pod.storage.journal.marks import LogMark, MarkFiles, mark_bytes, mark_file_name, parse_mark
from bookie_protocol.errors import NoWritableDirectory, StorageFault
from tests.support.memory_files import Died, MemoryFiles

DIRECTORIES = ["/l0/current", "/l1/current", "/l2/current"]


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    for directory in DIRECTORIES:
        files.makedirs(directory)
    return files


def marks(files: MemoryFiles, index: int = 0, count: int = 1) -> MarkFiles:
    return MarkFiles(files, DIRECTORIES, index, count)


def test_bytes_of_the_example() -> None:
    mark = LogMark(0x18F2A3B4C5D, 1024)
    assert mark.to_bytes().hex() == "0000018f2a3b4c5d0000000000000400"
    assert LogMark.from_bytes(mark.to_bytes()) == mark
    assert mark_bytes("lastMark", mark)[:16] == mark.to_bytes(), "the reference reads so much and no more"
    assert parse_mark("lastMark", mark_bytes("lastMark", mark)) == mark
    assert parse_mark("lastMark", mark.to_bytes()) == mark, "as the reference writes it"
    assert parse_mark("lastMark", mark.to_bytes()[:15]) is None
    assert parse_mark("lastMark.0", mark_bytes("lastMark.1", mark)) is None
    assert parse_mark("lastMark", LogMark(0, 0).to_bytes()) == LogMark()
    assert parse_mark("lastMark", LogMark(-1, 1).to_bytes()) is None
    assert parse_mark("lastMark", LogMark(1, -1).to_bytes()) is None


def test_a_copy_with_a_changed_bit_does_not_count(files: MemoryFiles) -> None:
    marks(files).write(LogMark(0x18F2A3B4C5D, 1024), DIRECTORIES[:1])
    good = files.read_bytes("/l0/current/lastMark")
    for bit in range(24 * 8):
        files.write_bytes("/l1/current/lastMark", (int.from_bytes(good) ^ 1 << bit).to_bytes(24))
        assert marks(files).copies() == [LogMark(0x18F2A3B4C5D, 1024)], bit


def test_order_is_file_then_offset() -> None:
    assert LogMark() < LogMark(0, 1) < LogMark(1, 0) < LogMark(1, 9) < LogMark(2, 0)


def test_names() -> None:
    assert mark_file_name(0, 1) == "lastMark"
    assert [mark_file_name(i, 2) for i in range(2)] == ["lastMark.0", "lastMark.1"]


def test_no_mark_at_all_is_zero(files: MemoryFiles) -> None:
    assert marks(files).read() == LogMark(0, 0)


def test_the_greatest_counts_and_short_files_do_not(files: MemoryFiles) -> None:
    files.write_bytes("/l0/current/lastMark", LogMark(5, 100).to_bytes())
    files.write_bytes("/l1/current/lastMark", LogMark(6, 1).to_bytes())
    files.write_bytes("/l2/current/lastMark", LogMark(7, 0).to_bytes()[:15])
    assert marks(files).read() == LogMark(6, 1)


def test_a_copy_below_one_with_a_check_is_a_leftover(files: MemoryFiles) -> None:
    """Of a directory that took no more marks when the others did."""
    files.write_bytes("/l0/current/lastMark", mark_bytes("lastMark", LogMark(5, 100)))
    files.write_bytes("/l1/current/lastMark", LogMark(6, 1).to_bytes())
    assert marks(files).copies() == [LogMark(5, 100), LogMark(6, 1)], "nobody knows whether the newer one is right"
    files.write_bytes("/l2/current/lastMark", mark_bytes("lastMark", LogMark(6, 512)))
    assert marks(files).copies() == [LogMark(6, 512)]


def test_a_mark_that_cannot_be_read_is_no_missing_mark(files: MemoryFiles) -> None:
    files.write_bytes("/l1/current/lastMark", LogMark(6, 1).to_bytes())
    files.faults.fail("pread", path="/l1/")
    with pytest.raises(StorageFault, match="read /l1/current/lastMark"):
        marks(files).read()


def test_written_to_every_writable_directory(files: MemoryFiles) -> None:
    assert marks(files, 1, 2).write(LogMark(3, 512), [DIRECTORIES[0], DIRECTORIES[2]])
    assert files.read_bytes("/l0/current/lastMark.1") == mark_bytes("lastMark.1", LogMark(3, 512))
    assert files.read_bytes("/l2/current/lastMark.1") == mark_bytes("lastMark.1", LogMark(3, 512))
    assert files.listdir("/l1/current") == []
    assert marks(files, 1, 2).read() == LogMark(3, 512)
    assert marks(files, 0, 2).read() == LogMark()


def test_a_mark_never_goes_back(files: MemoryFiles) -> None:
    written = marks(files)
    assert written.write(LogMark(3, 512), DIRECTORIES)
    assert written.write(LogMark(3, 512), DIRECTORIES)
    assert not written.write(LogMark(3, 511), DIRECTORIES)
    assert not written.write(LogMark(2, 9999), DIRECTORIES)
    assert marks(files).read() == LogMark(3, 512)
    again = marks(files)
    again.goes_on_from(again.read())
    assert not again.write(LogMark(1, 0), DIRECTORIES)


def test_one_failing_directory_is_borne(files: MemoryFiles) -> None:
    files.faults.fail("write", path="/l1/", errno=errno.ENOSPC)
    assert marks(files).write(LogMark(3, 512), DIRECTORIES)
    files.faults.clear()
    assert marks(files).read() == LogMark(3, 512)


def test_all_failing_is_an_error_and_the_mark_may_be_tried_again(files: MemoryFiles) -> None:
    written = marks(files)
    files.faults.fail("write", errno=errno.EIO)
    with pytest.raises(StorageFault, match="write lastMark"):
        written.write(LogMark(3, 512), DIRECTORIES)
    files.faults.clear()
    assert written.write(LogMark(3, 512), DIRECTORIES)


def test_no_writable_directory(files: MemoryFiles) -> None:
    with pytest.raises(NoWritableDirectory):
        marks(files).write(LogMark(3, 512), [])


@pytest.mark.parametrize("strict", [False, True])
def test_a_crash_at_any_step_leaves_the_old_or_the_new_mark(strict: bool) -> None:
    one = DIRECTORIES[:1]
    for step in range(30):
        files = MemoryFiles(strict_names=strict)
        files.makedirs(one[0])
        writer = MarkFiles(files, one, 0, 1)
        writer.write(LogMark(3, 512), one)
        files.faults.die_at(files.operations + step)
        possible = {LogMark(3, 512), LogMark(4, 1024)}
        try:
            writer.write(LogMark(4, 1024), one)
            possible = {LogMark(4, 1024)}
        except Died:
            pass
        for seed in range(50):
            assert MarkFiles(files.crash(random.Random(seed)), one, 0, 1).read() in possible
        if len(possible) == 1:
            return
    raise AssertionError("it died every time")
