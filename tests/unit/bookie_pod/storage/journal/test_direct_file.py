"""A journal written past the page cache has the bytes of an ordinary one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.journal.direct_file import BLOCK, BUFFER_BYTES, DirectFile, create_journal_file
from tests.support.memory_files import MemoryFiles

PATH = "/j/f"


def memory_files() -> MemoryFiles:
    files = MemoryFiles()
    files.makedirs("/j")
    return files


@given(st.lists(st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=4), max_size=8))
def test_same_bytes_as_an_ordinary_file(groups: list[list[int]]) -> None:
    files = memory_files()
    file = create_journal_file(files, PATH, direct=True)
    assert isinstance(file, DirectFile)
    expected = b""
    for number, sizes in enumerate(groups):
        pieces = [bytes([1 + (number + part) % 255]) * size for part, size in enumerate(sizes)]
        file.writev(pieces)
        expected += b"".join(pieces)
        assert file.position == len(expected)
        content = files.read_bytes(PATH)
        assert content[: len(expected)] == expected
        assert not any(content[len(expected) :])
        assert len(content) % BLOCK == 0
    file.close()


def test_a_write_larger_than_the_buffer() -> None:
    files = memory_files()
    file = create_journal_file(files, PATH, direct=True)
    file.write(b"a" * 700)
    data = bytes(range(256)) * (2 * BUFFER_BYTES // 256) + b"end"
    file.write(data)
    file.close()
    assert files.read_bytes(PATH)[: file.position] == b"a" * 700 + data


def test_real_file_system(tmp_path: Path) -> None:
    """Whatever this file system allows, the bytes are there after a sync."""
    files = PosixFiles()
    path = str(tmp_path / "journal")
    file = create_journal_file(files, path, direct=True)
    file.allocate(0, 64 * 1024)
    for size in (512, 5000, 512, 100_000):
        file.write(b"x" * size)
        file.datasync()
    file.close()
    content = files.read_bytes(path)
    assert content[: 512 + 5000 + 512 + 100_000] == b"x" * (512 + 5000 + 512 + 100_000)
    assert not any(content[512 + 5000 + 512 + 100_000 :])


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_direct_io(code: int) -> None:
    files = memory_files()
    files.faults.fail("create_direct", errno=code)
    file = create_journal_file(files, PATH, direct=True)
    assert not isinstance(file, DirectFile)
    file.write(b"abc")
    file.close()
    assert files.read_bytes(PATH) == b"abc"


def test_a_full_disk_is_no_refusal() -> None:
    files = memory_files()
    files.faults.fail("create_direct", errno=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        create_journal_file(files, PATH, direct=True)
