"""Room that is held for a start on a full disk."""

from __future__ import annotations

import errno

import pytest

from bookie_pod.storage.reserve import NAME, StartReserves, give_up_reserves
from tests.support.memory_files import MemoryFiles

FOLDER, OTHER = "/a/current", "/b/current"
RESERVE = f"{FOLDER}/{NAME}"
TOTAL = 1 << 20
HELD = TOTAL // 64
WARN = 0.75
PAGE = 4096


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    for folder in (FOLDER, OTHER):
        made.makedirs(folder)
        made.set_capacity(folder, TOTAL)
    return made


def hold(files: MemoryFiles) -> None:
    StartReserves(files).hold(FOLDER, files.usage(FOLDER), WARN)


def fill(files: MemoryFiles, leave: int) -> None:
    files.write_bytes(f"{FOLDER}/ballast", bytes(files.usage(FOLDER).usable - leave))


def test_it_is_held_given_up_on_a_full_disk_and_held_again(files: MemoryFiles) -> None:
    hold(files)
    assert files.usage(FOLDER).usable == TOTAL - HELD
    give_up_reserves(files, [FOLDER, OTHER])
    assert files.exists(RESERVE), "there is room"
    fill(files, leave=HELD - PAGE)
    give_up_reserves(files, [FOLDER, OTHER, "/gone"])
    assert files.usage(FOLDER).usable == 2 * HELD - PAGE
    hold(files)
    assert not files.exists(RESERVE), "the disk is still full"
    files.unlink(f"{FOLDER}/ballast")
    hold(files)
    assert files.size(RESERVE) == HELD


def test_what_a_crash_has_left_of_it_is_made_whole(files: MemoryFiles) -> None:
    files.write_bytes(RESERVE, b"")
    hold(files)
    assert files.size(RESERVE) == HELD


def test_it_makes_no_disk_almost_full(files: MemoryFiles) -> None:
    fill(files, leave=TOTAL // 4 + HELD - PAGE)
    hold(files)
    assert not files.exists(RESERVE)
    files.write_bytes(f"{FOLDER}/ballast", bytes(TOTAL - TOTAL // 4 - HELD))
    hold(files)
    assert files.exists(RESERVE)


def test_a_file_system_that_refuses_is_asked_once_and_keeps_nothing(files: MemoryFiles) -> None:
    reserves = StartReserves(files)
    files.faults.fail("allocate", path=NAME, errno=errno.EOPNOTSUPP)
    for _ in range(2):
        reserves.hold(FOLDER, files.usage(FOLDER), WARN)
        assert not files.exists(RESERVE)
    assert files.faults.counts["allocate"] == 1
