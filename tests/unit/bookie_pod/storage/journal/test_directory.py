"""Names, listing and trimming of journal files."""

from __future__ import annotations

import pytest

from bookie_pod.storage.journal.directory import journal_path, list_journals, remove_journals_below
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.errors import JournalDamaged, StorageFault
from tests.support.memory_files import MemoryFiles


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    files.makedirs("/j")
    return files


def with_journals(files: MemoryFiles, *ids: int) -> MemoryFiles:
    for journal_id in ids:
        files.create(journal_path("/j", journal_id)).close()
    return files


def test_names_are_lowercase_hexadecimal() -> None:
    assert journal_path("/j", 0x1A1FBEFD96D) == "/j/1a1fbefd96d.txn"


def test_listing_is_by_id_not_by_name(files: MemoryFiles) -> None:
    with_journals(files, 0x100, 0xFF, 0x9, 0x10)
    files.write_bytes("/j/VERSION", b"5\n")
    assert list_journals(files, "/j") == [0x9, 0x10, 0xFF, 0x100]


@pytest.mark.parametrize("name", ["x.txn", ".txn", "-1.txn", "8000000000000000.txn", "7fffffffffffffff.txn", "1_0.txn"])
def test_a_journal_whose_name_is_no_id_is_not_passed_over(files: MemoryFiles, name: str) -> None:
    files.create(f"/j/{name}").close()
    with pytest.raises(JournalDamaged, match=f"/j/{name} .*named"):
        list_journals(files, "/j")


def test_a_folder_that_cannot_be_listed(files: MemoryFiles) -> None:
    with pytest.raises(StorageFault, match=r"list .*/nothing"):
        list_journals(files, "/nothing")


def test_the_newest_backups_stay_and_nothing_from_the_mark_on_goes(files: MemoryFiles) -> None:
    with_journals(files, *range(1, 10))
    assert remove_journals_below(files, "/j", LogMark(7, 0), 2) == [1, 2, 3, 4]
    assert list_journals(files, "/j") == [5, 6, 7, 8, 9]
    assert remove_journals_below(files, "/j", LogMark(7, 1 << 40), 2) == []
    assert remove_journals_below(files, "/j", LogMark(7, 0), 0) == [5, 6]
    assert list_journals(files, "/j") == [7, 8, 9]


def test_the_zero_mark_removes_nothing(files: MemoryFiles) -> None:
    with_journals(files, 1, 2, 3)
    assert remove_journals_below(files, "/j", LogMark(), 0) == []


def test_a_file_that_cannot_be_deleted_is_tried_again(files: MemoryFiles) -> None:
    with_journals(files, 1, 2, 3)
    files.faults.fail("unlink", path="/j/1.txn", times=1)
    assert remove_journals_below(files, "/j", LogMark(3, 0), 0) == [2]
    assert remove_journals_below(files, "/j", LogMark(3, 0), 0) == [1]
