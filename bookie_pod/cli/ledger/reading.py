"""Reading and following a ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from bookie_client.batches import Batches
from bookie_client.reading.entry import LedgerEntry
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.entry_formats import encoder
from bookie_pod.cli.entry_streams import Output
from bookie_pod.cli.progress import Bar
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read, and where it goes."""

    ledger_id: int
    password: bytes
    digest: str
    format: str
    output: str


async def read_ledger(cluster: Cluster, reading: Reading, first: int, last: int | None, *, recover: bool) -> None:
    """Put out a range of entries. Raises as `Client.open` and `LedgerReader.entries` do."""
    opening = cluster.client.open(
        reading.ledger_id, password=reading.password, digest=DigestType[reading.digest], recover=recover
    )
    async with opening as ledger:
        confirmed = ledger.last_add_confirmed
        if last is None and first > confirmed + 1:
            raise BadRequest(f"ledger {reading.ledger_id}: entry {first} is above the last add confirmed, {confirmed}")
        end = confirmed if last is None else last
        with Output(reading.output) as output, Bar("reading", max(0, end - first + 1)) as bar:
            await put_out(ledger.entries(first, end), reading.format, output, bar)


async def tail_ledger(cluster: Cluster, reading: Reading, first: int | None) -> None:
    """Put out entries as they are confirmed, until the ledger is closed."""
    opening = cluster.client.open(reading.ledger_id, password=reading.password, digest=DigestType[reading.digest])
    async with opening as ledger:
        start = ledger.last_add_confirmed + 1 if first is None else first
        with Output(reading.output) as output:
            await put_out(ledger.tail(start), reading.format, output, None)


async def put_out(entries: AsyncIterator[LedgerEntry], format_: str, output: Output, bar: Bar | None) -> None:
    """Put entries out as they come, in one of the output formats."""
    encode = encoder(format_)
    batches = Batches(entries, lambda entry: len(entry.payload))
    try:
        while batch := await batches.take():
            await output.write(encode(batch))
            if bar is not None:
                bar.advance(len(batch))
    finally:
        await batches.close()
