"""What an old index named and nobody can read any more is not denied: its ledgers are in limbo after the rebuild."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_pod.storage.index.locations import LocationIndex
from bookie_pod.storage.index_rebuild.offline import _OldLocations
from bookie_pod.storage.inspect.index import FileIndex
from bookie_protocol.errors import LedgerStateUnknown, StorageFault
from tests.support.gc_rig import GcRig
from tests.support.index_rebuilds import KINDS, LEDGER, Rebuilt, filled_rig, rebuild, store_entries
from tests.support.rebuild_rig import RebuildRig
from tests.support.scrub_rig import signed
from tests.support.storage_engine import MemoryBookie

OTHER = 900
DATABASES = pytest.mark.parametrize("kind", ["db", "online"])


def _rig(kind: str) -> GcRig:
    """Entries 0 to 4 of `LEDGER` in one log, 5 to 7 in another, and those of `OTHER` in a third."""
    rig = filled_rig(kind)
    store_entries(rig, *(signed(LEDGER, entry_id) for entry_id in range(5, 8)))
    store_entries(rig, *(signed(OTHER, entry_id) for entry_id in range(3)))
    return rig


def _lose_log(rig: GcRig, ledger_id: int, entry_id: int) -> None:
    path = rig.path(split_location(rig.parts.location_of(ledger_id, entry_id))[0])
    rig.storage.close()
    rig.bookie.files.unlink(path)


def _damage_log(rig: GcRig, entry_id: int) -> None:
    """Damage the framing of the record before this entry of `LEDGER`."""
    log_id, position = split_location(rig.parts.location_of(LEDGER, entry_id))
    path = rig.path(log_id)
    rig.storage.close()
    rig.bookie.files.corrupt(path, position - 4, b"\x7f\xff\xff\xff")


def _spoil_rows(patch: pytest.MonkeyPatch, last: int) -> None:
    """Nothing behind this entry of `LEDGER` can be read from the old index any more."""
    for index in (LocationIndex, FileIndex):
        rows = index.rows

        def fail(self: object, ledger_id: int, first_entry: int = 0, rows: object = rows) -> Iterator[tuple[int, int]]:
            for row in rows(self, ledger_id, first_entry):  # type: ignore[operator]
                if ledger_id == LEDGER and row[0] > last:
                    raise StorageFault("block checksum mismatch")
                yield row

        patch.setattr(index, "rows", fail)


def _rebuild(rig: GcRig, kind: str, *, lost: bool = False) -> Rebuilt:
    return rebuild(rig, kind, lost=lost)


def _is_in_limbo(rig: GcRig, ledger_id: int) -> bool:
    record = rig.storage.ledger(ledger_id)
    assert record is not None
    return record.limbo


@KINDS
def test_a_ledger_whose_old_rows_cannot_be_read_is_in_limbo(kind: str) -> None:
    rig = _rig(kind)
    _lose_log(rig, LEDGER, 6)
    with pytest.MonkeyPatch.context() as patch:
        _spoil_rows(patch, 2)
        _rebuild(rig, kind)
    assert rig.storage.read(LEDGER, 0) == signed(LEDGER, 0)
    with pytest.raises(LedgerStateUnknown):
        rig.storage.read(LEDGER, 6)
    assert _is_in_limbo(rig, LEDGER)
    assert not _is_in_limbo(rig, OTHER)
    if kind in ("db", "online"):
        assert rig.storage.flags() & NEEDS_INTEGRITY_CHECK
    rig.storage.close()


@DATABASES
def test_rows_behind_unreadable_ones_are_kept_all_the_same(kind: str) -> None:
    rig = _rig(kind)
    place = rig.parts.location_of(OTHER, 1)
    _lose_log(rig, OTHER, 1)
    with pytest.MonkeyPatch.context() as patch:
        _spoil_rows(patch, 2)
        assert _rebuild(rig, kind).dangling == 3
    assert rig.parts.location_of(OTHER, 1) == place
    rig.storage.close()


def test_an_old_index_that_does_not_tell_its_ledgers_is_asked_for_all_that_live() -> None:
    rig = _rig("db")
    _lose_log(rig, OTHER, 1)

    def fail(self: object) -> Iterator[int]:
        yield LEDGER
        raise StorageFault("block checksum mismatch")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_OldLocations, "ledger_ids", fail)
        assert _rebuild(rig, "db").dangling == 3
    assert not _is_in_limbo(rig, OTHER)  # all of its rows could be read
    rig.storage.close()


@pytest.mark.parametrize("kind", ["db", "sorted", "interleaved"])
def test_nothing_is_denied_after_a_rebuild_without_the_old_index(kind: str) -> None:
    rig = _rig(kind)
    _damage_log(rig, 2)
    _rebuild(rig, kind, lost=True)
    assert rig.storage.read(LEDGER, 1) == signed(LEDGER, 1)
    with pytest.raises(LedgerStateUnknown):
        rig.storage.read(LEDGER, 3)
    rig.storage.close()


@KINDS
@pytest.mark.parametrize("proof", [True, False])
def test_a_damaged_log_beside_an_old_index_that_may_lack_rows_leaves_nothing_denied(kind: str, proof: bool) -> None:
    rig = _rig(kind)
    folder = rig.bookie.directories[0]
    _damage_log(rig, 2)
    if not proof:
        for name in ("index-seal", "index-files-seal"):
            if rig.bookie.files.exists(f"{folder}/{name}"):
                rig.bookie.files.unlink(f"{folder}/{name}")
    rebuilt = _rebuild(rig, kind)
    assert rebuilt.damages == 1
    assert rig.storage.read(LEDGER, 1) == signed(LEDGER, 1)
    if not proof or kind in ("sorted", "interleaved"):
        assert _is_in_limbo(rig, LEDGER)
    else:
        assert not _is_in_limbo(rig, LEDGER)
    rig.storage.close()


@KINDS
def test_a_bad_sector_of_a_log_does_not_stand_in_the_way_of_other_logs(kind: str) -> None:
    rig = _rig(kind)
    path = rig.path(split_location(rig.parts.location_of(LEDGER, 0))[0])
    rows = {entry_id: rig.parts.location_of(LEDGER, entry_id) for entry_id in range(8)}
    rig.storage.close()
    faults = rig.bookie.files.faults
    if kind == "online":
        rig.open()
    faults.fail("pread", path=path, errno=errno.EIO)
    if kind == "online":
        assert isinstance(rig, RebuildRig)
        state = rig.rebuild(ledgers=False, accept_damage=True)
        assert len(state.damages) == 1
    else:
        assert _rebuild(rig, kind).damages == 1
    assert {entry_id: rig.parts.location_of(LEDGER, entry_id) for entry_id in range(8)} == rows
    assert rig.storage.read(LEDGER, 6) == signed(LEDGER, 6)
    faults.clear()
    assert rig.storage.read(LEDGER, 3) == signed(LEDGER, 3)
    rig.storage.close()


def test_the_limbo_is_durable_before_the_new_index_is_in_place() -> None:
    rig = _rig("db")
    assert isinstance(rig.bookie, MemoryBookie)
    _damage_log(rig, 2)
    _rebuild(rig, "db", lost=True)
    rig.storage.close()
    rig.open()
    assert _is_in_limbo(rig, LEDGER)
    rig.storage.close()
