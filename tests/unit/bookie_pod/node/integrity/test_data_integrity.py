"""Limbo before serving, and the check that ends it: over an engine in memory, a dictated cluster, and its failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import pytest

from bookie_pod.node.integrity.full_check import expected_entries
from bookie_pod.node.integrity.preboot import forget_marks
from bookie_pod.node.integrity.replicas import FetchedEntry
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.gc.throttle import ScrubPace
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_pod.storage.index_rebuild.online import LocationsRebuild
from bookie_pod.storage.index_rebuild.state import RebuildState
from bookie_protocol.errors import (
    BookieReadOnly,
    LedgerDeleted,
    LedgerStateUnknown,
    MetadataUnavailable,
    NoSuchEntry,
)
from bookie_protocol.keys import master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from tests.support.integrity_rig import ALL_ENGINES, ME, A, B, C, Rig, metadata
from tests.support.memory_files import MemoryFiles
from tests.support.memtable_engine import ENGINES
from tests.support.scrub_rig import signed
from tests.support.storage_engine import entry, put
from tests.support.until import until

CLOSED = metadata(1, {0: (ME, A)}, last=3)
OPEN = metadata(2, {0: (ME, A)})
EARLIER = metadata(3, {0: (ME, A), 2: (A, B)})
OTHERS = metadata(4, {0: (A, B)}, last=3)
STRIPED = metadata(5, {0: (A, ME, B), 4: (C, A, B), 7: (B, C, ME)}, last=9, write_quorum=2)


@pytest.mark.parametrize(
    ("ledger", "entries"),
    [
        (CLOSED, [0, 1, 2, 3]),
        (OPEN, []),
        (EARLIER, [0, 1]),
        (OTHERS, []),
        (STRIPED, [0, 1, 3, 7, 8]),
        (metadata(6, {0: (ME, A)}, last=-1), []),
        (metadata(7, {0: (ME, A), 5: (ME, B)}, last=2), [0, 1, 2]),
    ],
)
def test_what_the_metadata_place_here(ledger: LedgerMetadata, entries: Sequence[int]) -> None:
    assert list(expected_entries(ledger, ME)) == entries
    closed_by_rule = [
        each for each in range(ledger.last_entry_id + 1) if ledger.is_closed and ME in ledger.bookies_for(each)
    ]
    assert not ledger.is_closed or closed_by_rule == list(entries)


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_limbo_before_serving(engine: str) -> None:
    rig = Rig(CLOSED, OPEN, EARLIER, OTHERS, engine=engine)
    assert await rig.preboot() == 3
    rig.restart()
    assert rig.flagged
    assert rig.limbo() == {1: (True, True), 2: (True, True), 3: (False, True)}
    record = rig.storage.ledger(1)
    assert record is not None
    assert record.key == master_key(b"pw")
    for ledger_id in (1, 2, 3):
        with pytest.raises(LedgerStateUnknown):
            rig.storage.read(ledger_id, 0)
        with pytest.raises(LedgerStateUnknown):
            rig.storage.last_entry_id(ledger_id)
    rig.storage.close()


async def test_a_recovery_that_replaced_this_bookie_may_have_fenced_it_before() -> None:
    rig = Rig(replace(EARLIER, state=LedgerState.IN_RECOVERY))
    assert await rig.preboot() == 1
    assert rig.limbo() == {3: (True, True)}
    assert await rig.check.check()
    assert rig.cluster.ledgers[3].is_closed
    assert rig.limbo() == {3: (True, False)}
    rig.storage.close()


async def test_a_closed_ledger_that_came_here_later_is_fenced_when_its_entries_are_copied() -> None:
    rig = Rig(CLOSED)
    await rig.preboot()
    rig.cluster.ledgers[7] = metadata(7, {0: (ME, A)}, last=2)
    rig.cluster.ledgers[8] = metadata(8, {0: (ME, A), 2: (A, B)})
    assert await rig.check.check()
    assert rig.limbo() == {1: (True, False), 7: (True, False), 8: (False, False)}
    assert rig.storage.read(7, 2) == signed(7, 2)
    rig.storage.close()


async def test_what_is_there_is_served_in_limbo() -> None:
    rig = Rig(CLOSED)
    put(rig.storage, signed(1, 2))
    await rig.preboot()
    assert rig.storage.read(1, 2) == signed(1, 2)
    rig.storage.close()


async def test_without_metadata_the_start_fails() -> None:
    rig = Rig(CLOSED)
    rig.cluster.down = True
    with pytest.raises(MetadataUnavailable):
        await rig.preboot()
    rig.storage.close()


async def test_of_a_bookie_that_no_ledger_names_nothing_is_to_be_checked() -> None:
    rig = Rig(OTHERS)
    assert await rig.preboot() == 0
    assert not rig.flagged
    rig.storage.close()


async def test_a_ledger_with_damaged_metadata_is_taken_for_ours_until_it_can_be_read() -> None:
    rig = Rig(CLOSED, OTHERS)
    rig.cluster.damaged.add(4)
    assert await rig.preboot() == 2
    assert rig.limbo() == {1: (True, True), 4: (True, True)}
    assert not await rig.check.check(), "nobody knows what belongs here"
    assert rig.limbo() == {1: (True, False), 4: (True, True)}, "the others are healed all the same"
    rig.storage.close()


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_the_check_brings_everything_back(engine: str) -> None:
    rig = Rig(CLOSED, OPEN, EARLIER, OTHERS, STRIPED, engine=engine)
    rig.add(1, 2)
    await rig.preboot()
    assert await rig.check.check()
    assert not rig.flagged
    assert (1, 2) not in rig.cluster.fetched
    assert rig.check.state.ledgers_recovered == 1
    rig.restart()
    for ledger_id, entries in ((1, range(4)), (2, range(4)), (3, range(2)), (5, [0, 1, 3, 7, 8])):
        assert {each: rig.storage.read(ledger_id, each) for each in rig.storage.entry_ids(ledger_id)} == {
            each: signed(ledger_id, each) for each in entries
        }
        with pytest.raises(NoSuchEntry):
            rig.storage.read(ledger_id, 50)
    assert rig.limbo()[2] == (True, False), "the fence stays"
    rig.storage.close()


Breaking = Callable[[Rig], None]


def _nobody_has_it(rig: Rig) -> None:
    rig.cluster.unreachable.add((1, 1))


def _no_recovery(rig: Rig) -> None:
    rig.cluster.end = -2


def _full(rig: Rig) -> None:
    rig.writable = False


def _denied(rig: Rig) -> None:
    rig.cluster.denied.add(1)


@pytest.mark.parametrize(
    ("broken", "failed"),
    [(_nobody_has_it, {1}), (_no_recovery, {2}), (_full, {1, 2}), (_denied, {1})],
    ids=["nobody", "recovery", "full", "a bookie's word is no deletion"],
)
async def test_a_ledger_that_failed_stays_in_limbo_and_is_tried_again(broken: Breaking, failed: set[int]) -> None:
    rig = Rig(CLOSED, OPEN)
    await rig.preboot()
    broken(rig)
    first = await rig.check.check()
    assert (first, rig.flagged) == (False, True)
    assert {ledger_id for ledger_id, (_, limbo) in rig.limbo().items() if limbo} == failed
    assert rig.check.state.ledgers_failed == len(failed)
    assert rig.check.state.last_error
    rig.cluster.unreachable.clear()
    rig.cluster.denied.clear()
    rig.cluster.end, rig.writable = 3, True
    again = await rig.check.check()
    assert (again, rig.flagged) == (True, False)
    rig.storage.close()


async def test_a_ledger_that_was_deleted_is_done() -> None:
    rig = Rig(CLOSED, OPEN)
    await rig.preboot()
    del rig.cluster.ledgers[1], rig.cluster.ledgers[2]
    assert await rig.check.check()
    assert not rig.flagged
    rig.storage.close()


async def test_a_ledger_that_is_deleted_in_the_middle_of_its_check_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, and in the cluster."""
    rig = Rig(CLOSED)
    await rig.preboot()
    put(rig.storage, *(entry(CLOSED.ledger_id, each) for each in range(2)))
    rig.storage.flush()
    assert isinstance(rig.storage, DbLedgerStorage)
    locations = rig.storage.directories[0].locations
    listed = locations.rows

    def and_then_deleted(ledger_id: int) -> Iterator[tuple[int, int]]:
        yield from listed(ledger_id)
        rig.storage.delete_ledger(ledger_id)

    async def fetch(of: LedgerMetadata, _: object) -> AsyncIterator[object]:
        raise LedgerDeleted(f"ledger {of.ledger_id}")
        yield

    monkeypatch.setattr(locations, "rows", and_then_deleted)
    monkeypatch.setattr(rig.cluster, "fetch", fetch)
    assert await rig.check.check()
    assert (rig.check.state.ledgers_failed, rig.flagged) == (0, False)
    rig.storage.close()


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_a_replaced_bookie_denies_nothing_of_an_open_ledger_and_takes_its_adds(engine: str) -> None:
    rig = Rig(EARLIER, engine=engine)
    await rig.preboot()
    rig.restart()
    with pytest.raises(LedgerStateUnknown):
        rig.storage.read(3, 0)
    rig.add(3, 5)  # its writer has come back here
    assert rig.storage.read(3, 5) == signed(3, 5)
    assert await rig.check.check()
    assert (rig.check.state.ledgers_recovered, rig.limbo()) == (0, {3: (False, False)})
    assert [rig.storage.read(3, each) for each in range(2)] == [signed(3, each) for each in range(2)]
    rig.storage.close()


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_limbo_is_healed_whoever_set_it(engine: str) -> None:
    """Without the flag, and without a look at ledgers that are not in limbo."""
    rig = Rig(CLOSED, STRIPED, engine=engine)
    rig.put_in_limbo(1)
    rig.put_in_limbo(99)  # the cluster does not know it any more
    assert not rig.flagged
    await rig.check.run()
    assert {ledger_id for ledger_id, _ in rig.cluster.fetched} == {1}
    assert rig.limbo()[1] == (False, False)
    assert list(rig.storage.entry_ids(1)) == [0, 1, 2, 3]
    assert (rig.check.state.needed, rig.check.state.in_limbo) == (False, 1)
    rig.storage.close()


