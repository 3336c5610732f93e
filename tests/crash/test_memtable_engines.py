"""Interleaved and Sorted storage: die at, or fail, every file operation of a workload over two ledger directories.

The journal is taken as durable, as in `test_engine`: operation n of the workload is its record n, and a mark (1, n)
says that the records below n are in ledger storage. These engines flush the index before the entry logs, so

- what the mark covers must be there before anything is replayed, also where a newer copy was on its way;
- after a replay from the mark everything is there, and a checkpoint makes it so for good;
- after a sync of an entry log failed, nothing but `StorageFailed` comes, and a restart brings everything back.

All copies of an entry are equal here, as clients write them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from bookie_pod.storage.checkpoint import CheckpointHandlers, SyncThread
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.journal.marks import LogMark, MarkFiles
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import NoSuchEntry, NoSuchLedger, StorageFailed, StorageFault
from tests.crash.steps import Checkpoint, Delete, Fence
from tests.support.memory_faults import MUTATING
from tests.support.memory_files import Died, MemoryFiles
from tests.support.memtable_engine import ENGINES, MemTableBookie, memtable_options
from tests.support.record_count import RecordCount
from tests.support.storage_engine import KEY, entry, put

DIRECTORIES = ("/ledgers0", "/ledgers1")


@dataclass(frozen=True)
class Put:
    ledger_id: int
    entry_id: int

    @property
    def data(self) -> bytes:
        return entry(self.ledger_id, self.entry_id, (40, 90, 500)[self.entry_id % 3])


@dataclass(frozen=True)
class Drain:
    """What the storage thread does by itself, and the checkpoint that it may ask for."""


Step = Put | Fence | Delete | Checkpoint | Drain


def _workload() -> list[Step]:
    rng = random.Random(42)
    steps: list[Step] = []
    for turn in range(3):
        for part in range(3):
            steps += [Put(rng.choice((2, 3, 4, 5)), rng.randrange(12)) for _ in range(8)]
            steps.append(Fence(2 + turn))
            if part < 2:
                steps.append(Drain())
        if turn == 1:
            steps += [Delete(4), Put(4, 20)]  # deleted and made anew
        if turn == 2:
            steps.append(Delete(3))
        steps.append(Checkpoint())
    steps += [Put(5, 3), Drain(), Put(5, 30)]
    return steps


WORKLOAD = _workload()


class Node:
    """What the node puts around the engine: replay and checkpoints."""

    def __init__(self, bookie: MemTableBookie, journal: RecordCount) -> None:
        self.storage = bookie.open()
        marks = MarkFiles(bookie.files, DIRECTORIES, 0, 1)
        self.mark = marks.read().offset
        handlers = CheckpointHandlers(_unexpected, _unexpected)
        self._sync = SyncThread(self.storage, [journal], [marks], bookie.writable, handlers)
        self._wanted: list[Sequence[LogMark] | None] = []
        self.storage._background.request = _never  # drains only where the workload says so

    def start(self) -> None:
        self.storage.start(self)

    def marks(self) -> Sequence[LogMark]:
        return self._sync.marks()

    def request(self, marks: Sequence[LogMark] | None = None) -> None:
        self._wanted.append(marks)

    def apply(self, step: Step) -> None:
        if isinstance(step, Put):
            self.storage.set_master_key(step.ledger_id, KEY)  # a journal has the key before the entries
            put(self.storage, step.data)
        elif isinstance(step, Fence):
            record = self.storage.set_master_key(step.ledger_id, KEY)
            self.storage.set_ledger(step.ledger_id, replace(record, fenced=True))
        elif isinstance(step, Delete):
            self.storage.delete_ledger(step.ledger_id)
        elif isinstance(step, Drain):
            self.storage._background.run(self.storage._drain_in_background)
        else:
            self._sync.checkpoint()
        while self._wanted:
            self._sync.checkpoint(marks=self._wanted.pop())

    def release(self) -> None:
        """End the threads of a node that died; its files are gone with it."""
        self.storage._background.close()


def _never(**_: bool) -> None:
    """Stands for a request of a drain."""


def _unexpected(error: BaseException) -> None:
    raise AssertionError("no flush was requested") from error


def _run(bookie: MemTableBookie, journal: RecordCount) -> None:
    """Run the workload until it ends or the node dies."""
    try:
        node = Node(bookie, journal)
    except Died:
        return
    node.start()
    try:
        for number, step in enumerate(WORKLOAD):
            journal.begun = number
            node.apply(step)
            journal.begun = number + 1
    except Died:
        journal.begun += not isinstance(WORKLOAD[journal.begun], (Checkpoint, Drain))
    finally:
        node.release()


def _state(steps: int) -> tuple[set[Put], set[int], set[int]]:
    """(entries, fenced ledgers, deleted ledgers) after the first steps."""
    entries: set[Put] = set()
    fenced: set[int] = set()
    gone: set[int] = set()
    for step in WORKLOAD[:steps]:
        if isinstance(step, Put):
            entries.add(step)
            gone.discard(step.ledger_id)
        elif isinstance(step, Fence):
            fenced.add(step.ledger_id)
            gone.discard(step.ledger_id)
        elif isinstance(step, Delete):
            entries = {known for known in entries if known.ledger_id != step.ledger_id}
            fenced.discard(step.ledger_id)
            gone.add(step.ledger_id)
    return entries, fenced, gone


def _check_covered(storage: MemTableStorage, steps: int) -> None:
    """Everything up to `steps` is there. Steps behind it may have left traces, deletions among them."""
    entries, fenced, gone = _state(steps)
    later = WORKLOAD[steps:]
    deleted_later = {step.ledger_id for step in later if isinstance(step, Delete)}
    for known in entries:
        if known.ledger_id not in deleted_later:
            assert storage.read(known.ledger_id, known.entry_id) == known.data, (known, steps)
            assert storage.last_entry_id(known.ledger_id) >= known.entry_id
    for ledger_id in fenced - deleted_later:
        record = storage.ledger(ledger_id)
        assert record is not None, (ledger_id, steps)
        assert record.fenced
        assert record.key == KEY
    for ledger_id in gone - {step.ledger_id for step in later if isinstance(step, (Put, Fence))}:
        assert storage.ledger(ledger_id) is None, (ledger_id, steps)
        with pytest.raises(NoSuchLedger):
            storage.read(ledger_id, LAST_ENTRY)


def _check_whole(storage: MemTableStorage) -> None:
    """The state after all steps, and nothing more."""
    entries, fenced, _ = _state(len(WORKLOAD))
    for known in entries:
        assert storage.read(known.ledger_id, known.entry_id) == known.data, known
    for ledger_id in (2, 4, 5):
        ids = sorted(known.entry_id for known in entries if known.ledger_id == ledger_id)
        assert storage.last_entry_id(ledger_id) == ids[-1]
        assert set(ids) <= set(storage.entry_ids(ledger_id))
        with pytest.raises(NoSuchEntry):
            storage.read(ledger_id, 1000)
    records = {ledger_id: storage.ledger(ledger_id) for ledger_id in storage.ledger_ids()}
    assert {ledger_id for ledger_id, record in records.items() if record is not None and record.fenced} == fenced
    assert not any(record is not None and record.limbo for record in records.values())


def _replay_and_check(crashed: MemTableBookie, begun: int) -> None:
    journal = RecordCount(begun)
    node = Node(crashed, journal)
    try:
        assert node.mark <= begun
        _check_covered(node.storage, node.mark)
        for step in WORKLOAD[node.mark :]:  # the steps that were never begun follow, as a client would repeat them
            if not isinstance(step, (Checkpoint, Drain)):
                node.apply(step)
        node.storage.flush()
        node.start()
        _check_whole(node.storage)
        journal.begun = len(WORKLOAD)
        node.apply(Checkpoint())
        _check_whole(node.storage)
    finally:
        node.storage.close()
    again = Node(crashed.on(crashed.files.restart()), journal)
    assert again.mark == len(WORKLOAD)
    _check_whole(again.storage)
    again.storage.close()


def _bookie(engine: str, *, strict_names: bool = False) -> MemTableBookie:
    """Logs that rotate often, and room for fewer index pages than there are ledgers."""
    options = memtable_options(log_size=2600, page_bytes=64, page_limit=3, open_files=2)
    return MemTableBookie(engine, DIRECTORIES, (), options, MemoryFiles(strict_names=strict_names))


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("strict_names", [False, True], ids=["ordered names", "strict names"])
def test_death_at_every_operation_loses_nothing_that_a_mark_covers(engine: str, strict_names: bool, first: int) -> None:
    bookie = _bookie(engine)
    _run(bookie, RecordCount())
    total = bookie.files.operations
    assert total > 100
    marks = set()
    for death in range(first - 1, total + 1, 3):
        bookie, journal = _bookie(engine, strict_names=strict_names), RecordCount()
        bookie.faults.die_at(death)
        _run(bookie, journal)
        bookie.faults.die_now()
        crashed = bookie.crash(random.Random(1000 + death))
        marks.add(MarkFiles(crashed.files, DIRECTORIES, 0, 1).read().offset)
        _replay_and_check(crashed, journal.begun)
    assert len(marks) > 4  # none, three checkpoints, and those that the engine asked for


@pytest.mark.parametrize("engine", list(ENGINES))
def test_any_single_failure_is_survived_or_ends_the_process(engine: str) -> None:
    bookie = _bookie(engine)
    _run(bookie, RecordCount())
    outcomes = {"survived": 0, "repeated": 0, "ended": 0}
    for failing in range(bookie.files.operations):
        outcomes[_run_with_failure(_bookie(engine), failing)] += 1
    assert min(outcomes.values()) > 10, outcomes


def _run_with_failure(bookie: MemTableBookie, failing: int) -> str:
    journal, outcome = RecordCount(), "survived"
    bookie.faults.fail(*MUTATING, after=failing, times=1)
    try:
        node = Node(bookie, journal)
    except StorageFault:
        node = Node(bookie, journal)
    node.start()
    for number, step in enumerate(WORKLOAD):
        journal.begun = number
        try:
            node.apply(step)
        except StorageFailed:
            outcome = "ended"
            with pytest.raises(StorageFailed):
                node.storage.flush()
            break
        except StorageFault:
            outcome = "repeated"
            _check_covered(node.storage, number)  # everything is still readable, from memory if need be
        journal.begun = number + 1
    if outcome != "ended":
        node.apply(Checkpoint())
        _check_whole(node.storage)
    node.release()
    bookie.faults.clear()
    bookie.faults.die_now()
    crashed = bookie.crash(random.Random(failing))
    if outcome != "ended":
        assert MarkFiles(crashed.files, DIRECTORIES, 0, 1).read().offset == len(WORKLOAD)
    _replay_and_check(crashed, journal.begun)
    return outcome
