"""Streams of small ledgers, on model bookies."""

from __future__ import annotations

from bookie_client.streams import PublishedLedger, Streams, StreamSettings
from tests.unit.pyspark_bookie.source.reads import write

TOPIC = "public/default/persistent/orders"


async def stream(client, name, *ledgers):
    """A stream whose ledgers have these payloads; returns their ids."""
    streams = Streams(client)
    await streams.create(name, StreamSettings(), if_absent=True)
    ids = [await write(client, payloads) for payloads in ledgers]
    published = [
        PublishedLedger(ledger_id, len(payloads), sum(map(len, payloads)))
        for ledger_id, payloads in zip(ids, ledgers, strict=True)
    ]
    await streams.publish(name, published)
    return ids
