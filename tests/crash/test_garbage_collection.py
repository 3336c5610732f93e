"""Die at, or fail, every file operation and every index commit of a workload of puts, deletions, checkpoints and
garbage collection with minor and major compaction, over two ledger directories.

The journal is taken as durable, as in `test_engine`: step n is its record n, and a mark (1, n) says that the records
below n are in ledger storage. The metadata service is durable too. After each death the disks are re-opened from what
was synced and the journal is replayed from the mark; then, and after every later pass,

- each entry of a ledger that exists reads back with its bytes;
- nothing of a ledger's earlier life is served, once its deletion was checkpointed before the ledger was made anew;
- the next passes end without an error, forget what was deleted, and count no byte of it as live;
- nothing is quarantined: a power cut is no damage.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from bookie_pod.storage.checkpoint import CheckpointHandlers, SyncThread
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.engines import collected
from bookie_pod.storage.gc.schedule import Force
from bookie_pod.storage.gc.state_file import GcStateFile
from bookie_pod.storage.journal.marks import LogMark, MarkFiles
from bookie_protocol.errors import NoSuchEntry, StorageFailed, StorageFault
from tests.crash.test_engine import RecordCount
from tests.support.gc_rig import FAST, MAJOR, MINOR, DictatedMetadata
from tests.support.memory_faults import MUTATING
from tests.support.memory_files import Died, MemoryFiles
from tests.support.memtable_engine import MemTableBookie, memtable_options
from tests.support.storage_engine import KEY, MemoryBookie, entry, put, small_options

DIRECTORIES = ("/ledgers0", "/ledgers1")
SOMEBODY_ELSES = 99


@dataclass(frozen=True)
class Put:
    ledger_id: int
    entry_id: int
    life: int = 0

    @property
    def data(self) -> bytes:
        return entry(self.ledger_id, self.entry_id, (60, 90, 300)[self.entry_id % 3], b"%d" % self.life)


@dataclass(frozen=True)
class Delete:
    """By a client, in the metadata service."""

    ledger_ids: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """All that was put is in logs that are closed."""


@dataclass(frozen=True)
class Pass:
    force: Force | None = None


Step = Put | Delete | Checkpoint | Pass


def _puts(ledger_ids: Sequence[int], entry_ids: range, life: int = 0) -> list[Step]:
    return [Put(ledger_id, entry_id, life) for entry_id in entry_ids for ledger_id in ledger_ids]


WORKLOAD: list[Step] = [
    *_puts(range(1, 9), range(5)),
    Checkpoint(),
    Delete((5, 6)),
    Pass(),  # forgets them; their bytes stay beside what lives
    Checkpoint(),
    *_puts((5, 6), range(2), life=1),  # the same ids again
    *_puts((7, 8), range(5, 8)),
    Checkpoint(),
    Delete((1, 2, 3)),
    Put(4, 5),
    Pass(MAJOR),  # rewrites the logs that hold the earlier lives
    *_puts((4, 7, 8, 9, 10), range(8, 12)),
    Put(7, 0),  # once more
    Checkpoint(),
    Delete((9, 10, 4)),
    Pass(MINOR),
    Pass(MAJOR),
    Put(8, 12),
]


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
                part, metadata, GcStateFile(bookie.files, folder), replace(FAST, transactional=not plain), index=index
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
            for number, step in enumerate(WORKLOAD):
                self.journal.begun = number
                node.apply(step)
                self.journal.begun = number + 1
        except Died:
            self.journal.begun += not isinstance(WORKLOAD[self.journal.begun], (Checkpoint, Pass))
        finally:
            node.release()

    def living(self) -> dict[tuple[int, int], bytes]:
        """Every entry of the ledgers that exist, in their present life, as far as the journal goes."""
        entries: dict[tuple[int, int], bytes] = {}
        for step in WORKLOAD[: self.journal.begun]:
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
            for step in WORKLOAD[node.mark : self.journal.begun]:
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


def _db(strict_names: bool) -> MemoryBookie:
    options = small_options(directories=2, log_size=2600)
    return MemoryBookie(DIRECTORIES, options, MemoryFiles(strict_names=strict_names))


def _memtable(engine: str) -> Callable[[bool], MemTableBookie]:
    options = memtable_options(log_size=2600, page_bytes=64, page_limit=3, open_files=2)
    return lambda strict: MemTableBookie(engine, DIRECTORIES, (), options, MemoryFiles(strict_names=strict))


ENGINES: dict[str, Callable[[bool], MemoryBookie | MemTableBookie]] = {
    "db": _db,
    "sorted": _memtable("sorted"),
    "interleaved": _memtable("interleaved"),
}
KINDS = [pytest.param(False, id="transactional"), pytest.param(True, id="plain")]


def _operations(make: Callable[[bool], MemoryBookie | MemTableBookie], plain: bool) -> int:
    world, bookie = World(make, plain), make(False)
    world.run(bookie)
    assert world.journal.begun == len(WORKLOAD)
    return bookie.files.operations


@pytest.mark.parametrize("plain", KINDS)
@pytest.mark.parametrize("engine", list(ENGINES))
def test_the_workload_compacts_and_the_model_agrees(engine: str, plain: bool) -> None:
    world, bookie = World(ENGINES[engine], plain), ENGINES[engine](False)
    node = world.node(bookie)
    node.start()
    compacted = 0
    for number, step in enumerate(WORKLOAD):
        node.apply(step)
        world.journal.begun = number + 1
        world.check(node)
        if isinstance(step, Pass):
            compacted += sum(each.state().last_pass.logs_compacted for each in node.collectors)  # type: ignore[union-attr]
            world.check_collected(node)
    assert compacted >= 3
    node.storage.close()


@pytest.mark.parametrize("plain", KINDS)
@pytest.mark.parametrize("strict_names", [False, True], ids=["ordered names", "strict names"])
@pytest.mark.parametrize("engine", list(ENGINES))
def test_death_at_every_operation_loses_nothing_and_resurrects_nothing(
    engine: str, strict_names: bool, plain: bool
) -> None:
    make = ENGINES[engine]
    total = _operations(make, plain)
    assert total > 150
    step = 1 if engine == "db" and not strict_names else 4
    for death in range(0, total + 1, step):
        world, bookie = World(make, plain), make(strict_names)
        bookie.faults.die_at(death)
        world.run(bookie)
        bookie.faults.die_now()
        world.recover_and_check(bookie.crash(random.Random(1000 + death)))


@pytest.mark.parametrize("plain", KINDS)
@pytest.mark.parametrize("engine", list(ENGINES))
def test_any_single_failure_is_survived_and_made_good_by_the_next_pass(engine: str, plain: bool) -> None:
    make = ENGINES[engine]
    seen = 0
    for failing in range(0, _operations(make, plain), 1 if engine == "db" else 3):
        world, bookie = World(make, plain), make(False)
        seen += _run_with_failure(world, bookie, failing)
    assert seen > 20


def _run_with_failure(world: World, bookie: MemoryBookie | MemTableBookie, failing: int) -> bool:
    """Whether the failure was told to anybody."""
    told = False
    node = world.node(bookie)
    node.start()
    bookie.faults.fail(*MUTATING, after=failing, times=1)
    for number, step in enumerate(WORKLOAD):
        world.journal.begun = number
        try:
            node.apply(step)
        except StorageFailed:
            told = True
            break
        except StorageFault:
            told = True
        else:
            told = told or any(each.state().last_errors for each in node.collectors)
        world.journal.begun = number + 1
        world.check(node)
    else:
        bookie.faults.clear()
        # A failed sync is noticed by the next flush that has something to write, and made good by the one behind it.
        for ledger_id in (7, 8):
            node.replay(Put(ledger_id, 8))
        with suppress(StorageFault):
            node.storage.flush()
        try:
            node.storage.flush()
        except StorageFailed:
            told = True
        else:
            assert node.collect(MAJOR) == []
            world.check(node)
            world.check_collected(node)
    node.release()
    bookie.faults.clear()
    bookie.faults.die_now()
    world.recover_and_check(bookie.crash(random.Random(failing)))
    return told
