"""The read of one entry by a recovery: whom it waits for, and what it leaves behind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from bookie_client.connection.operations import BookieOperations
from bookie_client.recovery.forward_read import RecoveryParts, read_forward
from bookie_client.recovery.recovery import LedgerEnd, Rewriter, _Forward, _with_end, find_end
from bookie_protocol.errors import QuorumLost, StorageFault
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.versioned import UNSTORED, Versioned
from tests.support.until import until
from tests.unit.bookie_client.recovery.crashed import LEDGER, CrashedLedger, length_of, payload

ABC = ("b1", "b2", "b3")


def parts_of(client, ledger):
    return RecoveryParts(client.context, Versioned(ledger.metadata, UNSTORED), ledger.digest, ledger.key)


@pytest.fixture
def under_way(monkeypatch):
    """Bookies that are being asked, and for which entry. Those in `silent`, bookies and entries, get no answer, and
    giving up takes a while."""
    asked, silent, read_entry = [], set(), BookieOperations.read_entry

    async def reading(self, bookie, *given, **options):
        asked.append((bookie, given[1]))
        try:
            if bookie in silent or given[1] in silent:
                await asyncio.Event().wait()
            return await read_entry(self, bookie, *given, **options)
        except asyncio.CancelledError:
            for _ in range(20):
                await asyncio.sleep(0)
            raise
        finally:
            asked.remove((bookie, given[1]))

    monkeypatch.setattr(BookieOperations, "read_entry", reading)
    return SimpleNamespace(now=asked, silent=silent)


async def test_the_next_replica_is_asked_when_one_is_slow_and_nothing_is_left_behind(three, under_way):
    ledger = CrashedLedger(three, (3, 3, 2), {0: ABC})
    ledger.put_all(0, 1)
    first = ledger.metadata.bookies_for(1)[0]
    under_way.silent.add(first)
    async with three.client(first_speculative_read_timeout=0.001) as client, asyncio.timeout(5):
        found = await read_forward(parts_of(client, ledger), 1)
        assert under_way.now == []
    assert (found.entry_id, found.payload, found.length) == (1, payload(1), length_of(1))


async def test_without_speculation_the_next_replica_waits_for_the_first(three, under_way):
    ledger = CrashedLedger(three, (3, 3, 2), {0: ABC})
    ledger.put_all(0)
    first = ledger.metadata.bookies_for(0)[0]
    under_way.silent.add(first)
    async with three.client(first_speculative_read_timeout=0) as client:
        reading = asyncio.ensure_future(read_forward(parts_of(client, ledger), 0))
        for _ in range(10):
            await asyncio.sleep(0)
        assert under_way.now == [(first, 0)]
        reading.cancel()
        await asyncio.wait([reading])
        assert under_way.now == []


async def test_what_was_read_ahead_has_ended_when_a_recovery_fails(three, under_way):
    ledger = CrashedLedger(three, (3, 3, 2), {0: ABC})
    ledger.put_all(0, 1)
    for name in ABC:
        three.bookie(name).fail_adds = StorageFault
    async with three.client() as client:
        with pytest.raises(QuorumLost):
            await find_end(parts_of(client, ledger))
        assert under_way.now == []


async def test_what_was_read_ahead_has_ended_when_a_recovery_is_given_up(three, under_way, monkeypatch):
    closed, close = [], Rewriter.close

    async def noting(self):
        await close(self)
        closed.append(self.lac)

    monkeypatch.setattr(Rewriter, "close", noting)
    ledger = CrashedLedger(three, (3, 3, 2), {0: ABC})
    ledger.put_all(0, 1)
    under_way.silent |= {2, 3, 4}
    async with three.client() as client:
        recovering = asyncio.ensure_future(find_end(parts_of(client, ledger)))
        await until(lambda: {2, 3, 4} <= {entry_id for _, entry_id in under_way.now})
        recovering.cancel()
        await asyncio.wait([recovering])
        assert (under_way.now, len(closed)) == ([], 1)


@pytest.mark.parametrize(("start", "kept"), [(4, [5]), (5, [5, 6]), (6, [5, 6])])
async def test_segments_that_were_reached_behind_the_end_are_dropped(three, start, kept):
    ledger = CrashedLedger(three, (3, 3, 2), {0: ABC})
    async with three.client() as client:
        forward = _Forward(parts_of(client, ledger), 3)
        forward._rewriter.segments |= {5: ABC, 6: ABC}
        assert list(forward.segments(start + 1)) == kept
        await forward.close()


def test_the_end_is_stored_with_its_segments_in_their_order():
    before = LedgerMetadata(LEDGER, 3, 3, 2, {0: ABC}, LedgerState.IN_RECOVERY)
    end = LedgerEnd(9, 90, {7: ("b1", "b2", "s2"), 4: ("b1", "b2", "s1")}, 5)
    after = _with_end(before, end)
    assert (after.state, after.last_entry_id, after.length) == (LedgerState.CLOSED, 9, 90)
    assert dict(after.ensembles) == {0: ABC, 4: ("b1", "b2", "s1"), 7: ("b1", "b2", "s2")}
