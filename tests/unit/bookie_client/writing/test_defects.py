"""A defect in what works for a writer in the background: every pending add ends, in order, with an error that names the
ledger."""

import asyncio
import logging

import pytest

from bookie_client.writing import pipeline
from bookie_client.writing.add_state import AddState
from bookie_client.writing.explicit_lac import LacAnnouncements
from bookie_client.writing.intake import BULK_BYTES, Outbox
from bookie_client.writing.pipeline import AddAges
from bookie_protocol.errors import CouldNotTell, LedgerClosed, QuorumLost, StorageFault
from tests.support.until import until

PATIENT = {"add_timeout": 60, "read_timeout": 60}


def broken(*_):
    raise ZeroDivisionError("a bug")


async def ended(futures):
    """The order in which they ended, and with what."""
    order = []
    for i, future in enumerate(futures):
        future.add_done_callback(lambda _, i=i: order.append(i))
    async with asyncio.timeout(20):
        results = await asyncio.gather(*futures, return_exceptions=True)
    return order, results


async def check_ended(ledger, futures, work, caplog):
    order, errors = await ended(futures)
    assert order == list(range(len(futures)))
    assert [type(error) for error in errors] == [CouldNotTell] * len(futures)
    for i, error in enumerate(errors):
        assert f"ledger 0, entry {ledger.last_add_confirmed + 1 + i}" in str(error)
    with pytest.raises(CouldNotTell, match=rf"ledger 0: {work} failed: ZeroDivisionError\('a bug'\)"):
        await ledger.flush()
    with pytest.raises(LedgerClosed):
        await ledger.append(b"more")
    told = [record for record in caplog.records if "background work failed" in record.getMessage()]
    assert [record.exc_info[0] for record in told] == [ZeroDivisionError]


async def test_in_an_ensemble_change(three, monkeypatch, caplog):
    await three.add_bookie("b4")
    monkeypatch.setattr(AddState, "ensemble_changed", broken)
    async with three.client(**PATIENT) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3)
        three.bookie(ledger.metadata.last_ensemble[0]).fail_adds = StorageFault
        await check_ended(ledger, [await ledger.submit(b"x") for _ in range(3)], "ensemble change", caplog)
        await ledger.close()
        assert three.stored(0).last_entry_id == -1


async def test_while_degraded_positions_are_mended(three, monkeypatch, caplog):
    hold = asyncio.Event()

    async def mend(*_):
        await hold.wait()
        broken()

    monkeypatch.setattr(pipeline, "mend", mend)
    async with three.client(**PATIENT) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        three.bookie("b1").fail_adds = StorageFault
        await ledger.append(b"x")
        await until(lambda: ledger.degraded)
        three.servers["b2"].silent = True
        futures = [await ledger.submit(b"x") for _ in range(3)]
        hold.set()
        await check_ended(ledger, futures, "mending", caplog)
        await ledger.close()


async def test_in_the_quorum_watch(three, monkeypatch, caplog):
    async with three.client(**PATIENT, add_quorum_timeout=0.04) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=3)
        await ledger.append(b"x")
        three.servers["b1"].silent = True
        futures = [await ledger.submit(b"x") for _ in range(3)]
        monkeypatch.setattr(AddAges, "tick", broken)
        await check_ended(ledger, futures, "quorum time-out", caplog)
        await ledger.close()


@pytest.mark.parametrize(("size", "count"), [(1, 3), (BULK_BYTES, 2)])  # sent at the end of the turn, or by the second
async def test_in_sending(three, monkeypatch, caplog, size, count):
    async with three.client(**PATIENT) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        await ledger.append(b"x")
        monkeypatch.setattr(Outbox, "_frames", broken)
        await check_ended(ledger, [await ledger.submit(bytes(size)) for _ in range(count)], "sending", caplog)
        await ledger.close()


async def test_in_delivering(three, monkeypatch, caplog):
    async with three.client(**PATIENT) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        futures = [await ledger.submit(b"x") for _ in range(3)]
        monkeypatch.setattr(AddState, "deliver", broken)
        await check_ended(ledger, futures, "delivering", caplog)
        await ledger.close()


async def test_in_taking_a_refusal_tells_other_ledgers_of_the_connection_all_the_same(three, monkeypatch, caplog):
    refused = AddState.refused

    def broken_for_the_first(state, *arguments):
        return broken() if state.ledger_id == 0 else refused(state, *arguments)

    async with three.client(**PATIENT) as client:
        ledger, other = [await client.create(write_quorum=3, ack_quorum=3) for _ in range(2)]
        three.servers["b1"].silent = True
        futures = [await ledger.submit(b"x") for _ in range(3)]
        pending = await other.submit(b"y")
        await until(lambda: three.servers["b1"].bookie.ledgers.keys() >= {0, 1})
        monkeypatch.setattr(AddState, "refused", broken_for_the_first)
        await three.servers["b1"].stop()
        await check_ended(ledger, futures, "taking a refusal", caplog)
        with pytest.raises(QuorumLost):
            await pending
        await ledger.close()


async def test_a_defect_of_explicit_lac_is_logged_and_ends_nothing(three, monkeypatch, caplog):
    calls = []
    due = LacAnnouncements.due

    def broken_at_first(announcements, piggy_backed, lac):
        calls.append(lac)
        return due(announcements, piggy_backed, lac) if len(calls) > 2 else broken()

    monkeypatch.setattr(LacAnnouncements, "due", broken_at_first)
    async with three.client(explicit_lac_interval=0.01) as client, client.create(write_quorum=3) as ledger:
        await ledger.append(b"x")
        await until(lambda: all(server.bookie.ledgers[0].explicit_lac for server in three.servers.values()))
        assert ledger.failure is None
    told = [record for record in caplog.records if "explicit LAC failed" in record.getMessage()]
    assert [(record.levelno, record.exc_info[0]) for record in told] == [(logging.ERROR, ZeroDivisionError)] * 2
