"""Die at, or fail, every file operation and every index commit of a workload over two ledger directories.

The journal is taken as durable: operation n of the workload is its record n, and a mark (1, n) says that records below
n are in ledger storage. After each death the disks are re-opened from what was synced, and

- what the mark covers must be there before anything is replayed: entries with their bytes, fences, keys, deletions;
- nothing that it covers may be answered with "no such entry" or "no such ledger";
- after a replay from the mark, everything is there, and a checkpoint makes it so for good.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from bookie_pod.storage.checkpoint import CheckpointHandlers, SyncThread
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.journal.marks import LogMark, MarkFiles
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import NoSuchEntry, NoSuchLedger, StorageFault
from tests.crash.steps import Checkpoint, Delete, Fence
from tests.support.memory_faults import MUTATING
from tests.support.memory_files import Died, MemoryFiles
from tests.support.record_count import RecordCount
from tests.support.storage_engine import KEY, MemoryBookie, entry, put, small_options

DIRECTORIES = ("/ledgers0", "/ledgers1")


@dataclass(frozen=True)
class Put:
    ledger_id: int
    entry_id: int
    size: int
    mark: bytes

    @property
    def data(self) -> bytes:
        return entry(self.ledger_id, self.entry_id, self.size, self.mark)


Step = Put | Fence | Delete | Checkpoint


def _workload() -> list[Step]:
    rng = random.Random(42)
    steps: list[Step] = []
    for turn in range(4):
        for _ in range(14):
            ledger_id, entry_id = rng.choice((2, 3, 4, 5)), rng.randrange(8)
            steps.append(Put(ledger_id, entry_id, rng.choice((40, 90, 700)), b"%d" % turn))
        steps.append(Fence(2 + turn))
        if turn == 1:
            steps += [Delete(4), Put(4, 20, 50, b"n")]  # deleted and made anew
        if turn == 2:
            steps.append(Delete(3))
        steps.append(Checkpoint())
    steps.append(Put(5, 99, 60, b"tail"))
    return steps


WORKLOAD = _workload()


class Node:
    """What the node puts around the engine: replay and checkpoints."""

    def __init__(self, bookie: MemoryBookie, journal: RecordCount) -> None:
        self.storage = bookie.open()
        self._marks = MarkFiles(bookie.files, DIRECTORIES, 0, 1)
        self.mark = self._marks.read().offset
        self._sync = SyncThread(
            self.storage, [journal], [self._marks], bookie.writable, CheckpointHandlers(_unexpected, _unexpected)
        )

    def checkpoint(self) -> None:
        self._sync.checkpoint()

    def apply(self, step: Step) -> None:
        if isinstance(step, Put):
            put(self.storage, step.data)
        elif isinstance(step, Fence):
            record = self.storage.set_master_key(step.ledger_id, KEY)
            self.storage.set_ledger(step.ledger_id, replace(record, fenced=True))
        elif isinstance(step, Delete):
            self.storage.delete_ledger(step.ledger_id)
        else:
            self.checkpoint()

    def release(self) -> None:
        """End the threads of a node that died; its files are gone with it."""
        for thread in self.storage._threads:
            thread.shutdown()


def _unexpected(error: BaseException) -> None:
    raise AssertionError("no flush was requested") from error


def _run(bookie: MemoryBookie, journal: RecordCount, apply: Callable[[Node, Step], None] = Node.apply) -> Node | None:
    """Run the workload; None if the node died before it was open."""
    try:
        node = Node(bookie, journal)
    except Died:
        return None
    try:
        for number, step in enumerate(WORKLOAD):
            journal.begun = number  # a checkpoint step covers what came before it
            apply(node, step)
            journal.begun = number + 1
    except Died:
        journal.begun += not isinstance(WORKLOAD[journal.begun], Checkpoint)
    finally:
        node.release()
    return node


@dataclass
class Expected:
    """State after the first n steps."""

    entries: dict[tuple[int, int], bytes]
    fenced: set[int]
    gone: set[int]
    touched: set[tuple[int, int]]
    """Places that steps behind those n write: any of their copies may be found."""


def _expected(steps: int) -> Expected:
    state = Expected({}, set(), set(), set())
    for step in WORKLOAD[:steps]:
        if isinstance(step, Put):
            state.entries[step.ledger_id, step.entry_id] = step.data
            state.gone.discard(step.ledger_id)
        elif isinstance(step, Fence):
            state.fenced.add(step.ledger_id)
            state.gone.discard(step.ledger_id)
        elif isinstance(step, Delete):
            state.entries = {place: data for place, data in state.entries.items() if place[0] != step.ledger_id}
            state.fenced.discard(step.ledger_id)
            state.gone.add(step.ledger_id)
    state.touched = {(step.ledger_id, step.entry_id) for step in WORKLOAD[steps:] if isinstance(step, Put)}
    return state


def _check_covered(storage: DbLedgerStorage, steps: int) -> None:
    """Everything up to `steps` is there. Steps behind it may have left traces, deletions among them."""
    state = _expected(steps)
    deleted_later = {step.ledger_id for step in WORKLOAD[steps:] if isinstance(step, Delete)}
    for (ledger_id, entry_id), data in state.entries.items():
        if ledger_id in deleted_later:
            continue
        found = storage.read(ledger_id, entry_id)
        assert found == data or (ledger_id, entry_id) in state.touched, (ledger_id, entry_id, steps)
        assert storage.last_entry_id(ledger_id) >= entry_id
    for ledger_id in state.fenced - deleted_later:
        record = storage.ledger(ledger_id)
        assert record is not None, (ledger_id, steps)
        assert record.fenced
        assert record.key == KEY


def _check_whole(storage: DbLedgerStorage) -> None:
    """The state after all steps, and nothing more."""
    state = _expected(len(WORKLOAD))
    for place, data in state.entries.items():
        assert storage.read(*place) == data, place
    for ledger_id in (2, 4, 5):
        ids = sorted(entry_id for known, entry_id in state.entries if known == ledger_id)
        assert storage.last_entry_id(ledger_id) == ids[-1]
        assert set(ids) <= set(storage.entry_ids(ledger_id))
        with pytest.raises(NoSuchEntry):
            storage.read(ledger_id, 1000)
    assert {n for n in storage.ledger_ids() if (r := storage.ledger(n)) is not None and r.fenced} == state.fenced


def _check_deletions(storage: DbLedgerStorage, steps: int) -> None:
    """A deletion that the mark covers holds, with all rows of that life."""
    state = _expected(steps)
    for ledger_id in state.gone - {step.ledger_id for step in WORKLOAD[steps:] if isinstance(step, (Put, Fence))}:
        assert storage.ledger(ledger_id) is None
        with pytest.raises(NoSuchLedger):
            storage.read(ledger_id, LAST_ENTRY)


def _replay_and_check(crashed: MemoryBookie, journal: RecordCount) -> None:
    node = Node(crashed, journal)
    try:
        assert node.mark <= journal.begun
        _check_covered(node.storage, node.mark)
        _check_deletions(node.storage, node.mark)
        for step in WORKLOAD[node.mark :]:  # the steps that were never begun follow, as a client would repeat them
            node.apply(step)
        _check_whole(node.storage)
        journal.begun = len(WORKLOAD)
        node.checkpoint()
        _check_whole(node.storage)
    finally:
        node.storage.close()
    again = Node(MemoryBookie(DIRECTORIES, crashed.options, crashed.files.restart(), crashed.stores), journal)
    assert again.mark == len(WORKLOAD)
    _check_whole(again.storage)
    again.storage.close()


def _bookie(*, strict_names: bool = False) -> MemoryBookie:
    return MemoryBookie(
        DIRECTORIES, small_options(directories=2, log_size=3000), MemoryFiles(strict_names=strict_names)
    )


def _operations() -> int:
    bookie = _bookie()
    assert _run(bookie, RecordCount()) is not None
    return bookie.files.operations


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("strict_names", [False, True], ids=["ordered names", "strict names"])
def test_death_at_every_operation_loses_nothing_that_a_mark_covers(strict_names: bool, first: int) -> None:
    total = _operations()
    assert total > 100
    marks = set()
    for death in range(first - 1, total + 1, 3):
        bookie, journal = _bookie(strict_names=strict_names), RecordCount()
        bookie.faults.die_at(death)
        _run(bookie, journal)
        bookie.faults.die_now()
        for seed in range(2):
            crashed = bookie.crash(random.Random(1000 * death + seed))
            marks.add(max(mark.offset for mark in _marks(crashed)))
            _replay_and_check(crashed, RecordCount(journal.begun))
    assert len(marks) == 5  # none, and after each of the four checkpoints


def _marks(bookie: MemoryBookie) -> list[LogMark]:
    return [MarkFiles(bookie.files, DIRECTORIES, 0, 1).read()]


@pytest.mark.parametrize("first", [1, 2, 3])
def test_any_single_failure_is_survived_and_repeated_before_the_mark_moves(first: int) -> None:
    total = _operations()
    failures = 0
    for failing in range(first - 1, total, 3):
        bookie, journal = _bookie(), RecordCount()
        node = Node(bookie, journal)
        bookie.faults.fail(*MUTATING, after=failing, times=1)
        before = 0

        for number, step in enumerate(WORKLOAD):
            journal.begun = number
            try:
                node.apply(step)
            except StorageFault:
                failures += 1
                _check_covered(node.storage, number)  # everything is still readable, from memory if need be
                assert _marks(bookie)[0].offset == before
            else:
                before = _marks(bookie)[0].offset
            journal.begun = number + 1
        bookie.faults.clear()
        node.checkpoint()
        node.release()
        bookie.faults.die_now()
        crashed = bookie.crash(random.Random(failing))
        assert _marks(crashed)[0].offset == len(WORKLOAD)
        again = Node(crashed, RecordCount(len(WORKLOAD)))
        _check_whole(again.storage)
        again.storage.close()
    assert failures > total // 9  # the rest is what the entry logger or a second directory makes good
