"""What a writer does beside plain appends, against whatever bookies there are."""

from __future__ import annotations

import asyncio

from bookie_client import Client
from bookie_protocol.digest import DigestType, digest_manager

COUNT = 200


async def deferred_sync(client: Client) -> int:
    """Entries that count once they were forced; what was not is cut off. Returns the ledger's id."""
    ledger = await client.create(write_quorum=3, ack_quorum=3, password=b"pw", deferred_sync=True)
    await ledger.append_many(b"forced %d" % i for i in range(COUNT))
    assert ledger.last_add_confirmed == -1
    await ledger.force()
    assert ledger.last_add_confirmed == COUNT - 1
    assert [e.payload for e in await ledger.read(COUNT - 1, COUNT - 1)] == [b"forced %d" % (COUNT - 1)]
    await ledger.append_many(b"never forced %d" % i for i in range(10))
    await ledger.close()
    return ledger.ledger_id


async def check_deferred_sync(client: Client, ledger_id: int) -> None:
    """Whatever happened to the bookies since."""
    async with client.open(ledger_id, password=b"pw") as reader:
        assert [e.payload async for e in reader.entries()] == [b"forced %d" % i for i in range(COUNT)]


async def explicit_lac(client: Client) -> None:
    """Every bookie of the write set learns the last LAC of a writer that pauses (`explicit_lac_interval`)."""
    async with client.create(write_quorum=3, ack_quorum=3, password=b"pw") as ledger:
        last = (await ledger.append_many([b"x"] * COUNT))[-1]
        digest = digest_manager(DigestType.CRC32C, b"pw")
        operations = client.context.operations

        async def announced(bookie: str) -> int:
            packet = (await operations.read_lac(bookie, ledger.ledger_id)).explicit
            return -1 if packet is None else digest.verify_lac(packet, ledger.ledger_id)

        for bookie in ledger.metadata.last_ensemble:
            # An interval may end between two appends, so an earlier one may be heard first.
            async with asyncio.timeout(10):
                while await announced(bookie) != last:  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.01)


async def chosen_ids(client: Client) -> None:
    """Entry ids in any order, all acknowledged and stored in theirs."""
    order = sorted(range(COUNT), key=lambda i: (i * 7919) % COUNT)
    async with client.create_advanced(write_quorum=3, password=b"pw") as ledger:
        futures = [await ledger.submit(i, b"%d" % i) for i in order]
        assert [await future for future in futures] == order
    async with client.open(ledger.ledger_id, password=b"pw") as reader:
        assert [e.payload async for e in reader.entries()] == [b"%d" % i for i in range(COUNT)]
