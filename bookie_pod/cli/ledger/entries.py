"""Reading, following and writing the entries of a ledger: to and from a file, or standard output and input."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

import click

from bookie_client.batches import Batches
from bookie_client.reading.entry import LedgerEntry
from bookie_client.writing.creation import NewLedger, create_writer
from bookie_client.writing.writer import LedgerWriter
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.entry_formats import encoder, splitter
from bookie_pod.cli.entry_streams import Output, open_input, pieces, size_of
from bookie_pod.cli.progress import Bar
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import BadRequest, PodkeeperError

MAX_ENTRY_BYTES = 64 * 1024 * 1024
"""Maximum bytes of input that are collected for an entry; the client's own limit (`max_frame_size`) is smaller."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The entries to read, and their destination."""

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
        with Output(reading.output) as output, Bar("reading", max(0, end - first + 1), rate=True) as bar:
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
                bar.advance(len(batch), len(batch))
    finally:
        await batches.close()


@dataclass(frozen=True, slots=True)
class Source:
    """The source of entries; `size` in bytes applies to the format `fixed`."""

    path: str
    format: str
    size: int


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a write; `nbytes` of payload."""

    ledger_id: int
    entries: int
    nbytes: int
    seconds: float


async def create_empty(cluster: Cluster, new: NewLedger) -> int:
    """Create a ledger, close it, and return its id."""
    async with await create_writer(cluster.client.context, LedgerWriter, new) as ledger:
        return ledger.ledger_id


async def write_ledger(cluster: Cluster, new: NewLedger, source: Source) -> Written:
    """Write everything. Raises what ended it, naming the ledger that holds what was written before."""
    file = open_input(source.path)
    entries = splitter(source.format, source.size, MAX_ENTRY_BYTES)
    began = time.perf_counter()
    try:
        with Bar("writing", size_of(file), in_bytes=True, rate=True) as bar:
            ledger = await create_writer(cluster.client.context, LedgerWriter, new)
            try:
                async with ledger:
                    async for piece in pieces(file):
                        payloads = entries.feed(piece)
                        await _append(ledger, payloads)
                        bar.advance(len(piece), len(payloads))
                    await _append(ledger, entries.end())
            except PodkeeperError as error:
                cause = ledger.failure or error
                raise type(cause)(f"{cause} ({_what_is_left(ledger)})") from error
            except asyncio.CancelledError:
                with suppress(PodkeeperError):  # it may have come while the ledger was being closed
                    await ledger.close()
                click.echo(f"bookie: stopped: {_what_is_left(ledger)}", err=True)
                raise
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror} ({_what_is_left(ledger)})", source.path) from error
    finally:
        file.close()
    return Written(ledger.ledger_id, ledger.last_add_confirmed + 1, ledger.length, time.perf_counter() - began)


def report(written: Written, as_json: bool) -> str:
    """The id, or a JSON object with what was written."""
    if not as_json:
        return str(written.ledger_id)
    return json.dumps(
        {
            "ledger_id": written.ledger_id,
            "entries": written.entries,
            "bytes": written.nbytes,
            "seconds": round(written.seconds, 6),
        }
    )


async def _append(ledger: LedgerWriter, payloads: list[bytes]) -> None:
    for payload in payloads:
        await ledger.submit(payload)


def _what_is_left(ledger: LedgerWriter) -> str:
    kept = f"ledger {ledger.ledger_id} holds the first {ledger.last_add_confirmed + 1} entries"
    return kept if ledger.is_closed else f"{kept} at least, and is not closed: see bookie ledger recover"
