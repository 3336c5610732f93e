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
from bookie_protocol.errors import LedgerFenced, LedgerStateUnknown
from bookie_protocol.keys import NO_LIFE, life_of, life_of_copies, with_unnamed
from tests.support.memtable_engine import Checkpoints, MemTableBookie
from tests.support.server_rig import HeldJournal
from tests.support.storage_engine import KEY, MemoryBookie, entry

LIFE, COPIES = life_of(-7), life_of_copies(-7)
LIVES = {
    "writer": LIFE,
    "copies": COPIES,
    "writer and unnamed": with_unnamed(LIFE),
    "copies and unnamed": with_unnamed(COPIES),
}
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


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_life_outlives_a_restart_and_other_changes(bookie: Bookie, life: bytes) -> None:
    storage = _open(bookie)
    storage.set_ledger(7, LedgerRecord(KEY, life=life))
    storage.flush()
    storage.close()
    storage = _open(bookie)
    assert _life(storage) == life
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


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("unnamed", [False, True])
@pytest.mark.parametrize("began", ["writer", "recovery", "copies", "copies alone"])
def test_life_is_journaled_before_the_first_entry(bookie: Bookie, began: str, unnamed: bool, flushed: bool) -> None:
    """So is the note that something which names no life came under it."""
    storage, journal = _open(bookie), HeldJournal()
    operations = LedgerOperations(Ledgers(storage, 1), [journal])
    lanes = operations.lanes()

    def add(entry_id: int, life: bytes, *, recovery: bool = False) -> None:
        operations.add(lanes, 7, entry_id, -1, KEY, entry(7, entry_id), recovery=recovery, life=life)
        operations.submit(lanes[0], 1, lambda error: None)

    if began != "writer":
        add(0, NO_LIFE if began == "recovery" else COPIES, recovery=True)
    if began != "copies alone":
        add(1, LIFE)
    if flushed:
        storage.flush()
    if unnamed:
        add(4, NO_LIFE, recovery=True)
        add(5, LIFE if began == "writer" else COPIES, recovery=True)
    storage.close()

    def replay(again: LedgerStorage) -> None:
        sink = ReplayIntoStorage(again)
        for body in (body for batch in journal.batches for body in batch.pieces[1::2]):
            kind = kind_of(int.from_bytes(body[8:16], signed=True))
            if kind is RecordKind.KEY:
                sink.on_key(7, tail_of_special_record(body), life_behind_key(body))
            else:
                assert kind is RecordKind.ENTRY
                sink.on_entry(7, int.from_bytes(body[8:16]), body)

    storage = _open(bookie, replay)
    again = LedgerOperations(Ledgers(storage, 1), [journal])
    expected = COPIES if began == "copies alone" else LIFE
    assert _life(storage) == (with_unnamed(expected) if unnamed else expected)
    if began == "copies alone":
        again.add(operations.lanes(), 7, 2, -1, KEY, entry(7, 2), recovery=False)
    else:
        with pytest.raises(LedgerFenced):
            again.add(operations.lanes(), 7, 2, -1, KEY, entry(7, 2), recovery=False)
    with pytest.raises(LedgerStateUnknown):
        again.add(operations.lanes(), 7, 3, -1, KEY, entry(7, 3), recovery=True, life=life_of_copies(8))
    storage.close()
