"""`BOOKIE_STATUS`: the format, and which file counts."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.node.mode import BookieStatus, StatusFiles, parse_status
from tests.support.memory_files import MemoryFiles

FOLDERS = ["/a/current", "/b/current"]


def folders() -> MemoryFiles:
    files = MemoryFiles()
    for folder in FOLDERS:
        files.makedirs(folder)
    return files


def test_the_bytes_are_those_of_the_reference() -> None:
    files = folders()
    StatusFiles(files, FOLDERS, lambda: 1718000000000).write(lambda: (True, False))
    assert {files.read_bytes(f"{folder}/BOOKIE_STATUS") for folder in FOLDERS} == {b"1,READ_ONLY,1718000000000,false\n"}


@given(st.booleans(), st.integers(0, 2**63 - 1), st.booleans())
def test_round_trip(read_only: bool, since: int, manual: bool) -> None:
    status = BookieStatus(read_only, since, manual)
    assert parse_status(status.to_line()) == status


def test_the_old_form_is_an_operators() -> None:
    assert parse_status(b"1,READ_ONLY,12") == BookieStatus(True, 12, True)


@pytest.mark.parametrize("data", [b"", b"\n", b"2,READ_ONLY,1,true", b"1,MAYBE,1,true", b"1,READ_ONLY,x,true", b"\xff"])
def test_what_cannot_be_understood_does_not_count(data: bytes) -> None:
    assert parse_status(data) is None


@given(st.binary(max_size=40))
def test_no_bytes_raise(data: bytes) -> None:
    parse_status(data)


def test_the_newest_counts() -> None:
    files = folders()
    status = StatusFiles(files, FOLDERS)
    assert status.read() is None
    files.write_bytes_synced("/a/current/BOOKIE_STATUS", b"1,READ_ONLY,20,true\n")
    files.write_bytes_synced("/b/current/BOOKIE_STATUS", b"1,READ_WRITE,10,false\n")
    assert status.read() == BookieStatus(True, 20, True)
    files.write_bytes_synced("/a/current/BOOKIE_STATUS", b"rubbish")
    assert status.read() == BookieStatus(False, 10, False)


def test_a_broken_disk_does_not_matter() -> None:
    files = folders()
    files.faults.fail("write", "open", path="/a/")
    status = StatusFiles(files, FOLDERS, lambda: 7)
    status.write(lambda: (True, True))
    assert status.read() == BookieStatus(True, 7, True)


def test_of_two_writes_at_once_the_later_has_the_last_word() -> None:
    """The mode is asked for when no other write is under way: what a slow one found before it cannot overwrite it."""
    files = folders()
    status = StatusFiles(files, FOLDERS, lambda: 7)
    read_only, slow_has_asked, go_on = True, threading.Event(), threading.Event()

    def slowly() -> tuple[bool, bool]:
        asked = read_only
        slow_has_asked.set()
        go_on.wait(10)
        return asked, False

    slow = threading.Thread(target=status.write, args=(slowly,))
    slow.start()
    assert slow_has_asked.wait(10)
    read_only = False
    later = threading.Thread(target=status.write, args=(lambda: (read_only, False),))
    later.start()
    later.join(0.05)
    assert later.is_alive(), "it waits for the one that is under way"
    go_on.set()
    slow.join()
    later.join()
    assert status.read() == BookieStatus(False, 7, False)
