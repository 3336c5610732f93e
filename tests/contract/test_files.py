"""The same promises for the real file system and for the one in memory."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from bookie_pod.storage.files import Files
from bookie_pod.storage.files_posix import IOV_MAX, PosixFiles
from tests.support.largest_file import largest_file
from tests.support.memory_files import MemoryFiles


@pytest.fixture(params=["posix", "memory", "memory, strict names"])
def files(request: pytest.FixtureRequest) -> Files:
    if request.param == "posix":
        return PosixFiles()
    return MemoryFiles(strict_names="strict" in request.param)


@pytest.fixture
def folder(files: Files, tmp_path: Path) -> str:
    path = str(tmp_path / "current")
    files.makedirs(path)
    return path


def test_a_new_file_is_empty_and_taken(files: Files, folder: str) -> None:
    path = f"{folder}/a"
    file = files.create(path)
    assert (file.path, file.position, file.size()) == (path, 0, 0)
    file.close()
    with pytest.raises(FileExistsError) as caught:
        files.create(path)
    assert caught.value.filename == path


def test_writes_append_and_pwrite_does_not_move(files: Files, folder: str) -> None:
    file = files.create(f"{folder}/a")
    file.write(b"abc")
    file.writev([b"de", bytearray(b"f"), memoryview(b"gh"), b""])
    file.pwrite(b"XY", 1)
    assert file.position == 8
    file.write(b"i")
    assert file.pread(100, 0) == b"aXYdefghi"
    assert file.pread(3, 7) == b"hi"
    assert file.pread(3, 9) == b""
    file.datasync()
    file.sync()
    file.close()
    assert files.read_bytes(f"{folder}/a") == b"aXYdefghi"


def test_more_pieces_than_one_system_call_takes(files: Files, folder: str) -> None:
    pieces = [bytes([i % 251]) * (i % 3) for i in range(3 * IOV_MAX + 7)]
    file = files.create(f"{folder}/a")
    file.writev(pieces)
    file.writev([])
    expected = b"".join(pieces)
    assert file.position == file.size() == len(expected)
    file.close()
    assert files.read_bytes(f"{folder}/a") == expected


def test_a_hole_reads_as_zeros(files: Files, folder: str) -> None:
    file = files.create(f"{folder}/a")
    file.pwrite(b"end", 9000)
    assert file.position == 0
    file.write(b"begin")
    assert file.size() == 9003
    assert file.pread(8, 4) == b"n" + bytes(7)
    assert file.pread(10, 8998) == bytes(2) + b"end"
    file.close()


def test_reopened_for_writing_continues_at_the_end(files: Files, folder: str) -> None:
    path = f"{folder}/a"
    files.write_bytes(path, b"123")
    file = files.open(path, writable=True)
    assert file.position == 3
    file.write(b"4")
    file.close()
    assert files.read_bytes(path) == b"1234"


def test_a_file_opened_for_reading_takes_no_write(files: Files, folder: str) -> None:
    path = f"{folder}/a"
    files.write_bytes(path, b"123")
    file = files.open(path)
    with pytest.raises(OSError) as caught:
        file.write(b"4")
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, path)
    file.close()


def test_truncate(files: Files, folder: str) -> None:
    file = files.create(f"{folder}/a")
    file.write(b"12345")
    file.truncate(2)
    assert (file.position, file.size()) == (2, 2)
    file.truncate(4)
    assert (file.position, file.pread(9, 0)) == (2, b"12\0\0")
    file.close()


def test_closed_twice_is_closed(files: Files, folder: str) -> None:
    file = files.create(f"{folder}/a")
    file.close()
    file.close()
    with pytest.raises(OSError) as caught:
        file.pread(1, 0)
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, f"{folder}/a")


def test_dropping_the_cache_never_fails_nor_changes_anything(files: Files, folder: str) -> None:
    file = files.create(f"{folder}/a")
    file.write(b"kept")
    file.drop_cache(0, 1 << 30)
    assert file.pread(4, 0) == b"kept"
    file.close()
    file.drop_cache(0, 4)


@pytest.mark.parametrize("write", ["write_bytes", "write_bytes_synced", "write_bytes_atomic"])
def test_whole_files(files: Files, folder: str, write: str) -> None:
    path = f"{folder}/lastMark"
    getattr(files, write)(path, b"a longer one")
    getattr(files, write)(path, b"short")
    assert files.read_bytes(path) == b"short"
    assert files.listdir(folder) == ["lastMark"]
    assert files.size(path) == 5


@pytest.mark.parametrize("call", ["open", "read_bytes", "listdir", "size", "modified_ms", "unlink", "rmdir"])
def test_what_is_not_there_is_said_by_type_and_name(files: Files, folder: str, call: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        getattr(files, call)(f"{folder}/nothing")
    assert caught.value.filename == f"{folder}/nothing"
    assert not files.exists(f"{folder}/nothing")
    assert not files.is_dir(f"{folder}/nothing")


def test_no_file_in_a_folder_that_is_not_there(files: Files, folder: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.create(f"{folder}/nothing/a")


def test_folders(files: Files, folder: str) -> None:
    files.makedirs(f"{folder}/x/y")
    files.makedirs(f"{folder}/x/y")
    files.create(f"{folder}/b").close()
    files.create(f"{folder}/a").close()
    assert files.listdir(folder) == ["a", "b", "x"]
    assert files.listdir(f"{folder}/x") == ["y"]
    assert files.is_dir(f"{folder}/x")
    assert not files.is_dir(f"{folder}/a")
    assert files.exists(f"{folder}/x")
    with pytest.raises(OSError) as caught:
        files.rmdir(f"{folder}/x")
    assert caught.value.errno == errno.ENOTEMPTY
    files.rmdir(f"{folder}/x/y")
    assert files.listdir(f"{folder}/x") == []
    files.sync_directory(folder)


def test_rename_replaces_and_open_files_stay_open(files: Files, folder: str) -> None:
    files.write_bytes(f"{folder}/a", b"A")
    files.write_bytes(f"{folder}/b", b"B")
    old = files.open(f"{folder}/b")
    files.rename(f"{folder}/a", f"{folder}/b")
    assert files.listdir(folder) == ["b"]
    assert files.read_bytes(f"{folder}/b") == b"A"
    assert old.pread(1, 0) == b"B"
    old.close()


def test_a_link_is_the_same_file(files: Files, folder: str) -> None:
    files.write_bytes(f"{folder}/a", b"A")
    files.link(f"{folder}/a", f"{folder}/b")
    with pytest.raises(FileExistsError):
        files.link(f"{folder}/a", f"{folder}/b")
    files.unlink(f"{folder}/a")
    assert files.read_bytes(f"{folder}/b") == b"A"


def test_usage(files: Files, folder: str) -> None:
    usage = files.usage(folder)
    assert 0 < usage.usable <= usage.total
    assert usage.device == files.usage(folder).device


def test_the_longest_file_is_found_without_leaving_one(files: Files, folder: str) -> None:
    assert files.takes_file_of(folder, 1 << 30)
    with largest_file(1 << 50):  # some file systems take any
        assert not files.takes_file_of(folder, (1 << 63) - 1)
    assert files.listdir(folder) == []
    with pytest.raises(FileNotFoundError):
        files.takes_file_of(f"{folder}/nowhere", 1)


def test_the_error_of_a_write_keeps_nothing_of_the_buffer(files: Files, folder: str) -> None:
    path = f"{folder}/a"
    file = files.create(path)
    data = bytearray(5000)
    if isinstance(files, MemoryFiles):
        files.faults.fail("pwrite", errno=errno.ENOSPC)
    with largest_file(1000), memoryview(data) as view, pytest.raises(OSError) as kept:
        file.pwrite(view, 0)
    data.append(0)  # BufferError if a view is left
    assert kept.value.filename == path
    assert 0 < file.size() < 5000
    file.close()


def test_modification_time(files: Files, folder: str) -> None:
    files.write_bytes(f"{folder}/a", b"1")
    files.write_bytes(f"{folder}/b", b"1")
    assert 0 < files.modified_ms(f"{folder}/a") <= files.modified_ms(f"{folder}/b")


def test_one_thread_writes_another_syncs_and_others_read(files: Files, folder: str) -> None:
    file = files.create(f"{folder}/a")
    rounds, block = 200, bytes(range(256))
    wrong: list[bytes] = []
    done = threading.Event()

    def reader() -> None:
        while not done.is_set():
            if size := file.size():
                data = file.pread(256, size - 256)
                if data != block:
                    wrong.append(data)

    def syncer() -> None:
        while not done.is_set():
            file.datasync()

    threads = [threading.Thread(target=reader), threading.Thread(target=syncer)]
    for thread in threads:
        thread.start()
    for _ in range(rounds):
        file.writev([block[:100], block[100:]])
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert file.size() == rounds * 256
    file.close()
