"""What a lost index may have said is unknown after its rebuild: limbo, deletions, and the entries of what it knew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_pod.storage.entry_log.format import make_location, split_location
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.offline import OfflineLedgers, OfflineLocations, OfflineRebuild
from bookie_pod.storage.inspect.index import FileIndex
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.errors import LedgerStateUnknown, StorageFault
from tests.support.gc_rig import GcRig
from tests.support.index_rebuilds import ENTRIES, LEDGER, filled_rig, rebuild, write_entries
from tests.support.rebuild_rig import RebuildRig
from tests.support.scrub_rig import signed


def _carry_out(rig: RebuildRig, kind: StoreKind) -> OfflineRebuild:
    files, folder, stores = rig.files, rig.folder, rig.tool_stores
    logs = StoredLogs(files, [folder])
    rebuilding: OfflineLocations | OfflineLedgers
    if kind is StoreKind.LOCATIONS:
        rebuilding = OfflineLocations(files, stores, stores.stores, folder, logs)
    else:
        rebuilding = OfflineLedgers(files, stores, stores.stores, folder, logs, [], number=0, count=1)
    for _ in range(2000):
        if not rebuilding.step():
            rebuilding.commit()
            logs.close()
            return rebuilding
    raise AssertionError("the rebuild does not end")


def _lose(rig: RebuildRig, kind: StoreKind, *, made_again: bool) -> None:
    stores, path = rig.tool_stores, f"{rig.folder}/{kind.value}"
    stores.remove(path)
    if made_again:
        stores.open(path, kind).close()


def _db() -> RebuildRig:
    rig = filled_rig("db")
    assert isinstance(rig, RebuildRig)
    return rig


@pytest.mark.parametrize("made_again", [False, True])
def test_a_locations_database_that_was_lost_and_made_again_proves_nothing(made_again: bool) -> None:
    """Behind the break entries may lie that it has named."""
    rig = _db()
    write_entries(rig, ENTRIES)
    log_id, position = split_location(rig.parts.location_of(LEDGER, ENTRIES + 1))
    path = rig.path(log_id)
    rig.storage.close()
    rig.forget_map(log_id)
    rig.files.corrupt(path, position - 4, b"\xff" * 4)
    _lose(rig, StoreKind.LOCATIONS, made_again=made_again)
    rebuilding = _carry_out(rig, StoreKind.LOCATIONS)
    assert isinstance(rebuilding, OfflineLocations)
    assert rebuilding.report.damaged_logs == 1


def test_locations_are_not_rebuilt_of_a_ledger_database_that_was_lost_and_made_again() -> None:
    rig = _db()
    rig.storage.close()
    _lose(rig, StoreKind.LEDGERS, made_again=True)
    with pytest.raises(StorageFault, match="rebuild-ledgers"):
        _carry_out(rig, StoreKind.LOCATIONS)
    _carry_out(rig, StoreKind.LEDGERS)
    _carry_out(rig, StoreKind.LOCATIONS)
    rig.open()
    assert rig.storage.read(LEDGER, 2) == signed(LEDGER, 2)
    rig.storage.close()


def test_locations_are_rebuilt_where_every_ledger_was_deleted() -> None:
    rig = _db()
    rig.storage.delete_ledger(LEDGER)
    rig.storage.flush()
    rig.storage.close()
    _carry_out(rig, StoreKind.LOCATIONS)


@pytest.mark.parametrize("made_again", [False, True])
def test_a_ledger_whose_record_is_lost_is_in_limbo_and_everything_is_to_be_checked(made_again: bool) -> None:
    rig = _db()
    record = rig.storage.ledger(LEDGER)
    assert record is not None
    rig.storage.set_ledger(LEDGER, replace(record, limbo=True))
    rig.storage.set_flags(NEEDS_INTEGRITY_CHECK)
    rig.storage.flush()
    rig.storage.close()
    _lose(rig, StoreKind.LEDGERS, made_again=made_again)
    _carry_out(rig, StoreKind.LEDGERS)
    rig.open()
    assert rig.storage.read(LEDGER, 2) == signed(LEDGER, 2)
    with pytest.raises(LedgerStateUnknown):
        rig.storage.read(LEDGER, ENTRIES)
    assert rig.storage.flags() == NEEDS_INTEGRITY_CHECK
    rig.storage.close()


def test_a_ledger_database_that_is_whole_asks_for_no_check() -> None:
    rig = _db()
    rig.storage.close()
    _carry_out(rig, StoreKind.LEDGERS)
    rig.open()
    assert rig.storage.flags() == 0
    assert not rig.storage.ledger(LEDGER).limbo  # type: ignore[union-attr]
    rig.storage.close()


@pytest.mark.parametrize("kind", ["sorted", "interleaved"])
def test_a_ledger_whose_header_is_lost_is_in_limbo(kind: str) -> None:
    rig: GcRig = filled_rig(kind)
    record = rig.storage.ledger(LEDGER)
    assert record is not None
    rig.storage.set_ledger(LEDGER, replace(record, limbo=True))
    rig.storage.flush()
    rig.storage.checkpoint([LogMark()])
    rig.storage.close()
    path = FileIndex(rig.bookie.files, rig.bookie.directories).path(LEDGER)
    assert path is not None
    rig.bookie.files.corrupt(path, 0, b"\x55" * 512)
    rebuild(rig, kind)
    assert rig.storage.read(LEDGER, 2) == signed(LEDGER, 2)
    with pytest.raises(LedgerStateUnknown):
        rig.storage.read(LEDGER, ENTRIES)
    rig.storage.close()


def test_a_row_of_a_negative_entry_is_no_endless_rebuild() -> None:
    rig = _db()
    rig.set_row(LEDGER, -5, make_location(0, 4100))
    rig.storage.close()
    _carry_out(rig, StoreKind.LOCATIONS)
