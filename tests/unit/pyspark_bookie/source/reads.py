"""Planning and reading in one process, without Spark."""

from __future__ import annotations

import asyncio

from pyspark_bookie.common.options import parse
from pyspark_bookie.source.batch import limits_of
from pyspark_bookie.source.options import SourceOptions
from pyspark_bookie.source.planning import plan
from pyspark_bookie.source.reading.ranges import range_chunks
from pyspark_bookie.source.selection import choose
from pyspark_bookie.source.snapshots import readable_ranges


def options(**raw):
    return parse(
        {"metadataServiceUri": "memory://", **{name: str(value) for name, value in raw.items()}}, SourceOptions
    )


async def looked(client, wanted):
    return await readable_ranges(client, await choose(client, wanted), wanted)


async def chunks(client, ranges, wanted):
    return [chunk async for chunk in range_chunks(client, ranges, wanted)]


async def rows(client, **raw):
    """(ledger id, entry id, payload, what is wrong) of every row."""
    wanted = options(**raw)
    found = await looked(client, wanted)
    result = []
    for partition in plan(found.ranges, limits_of(wanted)):
        result += rows_of(await chunks(client, partition.ranges, wanted))
    return result


def rows_of(found):
    return [
        (chunk.ledger.ledger_id, entry.entry_id, entry.payload, chunk.corrupt[place] if chunk.corrupt else None)
        for chunk in found
        for place, entry in enumerate(chunk.entries)
    ]


async def write(client, payloads, **arguments):
    """A closed ledger."""
    async with client.create(**{"ensemble": 3, "write_quorum": 3, "ack_quorum": 3, **arguments}) as ledger:
        await ledger.append_many(payloads)
    return ledger.ledger_id


class BlockingHere:
    """What the reader takes for a blocking client: the test's client, from another thread than its loop's."""

    def __init__(self, client):
        self._client = client
        self._loop = asyncio.get_running_loop()

    def run(self, operation):
        return asyncio.run_coroutine_threadsafe(operation(self._client), self._loop).result(30)
