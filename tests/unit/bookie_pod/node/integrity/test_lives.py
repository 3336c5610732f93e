"""The check and the lives of ledgers: an id may have another ledger than when the metadata were read."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie_pod.ledgers.registry import MOST_LOOKS
from bookie_pod.node.integrity.full_check import LOOKS, RECOVERIES_AT_ONCE
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_protocol.errors import LedgerFenced, LedgerStateUnknown, NoSuchLedger, Unauthorized
from bookie_protocol.keys import NO_KEY, as_named, life_of, life_of_copies, master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import LedgerLife
from tests.support.integrity_rig import ALL_ENGINES, KEY, ME, A, B, Rig, metadata
from tests.support.scrub_rig import signed
from tests.support.until import until

FORMER, NOW = (replace(metadata(3, {0: (ME, A), 2: (A, B)}), creation_token=token) for token in (1, 2))


@pytest.mark.parametrize("engine", ALL_ENGINES)
@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("is_here", [False, True])
async def test_copy_of_a_ledger_whose_id_has_another_one_now_is_not_stored(
    engine: str, is_closed: bool, is_here: bool
) -> None:
    """A check goes on for hours after it read the metadata. The writer of the next one names no life."""
    rig = Rig(NOW, engine=engine)
    if is_here:
        rig.add(3, 0)
    with pytest.raises(LedgerStateUnknown):
        await rig.copies.store(FORMER.closed(1, 1) if is_closed else FORMER, 1, signed(3, 1))
    record = rig.storage.ledger(3)
    assert (record is not None) == is_here
    assert record is None or (record.life, record.fenced) == (b"", False)


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_remembered_fence_of_a_dead_ledger_is_not_that_of_the_open_one_that_is_filled(engine: str) -> None:
    rig = Rig(NOW, engine=engine)
    rig.ledgers.fenced_and_deleted.add(3)
    await rig.copies.store(NOW, 0, signed(3, 0))
    await rig.copies.settle()
    record = rig.storage.ledger(3)
    assert record is not None
    assert (record.life, record.fenced) == (life_of_copies(2), False)
    lanes, key = rig.operations.lanes(), master_key(b"pw")
    rig.operations.add(lanes, 3, 1, -1, key, signed(3, 1), recovery=False, life=life_of(2))


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_fence_of_a_dead_ledger_gets_not_the_life_of_the_open_one(engine: str) -> None:
    rig = Rig(NOW, engine=engine)
    record = rig.storage.set_master_key(3, master_key(b"pw"))
    rig.storage.set_ledger(3, replace(record, fenced=True))
    with pytest.raises(LedgerStateUnknown):
        await rig.copies.store(NOW, 0, signed(3, 0))
    record = rig.storage.ledger(3)
    assert record is not None
    assert record.life == b""


async def test_copy_is_not_stored_where_a_later_ledger_begins_meanwhile() -> None:
    rig = Rig(FORMER)

    def begin() -> None:
        rig.cluster.ledgers[3] = NOW
        rig.add(3, 0)

    rig.while_it_looks(begin)
    with pytest.raises(LedgerStateUnknown):
        await rig.copies.store(FORMER, 0, signed(3, 0))
    record = rig.storage.ledger(3)
    assert record is not None
    assert record.life == b""


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_copy_does_not_replace_an_entry_of_the_next_ledger_that_came_meanwhile(engine: str) -> None:
    """A copy of an earlier release began the record. The writer of the next ledger names no life, as Apache's."""
    rig = Rig(FORMER, engine=engine)
    rig.add(3, 0)
    assert rig.ledgers.states[3].hot_key == KEY
    acknowledged, hot_keys = signed(3, 1, size=33), []

    def write() -> None:
        rig.cluster.ledgers[3] = NOW
        hot_keys.append(rig.ledgers.states[3].hot_key)
        rig.add(3, 1, acknowledged)

    rig.while_it_looks(write)
    with pytest.raises(LedgerStateUnknown):
        await rig.copies.store(FORMER, 1, signed(3, 1))
    record = rig.storage.ledger(3)
    assert record is not None
    assert (rig.storage.read(3, 1), record.life) == (acknowledged, b"")
    assert hot_keys == [None], "nothing notices an entry on the hot path"


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_fence_that_is_refused_while_the_bookie_looks_counts(engine: str) -> None:
    """The memory of a former ledger refuses it, and tells the recovery that nothing is here."""
    rig = Rig(NOW, engine=engine)
    rig.ledgers.fenced_and_deleted.add(3)

    def fence() -> None:
        rig.cluster.ledgers[3] = NOW.in_recovery()
        with pytest.raises(NoSuchLedger):
            rig.operations.fence(3, KEY)

    rig.while_it_looks(fence)
    await rig.copies.store(NOW, 0, signed(3, 0))
    assert rig.ledgers.is_fenced(3)
    with pytest.raises(LedgerFenced):
        rig.add(3, 2, life=life_of(2))


