"""Errors of writing a ledger and of closing it."""

from __future__ import annotations

import pytest

from bookie_client import Client, ClientOptions
from bookie_protocol.errors import (
    BadRequest,
    BookieTimeout,
    DuplicateEntry,
    LedgerClosed,
    LedgerFenced,
    LedgerIdInUse,
    MetadataNotFound,
    MetadataVersionConflict,
    QuorumLost,
)
from tests.process.client_errors.ledgers import PASSWORD, written
from tests.support.until import until

BOOKIES = 3
"""An ensemble, and no spare."""


async def test_appends_that_lose_their_quorum(cluster, impatient):
    ledger = await written(impatient)
    with cluster.paused(ledger.metadata.last_ensemble[1:]):
        with pytest.raises(QuorumLost, match=f"ledger {ledger.ledger_id}, entry 5"):
            await ledger.append(b"lost")
        with pytest.raises(LedgerClosed, match=f"ledger {ledger.ledger_id}: .*failed"):
            await ledger.append(b"behind it")
        with pytest.raises(QuorumLost, match=f"entry 5 of ledger {ledger.ledger_id} "):
            await ledger.flush()
        with pytest.raises(LedgerClosed, match=f"ledger {ledger.ledger_id}: "):
            await ledger.force()
    await ledger.close()
    assert (await impatient.metadata(ledger.ledger_id)).last_entry_id == 4


async def test_more_ensemble_changes_and_longer_waits_than_allowed(cluster):
    async with Client(cluster.uri, ClientOptions(add_timeout=0.3, max_ensemble_changes=0)) as client:
        ledger = await written(client, ack_quorum=3)
        hung = ledger.metadata.last_ensemble[0]
        what = f"ledger {ledger.ledger_id}, entry 5 .*max_ensemble_changes.*{hung}"
        with cluster.paused([hung]), pytest.raises(QuorumLost, match=what):
            await ledger.append(b"lost")
    async with Client(cluster.uri, ClientOptions(add_timeout=20.0, add_quorum_timeout=0.3)) as client:
        ledger = await written(client, ack_quorum=3)
        with (
            cluster.paused(ledger.metadata.last_ensemble[:1]),
            pytest.raises(QuorumLost, match=f"ledger {ledger.ledger_id}, entry 5"),
        ):
            await ledger.append(b"lost")


async def test_a_writer_whose_ledger_another_client_recovers_or_deletes(cluster, client, impatient):
    fenced = await written(client)
    await impatient.recover(fenced.ledger_id, password=PASSWORD)
    with pytest.raises(LedgerFenced, match=f"ledger {fenced.ledger_id}, entry 5"):
        await fenced.append(b"too late")
    await fenced.close()

    # It has forced nothing, so its end would be another.
    behind = await client.create(write_quorum=3, password=PASSWORD, deferred_sync=True)
    await behind.append_many([b"a", b"b", b"c"])
    await impatient.recover(behind.ledger_id, password=PASSWORD)
    with pytest.raises(MetadataVersionConflict, match=f"ledger {behind.ledger_id} .*closed .* entry 2"):
        await behind.close()

    deleted = await written(client)
    await impatient.delete(deleted.ledger_id)
    with pytest.raises(MetadataNotFound, match=f"ledger {deleted.ledger_id}"):
        await deleted.close()

    for take_away, error in (
        (impatient.delete, MetadataNotFound),
        (impatient.recover, (LedgerFenced, LedgerClosed)),  # it has begun, or has ended already
    ):
        changing = await impatient.create(ensemble=2, write_quorum=2)  # there is a spare bookie
        await changing.append(b"before")
        with cluster.paused(changing.metadata.last_ensemble[:1]):
            failing = await changing.submit(b"needs a change")
            await take_away(changing.ledger_id)
            with pytest.raises(error, match=f"ledger {changing.ledger_id}, entry 1"):
                await failing


async def test_an_id_that_another_password_has_used(client):
    """The ledger is deleted, and its id given again; bookies still know the first one's key."""
    first = await written(client)
    await first.close()
    await client.delete(first.ledger_id)
    second = await client.create(write_quorum=3, password=b"other", ledger_id=first.ledger_id)
    with pytest.raises(LedgerIdInUse, match=f"ledger {first.ledger_id}"):
        await second.append(b"x")
    await second.close()


async def test_handles_that_are_closed_and_entries_that_cannot_be(cluster, client):
    ledger = await written(client)
    with pytest.raises(BadRequest, match=f"ledger {ledger.ledger_id}.*max_frame_size"):
        await ledger.append(bytes(6 * 1024 * 1024))
    assert await ledger.append(b"fits") == 5
    with pytest.raises(BadRequest, match=f"ledger {ledger.ledger_id}"):
        await ledger.read(0, 6)
    await ledger.close()
    for call in (
        lambda: ledger.append(b"x"),
        lambda: ledger.submit(b"x"),
        lambda: ledger.append_many([b"x"]),
        ledger.force,
    ):
        with pytest.raises(LedgerClosed, match=f"ledger {ledger.ledger_id}: .*closed"):
            await call()
    async with Client(cluster.uri) as short_lived:
        abandoned = await written(short_lived)
    with pytest.raises(LedgerClosed, match=f"ledger {abandoned.ledger_id}: .*client"):
        await abandoned.append(b"x")
    with pytest.raises(RuntimeError, match="open"):
        await short_lived.metadata(ledger.ledger_id)


async def test_chosen_entry_ids(client):
    ledger = await client.create_advanced(write_quorum=3, password=PASSWORD)
    await ledger.append(0, b"zero")
    with pytest.raises(DuplicateEntry, match=f"ledger {ledger.ledger_id}: entry 0"):
        await ledger.append(0, b"again")
    with pytest.raises(BadRequest, match="negative"):
        await ledger.append(-1, b"x")
    gap = await ledger.submit(2, b"behind a gap")
    await ledger.close()
    with pytest.raises(LedgerClosed, match=f"ledger {ledger.ledger_id}.*entry 2 .*sent"):
        await gap
    with pytest.raises(LedgerClosed, match=f"ledger {ledger.ledger_id}"):
        await ledger.append(1, b"x")


async def test_deferred_sync_with_a_bookie_that_hangs(cluster, impatient):
    ledger = await impatient.create(write_quorum=3, ack_quorum=2, password=PASSWORD, deferred_sync=True)
    await ledger.append_many([b"a", b"b"])
    await until(lambda: not ledger.pending)
    with (
        cluster.paused(ledger.metadata.last_ensemble[:1]),
        pytest.raises(BookieTimeout, match=f"ledger {ledger.ledger_id}: .*forced"),
    ):
        await ledger.force()
    await ledger.force()
    assert ledger.last_add_confirmed == 1
    await ledger.close()
