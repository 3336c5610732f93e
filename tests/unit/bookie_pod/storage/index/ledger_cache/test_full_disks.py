"""Where new index files go when the disks are full (`minUsableSizeForIndexFileCreation`)."""

from __future__ import annotations

import pytest

from bookie_pod.storage.entry_log.directories import DiskState, LedgerDirStates
from bookie_pod.storage.files import DiskUsage
from bookie_pod.storage.index.ledger_cache.directories import IndexDirectories
from bookie_protocol.errors import NoWritableDirectory
from tests.support.memory_files import MemoryFiles

LEAST = 1000


class Disks:
    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.usable = {"/a": 10 * LEAST, "/b": 10 * LEAST}
        for path in self.usable:
            self.files.makedirs(path)
        self.files.usage = lambda path: DiskUsage(100 * LEAST, self.usable[path], 0)  # type: ignore[method-assign]
        self.states = LedgerDirStates(self.usable)
        self.index = IndexDirectories(self.files, self.states, LEAST)

    def chosen(self) -> set[str]:
        return {self.index._pick() for _ in range(40)}


def test_a_writable_directory_is_taken_whatever_is_left_on_it() -> None:
    disks = Disks()
    disks.usable["/a"] = 1
    assert disks.chosen() == {"/a", "/b"}
    disks.states.report("/b", DiskState.FULL)
    assert disks.chosen() == {"/a"}


def test_with_all_full_only_more_than_the_least_space_will_do() -> None:
    disks = Disks()
    for path in disks.usable:
        disks.states.report(path, DiskState.FULL)
    assert disks.chosen() == {"/a", "/b"}
    disks.usable["/a"] = LEAST
    assert disks.chosen() == {"/b"}
    disks.usable["/b"] = LEAST
    with pytest.raises(NoWritableDirectory, match=r"1000 bytes .*minUsableSizeForIndexFileCreation"):
        disks.chosen()
