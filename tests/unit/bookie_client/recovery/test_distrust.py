"""Bookies that lost entries of a ledger: what they deny ends no ledger."""

import pytest

from bookie_client import patience
from bookie_client.access import access_to
from bookie_client.recovery.recovery import recover_ledger
from bookie_protocol.digest import DigestType
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import RecoveryFailed, TooManyRequests
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.unit.bookie_client.recovery.crashed import ABC, LEDGER, crashed


async def recover(client, *distrusted, **options):
    stored = await client.stored_metadata(LEDGER)
    access = access_to(stored.value, None, DigestType.CRC32C)
    return (await recover_ledger(client.context, stored, access, frozenset(distrusted), **options)).value


async def emptied(cluster, *bookies):
    """A ledger of six entries, acknowledged by all; these bookies came back with empty disks."""
    ledger = await crashed(cluster)
    ledger.put_all(*range(6))
    for bookie in bookies:
        cluster.bookie(bookie).ledgers.clear()
    return ledger


async def acknowledged_by_two(cluster):
    """The last entry reached its ack quorum on the first and the third bookie; the first one came back empty."""
    ledger = await crashed(cluster)
    ledger.put_all(*range(5))
    first, _, third = ledger.metadata.bookies_for(5)
    ledger.put(5, first, third)
    cluster.bookie(first).ledgers.clear()
    return ledger, first


async def test_the_only_copy_that_is_left_counts(cluster):
    ledger, first = await acknowledged_by_two(cluster)
    async with cluster.client() as client:
        await recover(client, first)
        ledger.check(5)


async def test_on_its_word_the_ledger_would_be_closed_short(cluster):
    """Which is what the protocol says where nobody knows that a bookie lost anything."""
    await acknowledged_by_two(cluster)
    async with cluster.client() as client:
        assert (await recover(client)).last_entry_id == 4


async def test_the_others_still_end_the_ledger(cluster):
    ledger = await emptied(cluster, "b1")
    async with cluster.client() as client:
        await recover(client, "b1")
        ledger.check(5)
    assert all(ledger.fenced(bookie) for bookie in ABC)


async def test_without_enough_others_nobody_can_tell_the_end(cluster):
    ledger = await emptied(cluster, "b1", "b2")
    async with cluster.client() as client:
        with pytest.raises(RecoveryFailed, match="lost"):
            await recover(client, "b1", "b2")
        assert ledger.stored.state is LedgerState.IN_RECOVERY


@pytest.fixture
def refuses(cluster, monkeypatch):
    """Let a bookie refuse the first read of each of some entries, as one that is busy or hangs up."""
    monkeypatch.setattr(patience, "HEARD_SECONDS", 0.001)

    def once(name, entry_ids, hangs_up):
        server, left = cluster.servers[name], set(entry_ids)
        read = server.bookie.read

        def refusing(ledger_id, entry_id, fence_key=None):
            if entry_id in left:
                left.discard(entry_id)
                if hangs_up:
                    for connection in list(server.connections):
                        connection.abort()
                raise TooManyRequests("not now")
            return read(ledger_id, entry_id, fence_key)

        monkeypatch.setattr(server.bookie, "read", refusing)
        return left

    return once


@pytest.mark.parametrize("hangs_up", [False, True], ids=["busy", "hangs up"])
async def test_a_bookie_that_refuses_once_is_heard(cluster, refuses, hangs_up):
    """Only the third bookie can tell of the last entry, which it acknowledged with the first one, empty by now."""
    ledger, _ = await acknowledged_by_two(cluster)
    left = refuses(ledger.metadata.bookies_for(5)[2], [5, LAST_ENTRY], hangs_up)
    async with cluster.client(reconnect_delay=1e-6) as client:  # else a connection that ends so young counts as down
        assert (await recover(client, hears_all=True)).last_entry_id == 5
    assert not left


async def test_a_bookie_that_stays_busy_is_not_waited_for_without_end(cluster, monkeypatch):
    monkeypatch.setattr(patience, "HEARD_SECONDS", 0.001)
    ledger = await crashed(cluster)
    ledger.put_all(*range(5))
    cluster.bookie("b1").fail_reads = TooManyRequests
    async with cluster.client() as client:
        assert (await recover(client, hears_all=True)).last_entry_id == 4
