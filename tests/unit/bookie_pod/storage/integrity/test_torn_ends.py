"""What a power cut has left of an entry log is neither an entry nor damage, and proves nothing."""

from __future__ import annotations

import pytest

from bookie_pod.storage.entry_log.format import (
    HEADER_SIZE,
    MAP_CHECK_OFFSET,
    MAP_POINTER_OFFSET,
    encode_header,
    encode_ledgers_map,
    encode_map_pointer,
)
from bookie_pod.storage.index_rebuild.convert import conversion
from bookie_pod.storage.inspect.layout import DiskLayout, IndexKind
from bookie_pod.storage.inspect.space import StoredSpaces
from bookie_pod.storage.integrity.consistency import ConsistencyCheck
from bookie_pod.storage.integrity.quarantine import DamageKind
from bookie_protocol.errors import NotThere
from tests.support.memory_store import MemoryStores
from tests.support.memory_tool_stores import MemoryToolStores
from tests.support.memtable_engine import MemTableBookie
from tests.support.scrub_rig import RIGS, ScrubRig, rig_of, signed
from tests.support.storage_engine import MemoryBookie

ENTRIES = 5
POINTER = 20
"""Bytes of the header's pointer to the ledgers map, with its check sum."""


@pytest.fixture(params=RIGS)
def rig(request: pytest.FixtureRequest) -> ScrubRig:
    return rig_of(request.param)


def framed(*entries: bytes) -> bytes:
    return b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)


def add_log(rig: ScrubRig, content: bytes) -> int:
    """Behind what is there, a log that another process has left."""
    rig.storage.close()
    log_id = max(rig.part.logs.log_ids()) + 1
    rig.files.write_bytes_synced(f"{rig.bookie.directories[0]}/{log_id:x}.log", content)
    rig.open()
    return log_id


def assert_nothing_is_damaged(rig: ScrubRig) -> None:
    assert rig.run() == []
    assert ConsistencyCheck([rig.part]).run().damages == 0


@pytest.mark.parametrize(
    ("kept", "ledgers"), [*((kept, 2) for kept in range(POINTER)), *((kept, 257) for kept in (10, 11, 15, 18))]
)
def test_half_a_pointer_to_the_ledgers_map_is_neither_believed_nor_damage(kept: int, ledgers: int) -> None:
    rig = rig_of(RIGS[kept % len(RIGS)])
    rig.write(range(ledgers), 1)
    (log_id,) = rig.part.logs.log_ids()
    sizes = rig.part.logs.ledgers_map(log_id).ledgers
    path = rig.part.logs.path(log_id)
    rig.storage.close()
    rig.files.corrupt(path, MAP_POINTER_OFFSET + kept, bytes(POINTER - kept))
    rig.open()
    assert_nothing_is_damaged(rig)
    found = rig.part.logs.ledgers_map(log_id)
    assert found.ledgers.same_as(sizes)
    assert not found.checked
    assert [rig.storage.read(ledger_id, 0) for ledger_id in (0, 1)] == [signed(0, 0), signed(1, 0)]
    rig.flip(path, rig.place(0, 0)[1] - 2)
    assert rig.run(), "what was synced can be damaged all the same"
    rig.storage.close()


def test_a_pointer_that_nothing_tore_is_damaged(rig: ScrubRig) -> None:
    rig.write(range(300), 1)
    (log_id,) = rig.part.logs.log_ids()
    path = rig.part.logs.path(log_id)
    rig.storage.close()
    rig.files.corrupt(path, MAP_CHECK_OFFSET - 2, b"\0\0")
    rig.open()
    assert [(each.kind, each.file_id) for each in rig.run()] == [(DamageKind.LOG, log_id)]
    rig.storage.close()


def test_a_map_of_no_ledgers_is_no_damage(rig: ScrubRig) -> None:
    rig.write([3], ENTRIES)
    header = bytearray(encode_header())
    header[MAP_POINTER_OFFSET + 6 : MAP_POINTER_OFFSET + 8] = HEADER_SIZE.to_bytes(2, "big")
    add_log(rig, bytes(header))
    assert_nothing_is_damaged(rig)
    rig.storage.close()


@pytest.mark.parametrize("kept", range(20))
def test_half_a_header_is_no_damage(kept: int) -> None:
    rig = rig_of(RIGS[kept % len(RIGS)])
    rig.write([3], ENTRIES)
    for length in (0, HEADER_SIZE, HEADER_SIZE + 500):
        add_log(rig, encode_header()[:kept].ljust(length, b"\0"))
    assert_nothing_is_damaged(rig)
    rig.storage.close()


@pytest.mark.parametrize(("engine", "target"), [("db", "sorted"), ("sorted", "db"), ("interleaved", "db")])
def test_a_conversion_makes_no_entry_of_it(engine: str, target: str) -> None:
    rig = rig_of(engine)
    rig.write([3], ENTRIES)
    torn = signed(3, ENTRIES)[:-9] + bytes(9)
    add_log(rig, encode_header() + framed(torn) + framed(signed(3, ENTRIES + 1))[:-30])
    rig.storage.close()
    rig = convert(rig, target)
    for _ in range(2):
        assert_nothing_is_damaged(rig)
        assert [rig.storage.read(3, entry_id) for entry_id in range(ENTRIES)] == [
            signed(3, at) for at in range(ENTRIES)
        ]
        for entry_id in (ENTRIES, ENTRIES + 1):
            with pytest.raises(NotThere):
                rig.storage.read(3, entry_id)
        rig.restart()
    rig.storage.close()


def convert(rig: ScrubRig, target: str) -> ScrubRig:
    """The stopped bookie with another engine."""
    files, folders = rig.files, rig.bookie.directories
    known = rig.bookie.stores if isinstance(rig.bookie, MemoryBookie) else None
    stores = MemoryToolStores(files, known or MemoryStores(files.faults))
    layout = DiskLayout((), tuple(folders))
    with StoredSpaces(files, stores.stores, layout) as spaces:
        kind = IndexKind.DATABASES if target == "db" else IndexKind.FILES
        space = spaces.spaces[0]
        converting = conversion(files, stores, layout, space.index, space.logs, kind)
        converting.run()
        converting.commit()
        converting.close()
    if target == "db":
        return ScrubRig(MemoryBookie(folders, files=files, stores=stores.stores))
    return ScrubRig(MemTableBookie(target, folders, files=files))


@pytest.mark.parametrize("lost", ["tail", "middle"])
def test_what_the_reference_has_closed_is_not_synced_for_that(rig: ScrubRig, lost: str) -> None:
    rig.write([3], ENTRIES)
    entries = [signed(3, entry_id) for entry_id in range(ENTRIES, ENTRIES + 3)]
    ledgers_map = b"".join(encode_ledgers_map({3: len(framed(*entries))}))
    offset = HEADER_SIZE + len(framed(*entries))
    header = bytearray(encode_header())
    header[MAP_POINTER_OFFSET:MAP_CHECK_OFFSET] = encode_map_pointer(offset, 1, ledgers_map)[:12]
    if lost == "tail":
        content = (bytes(header) + framed(*entries))[:-30]
    else:
        entries[2] = entries[2][:-9] + bytes(9)
        content = bytes(header) + framed(*entries) + ledgers_map
    add_log(rig, content)
    for _ in range(2):
        assert_nothing_is_damaged(rig)
        assert rig.storage.read(3, ENTRIES + 1) == entries[1]
        with pytest.raises(NotThere):
            rig.storage.read(3, ENTRIES + 2)
        rig.restart()
    rig.storage.close()
