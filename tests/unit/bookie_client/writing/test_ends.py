"""How a writer's handle ends, and goes on without bookies that come back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bookie_client.writing.pending_add import PendingAdd
from bookie_protocol.errors import LedgerClosed, MetadataUnavailable, QuorumLost, StorageFault
from tests.support.until import until

ABC = ("b1", "b2", "b3")


def unclosable(monkeypatch, writer):
    async def close():
        raise MetadataUnavailable("no answer")

    monkeypatch.setattr(writer, "close", close)


async def test_that_it_could_not_be_closed_is_told_unless_there_is_an_error_already(three, monkeypatch, caplog):
    async with three.client() as client:
        with pytest.raises(MetadataUnavailable):
            async with client.create(write_quorum=3) as writer:
                unclosable(monkeypatch, writer)
        assert caplog.records == []
        with pytest.raises(ZeroDivisionError):
            async with client.create(write_quorum=3) as writer:
                unclosable(monkeypatch, writer)
                raise ZeroDivisionError
        assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["ledger"]


async def test_an_append_that_nobody_waited_for_fails_the_block(three):
    for name in ABC:
        three.bookie(name).fail_adds = StorageFault
    async with three.client() as client:
        with pytest.raises(QuorumLost):
            async with client.create(write_quorum=3) as writer:
                await writer.submit(b"x")
        with pytest.raises(ZeroDivisionError):
            async with client.create(write_quorum=3) as writer:
                await writer.submit(b"x")
                raise ZeroDivisionError
        with pytest.raises(LedgerClosed):
            await writer.append(b"y")


async def test_a_defect_while_entries_are_forced_is_raised_as_it_is(three, monkeypatch):
    async with three.client() as client, client.create(write_quorum=3, deferred_sync=True) as writer:

        async def broken(bookie, ledger_id):
            raise ZeroDivisionError

        await writer.append(b"x")
        with monkeypatch.context() as patched:
            patched.setattr(client.operations, "force_ledger", broken)
            with pytest.raises(ZeroDivisionError):
                await writer.force()
        assert writer.last_add_confirmed == -1
        await writer.force()
        assert writer.last_add_confirmed == 0


@pytest.mark.parametrize("spare", [False, True])
async def test_a_position_that_is_gone_without_is_filled_when_somebody_can(three, spare):
    """By the bookie that comes back, or by a new one."""
    async with three.client() as client, client.create(write_quorum=3, ack_quorum=2) as writer:
        three.bookie("b3").fail_adds = StorageFault
        await writer.append(b"x")
        await until(lambda: writer._state.late_failures or writer.degraded)
        await writer.append(b"y")
        await until(lambda: writer.degraded)
        position = next(iter(writer.degraded))
        if spare:
            await three.add_bookie("b4")
        else:
            three.bookie("b3").fail_adds = None
        await until(lambda: not writer.degraded)
        await writer.append(b"z")
        filled = "b4" if spare else "b3"
        assert writer._state.ensemble[position] == filled
        await until(lambda: 2 in three.held_at(filled, writer.ledger_id))


def test_an_answer_in_so_many_words_counts_as_any():
    told = []
    add = PendingAdd(0, 1, ABC)
    add.handle = SimpleNamespace(acknowledged=lambda *which: told.append(which))
    add.accepted("b1", None)
    assert told == [(add, "b1")]
