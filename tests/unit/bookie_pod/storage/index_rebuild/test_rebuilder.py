"""Rebuilds on request: one at a time, told how they ended, stopped at once; and on real databases."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.scrub import IndexRebuildMetrics
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index.locations import KEY
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.online import CollectionHold, DirectoryRebuild, LogsDamaged, RebuildParts
from bookie_pod.storage.index_rebuild.rebuilder import IndexRebuilder
from bookie_pod.storage.index_rebuild.state import RebuildOutcome, RebuildRequest
from bookie_pod.storage.index_rebuild.swap import DiskStores
from bookie_protocol.errors import BadRequest, LedgerStateUnknown, Refused, StorageFault
from tests.support.gc_rig import DictatedMetadata
from tests.support.rebuild_rig import RebuildRig
from tests.support.storage_engine import entry, put
from tests.support.stored_disks import open_engine_on, write_disk
from tests.support.until import until_true

PATIENCE_S = 60.0


def made(*directories: DirectoryRebuild, rate: float = 0, registry: Registry | None = None) -> IndexRebuilder:
    return IndexRebuilder(
        directories,
        bytes_per_second=rate,
        questions_per_second=1e9,
        metrics=IndexRebuildMetrics(registry or Registry()),
    )


def test_a_request_runs_to_its_end_and_is_counted() -> None:
    rig, registry = RebuildRig(), Registry()
    rig.write([1], 30)
    rig.spoil([((1, 3), 0)])
    rebuilder = made(rig.rebuilding, registry=registry)
    (before,) = rebuilder.states()
    assert before.outcome is RebuildOutcome.NONE
    assert rebuilder.request(RebuildRequest())
    until_true(lambda: not rebuilder.running, PATIENCE_S)
    (state,) = rebuilder.states()
    assert (state.outcome, state.rows_changed, state.ledgers, len(state.backups)) == (RebuildOutcome.DONE, 1, 1, 2)
    assert 0 < state.started_ms <= state.ended_ms
    lines = registry.render().splitlines()
    assert "index_rebuild_CHANGED_ROWS 1" in lines
    assert "index_rebuild_ENTRIES 30" in lines
    assert 'index_rebuild_runTime_count{success="true"} 1' in lines
    rebuilder.close()
    assert not rebuilder.request(RebuildRequest()), "the bookie stops"


def test_the_pace_holds_it_and_a_stop_ends_it_at_once() -> None:
    rig = RebuildRig()
    rig.write([1], 3000)
    rows = rig.rows()
    rebuilder = made(rig.rebuilding, rate=1)
    assert rebuilder.request(RebuildRequest(ledgers=False))
    until_true(lambda: rig.directory.doubt is not None, PATIENCE_S)
    assert not rebuilder.request(RebuildRequest())
    assert rebuilder.cancel()
    until_true(lambda: not rebuilder.running, PATIENCE_S)
    assert rebuilder.states()[0].outcome is RebuildOutcome.STOPPED
    assert rig.rows() == rows
    assert not rebuilder.cancel()


@pytest.mark.parametrize("outcome", [RebuildOutcome.DONE, RebuildOutcome.DAMAGED, RebuildOutcome.FAILED])
def test_its_end_is_told_whatever_came_of_it(outcome: RebuildOutcome, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, told = RebuildRig(), threading.Event()
    failure = {RebuildOutcome.DAMAGED: LogsDamaged("a log"), RebuildOutcome.FAILED: StorageFault("a disk")}.get(outcome)

    def run(*arguments: object) -> None:
        assert not told.is_set()
        if failure is not None:
            raise failure

    monkeypatch.setattr(rig.rebuilding, "run", run)
    rebuilder = IndexRebuilder([rig.rebuilding], bytes_per_second=0, questions_per_second=1e9, on_end=told.set)
    assert rebuilder.request(RebuildRequest())
    assert told.wait(PATIENCE_S)
    assert [each.outcome for each in rebuilder.states()] == [outcome]
    rebuilder.close()


def test_what_cannot_be_begun() -> None:
    with pytest.raises(Refused, match="rebuild-index-files"):
        made().request(RebuildRequest())
    rig = RebuildRig()
    with pytest.raises(BadRequest, match=r"/other is .* /ledgers0"):
        made(rig.rebuilding).request(RebuildRequest(("/other/current",)))


def test_a_fault_is_told_and_changes_nothing() -> None:
    rig = RebuildRig()
    rig.write([1, 2], 5)
    batch = rig.directory.ledgers._store.batch()
    batch.delete((2).to_bytes(8, "big"))
    batch.commit()
    rig.storage.close()
    rig.open()
    rig.metadata.down = True
    rebuilder = made(rig.rebuilding)
    rebuilder.request(RebuildRequest())
    until_true(lambda: not rebuilder.running, PATIENCE_S)
    (state,) = rebuilder.states()
    assert (state.outcome, state.detail) == (RebuildOutcome.FAILED, "the metadata service does not answer")


class _Collector:
    def __init__(self) -> None:
        self.excluded = dict
        self.is_idle = True


def test_readers_and_a_writer_beside_a_rebuild_of_real_databases(tmp_path: Path) -> None:
    layout = write_disk("db", tmp_path, {1: 3000, 2: 500})
    storage = open_engine_on(layout, "db")
    assert isinstance(storage, DbLedgerStorage)
    (directory,), files = storage.directories, PosixFiles()
    lost = range(0, 3000, 3)
    batch = directory.locations._store.batch()
    for entry_id in lost:
        batch.delete(KEY.pack(1, entry_id))
    batch.commit()
    parts = RebuildParts(files, DiskStores(files), layout.journals, DictatedMetadata({1: None, 2: None}))
    hold = CollectionHold(_Collector(), directory.logs)
    (folder,) = layout.ledgers
    rebuilder = made(DirectoryRebuild(directory, parts, hold, folder, folder, number=0, count=1))
    stop, failures, reads = threading.Event(), [], [0]
    directory.doubt = "from before the readers begin"

    def read() -> None:
        entry_id = 0
        while not stop.is_set():
            entry_id = (entry_id + 7) % 3000
            directory.read_cache.forget_ledger(1)
            try:
                storage.read(1, entry_id)
                directory.locations.get(1, entry_id)
                sum(1 for _ in directory.locations.rows(2))
                reads[0] += 1
            except LedgerStateUnknown:
                if entry_id not in lost:
                    failures.append(entry_id)
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        rebuilder.request(RebuildRequest())
        count = 500
        while rebuilder.running:
            put(storage, entry(2, count))
            storage.flush()
            count += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    (state,) = rebuilder.states()
    # A reader may have begun in the moment in which the doubt ended, but none was told a fault or a wrong "no".
    assert state.outcome is RebuildOutcome.DONE, state.detail
    assert not failures
    assert reads[0] > 0
    assert [storage.read(2, each) for each in (0, count - 1)] == [entry(2, 0, 100), entry(2, count - 1)]
    assert list(storage.entry_ids(1)) == list(range(3000))
    storage.close()
    reopened = open_engine_on(layout, "db")
    assert list(reopened.entry_ids(2)) == list(range(count))
    assert list(reopened.entry_ids(1)) == list(range(3000))
    reopened.close()
    assert {StoreKind(Path(path).name.partition(".")[0]) for path in state.backups} == set(StoreKind)
