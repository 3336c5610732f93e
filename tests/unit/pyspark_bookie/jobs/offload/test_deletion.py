"""Deletion after the lag: only what is proved to be in the archive, and nobody else counts on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from bookie_protocol.archive import OffloadState
from bookie_protocol.errors import EntryDamaged, NoSuchLedger
from pyspark_bookie.archive.files import ArchivedFileMissing, Files
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.offload.cleaning import OffloadStore
from pyspark_bookie.jobs.offload.deletion import Deleter, DeletionFate, DeletionSettings
from tests.support.killing import Dying, Killed, KillSwitch
from tests.support.ledger_shelf import LedgerShelf
from tests.support.offload_rig import STORE_EFFECTS, archived, folder_of, offloader, stop_after

PAYLOADS = [b"first", b"", b"last" * 100]


def deleter(
    shelf: LedgerShelf,
    target: str,
    after: float = 0.0,
    clock: Callable[[], float] | None = None,
    switch: KillSwitch | None = None,
) -> Deleter:
    settings = DeletionSettings(target, after)
    store = OffloadStore(shelf)
    if switch is not None:
        store = Dying(store, switch, STORE_EFFECTS)  # type: ignore[assignment]
    further = {} if clock is None else {"clock": clock}
    return Deleter(shelf, Files(target, "--target"), settings, Throttle(None), store=store, **further)


def state(shelf: LedgerShelf) -> OffloadState:
    stored = OffloadStore(shelf).read(7)
    assert stored is not None
    return stored.value.state


def test_the_lag_is_respected(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS)
    _, record = offloader(shelf, target).offload(7)
    assert record is not None
    assert record.completed_ms is not None
    due = record.completed_ms / 1000 + 60
    assert deleter(shelf, target, 60, lambda: due - 0.01).delete(7) is DeletionFate.NOT_DUE
    assert shelf.metadata(7).length == record.ledger.length
    assert deleter(shelf, target, 60, lambda: due).delete(7) is DeletionFate.DELETED
    with pytest.raises(NoSuchLedger):
        shelf.metadata(7)
    assert state(shelf) is OffloadState.BK_DELETED
    assert archived(target, 7) == PAYLOADS
    assert deleter(shelf, target).delete(7) is DeletionFate.ALREADY


@pytest.mark.parametrize("before", [OffloadState.PREPARED, OffloadState.UPLOADED, OffloadState.VERIFIED])
def test_nothing_goes_before_it_is_complete(shelf: LedgerShelf, target: str, before: OffloadState) -> None:
    shelf.put(7, PAYLOADS)
    stop_after(shelf, target, before)
    assert deleter(shelf, target).delete(7) is DeletionFate.NOT_DUE
    assert deleter(shelf, target + "-other").delete(7) is DeletionFate.NOT_DUE
    assert shelf.metadata(7).is_closed


def test_a_flipped_bit_in_the_archive_keeps_the_ledger(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS)
    offloader(shelf, target).offload(7)
    [path] = folder_of(target).rglob("data/**/*.parquet")
    values = pq.read_metadata(path).row_group(0).column(3)
    data = bytearray(path.read_bytes())
    data[values.data_page_offset + values.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(EntryDamaged, match="ledger 7"):
        deleter(shelf, target).delete(7)
    assert shelf.metadata(7).is_closed
    assert state(shelf) is OffloadState.COMPLETE


def test_a_missing_file_or_manifest_keeps_the_ledger(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS)
    offloader(shelf, target).offload(7)
    [manifest] = folder_of(target).glob("_manifests/*.json")
    content = manifest.read_bytes()
    manifest.unlink()
    with pytest.raises(ArchivedFileMissing, match="ledger 7"):
        deleter(shelf, target).delete(7)
    manifest.write_bytes(content)
    for path in folder_of(target).rglob("data/**/*.parquet"):
        path.unlink()
    with pytest.raises(ArchivedFileMissing, match="ledger 7: "):
        deleter(shelf, target).delete(7)
    assert shelf.metadata(7).is_closed


@pytest.mark.parametrize("at", [1, 2])
def test_killed_around_the_deletion_the_next_run_ends_it(shelf: LedgerShelf, target: str, at: int) -> None:
    shelf.put(7, PAYLOADS)
    offloader(shelf, target).offload(7)
    with pytest.raises(Killed):
        deleter(shelf, target, switch=KillSwitch(at)).delete(7)
    assert deleter(shelf, target).delete(7) in (DeletionFate.DELETED, DeletionFate.ALREADY)
    assert state(shelf) is OffloadState.BK_DELETED


def test_another_ledger_of_the_same_id_is_kept(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS)
    offloader(shelf, target).offload(7)
    shelf.delete(7)
    shelf.put(7, PAYLOADS, created_ms=1_800_000_000_000)
    assert deleter(shelf, target).delete(7) is DeletionFate.ANOTHER_LEDGER
    assert shelf.metadata(7).is_closed


def test_a_ledger_of_which_only_the_size_is_known_to_be_the_same_is_kept(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, [b"mon", b"day"], created_ms=None, format_version=2)
    offloader(shelf, target).offload(7)
    shelf.delete(7)
    shelf.put(7, [b"fri", b"day"], created_ms=None, format_version=2)
    assert deleter(shelf, target).delete(7) is DeletionFate.ANOTHER_LEDGER
    assert shelf.payloads(7) == [b"fri", b"day"]


def test_pulsars_ledgers_are_kept(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS, custom={"application": b"pulsar"})
    offloader(shelf, target).offload(7)
    assert deleter(shelf, target).delete(7) is DeletionFate.OWNED
    assert shelf.metadata(7).is_closed


def test_a_change_of_the_metadata_meanwhile_is_looked_at_again(shelf: LedgerShelf, target: str) -> None:
    """As a re-replication makes it, between the look and the deletion."""
    shelf.put(7, PAYLOADS)
    offloader(shelf, target).offload(7)
    found = shelf.run(lambda client: client.stored_metadata(7))
    moved = replace(found.value, ensembles={0: ("bookie-2",)})
    one = deleter(shelf, target)
    proofs = []
    prove = one._prove

    def moved_meanwhile(record):
        prove(record)
        proofs.append(record)
        if len(proofs) == 1:
            shelf.run(lambda client: client.metadata_service.ledgers.write(moved, found.identity))

    one._prove = moved_meanwhile
    assert one.delete(7) is DeletionFate.DELETED
    assert len(proofs) == 2
