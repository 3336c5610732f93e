"""What tests of the offload share: runs of the state machine, and what an archive must look like afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bookie_protocol.archive import OffloadRecord, OffloadState
from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.manifest import manifest_file
from pyspark_bookie.archive.reading import read_manifest
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.offload.cleaning import OffloadStore, Stored
from pyspark_bookie.jobs.offload.machine import Offloader, OffloadSettings
from tests.support.killing import Dying, Killed, KillSwitch
from tests.support.ledger_shelf import LedgerShelf

FILE_EFFECTS = frozenset({"make_folder", "write", "move", "delete", "delete_folder", "sync"})
STORE_EFFECTS = frozenset({"create", "update", "delete"})


def offloader(
    shelf: LedgerShelf, target: str, switch: KillSwitch | None = None, password: bytes | None = None, **settings: object
) -> Offloader:
    """One run. With a switch it dies at the n-th side effect on files or records."""
    files, store = Files(target, "--target"), OffloadStore(shelf)
    if switch is not None:
        files = Dying(files, switch, FILE_EFFECTS)  # type: ignore[assignment]
        store = Dying(store, switch, STORE_EFFECTS)  # type: ignore[assignment]
    return Offloader(shelf, files, OffloadSettings(target, **settings), password, Throttle(None), store=store)  # type: ignore[arg-type]


class _StoppingStore(OffloadStore):
    def __init__(self, shelf: LedgerShelf, state: OffloadState) -> None:
        super().__init__(shelf)
        self._state = state

    def create(self, record: OffloadRecord) -> Stored:
        return self._stop(super().create(record))

    def update(self, stored: Stored, record: OffloadRecord) -> Stored:
        return self._stop(super().update(stored, record))

    def _stop(self, stored: Stored) -> Stored:
        if stored.value.state is self._state:
            raise Killed(f"after {self._state}")
        return stored


def stop_after(shelf: LedgerShelf, target: str, state: OffloadState, ledger_id: int = 7) -> None:
    """A run that dies right after it has written this state."""
    files, store = Files(target, "--target"), _StoppingStore(shelf, state)
    with pytest.raises(Killed):
        Offloader(shelf, files, OffloadSettings(target), None, Throttle(None), store=store).offload(ledger_id)


def folder_of(target: str) -> Path:
    return Path(target.removeprefix("file://"))


def archived(target: str, ledger_id: int) -> list[bytes]:
    """The payloads, read as any engine would read the data folder; in order and without gaps."""
    rows = []
    for path in sorted(folder_of(target).glob(f"data/**/ledger-{ledger_id}-*.parquet")):
        rows += pq.read_table(path, partitioning=None).to_pylist()
    rows.sort(key=lambda row: row["entry_id"])
    assert [row["entry_id"] for row in rows] == list(range(len(rows)))
    assert all(row["ledger_id"] == ledger_id and row["length"] == len(row["value"]) for row in rows)
    return [row["value"] for row in rows]


def check_complete(shelf: LedgerShelf, target: str, ledger_id: int, payloads: Sequence[bytes]) -> None:
    """The ledger is in the archive once, nothing is left of other attempts, and the record says so."""
    assert archived(target, ledger_id) == list(payloads)
    stored = OffloadStore(shelf).read(ledger_id)
    assert stored is not None
    assert stored.value.state is OffloadState.COMPLETE
    assert stored.value.abandoned == ()
    manifest = read_manifest(Files(target, "--target"), ledger_id, stored.value.uuid)
    assert manifest is not None
    assert (manifest.uuid, manifest.files, manifest.counts) == (
        stored.value.uuid,
        stored.value.files,
        stored.value.counts,
    )
    there = {str(path.relative_to(folder_of(target))) for path in folder_of(target).rglob("*") if path.is_file()}
    named = {file.path for file in manifest.files}
    assert {path for path in there if f"ledger-{ledger_id}-" in path} == named | {
        manifest_file(ledger_id, manifest.uuid)
    }
    assert not [path for path in there if path.startswith("_tmp/")]