async def test_a_ledger_that_is_written_here_stays_in_limbo_until_it_is_closed() -> None:
    """Its writer is let go on, and its last entries are not denied: some of them may be what was lost."""
    rig = Rig(metadata(2, {0: (ME, A), 2: (ME, B)}))
    rig.put_in_limbo(2)
    assert not await rig.check.check()
    assert (rig.check.state.ledgers_failed, rig.check.state.ledgers_open) == (0, 1)
    assert list(rig.storage.entry_ids(2)) == [0, 1]
    with pytest.raises(LedgerStateUnknown):
        rig.storage.read(2, 2)
    rig.add(2, 3)
    rig.cluster.ledgers[2] = rig.cluster.ledgers[2].closed(3, 1)
    assert await rig.check.check()
    assert list(rig.storage.entry_ids(2)) == [0, 1, 2, 3]
    rig.storage.close()


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_what_the_index_places_into_logs_that_are_gone_is_missing(engine: str) -> None:
    rig = Rig(CLOSED, engine=engine)
    for each in range(4):
        rig.add(1, each)
    rig.storage.flush()
    rig.storage.close()
    for name in rig.bookie.files.listdir("/ledgers0"):
        if name.endswith(".log"):
            rig.bookie.files.unlink(f"/ledgers0/{name}")
    rig.storage = rig.bookie.open()
    rig.make()
    await rig.preboot()
    assert await rig.check.check()
    assert rig.check.state.entries_copied == 4
    rig.restart()
    assert [rig.storage.read(1, each) for each in range(4)] == [signed(1, each) for each in range(4)]
    rig.storage.close()


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_lost_index_file_is_healed(engine: str) -> None:
    rig = Rig(CLOSED, engine=engine)
    put(rig.storage, *(signed(1, each) for each in range(4)))
    rig.storage.flush()
    rig.storage.close()
    rig.bookie.files.unlink("/ledgers0/0/1/1.idx")
    rig.storage = rig.bookie.open()
    rig.make()
    with pytest.raises(LedgerStateUnknown):
        rig.storage.read(1, 0)
    await rig.check.run()
    assert (rig.check.state.entries_copied, rig.limbo()) == (4, {1: (True, False)})
    rig.restart()
    assert list(rig.storage.entry_ids(1)) == [0, 1, 2, 3]
    rig.storage.close()