async def test_busy_writer_that_names_no_life_does_not_keep_its_ledger_from_being_filled() -> None:
    rig = Rig(NOW)
    rig.add(3, 0)
    seen = rig.while_it_looks(lambda: rig.add(3, len(seen)), looks=10)
    await rig.copies.store(NOW, 1, signed(3, 1))
    assert len(seen) == MOST_LOOKS


async def test_ledger_that_is_fenced_at_each_look_is_not_filled_now() -> None:
    rig = Rig(NOW)
    rig.ledgers.fenced_and_deleted.add(3)

    def fence() -> None:
        with pytest.raises(NoSuchLedger):
            rig.operations.fence(3, KEY)

    rig.while_it_looks(fence, looks=LOOKS)
    with pytest.raises(LedgerStateUnknown):
        await rig.copies.store(NOW, 0, signed(3, 0))
    assert not rig.ledgers.is_known(3)


async def test_fences_of_strangers_keep_no_ledger_from_being_filled() -> None:
    rig = Rig(NOW)
    rig.ledgers.fenced_and_deleted.add(3)

    def fence() -> None:
        with pytest.raises(NoSuchLedger):
            rig.operations.fence(3, master_key(b"a guess"))

    seen = rig.while_it_looks(fence, looks=10)
    await rig.copies.store(NOW, 0, signed(3, 0))
    assert (seen, rig.ledgers.is_fenced(3)) == ([3], False)


async def test_next_ledger_of_the_id_is_not_closed_by_a_recovery_that_waited_for_its_turn() -> None:
    """The metadata are read ahead, and few recoveries are under way at a time."""
    former = [replace(metadata(each, {0: (ME, A)}), creation_token=1) for each in range(RECOVERIES_AT_ONCE + 1)]
    rig, last = Rig(*former), former[-1].ledger_id
    await rig.preboot()
    may_go_on, begun, recover = asyncio.Event(), [], rig.cluster.recover

    async def slow(life: LedgerLife) -> LedgerMetadata:
        begun.append(life.ledger_id)
        await may_go_on.wait()
        return await recover(life)

    rig.cluster.recover = slow  # type: ignore[method-assign]
    check = asyncio.create_task(rig.check.check())
    await until(lambda: len(begun) == RECOVERIES_AT_ONCE)
    rig.cluster.ledgers[last] = now = replace(former[-1], creation_token=2)
    may_go_on.set()
    assert not await check
    assert begun[-1] == last
    assert rig.cluster.ledgers[last] is now


OPEN = replace(metadata(3, {0: (ME, A)}), creation_token=2)
CLOSED = OPEN.closed(0, 1)
OTHERS = {
    "no password": LedgerRecord(NO_KEY),
    "another password": LedgerRecord(master_key(b"another")),
    "another life": LedgerRecord(KEY, life=life_of_copies(1)),
}
of_another = pytest.mark.parametrize("record", OTHERS.values(), ids=OTHERS)


