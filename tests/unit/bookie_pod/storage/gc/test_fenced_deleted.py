"""What is remembered of ledgers that were fenced and deleted: over restarts, for a week, and not without end."""

from __future__ import annotations

import struct

import google_crc32c
import pytest

from bookie_pod.storage.gc.fenced_deleted import NAME, REMEMBERED_S, FencedAndDeleted, fenced_files
from bookie_protocol.errors import StorageFault
from tests.support.memory_files import MemoryFiles

FOLDERS = ("/l0", "/l1")
DAY = 24 * 3600.0
WEEK = 7 * DAY


class Machine:
    """Files and clocks that outlive the process; the one within the process begins anew with it."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        for folder in FOLDERS:
            self.files.makedirs(folder)
        self.wall = 1_800_000_000.0
        self.since_start = 0.0

    def start(self, limit: int = 100) -> FencedAndDeleted:
        self.since_start = 0.0
        return FencedAndDeleted(
            fenced_files(self.files, FOLDERS),
            limit=limit,
            clock=lambda: self.since_start,
            now_ms=lambda: int(self.wall * 1000),
        )

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.since_start += seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_week_goes_on_over_restarts(machine: Machine) -> None:
    assert REMEMBERED_S == WEEK
    fenced = machine.start()
    fenced.remember([5, 2**63 - 1])
    machine.wait(4 * DAY)
    fenced = machine.start()
    fenced.remember([6])
    machine.wait(2 * DAY)
    machine.wait(DAY + 1)
    again = machine.start()
    assert [again.was_fenced(each) for each in (5, 2**63 - 1, 6, 7)] == [False, False, True, False]


def test_who_asks_renews_the_memory_also_on_disk(machine: Machine) -> None:
    fenced = machine.start()
    fenced.remember([5])
    machine.wait(WEEK - 10)
    assert fenced.was_fenced(5)
    fenced.write()
    machine.wait(WEEK - 10)
    assert machine.start().was_fenced(5)


@pytest.mark.parametrize("back_s", [3600.0, 40 * 365 * DAY])
def test_a_clock_that_was_set_back_keeps_nothing_longer_than_a_week(machine: Machine, back_s: float) -> None:
    machine.start().remember([5])
    machine.wall -= back_s
    fenced = machine.start()
    machine.wait(WEEK + 1)
    assert not fenced.was_fenced(5)


def test_within_a_process_no_jump_of_the_clock_counts(machine: Machine) -> None:
    fenced = machine.start()
    fenced.remember([5])
    machine.wall += 2 * WEEK
    assert fenced.was_fenced(5)
    fenced.write()
    assert machine.start().was_fenced(5)


def test_the_number_is_bounded_and_the_oldest_go_first(machine: Machine) -> None:
    fenced = machine.start()
    for ledger_id in range(5):
        fenced.remember([ledger_id])
        machine.wait(1)
    assert fenced.was_fenced(0)  # now it is the newest
    fenced.write()
    for kept in (machine.start(limit=3), machine.start(limit=3)):
        assert [each for each in range(5) if kept.was_fenced(each)] == [0, 3, 4]
    fenced = machine.start(limit=3)
    fenced.remember([7, 8])
    assert [each for each in range(9) if fenced.was_fenced(each)] == [0, 7, 8]


@pytest.mark.parametrize("lost", FOLDERS)
def test_one_copy_is_enough_and_an_older_one_takes_nothing_away(machine: Machine, lost: str) -> None:
    fenced = machine.start()
    fenced.remember([5])
    machine.files.faults.fail("write", "create", "overwrite", errno=30, path=f"{lost}/{NAME}")
    fenced.remember([6])
    machine.files.faults.clear()
    again = machine.start()
    assert again.was_fenced(5)
    assert again.was_fenced(6)


def test_what_no_disk_takes_is_no_success_and_is_tried_again(machine: Machine) -> None:
    fenced = machine.start()
    machine.files.faults.fail("write", "create", "overwrite", errno=28)
    for _ in range(2):
        with pytest.raises(StorageFault, match=NAME):
            fenced.remember([5])
    with pytest.raises(StorageFault, match=NAME):
        fenced.write()
    machine.files.faults.clear()
    fenced.write()
    assert machine.start().was_fenced(5)


def test_nothing_new_writes_nothing(machine: Machine) -> None:
    fenced = machine.start()
    fenced.write()
    assert not machine.files.exists(f"{FOLDERS[0]}/{NAME}")
    fenced.remember([5])
    machine.files.faults.fail("write", "create", "overwrite")
    fenced.write()


def test_every_flipped_bit_and_every_cut_is_noticed(machine: Machine) -> None:
    machine.start().remember([5])
    machine.files.unlink(f"{FOLDERS[1]}/{NAME}")
    path = f"{FOLDERS[0]}/{NAME}"
    whole = machine.files.read_bytes(path)
    for at in range(len(whole)):
        machine.files.write_bytes(path, whole[:at])
        assert not machine.start().was_fenced(5)
        for bit in range(8):
            machine.files.write_bytes(path, whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            fenced = machine.start()
            assert not any(fenced.was_fenced(5 ^ flipped) for flipped in (0, *(1 << bit for bit in range(63))))


def test_the_form_of_the_file(machine: Machine) -> None:
    machine.start().remember([5])
    body = b"PKGCFNC1" + struct.pack(">2q", 5, int((machine.wall + WEEK) * 1000))
    assert machine.files.read_bytes(f"{FOLDERS[0]}/{NAME}") == body + struct.pack(">I", google_crc32c.value(body))
