"""A workload of puts, deletions, checkpoints and garbage collection with minor and major compaction, over two ledger
directories, and what must hold when the bookie that runs it dies.

The journal is taken as durable, as in `test_engine`: step n is its record n, and a mark (1, n) says that the records
below n are in ledger storage. The metadata service is durable too. After each death the disks are re-opened from what
was synced and the journal is replayed from the mark; then, and after every later pass,

- each entry of a ledger that exists reads back with its bytes;
- nothing of a ledger's earlier life is served, once its deletion was checkpointed before the ledger was made anew;
- the next passes end without an error, forget what was deleted, and count no byte of it as live;
- nothing is quarantined: a power cut is no damage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pytest

from bookie_pod.storage.checkpoint import CheckpointHandlers, SyncThread
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.schedule import Force
from bookie_pod.storage.gc.state_file import GcStateFile
from bookie_pod.storage.gc.storage import collected
from bookie_pod.storage.journal.marks import LogMark, MarkFiles
from bookie_protocol.errors import NoSuchEntry
from tests.support.gc_crash_workload import WORKLOAD, Checkpoint, Delete, Flush, Pass, Put, Step
from tests.support.gc_rig import FAST, MAJOR, MINOR, DictatedMetadata
from tests.support.memory_files import Died, MemoryFiles
from tests.support.memtable_engine import MemTableBookie, memtable_options
from tests.support.record_count import RecordCount
from tests.support.storage_engine import KEY, MemoryBookie, put, small_options

DIRECTORIES = ("/ledgers0", "/ledgers1")
SOMEBODY_ELSES = 99


class Node:
    """An engine with its collectors, checkpoints and marks."""

    def __init__(
        self, bookie: MemoryBookie | MemTableBookie, journal: RecordCount, metadata: DictatedMetadata, *, plain: bool
    ) -> None:
        self.storage = bookie.open()
        marks = MarkFiles(bookie.files, DIRECTORIES, 0, 1)
        self.mark = marks.read().offset
        self.metadata = metadata
        handlers = CheckpointHandlers(_unexpected, _unexpected)
        self._sync = SyncThread(self.storage, [journal], [marks], bookie.writable, handlers)
        self._wanted: list[Sequence[LogMark] | None] = []
        if isinstance(self.storage, MemTableStorage):
            self.storage._background.request = _never  # type: ignore[method-assign]
        self.collectors = [
            GarbageCollector(
                part,
                metadata,
                GcStateFile(bookie.files, folder),
                replace(FAST, transactional_compaction=not plain),
                index=index,
            )
            for index, (part, folder) in enumerate(zip(collected(self.storage), DIRECTORIES, strict=False))
        ]

    def start(self) -> None:
        self.storage.start(self)

    def marks(self) -> Sequence[LogMark]:
        return self._sync.marks()

    def request(self, marks: Sequence[LogMark] | None = None) -> None:
        self._wanted.append(marks)

    def apply(self, step: Step) -> None:
        if isinstance(step, Put):
            self.metadata.ledgers.setdefault(step.ledger_id, None)
            self.replay(step)
        elif isinstance(step, Delete):
            for ledger_id in step.ledger_ids:
                self.metadata.ledgers.pop(ledger_id, None)
        elif isinstance(step, Checkpoint):
            self.checkpoint()
        elif isinstance(step, Flush):
            self.storage.flush()
        else:
            self.collect(step.force)
        while self._wanted:
            self._sync.checkpoint(marks=self._wanted.pop())

    def replay(self, step: Put) -> None:
        self.storage.set_master_key(step.ledger_id, KEY)  # a journal has the key before the entries
        put(self.storage, step.data)

    def checkpoint(self) -> None:
        self._sync.checkpoint()
        for collector in self.collectors:
            collector._storage.logs.rotate()
            collector._storage.logs.sync()

    def collect(self, force: Force | None) -> list[str]:
        errors = []
        for collector in self.collectors:
            if force is not None:
                collector.request(force)
            errors += collector.run_pass().errors
        return errors

    def release(self) -> None:
        """End the threads of a node that died; its files are gone with it."""
        if isinstance(self.storage, DbLedgerStorage):
            for thread in self.storage._threads:
                thread.shutdown()
        else:
            self.storage._background.close()


def _never(**_: bool) -> None:
    """Stands for a request of a drain."""


def _unexpected(error: BaseException) -> None:
    raise AssertionError("no flush was requested") from error


@dataclass
class World:
    """What survives a crash of the bookie."""

    make: Callable[[bool], MemoryBookie | MemTableBookie]
    plain: bool
    workload: Sequence[Step] = tuple(WORKLOAD)

    def __post_init__(self) -> None:
        self.metadata = DictatedMetadata({SOMEBODY_ELSES: ("other:3181",)})
        self.journal = RecordCount()

    def node(self, bookie: MemoryBookie | MemTableBookie) -> Node:
        return Node(bookie, self.journal, self.metadata, plain=self.plain)

    def run(self, bookie: MemoryBookie | MemTableBookie) -> None:
        """Run the workload until it ends or the node dies."""
        try:
            node = self.node(bookie)
        except Died:
            return
        try:
            node.start()
            for number, step in enumerate(self.workload):
                self.journal.begun = number
                node.apply(step)
                self.journal.begun = number + 1
        except Died:
            self.journal.begun += not isinstance(self.workload[self.journal.begun], (Checkpoint, Flush, Pass))
        finally:
            node.release()

    def living(self) -> dict[tuple[int, int], bytes]:
        """Every entry of the ledgers that exist, in their present life, as far as the journal goes."""
        entries: dict[tuple[int, int], bytes] = {}
        for step in self.workload[: self.journal.begun]:
            if isinstance(step, Put):
                entries[step.ledger_id, step.entry_id] = step.data
            elif isinstance(step, Delete):
                entries = {place: data for place, data in entries.items() if place[0] not in step.ledger_ids}
        return entries

    def check(self, node: Node) -> None:
        entries = self.living()
        for (ledger_id, entry_id), data in entries.items():
            assert node.storage.read(ledger_id, entry_id) == data, (ledger_id, entry_id, self.journal.begun)
        for ledger_id in {place[0] for place in entries}:
            ids = {place[1] for place in entries if place[0] == ledger_id}
            assert set(node.storage.entry_ids(ledger_id)) == ids, (ledger_id, self.journal.begun)
            assert node.storage.last_entry_id(ledger_id) == max(ids)
            with pytest.raises(NoSuchEntry):
                node.storage.read(ledger_id, max(ids) + 1)

    def check_collected(self, node: Node) -> None:
        """After passes without a failure."""
        exist = set(self.metadata.ledgers)
        assert set(node.storage.ledger_ids()) <= exist
        for collector in node.collectors:
            assert not collector.state().quarantined
            for usage in collector.usages():
                owners = collector.report(usage.log_id).owners
                assert owners is not None
                assert {ledger_id for ledger_id, _ in owners} <= exist
                assert usage.remaining == sum(nbytes for _, nbytes in owners)
                assert not usage.in_doubt
        for folder in DIRECTORIES:
            assert not [name for name in node_files(node).listdir(folder) if "compact" in name]

    def recover_and_check(self, crashed: MemoryBookie | MemTableBookie) -> None:
        node = self.node(crashed)
        try:
            assert node.mark <= self.journal.begun
            for step in self.workload[node.mark : self.journal.begun]:
                if isinstance(step, Put):
                    node.replay(step)
            node.storage.flush()
            node.start()
            # A ledger that was deleted and made anew while its deletion was not durable here has its old entries.
            self.check(node)
            for force in (None, MINOR, MAJOR):
                assert node.collect(force) == []
                self.check(node)
                self.check_collected(node)
            node.checkpoint()
        finally:
            node.storage.close()
        again = self.node(_restarted(crashed))
        try:
            again.start()
            self.check(again)
            assert again.collect(MAJOR) == []
            self.check(again)
            self.check_collected(again)
            assert all(usage.usage() >= 0.8 for collector in again.collectors for usage in collector.usages())
        finally:
            again.storage.close()


def node_files(node: Node) -> MemoryFiles:
    files = node.collectors[0]._collection_pass._state_file._files
    assert isinstance(files, MemoryFiles)
    return files


def _restarted(bookie: MemoryBookie | MemTableBookie) -> MemoryBookie | MemTableBookie:
    if isinstance(bookie, MemTableBookie):
        return bookie.on(bookie.files.restart())
    return MemoryBookie(DIRECTORIES, bookie.options, bookie.files.restart(), bookie.stores)


def _db() -> Callable[[bool], MemoryBookie]:
    options = small_options(directories=2, log_size=2600)
    return lambda strict: MemoryBookie(DIRECTORIES, options, MemoryFiles(strict_names=strict))


def _memtable(engine: str, *, per_ledger: bool = False) -> Callable[[bool], MemTableBookie]:
    options = memtable_options(log_size=2600, page_bytes=64, page_limit=3, open_files=2, per_ledger=per_ledger)
    return lambda strict: MemTableBookie(engine, DIRECTORIES, (), options, MemoryFiles(strict_names=strict))


ENGINES: dict[str, Callable[[bool], MemoryBookie | MemTableBookie]] = {
    "db": _db(),
    "sorted": _memtable("sorted"),
    "interleaved": _memtable("interleaved"),
}
ENGINES_WITH_LOGS_PER_LEDGER: dict[str, Callable[[bool], MemoryBookie | MemTableBookie]] = {
    "sorted": _memtable("sorted", per_ledger=True),
    "interleaved": _memtable("interleaved", per_ledger=True),
}
"""Compaction is always plain with them."""
KINDS: Final = [pytest.param(False, id="transactional"), pytest.param(True, id="plain")]
"""Of compaction."""
ENGINES_AND_KINDS: Final = [
    pytest.param(
        engine,
        plain,
        id=f"{engine}-{'plain' if plain else 'transactional'}",
        marks=[pytest.mark.slow] if plain and engine != "db" else [],
    )
    for engine in ENGINES
    for plain in (False, True)
]
"""For tests of a minute: of the engines of a memory table plain compaction is for the long ring."""


def operations(
    make: Callable[[bool], MemoryBookie | MemTableBookie], plain: bool, workload: Sequence[Step] = tuple(WORKLOAD)
) -> int:
    world, bookie = World(make, plain, workload), make(False)
    world.run(bookie)
    assert world.journal.begun == len(workload)
    return bookie.files.operations
