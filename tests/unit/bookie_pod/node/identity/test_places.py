"""Each directory says which one of the bookie's it is."""

from __future__ import annotations

import errno

import pytest

from bookie_pod.node.identity.cookies import BookieDirectories
from bookie_pod.node.identity.places import DirectoryPlaces, MisplacedDirectory
from bookie_protocol.errors import ResourcesShort, StorageFault
from tests.support.memory_files import MemoryFiles
from tests.support.storage_engine import MemoryBookie, entry, put

DIRECTORIES = BookieDirectories(("/j1", "/j2"), ("/l1", "/l2"), ("/x1", "/x2"))
SHARED = BookieDirectories(("/d",), ("/d", "/e"))


def recorded(files: MemoryFiles, directories: BookieDirectories, *, ordered: bool = True) -> None:
    """A start on these directories."""
    for folder in directories.current_folders():
        files.makedirs(folder)
    places = DirectoryPlaces(files, directories, ordered=ordered)
    places.check()
    places.record()


def exchange(files: MemoryFiles, one: str, other: str) -> None:
    content = {each: files.read_bytes(f"{each}/current/directory-place") for each in (one, other)}
    files.write_bytes(f"{one}/current/directory-place", content[other])
    files.write_bytes(f"{other}/current/directory-place", content[one])


@pytest.mark.parametrize("directories", [DIRECTORIES, SHARED, BookieDirectories(("/d",), ("/d",), ("/d",))])
def test_a_start_is_followed_by_another(directories: BookieDirectories) -> None:
    files = MemoryFiles()
    recorded(files, directories)
    log = files.faults.record()
    recorded(files, directories)
    assert not [each for each in log if each.name != "makedirs"], "nothing is written again"


@pytest.mark.parametrize(
    ("one", "other"), [("/j1", "/j2"), ("/l1", "/l2"), ("/x1", "/x2"), ("/j1", "/l1"), ("/l2", "/x2")]
)
def test_directories_that_changed_places_are_named(one: str, other: str) -> None:
    files = MemoryFiles()
    recorded(files, DIRECTORIES)
    exchange(files, one, other)
    with pytest.raises(MisplacedDirectory) as refused:
        DirectoryPlaces(files, DIRECTORIES, ordered=True).check()
    assert f"{one}/current" in str(refused.value)
    assert f"{other}/current" in str(refused.value)
    exchange(files, one, other)
    DirectoryPlaces(files, DIRECTORIES, ordered=True).check()


def test_a_disk_of_an_earlier_life_of_the_bookie_is_refused() -> None:
    files, earlier = MemoryFiles(), MemoryFiles()
    recorded(files, DIRECTORIES)
    recorded(earlier, DIRECTORIES)
    path = "/l2/current/directory-place"
    files.write_bytes(path, earlier.read_bytes(path))
    with pytest.raises(MisplacedDirectory, match="/l2/current"):
        DirectoryPlaces(files, DIRECTORIES, ordered=True).check()


@pytest.mark.parametrize("ledgers", [("/l1", "/new", "/l2"), ("/new", "/l2", "/l1")])
def test_directories_may_be_added_anywhere_where_their_order_does_not_count(ledgers: tuple[str, ...]) -> None:
    files = MemoryFiles()
    recorded(files, DIRECTORIES)
    more = BookieDirectories(DIRECTORIES.journal, ledgers, DIRECTORIES.index)
    recorded(files, more, ordered=False)
    DirectoryPlaces(files, more, ordered=True).check()
    exchange(files, "/l1", "/j1")
    with pytest.raises(MisplacedDirectory):
        DirectoryPlaces(
            files, BookieDirectories(DIRECTORIES.journal, ledgers, DIRECTORIES.index), ordered=False
        ).check()


@pytest.mark.parametrize("journals", [("/j",), ("/l2/current", "/l1/current"), ("/l2",)])
def test_logs_are_told_by_the_order_of_ledger_directories_alone(journals: tuple[str, ...]) -> None:
    """Also in folders that are journals too, in another order. The logs are of a release that wrote no places."""
    bookie = MemoryBookie(["/l1/current", "/l2/current"])
    storage = bookie.open()
    put(storage, *(entry(ledger_id, 0) for ledger_id in range(4)))
    storage.flush()
    storage.close()
    storage = bookie.open()
    directories = BookieDirectories(tuple(each.removesuffix("/current") for each in journals), ("/l1", "/l2"))
    places = DirectoryPlaces(bookie.files, directories, ordered=True)
    places.check()
    places.check_contents(storage)


def test_a_first_start_that_died_is_gone_on_with() -> None:
    for step in range(40):
        files = MemoryFiles()
        for folder in DIRECTORIES.current_folders():
            files.makedirs(folder)
        files.faults.fail("rename", after=step, errno=errno.EIO)
        places = DirectoryPlaces(files, DIRECTORIES, ordered=True)
        places.check()
        try:
            places.record()
        except StorageFault:
            files.faults.clear()
            recorded(files, DIRECTORIES)
        else:
            assert step == 6
            return


@pytest.mark.parametrize("content", [b"", b"null", b'{"set": "a", "places": null}', b"{", b"\xff"])
def test_a_damaged_file_is_refused(content: bytes) -> None:
    files = MemoryFiles()
    recorded(files, DIRECTORIES)
    files.write_bytes("/l1/current/directory-place", content)
    with pytest.raises(MisplacedDirectory, match="/l1/current/directory-place"):
        DirectoryPlaces(files, DIRECTORIES, ordered=True).check()


def test_a_file_that_cannot_be_read_is_a_fault_of_the_machine() -> None:
    files = MemoryFiles()
    recorded(files, DIRECTORIES)
    files.faults.fail("pread", path="directory-place", errno=errno.EMFILE)
    with pytest.raises(ResourcesShort):
        DirectoryPlaces(files, DIRECTORIES, ordered=True).check()


def test_a_full_disk_does_not_keep_a_bookie_from_starting() -> None:
    files = MemoryFiles()
    files.faults.fail("write", errno=errno.ENOSPC)
    recorded(files, DIRECTORIES)
    files.faults.clear()
    recorded(files, DIRECTORIES)
    assert files.exists("/x2/current/directory-place")
