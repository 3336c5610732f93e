"""Index directories that cannot be read, and those that were given up."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bookie_pod.storage.entry_log import DiskState, LedgerDirStates
from bookie_pod.storage.files import File
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index.index_file import slot_offset
from bookie_pod.storage.index.ledger_cache import seal as seal_module
from bookie_pod.storage.index.ledger_cache.directories import IndexDirectories, index_folders, max_entry_id
from bookie_pod.storage.index.ledger_cache.handles import IndexHandle
from bookie_pod.storage.index.ledger_cache.seal import IndexFilesSeal, drop_seals
from bookie_protocol.errors import DirectoryFault, NoLedgerIndex, NoWritableDirectory, StorageFault
from tests.support.memory_files import MemoryFiles
from tests.unit.bookie_pod.storage.index.ledger_cache.rig import Rig


def _two_ledgers() -> tuple[Rig, int, str, int]:
    """A rig, a ledger and its directory, and a ledger whose file is in the other one."""
    rig = Rig()
    by_directory: dict[str, int] = {}
    for ledger_id in range(1, 60):
        rig.add(ledger_id)
        rig.cache.put(ledger_id, [0], [100 + ledger_id])
        rig.flush()
        by_directory.setdefault(rig.path(ledger_id)[:2], ledger_id)
        if len(by_directory) == 2:
            break
    return rig, by_directory["/a"], "/a", by_directory["/b"]


def _flushed() -> Rig:
    """Entry 0 of ledger 1 is at 77, and its file says so."""
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0], [77])
    rig.flush()
    return rig


def test_a_disk_that_fails_in_a_flush_is_named_and_once_it_is_given_up_its_ledgers_are_cut_off() -> None:
    rig, lost, directory, other = _two_ledgers()
    for ledger_id in (lost, other):
        rig.cache.put(ledger_id, [1], [7])
    rig.files.faults.fail("pwrite", "open", "datasync", "unlink", path=f"{directory}/")
    with pytest.raises(DirectoryFault, match=f"write .* ledger {lost}"):
        rig.cache.flush()
    rig.cache.give_up(directory)
    rig.flush()
    for look in (
        lambda: rig.cache.get(lost, 0),
        lambda: rig.cache.life(lost),
        lambda: rig.cache.last_entry_id(lost),
        lambda: rig.cache.check_taken(lost),
    ):
        with pytest.raises(StorageFault, match=f"ledger {lost} .*failed"):
            look()
    with pytest.raises(NoLedgerIndex):
        rig.cache.put(lost, [2], [8])
    assert not rig.cache.move(other, 0, 5, 6)
    rig.cache.check_taken(other)
    assert [rig.cache.get(other, entry_id) for entry_id in (0, 1)] == [100 + other, 7]
    flushed = rig.cache.flushed
    rig.cache._flusher.flush([lost])
    assert rig.cache.flushed == flushed, "nothing is written for it any more"
    for ledger_id in range(100, 110):
        rig.add(ledger_id)
        rig.cache.put(ledger_id, [0], [9])
    rig.flush()
    assert not [ledger_id for ledger_id in range(100, 110) if rig.path(ledger_id).startswith(directory)]


def test_a_fault_of_no_directory_gives_none_up() -> None:
    rig, ledger_id, *_ = _two_ledgers()
    rig.cache.put(ledger_id, [1], [7])

    def elsewhere(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many files", "/tmp")

    rig.cache._directories.should_move = elsewhere  # type: ignore[method-assign, assignment]
    with pytest.raises(StorageFault) as caught:
        rig.cache.flush()
    assert not isinstance(caught.value, DirectoryFault)


@pytest.mark.parametrize("refuses", [False, True])
def test_what_was_to_be_removed_from_a_failed_disk_is_cut_off_if_it_could_not_be(refuses: bool) -> None:
    rig, lost, directory, other = _two_ledgers()
    path = rig.path(lost)
    rig.cache.delete(lost)
    rig.cache.delete(other)
    if refuses:
        rig.files.faults.fail("unlink", path=f"{directory}/")
    rig.cache.give_up(directory)
    assert rig.files.exists(path) == refuses
    assert rig.cache._directories.cut_off == ({lost} if refuses else set())
    rig.cache._flusher.remove_deleted()
    assert rig.cache._directories.deleted_ledgers() == []
    rig.cache._directories.created(77, directory)
    rig.cache.delete(77)
    assert 77 in rig.cache._directories.cut_off, "its file stays on the failed disk"


def test_a_life_that_is_over_is_told() -> None:
    rig = Rig()
    rig.add(1)
    life = rig.cache.life(1)
    rig.cache.check_life(1, life)
    rig.cache.delete(1)
    for ask in (lambda: rig.cache.life(1), lambda: rig.cache.check_life(1, life)):
        with pytest.raises(NoLedgerIndex):
            ask()
    rig.add(1)
    with pytest.raises(NoLedgerIndex):
        rig.cache.check_life(1, life)


@pytest.mark.parametrize("operation", ["open", "pread"])
def test_an_index_file_that_cannot_be_read_is_a_fault(operation: str) -> None:
    rig = _flushed()
    path = rig.path(1)
    rig.cache.close()
    rig.files.faults.fail(operation, path=path)
    with pytest.raises(StorageFault, match=f"read .*{path}"):
        rig._open()
    rig.files.faults.clear()
    rig.cache = rig._open()
    rig.files.faults.fail(operation, path=path)
    with pytest.raises(StorageFault, match=r"read .* ledger 1"):
        rig.cache.get(1, 0)
    rig.files.faults.clear()
    assert rig.cache.get(1, 0) == 77


def test_a_directory_that_cannot_be_listed_or_tidied_up_is_a_fault() -> None:
    rig = _flushed()
    path = rig.path(1)
    rig.cache.close()
    rig.files.rename(path, f"{path}.rloc")
    for operation, message in (("listdir", "list"), ("rename", "move")):
        rig.files.faults.fail(operation)
        with pytest.raises(StorageFault, match=message):
            rig._open()
        rig.files.faults.clear()
    assert rig._open().get(1, 0) == 77


def test_index_files_are_sought_in_folders_of_two_hexadecimal_digits() -> None:
    files = MemoryFiles()
    for folder in ("/a/0/1f", "/a/zz/1", "/a/abc/1", "/a/1/zz", "/a/1/abc", "/a/ff/0"):
        files.makedirs(folder)
    for name in ("/a/2", "/a/0/2", "/a/lastId"):
        files.write_bytes(name, b"")
    assert sorted(index_folders(files, "/a")) == ["/a/0/1f", "/a/ff/0"]
    assert index_folders(files, "/none") == []


def test_a_disk_that_cannot_say_what_is_left_on_it_takes_no_file() -> None:
    files = MemoryFiles()
    for directory in ("/a", "/b"):
        files.makedirs(directory)
    states = LedgerDirStates(["/a", "/b"])
    index = IndexDirectories(files, states, 0)
    for directory in ("/a", "/b"):
        states.report(directory, DiskState.FULL)
    files.faults.fail("usage", path="/a")
    assert {index._pick() for _ in range(20)} == {"/b"}
    files.faults.fail("usage", path="/b")
    with pytest.raises(NoWritableDirectory):
        index._pick()


def test_a_disk_that_cannot_say_how_long_a_file_may_be_is_believed_to_take_what_the_others_do() -> None:
    files = MemoryFiles()
    for directory in ("/a", "/b"):
        files.makedirs(directory)
    files.largest_file = slot_offset(1 << 16) + 63
    assert max_entry_id(files, ["/a", "/b"], 64) == (1 << 15) - 1, "a page more would not fit"
    files.largest_file += 1
    most = max_entry_id(files, ["/a", "/b"], 64)
    assert most == (1 << 16) - 1
    takes = files.takes_file_of

    def refuses(folder: str, nbytes: int) -> bool:
        if folder == "/a":
            raise OSError(errno.EROFS, "read-only", folder)
        return takes(folder, nbytes)

    files.takes_file_of = refuses  # type: ignore[method-assign]
    assert max_entry_id(files, ["/a", "/b"], 64) == most


def test_a_file_system_that_does_not_tell_its_holes_takes_no_entry_id_far_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever lists a ledger would have to read all of its file, whose length a client chooses."""
    assert max_entry_id(PosixFiles(), [str(tmp_path)], 8192) > 1 << 30
    monkeypatch.setattr(os, "SEEK_DATA", os.SEEK_SET)
    assert max_entry_id(PosixFiles(), [str(tmp_path)], 8192) == (1 << 28) - 1


