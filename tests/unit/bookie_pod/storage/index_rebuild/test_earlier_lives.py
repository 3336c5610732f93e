"""A rebuild gives no row to entries of an earlier ledger of the same id, also where the record does not tell of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
from bookie_pod.storage.index.ledger_data import encode
from bookie_pod.storage.index_rebuild.index_files import IndexFilesRebuild, next_logs
from bookie_pod.storage.inspect.index import FileIndex
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_pod.storage.journal.format import RecordKind, deletion_record
from bookie_pod.storage.journal.reader import JournalRecord
from bookie_protocol.errors import LedgerStateUnknown, NotThere
from tests.support.gc_rig import GcRig
from tests.support.index_rebuilds import LEDGER, rebuild, store_entries
from tests.support.rebuild_rig import RebuildRig
from tests.support.scrub_rig import signed
from tests.support.storage_engine import put

OTHER = 9


def _two_lives_of_an_earlier_release(*, in_one_log: bool = False) -> RebuildRig:
    """The record of the second does not name its first log; the collection remembers the deletion."""
    rig = RebuildRig()
    rig.metadata.ledgers.update({LEDGER: None, OTHER: None})
    first = [signed(LEDGER, entry_id) for entry_id in range(8)]
    if in_one_log:
        put(rig.storage, *first)
        rig.storage.flush()
    else:
        store_entries(rig, *first, *(signed(OTHER, entry_id, 4000) for entry_id in range(40)))
    del rig.metadata.ledgers[LEDGER]
    rig.gc.run_pass()
    rig.storage.flush()
    assert rig.storage.ledger(LEDGER) is None
    store_entries(rig, *(signed(LEDGER, entry_id, 140) for entry_id in range(3)))
    rig.metadata.ledgers[LEDGER] = None
    record = rig.storage.ledger(LEDGER)
    assert record is not None
    batch = rig.directory.ledgers._store.batch()
    batch.put(LEDGER.to_bytes(8, "big"), encode(replace(record, first_log=0)))
    batch.commit()
    rig.restart()
    assert rig.storage.ledger(LEDGER).first_log == 0  # type: ignore[union-attr]
    return rig


@pytest.mark.parametrize("kind", ["db", "online"])
@pytest.mark.parametrize("in_one_log", [False, True])
def test_what_the_collection_remembers_of_a_deletion_counts(kind: str, in_one_log: bool) -> None:
    rig = _two_lives_of_an_earlier_release(in_one_log=in_one_log)
    rig.storage.close()
    rebuild(rig, kind)
    assert [rig.storage.read(LEDGER, each) for each in range(3)] == [signed(LEDGER, each, 140) for each in range(3)]
    with pytest.raises(NotThere):
        rig.storage.read(LEDGER, 5)


def _two_lives_in_index_files() -> tuple[GcRig, int]:
    """Return a stopped bookie, and the first log of the second life."""
    rig = GcRig(engine="sorted")
    store_entries(rig, *(signed(LEDGER, entry_id) for entry_id in range(8)))
    rig.storage.delete_ledger(LEDGER)
    rig.storage.flush()
    store_entries(rig, *(signed(LEDGER, entry_id, 140) for entry_id in range(3)))
    record = rig.storage.ledger(LEDGER)
    assert record is not None
    assert record.first_log
    rig.storage.close()
    return rig, record.first_log


@pytest.mark.parametrize("teller", ["journal", "collection"])
@pytest.mark.parametrize("lost", ["file", "header"])
def test_a_file_without_its_header_takes_nothing_from_before_a_deletion(lost: str, teller: str) -> None:
    rig, next_log = _two_lives_in_index_files()
    files, folder = rig.bookie.files, rig.bookie.directories[0]
    logs, old = StoredLogs(files, [folder]), FileIndex(files, [folder])
    path = old.path(LEDGER)
    assert path is not None
    if lost == "file":
        files.unlink(path)
    else:
        files.corrupt(path, 0, b"\x55" * 512)
    deleted = DeletedLedgers(files, folder)
    body = deletion_record(LEDGER, next_log)[1]
    deletion = JournalRecord(0, RecordKind.DELETION, LEDGER, -1, body)
    told = next_logs([deletion]) if teller == "journal" else {}
    if teller == "collection":
        deleted.add(LEDGER)
        deleted.seal(next_log - 1)
    rebuilding = IndexFilesRebuild(
        files, logs, old, folder, {LEDGER}, {}, died_before=deleted.may_be_earlier_life, next_logs=told
    )
    rebuilding.run()
    rebuilding.commit(".BACKUP-1")
    logs.close()
    old.close()
    rig.open()
    assert [rig.storage.read(LEDGER, each) for each in range(3)] == [signed(LEDGER, each, 140) for each in range(3)]
    with pytest.raises(LedgerStateUnknown):
        rig.storage.read(LEDGER, 5)
    record = rig.storage.ledger(LEDGER)
    assert record is not None
    assert record.first_log == (next_log if teller == "journal" else 0)
    rig.storage.close()