async def test_ledgers_in_limbo_since_the_start_are_compared_on_request() -> None:
    rig = Rig(CLOSED)
    service = asyncio.create_task(rig.check.serve())
    await until(lambda: rig.check._requested._waiters)  # type: ignore[attr-defined]
    rig.put_in_limbo(1)
    rig.check.request()
    await until(lambda: rig.limbo() == {1: (False, False)})
    assert list(rig.storage.entry_ids(1)) == [0, 1, 2, 3]
    service.cancel()
    rig.storage.close()


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_what_may_be_lost_since_a_comparison_began_is_compared_again(engine: str) -> None:
    rig = Rig(CLOSED, engine=engine)
    await rig.preboot()
    storage = rig.storage.directories[0] if isinstance(rig.storage, DbLedgerStorage) else rig.storage
    fetch, turns = rig.cluster.fetch, 0

    async def fetch_and_lose(of: LedgerMetadata, entry_ids: Iterable[int]) -> AsyncIterator[FetchedEntry]:
        nonlocal turns
        turns += 1
        if turns == 1:
            storage.put_in_limbo([of.ledger_id])
        async for found in fetch(of, entry_ids):
            yield found

    rig.cluster.fetch = fetch_and_lose  # type: ignore[method-assign]
    assert not await rig.check.check()
    assert rig.flagged
    assert rig.limbo() == {1: (True, True)}
    assert await rig.check.check()
    assert not rig.flagged
    assert rig.limbo() == {1: (True, False)}
    rig.storage.close()