def test_a_file_that_went_is_opened_again_only_if_something_has_changed() -> None:
    rig = _flushed()
    rig.cache.handles.drop(1)
    rig.files.unlink(rig.path(1))
    with pytest.raises(FileNotFoundError):
        rig.cache.handles.acquire(1)


def test_of_two_who_open_an_index_file_at_once_one_closes_its_own() -> None:
    rig = _flushed()
    rig.cache.handles.drop(1)
    rig.cache.handles.close_unused()
    handles, adopt = rig.cache.handles, rig.cache.handles._adopt
    others: list[IndexHandle | None] = []

    def after_another(ledger_id: int, file: File, generation: int) -> IndexHandle:
        handles._adopt = adopt  # type: ignore[method-assign]
        others.append(handles.acquire(1))
        return adopt(ledger_id, file, generation)

    handles._adopt = after_another  # type: ignore[method-assign]
    handle = handles.acquire(1)
    assert others == [handle]
    assert handle is not None
    assert (handle.users, len(handles), rig.files.open_files) == (2, 1, 1)


# --- the seal -----------------------------------------------------------------------------------------------------


def test_a_seal_that_cannot_be_read_is_a_fault_and_one_of_another_kind_is_none() -> None:
    rig = _flushed()
    rig.cache.seal()
    (path,) = [
        f"{folder}/{seal_module.NAME}" for folder in ("/a", "/b") if seal_module.NAME in rig.files.listdir(folder)
    ]
    rig.files.faults.fail("open", path=path)
    with pytest.raises(StorageFault, match=f"read {path}"):
        rig._open()
    rig.files.faults.clear()
    assert IndexFilesSeal(rig.files, ["/a", "/b"]).check({}) == [1], "its file is gone"
    rig.files.write_bytes(path, b"OTHER" + rig.files.read_bytes(path)[5:])
    assert IndexFilesSeal(rig.files, ["/a", "/b"]).check({}) == []