def put_another(rig: Rig, record: LedgerRecord) -> bytes:
    """Store entry 0 of a stranger, or of a former ledger."""
    rig.storage.set_ledger(3, record)
    stored = signed(3, 0, size=9)
    rig.add(3, 0, stored, key=record.key, life=as_named(record.life))
    return stored


@of_another
@pytest.mark.parametrize("is_in_limbo", [False, True])
@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_entries_of_another_ledger_are_no_proof(engine: str, is_in_limbo: bool, record: LedgerRecord) -> None:
    rig = Rig(CLOSED, replace(CLOSED, ledger_id=9), engine=engine)
    await rig.preboot() if is_in_limbo else rig.storage.set_flags(NEEDS_INTEGRITY_CHECK)
    rig.storage.set_ledger(3, replace(record, limbo=is_in_limbo))
    stored = put_another(rig, replace(record, limbo=is_in_limbo))
    before = rig.storage.ledger(3)
    assert not await rig.check.check()
    assert (rig.flagged, rig.check.state.ledgers_failed, rig.storage.ledger(3)) == (True, 1, before)
    assert (rig.storage.read(3, 0), rig.limbo()[9]) == (stored, (True, False))


@of_another
async def test_limbo_of_another_ledger_does_not_close_the_open_one_and_is_not_left(record: LedgerRecord) -> None:
    rig = Rig(OPEN)
    rig.storage.set_ledger(3, replace(record, fenced=True, limbo=True))
    assert not await rig.check.check()
    assert rig.cluster.ledgers[3] is OPEN
    assert rig.limbo() == {3: (True, True)}
    rig.cluster.ledgers[3] = OPEN.closed(-1, 0)
    assert not await rig.check.check()
    assert rig.limbo() == {3: (True, True)}


@of_another
@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_copy_is_not_stored_under_the_key_or_life_of_another_ledger(engine: str, record: LedgerRecord) -> None:
    rig = Rig(CLOSED, engine=engine)
    put_another(rig, record)
    before = rig.storage.ledger(3)
    with pytest.raises(LedgerStateUnknown):
        await rig.copies.store(CLOSED, 1, signed(3, 1))
    assert (rig.storage.ledger(3), list(rig.storage.entry_ids(3))) == (before, [0])


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_entries_of_a_stranger_are_not_taken_over_before_the_start(engine: str) -> None:
    rig = Rig(CLOSED, engine=engine)
    put_another(rig, OTHERS["no password"])
    await rig.preboot()
    record = rig.storage.ledger(3)
    assert record is not None
    assert (record.key, record.limbo) == (NO_KEY, True)
    assert not await rig.check.check()
    assert rig.flagged


async def test_ledger_whose_key_is_not_known_here_gets_that_of_its_metadata() -> None:
    rig = Rig(CLOSED)
    rig.storage.set_ledger(3, LedgerRecord(b""))
    await rig.preboot()
    record = rig.storage.ledger(3)
    assert record is not None
    assert record.key == KEY
    assert await rig.check.check()


async def test_entries_without_a_life_count_under_the_life_of_a_former_ledger() -> None:
    """The writer of the ledger names no life, as Apache's. No other bookie need have its entries."""
    rig = Rig(CLOSED)
    rig.storage.set_ledger(3, LedgerRecord(KEY, limbo=True, life=life_of_copies(1)))
    rig.add(3, 0)
    assert await rig.check.check()
    assert rig.limbo() == {3: (False, False)}


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_ledger_without_a_key_gets_that_of_the_metadata(engine: str) -> None:
    """A rebuilt index has no keys: without that the next client would tell the key, perhaps a stranger."""
    rig = Rig(replace(metadata(3, {0: (ME, A)}, last=3), creation_token=2), engine=engine)
    for entry_id in range(4):
        rig.add(3, entry_id)
    rig.storage.flush()
    rig.storage.set_ledger(3, LedgerRecord(b"", fenced=True, limbo=True))
    rig.ledgers.states.clear()
    assert await rig.check.check()
    with pytest.raises(Unauthorized):
        rig.operations.fence(3, master_key(b"made up"))
    await rig.operations.fence(3, KEY)