async def test_a_flag_that_a_rebuild_sets_is_not_cleared_by_a_check_that_ends_then() -> None:
    rig = Rig(CLOSED)
    await rig.preboot()
    assert isinstance(rig.storage, DbLedgerStorage)
    directory = rig.storage.directories[0]
    rebuild = LocationsRebuild(
        directory,
        rig.bookie.files,
        ScrubPace(threading.Event(), entries_per_second=0, bytes_per_second=0),
        RebuildState("/ledgers0"),
        lambda ledger_id, log_id: False,
    )
    rebuild._unread = {1}
    begun, ended, put_in_limbo = threading.Event(), threading.Event(), directory.put_in_limbo

    def slow(ledger_ids: Collection[int]) -> None:
        begun.set()
        ended.wait()
        put_in_limbo(ledger_ids)

    directory.put_in_limbo = slow  # type: ignore[method-assign]
    rebuilding = asyncio.create_task(asyncio.to_thread(rebuild._put_in_limbo))
    await asyncio.to_thread(begun.wait)
    await rig.check.check()
    ended.set()
    await rebuilding
    assert rig.flagged
    rig.storage.close()


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_a_flag_is_not_cleared_behind_a_doubt(engine: str) -> None:
    rig = Rig(CLOSED, engine=engine)
    rig.storage.set_flags(NEEDS_INTEGRITY_CHECK)
    storage = rig.storage.directories[0] if isinstance(rig.storage, DbLedgerStorage) else rig.storage
    doubts = rig.storage.doubts
    storage.put_in_limbo([])
    assert not rig.storage.clear_flags(NEEDS_INTEGRITY_CHECK, doubts)
    assert rig.flagged
    assert rig.storage.clear_flags(NEEDS_INTEGRITY_CHECK, rig.storage.doubts)
    assert not rig.flagged
    rig.storage.close()


@pytest.mark.parametrize("engine", ALL_ENGINES)
async def test_damage_that_puts_nothing_in_limbo_asks_for_no_check(engine: str) -> None:
    rig = Rig(CLOSED, engine=engine)
    service = asyncio.create_task(rig.check.serve())
    await until(lambda: rig.check._requested._waiters)  # type: ignore[attr-defined]
    rig.check.request_if_doubted()
    assert not rig.check._requested.is_set()
    storage = rig.storage.directories[0] if isinstance(rig.storage, DbLedgerStorage) else rig.storage
    rig.storage.set_master_key(1, master_key(b"pw"))
    storage.put_in_limbo([1])
    rig.check.request_if_doubted()
    await until(lambda: rig.limbo() == {1: (False, False)})
    service.cancel()
    rig.storage.close()


async def test_the_service_runs_until_nothing_is_left() -> None:
    rig = Rig(CLOSED)
    await rig.preboot()
    rig.cluster.down = True
    task = asyncio.create_task(rig.check.run())
    await until(lambda: rig.check.state.last_error)
    rig.cluster.down = False
    await task
    assert not rig.flagged
    rig.storage.close()


async def test_a_read_only_bookie_takes_no_copies() -> None:
    rig = Rig(CLOSED)
    rig.writable = False
    with pytest.raises(BookieReadOnly):
        await rig.check._copies.store(CLOSED, 0, signed(1, 0))
    rig.storage.close()


async def test_copies_keep_the_key_that_is_known() -> None:
    """Metadata of older formats do not tell the password."""
    rig = Rig(CLOSED)
    rig.add(1, 0, key=b"another")
    before = rig.storage.ledger(1)
    await rig.copies.store(replace(CLOSED, password=None, digest_type=None), 1, signed(1, 1))
    await rig.copies.settle()
    assert (rig.storage.ledger(1), rig.storage.read(1, 1)) == (before, signed(1, 1))
    rig.storage.close()


def test_marks_of_journals_that_are_gone_are_forgotten() -> None:
    files = MemoryFiles()
    for folder in ("/j0", "/j1", "/l0", "/l1"):
        files.makedirs(folder)
    files.write_bytes("/j1/1a.txn", b"BKLG")
    for name in ("/l0/lastMark.0", "/l1/lastMark.0", "/l0/lastMark.1"):
        files.write_bytes(name, bytes(16))
    forget_marks(files, ["/j0", "/j1"], ["/l0", "/l1"])
    assert [files.listdir("/l0"), files.listdir("/l1")] == [["lastMark.1"], []]