def test_a_seal_tells_of_which_size_its_pages_are() -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0, 9], [5, 6])
    rig.flush()
    rig.cache.seal()
    folders = [folder for folder in ("/a", "/b") if rig.files.exists(f"{folder}/{seal_module.NAME}")]
    for page_bytes, pages in ((0, [0, 1]), (64, [0, 1]), (128, [])):
        assert list(IndexFilesSeal(rig.files, folders, page_bytes).pages(1)) == pages
    drop_seals(rig.files, ["/a", "/b"])
    assert list(IndexFilesSeal(rig.files, folders).pages(1)) == []
    assert not [folder for folder in ("/a", "/b") if rig.files.exists(f"{folder}/{seal_module.NAME}")]


def test_what_a_page_has_lost() -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0, 1, 9], [5, 6, 7])
    rig.flush()
    seal, path = rig.cache._seal, rig.path(1)
    assert list(seal.pages(1)) == [0, 1]

    def lost() -> list[bool]:
        file = rig.files.open(path)
        try:
            return [seal.has_lost(1, page, file) for page in (0, 1, 2)]
        finally:
            file.close()

    assert lost() == [False, False, False]
    rig.files.corrupt(path, 1024 + 8, bytes(8))
    assert lost() == [True, False, False]
    rig.files.truncate_to(path, 1024 + 64)
    assert lost() == [True, True, False]
