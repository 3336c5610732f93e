"""What the kernel may do to `PosixFiles` and a test cannot wait for: short writes, failing calls."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from bookie_pod.storage.files_posix import PosixFiles


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "file")


def short(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """The kernel takes at most `most` bytes per write."""
    real_pwrite = os.pwrite

    def pwrite(fd: int, data: bytes | memoryview, offset: int) -> int:
        return real_pwrite(fd, bytes(data)[:most], offset)

    def pwritev(fd: int, buffers: Sequence[bytes], offset: int) -> int:
        return real_pwrite(fd, b"".join(buffers)[:most], offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "pwritev", pwritev)


@pytest.mark.parametrize("most", [1, 7, 100])
def test_short_writes_are_continued(path: str, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    short(monkeypatch, most)
    file = PosixFiles().create(path)
    file.write(bytes(range(50)))
    file.writev([bytes(range(50, 60)), b"", bytearray(range(60, 100))])
    file.pwrite(memoryview(b"XYZ"), 3)
    assert file.position == 100
    file.close()
    expected = bytearray(range(100))
    expected[3:6] = b"XYZ"
    assert PosixFiles().read_bytes(path) == expected


def test_a_write_without_progress_is_an_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PosixFiles().create(path)
    short(monkeypatch, 0)
    with pytest.raises(OSError) as caught:
        file.write(b"x")
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, path)
    file.close()


@pytest.mark.parametrize("name", ["pwrite", "pwritev", "pread", "ftruncate", "fstat", "fsync", "fdatasync"])
def test_every_failing_call_names_the_file(path: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    file = PosixFiles().create(path)

    def failing(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, name, failing)
    calls = {
        "pwrite": lambda: file.write(b"x"),
        "pwritev": lambda: file.writev([b"x"]),
        "pread": lambda: file.pread(1, 0),
        "ftruncate": lambda: file.truncate(0),
        "fstat": file.size,
        "fsync": file.sync,
        "fdatasync": file.datasync,
    }
    with pytest.raises(OSError) as caught:
        calls[name]()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, path)
    assert path in str(caught.value)
    monkeypatch.undo()
    assert (file.position, file.size()) == (0, 0)
    file.close()


def test_a_file_whose_sync_failed_never_syncs_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PosixFiles().create(path)

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        with pytest.raises(OSError):
            file.datasync()
    for again in (file.datasync, file.sync):
        with pytest.raises(OSError, match="earlier") as caught:
            again()
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, path)
    file.close()


def test_an_atomic_write_that_fails_leaves_the_old_content(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = PosixFiles()
    files.write_bytes_atomic(path, b"old")

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError):
        files.write_bytes_atomic(path, b"new")
    assert files.read_bytes(path) == b"old"


def test_usage_is_that_of_statvfs(tmp_path: Path) -> None:
    usage = PosixFiles().usage(str(tmp_path))
    stats = os.statvfs(tmp_path)
    assert usage.total == stats.f_blocks * stats.f_frsize
    assert usage.device == tmp_path.stat().st_dev


def test_a_file_that_nobody_closed_is_told(path: str) -> None:
    file = PosixFiles().create(path)
    with pytest.warns(ResourceWarning):
        file.__del__()
    file.close()
