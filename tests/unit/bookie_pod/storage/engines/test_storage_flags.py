"""The flags of engines that have no database for them."""

from __future__ import annotations

import random

import pytest

from bookie_pod.storage.engines.memtable_storage import STORAGE_FLAGS, StorageFlags
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_protocol.errors import StorageFault
from tests.support.memory_files import MemoryFiles


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    files.makedirs("/index")
    return files


def test_what_was_set_is_there_after_a_crash(files: MemoryFiles) -> None:
    flags = StorageFlags(files, "/index")
    assert flags.read() == 0
    flags.write(NEEDS_INTEGRITY_CHECK)
    assert StorageFlags(files.crash(random.Random(1)), "/index").read() == NEEDS_INTEGRITY_CHECK
    flags.write(0)
    assert flags.read() == 0


@pytest.mark.parametrize("at", range(12))
def test_damaged_flags_ask_for_a_check(files: MemoryFiles, at: int) -> None:
    flags = StorageFlags(files, "/index")
    flags.write(0)
    data = bytearray(files.read_bytes(f"/index/{STORAGE_FLAGS}"))
    data[at] ^= 0x10
    files.write_bytes(f"/index/{STORAGE_FLAGS}", bytes(data))
    assert flags.read() == NEEDS_INTEGRITY_CHECK
    files.write_bytes(f"/index/{STORAGE_FLAGS}", bytes(data[:at]))
    assert flags.read() == NEEDS_INTEGRITY_CHECK


def test_a_flag_of_a_newer_release_refuses_the_start(files: MemoryFiles) -> None:
    flags = StorageFlags(files, "/index")
    flags.write(1 << 5)
    with pytest.raises(StorageFault, match="newer"):
        flags.read()
