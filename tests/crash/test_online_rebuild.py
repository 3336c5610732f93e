"""Die at every file operation and every index commit of a rebuild that runs while entries come.

After each death the disks are re-opened from what was synced, as the bookie does it: everything that was flushed is
there, and the indexes are the old ones or the new ones. What the old location index lacked may be lacking still, all of
it or nothing of it; another rebuild brings it back.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bookie_pod.storage.engines.detection import SWAP_FILE
from bookie_protocol.errors import NoSuchEntry
from tests.support.gc_rig import DictatedMetadata
from tests.support.memory_files import Died
from tests.support.memory_tool_stores import MemoryToolStores
from tests.support.rebuild_rig import JOURNAL, RebuildRig
from tests.support.storage_engine import KEY, MemoryBookie, entry, put

LEDGERS = {1: 12, 2: 5, 3: 20}
LACKING = [(1, 4), (3, 0), (3, 19)]
FENCED, DELETED = 2, 9
ADDED = 2


def _opened(disk: MemoryToolStores) -> RebuildRig:
    rig = RebuildRig(MemoryBookie(files=disk.files, stores=disk.stores))
    rig.metadata = DictatedMetadata(dict.fromkeys(LEDGERS))
    rig.rebuilding._parts = replace(rig.rebuilding._parts, metadata=rig.metadata)
    return rig


def _written() -> MemoryToolStores:
    rig = RebuildRig()
    rig.files.makedirs(JOURNAL)
    for ledger_id, count in [*LEDGERS.items(), (DELETED, 7)]:
        rig.write([ledger_id], count)
    record = rig.storage.ledger(FENCED)
    assert record is not None
    rig.storage.set_ledger(FENCED, replace(record, fenced=True))
    rig.storage.delete_ledger(DELETED)
    rig.storage.flush()
    rig.spoil([(place, 0) for place in LACKING])
    rig.storage.close()
    return rig.tool_stores


class _Writer:
    """Adds an entry at each step, flushes it, and knows what is durable."""

    def __init__(self, rig: RebuildRig) -> None:
        self.rig, self.flushed = rig, 0

    def __call__(self) -> None:
        if self.flushed == ADDED:
            return
        put(self.rig.storage, entry(1, LEDGERS[1] + self.flushed, 80))
        self.rig.storage.flush()
        self.flushed += 1


def _check(rig: RebuildRig, flushed: int, *, whole: bool) -> bool:
    """Whether the index is the new one."""
    assert not rig.files.exists(f"{rig.folder}/{SWAP_FILE}")
    assert not rig.tool_stores.exists(f"{rig.folder}/rebuilt.building/locations")
    lacking = len(set(LACKING) - rig.rows().keys())
    for ledger_id, count in LEDGERS.items():
        record = rig.storage.ledger(ledger_id)
        assert record is not None
        assert (record.key, record.fenced) == (KEY, ledger_id == FENCED)
        for entry_id in range(count):
            try:
                assert rig.storage.read(ledger_id, entry_id) == entry(ledger_id, entry_id, 100)
            except NoSuchEntry:
                assert (ledger_id, entry_id) in LACKING
                assert lacking
    for entry_id in range(LEDGERS[1], LEDGERS[1] + flushed):
        assert rig.storage.read(1, entry_id) == entry(1, entry_id, 80)
    assert DELETED not in rig.storage.ledger_ids()
    assert lacking in ((0,) if whole else (0, len(LACKING)))
    return lacking == 0


@pytest.mark.parametrize("wanted", [{"ledgers": False}, {"locations": False}, {}], ids=["locations", "ledgers", "both"])
def test_a_death_at_any_operation_leaves_the_old_index_or_the_new_one(wanted: dict[str, bool]) -> None:
    disk = _written()
    died = new = finished = 0
    at = 0
    while True:
        rig = _opened(disk.copy())
        rig.between = writer = _Writer(rig)
        rig.files.faults.die_at(rig.files.operations + at)
        try:
            rig.rebuild(**wanted)
        except Died:
            died += 1
        else:
            break
        after = rig.tool_stores.crash(random.Random(at))
        finished += after.files.exists(f"{rig.folder}/{SWAP_FILE}")
        again = _opened(after)
        new += _check(again, writer.flushed, whole=False)
        again.rebuild()
        _check(again, writer.flushed, whole=True)
        at += 1
    _check(rig, writer.flushed, whole=wanted.get("locations", True))
    assert died > 20
    assert finished > 0, "no death fell between the renames"
    assert (new > 0) == wanted.get("locations", True)
