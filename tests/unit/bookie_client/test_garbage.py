"""What a failed call leaves: nothing that only the collector of cycles frees. Else a failing cluster would fill a
client's memory until it comes."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from bookie_client.reading.maintenance import replicas
from bookie_client.replication.replicator import FragmentReplicator
from bookie_client.streams import Streams, StreamSettings
from bookie_protocol.errors import MetadataUnavailable, PodkeeperError, StorageFault
from bookie_protocol.versioned import LedgerLife
from tests.support.garbage import left_in_cycles
from tests.unit.bookie_client.replication.restoring import fragment_of

LEDGER, DAMAGED, ALONE, UNKNOWN = 0, 1, 2, 99


async def every(iterator):
    return [each async for each in iterator]


async def read(client, ledger_id, **options):
    async with client.open(ledger_id) as reader:
        await reader.read(0, 9)


async def read_in_turn(client, ledger_id):
    async with client.open(ledger_id) as reader:
        await every(reader.entries())


async def read_copy(client, ledger_id):
    async with client.open(ledger_id) as reader:
        await replicas(reader).read("b1", 3)


async def append_to_a_fenced_ledger(client):
    async with client.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
        await client.recover(ledger.ledger_id)
        for _ in range(3):
            with suppress(PodkeeperError):
                await ledger.append(b"x")
        with suppress(PodkeeperError):
            await ledger.flush()
        await ledger.append_many([b"x", b"y"])


async def force_without_a_bookie(client):
    async def refuse(bookie, ledger_id):
        raise StorageFault("no disk")

    async with client.create(ensemble=1, write_quorum=1, ack_quorum=1, deferred_sync=True) as ledger:
        await ledger.append(b"x")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client.operations, "force_ledger", refuse)
            await ledger.force()


async def close_what_is_gone(client):
    ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
    await client.delete(ledger.ledger_id)
    for _ in range(3):
        with suppress(PodkeeperError):
            await ledger.close()
    await ledger.close()


async def append_to_a_stream(client):
    streams = Streams(client)
    with suppress(PodkeeperError):
        await streams.create("s", StreamSettings(ensemble=3, write_quorum=3, ack_quorum=2))
    async with streams.writer("s") as writer:
        await writer.append(b"x")
        async with streams.writer("s") as other:
            await other.append(b"y")
        for _ in range(3):
            with suppress(PodkeeperError):
                await writer.append(b"z")
        await writer.flush()


async def close_a_stream_that_nobody_can_end(client):
    streams = Streams(client)
    with suppress(PodkeeperError):
        await streams.create("c", StreamSettings(ensemble=3, write_quorum=3, ack_quorum=2))
    writer = streams.writer("c")
    await writer.start()
    await writer.append(b"x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client.metadata_service.all_records, "before", _no_answer)
        for _ in range(3):
            with suppress(PodkeeperError):
                await writer.close()
        await writer.close()


def _no_answer(line):
    raise MetadataUnavailable("no answer")


async def replicate(client, ledger_id):
    fragment = await fragment_of(client, ledger_id)
    await FragmentReplicator(client).replicate(fragment, {0: "it is gone"})


CALLS = {
    "open": lambda c: read(c, UNKNOWN),
    "recover": lambda c: c.recover(UNKNOWN),
    "metadata": lambda c: c.metadata(UNKNOWN),
    "create": lambda c: c.create(ensemble=9, write_quorum=9, ack_quorum=9),
    "read of an entry": lambda c: c.operations.read_entry("b1", LEDGER, 77),
    "fencing read": lambda c: c.operations.read_entry("b1", UNKNOWN, 0, fence_key=bytes(20)),
    "read of nobody": lambda c: c.operations.read_entry("nobody", LEDGER, 0),
    "add": lambda c: c.operations.add_entry("b1", LedgerLife(LEDGER, 0), 3, bytes(40), bytes(20)),
    "batch read": lambda c: c.operations.batch_read("b1", LEDGER, 77, 10, 1000),
    "LAC": lambda c: c.operations.read_lac("b1", UNKNOWN),
    "explicit LAC": lambda c: c.operations.write_lac("b1", LEDGER, b"another key, of 20 b", 1, bytes(40)),
    "long poll": lambda c: c.operations.long_poll("nobody", LEDGER, -1, 77, 0.01, piggyback_entry=False),
    "force": lambda c: c.operations.force_ledger("nobody", LEDGER),
    "space": lambda c: c.operations.bookie_info("nobody"),
    "list": lambda c: c.operations.entries_of_ledger("b1", UNKNOWN),
    "read of what is damaged": lambda c: read(c, DAMAGED),
    "iteration over what is damaged": lambda c: read_in_turn(c, DAMAGED),
    "read of a damaged copy": lambda c: read_copy(c, DAMAGED),
    "read of what nobody has": lambda c: read(c, ALONE),
    "iteration over what nobody has": lambda c: read_in_turn(c, ALONE),
    "recovery of what nobody has": lambda c: c.recover(ALONE + 1),
    "append": append_to_a_fenced_ledger,
    "force of a ledger": force_without_a_bookie,
    "close": close_what_is_gone,
    "stream that is not there": lambda c: every(Streams(c).reader("nobody").entries()),
    "append to a stream": append_to_a_stream,
    "close of a stream": close_a_stream_that_nobody_can_end,
    "copy of what nobody has": lambda c: replicate(c, ALONE),
    "copy without a place": lambda c: replicate(c, LEDGER),
}


@pytest.mark.parametrize(("version", "batches"), [(3, True), (2, False)], ids=["v3, batches", "v2, singly"])
@pytest.mark.parametrize("call", CALLS)
async def test_no_failed_call_leaves_a_cycle(three, version, batches, call):
    async with three.client(
        protocol_version=version, batch_reads=batches, reconnect_delay=60, max_reconnect_delay=60
    ) as client:
        async with client.create(ensemble=3, write_quorum=3, ack_quorum=2, ledger_id=LEDGER) as ledger:
            await ledger.append_many([b"x"] * 10)
        async with client.create(ensemble=3, write_quorum=3, ack_quorum=3, ledger_id=DAMAGED) as ledger:
            await ledger.append_many([b"x"] * 10)
        for bookie in three.servers:
            three.bookie(bookie).damage(DAMAGED, 3)
        await three.add_bookie("lost")
        for ledger_id in (ALONE, ALONE + 1):
            stored = three.metadata.ledgers.stored[LEDGER]
            ensembles = {0: ("lost", "lost too", "b1")}
            made = replace(stored.value, ledger_id=ledger_id, ensembles=ensembles)
            if ledger_id != ALONE:
                made = replace(made, state=type(made.state).OPEN, last_entry_id=-1, length=0)
            await three.metadata.ledgers.create(made)
        three.metadata.bookies.drop("lost")
        await three.servers.pop("lost").stop()

        async def fail():
            with pytest.raises(PodkeeperError):
                await CALLS[call](client)
            await asyncio.sleep(0)

        for _ in range(2):
            await fail()
        with left_in_cycles() as left:
            for _ in range(5):
                await fail()
        assert not left & {"frame", "traceback"}
