"""The life of a ledger is in its record, whatever the engine: it outlives a flush, a crash before one, and changes of
what else the record says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_pod.ledgers.operations import LedgerOperations
from bookie_pod.ledgers.registry import Ledgers
from bookie_pod.node.recovery import ReplayIntoStorage
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.journal.format import RecordKind, kind_of, life_behind_key, tail_of_special_record
from bookie_protocol.errors import LedgerFenced
from bookie_protocol.keys import NO_LIFE, NO_WRITER, life_of
from tests.support.memtable_engine import Checkpoints, MemTableBookie
from tests.support.server_rig import HeldJournal
from tests.support.storage_engine import KEY, MemoryBookie, entry

LIFE = life_of(-7)
Bookie = MemoryBookie | MemTableBookie


@pytest.fixture(params=["db", "interleaved", "sorted"])
def bookie(request: pytest.FixtureRequest) -> Bookie:
    return MemoryBookie() if request.param == "db" else MemTableBookie(request.param)


def _open(bookie: Bookie, replayed: Callable[[LedgerStorage], None] = lambda storage: None) -> LedgerStorage:
    storage = bookie.open()
    replayed(storage)
    storage.start(Checkpoints())
    return storage


def _life(storage: LedgerStorage) -> bytes:
    record = storage.ledger(7)
    return NO_LIFE if record is None else record.life


@pytest.mark.parametrize("life", [LIFE, NO_WRITER], ids=["named", "copies"])
def test_life_outlives_a_restart_and_other_changes(bookie: Bookie, life: bytes) -> None:
    storage = _open(bookie)
    storage.set_ledger(7, LedgerRecord(KEY, life=life))
    storage.set_ledger(8, LedgerRecord(KEY))
    storage.flush()
    storage.close()
    storage = _open(bookie)
    assert _life(storage) == life
    other = storage.ledger(8)
    assert other is not None
    assert other.life == NO_LIFE
    record = storage.ledger(7)
    assert record is not None
    storage.set_ledger(7, replace(record, fenced=True, explicit_lac=bytes(36)))
    storage.flush()
    storage.close()
    storage = _open(bookie)
    assert _life(storage) == life
    storage.delete_ledger(7)
    storage.set_master_key(7, KEY)
    assert _life(storage) == NO_LIFE
    storage.close()


class Served:
    """The writes of one process, and their replay in the next one."""

    def __init__(self, storage: LedgerStorage) -> None:
        self.journal = HeldJournal()
        self.ledgers = Ledgers(storage, 1)
        self.operations = LedgerOperations(self.ledgers, [self.journal])
        self.lanes = self.operations.lanes()

    def add(self, entry_id: int, life: bytes = NO_LIFE, *, recovery: bool = False) -> None:
        self.operations.add(self.lanes, 7, entry_id, -1, KEY, entry(7, entry_id), recovery=recovery, life=life)
        self.operations.submit(self.lanes[0], 1, lambda error: None)

    def replay(self, again: LedgerStorage) -> None:
        sink = ReplayIntoStorage(again)
        for body in (body for batch in self.journal.batches for body in batch.pieces[1::2]):
            kind = kind_of(int.from_bytes(body[8:16], signed=True))
            if kind is RecordKind.KEY:
                sink.on_key(7, tail_of_special_record(body), life_behind_key(body))
            elif kind is RecordKind.FENCE:
                sink.on_fence(7)
            else:
                assert kind is RecordKind.ENTRY
                sink.on_entry(7, int.from_bytes(body[8:16]), body)


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("fenced", [False, True])
async def test_that_nothing_came_from_a_writer_outlives_a_restart(bookie: Bookie, flushed: bool, fenced: bool) -> None:
    served = Served(storage := _open(bookie))
    if fenced:
        served.operations.fence(7, KEY)
    served.add(0, recovery=True)
    if flushed:
        storage.flush()
    storage.close()
    storage = _open(bookie, served.replay)
    assert _life(storage) == NO_WRITER
    storage.close()


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("life", [NO_LIFE, LIFE], ids=["none", "named"])
def test_writer_that_came_to_copies_is_known_after_a_restart(bookie: Bookie, flushed: bool, life: bytes) -> None:
    served = Served(storage := _open(bookie))
    served.add(0, recovery=True)
    served.ledgers.own_copies(7)
    served.add(1, life)
    if flushed:
        storage.flush()
    storage.close()
    storage = _open(bookie, served.replay)
    assert _life(storage) == life
    storage.close()


def test_older_record_in_the_journal_does_not_undo_what_the_storage_has_of_a_writer(bookie: Bookie) -> None:
    """The storage may be ahead of a journal whose end is lost."""
    served = Served(storage := _open(bookie))
    served.add(0, recovery=True)
    storage.set_ledger(7, LedgerRecord(KEY))
    storage.flush()
    storage.close()
    storage = _open(bookie, served.replay)
    assert _life(storage) == NO_LIFE
    storage.close()


@pytest.mark.parametrize("began", ["writer", "recovery"])
def test_life_is_journaled_before_the_first_entry(bookie: Bookie, began: str) -> None:
    served = Served(storage := _open(bookie))
    if began == "recovery":
        served.add(0, recovery=True)
        served.ledgers.own_copies(7)
    served.add(1, LIFE)
    storage.close()
    journal, operations = served.journal, served.operations
    storage = _open(bookie, served.replay)
    assert _life(storage) == LIFE
    with pytest.raises(LedgerFenced):
        LedgerOperations(Ledgers(storage, 1), [journal]).add(
            operations.lanes(), 7, 2, -1, KEY, entry(7, 2), recovery=False
        )
    storage.close()
