"""Reading, following and appending to a stream: to and from a file, or standard output and input."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final

import click

from bookie_client.streams import Manifest, StreamPosition, Streams, StreamWriter
from bookie_client.streams.reader import From
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.entry_formats import splitter
from bookie_pod.cli.entry_streams import Output, open_input, pieces, size_of
from bookie_pod.cli.ledger.entries import MAX_ENTRY_BYTES, Source, put_out
from bookie_pod.cli.progress import Bar
from bookie_protocol.errors import PodkeeperError

_UNDER_WAY: Final = 64
"""Pieces of the input whose acknowledgement is not awaited before the next one is read."""


@dataclass(frozen=True, slots=True)
class StreamReading:
    """The entries to read, and their destination."""

    name: str
    password: bytes = field(repr=False)
    format: str
    output: str


def place(text: str) -> From:
    """A position of the command line. Raises `BadRequest`."""
    if text == "earliest":
        return "earliest"
    return "latest" if text == "latest" else StreamPosition.parse(text)


def position(manifest: Manifest, text: str, latest: StreamPosition) -> StreamPosition:
    """The same in a stream of which this is the end. Raises `BadRequest`."""
    at = place(text)
    return at if isinstance(at, StreamPosition) else manifest.earliest if at == "earliest" else latest


async def read_stream(cluster: Cluster, reading: StreamReading, start: str, to: str | None) -> None:
    """Put out a range of entries. Raises as `StreamReader.batches`."""
    streams = Streams(cluster.client, password=reading.password)
    end = await streams.end(reading.name) if to is None or to == "latest" else StreamPosition.parse(to)
    manifest = await streams.manifest(reading.name)
    first = end if start == "latest" else place(start)
    spans = manifest.spans(position(manifest, start, end), end)
    count = sum(span.last - span.first + 1 for span in spans if span.last is not None)
    with Output(reading.output) as output, Bar("reading", count, rate=True) as bar:
        async with aclosing(streams.reader(reading.name).entries(first, end)) as entries:
            await put_out(entries, reading.format, output, bar)


async def tail_stream(cluster: Cluster, reading: StreamReading, start: str) -> None:
    """Put out entries as they are confirmed, for ever."""
    reader = Streams(cluster.client, password=reading.password).reader(reading.name)
    with Output(reading.output) as output:
        async with aclosing(reader.tail(place(start))) as entries:
            await put_out(entries, reading.format, output, None)


@dataclass(frozen=True, slots=True)
class Appending:
    """The entries to append, and the stream."""

    name: str
    source: Source
    password: bytes = field(repr=False)
    create: bool = field(kw_only=True)
    take_over: bool = field(kw_only=True)


@dataclass(slots=True)
class Appended:
    """The outcome of an append; `nbytes` of payload."""

    name: str
    entries: int = 0
    nbytes: int = 0
    start: StreamPosition | None = None
    end: StreamPosition | None = None
    seconds: float = 0.0

    def add(self, positions: list[StreamPosition]) -> None:
        if positions:
            self.start = self.start or positions[0]
            self.end = StreamPosition(positions[-1].ledger_id, positions[-1].entry_id + 1)
            self.entries += len(positions)


async def append_stream(cluster: Cluster, appending: Appending) -> Appended:
    """Append everything. Raises what ended it, naming how much is in the stream."""
    file = open_input(appending.source.path)
    entries = splitter(appending.source.format, appending.source.size, MAX_ENTRY_BYTES)
    streams = Streams(cluster.client, password=appending.password)
    appended = Appended(appending.name)
    began = time.perf_counter()
    try:
        if appending.create:
            await streams.create(appending.name, if_absent=True)
        with Bar("appending", size_of(file), in_bytes=True, rate=True) as bar:
            writer = streams.writer(appending.name, take_over=appending.take_over)
            under_way: deque[asyncio.Future[list[StreamPosition]]] = deque()
            try:
                async with writer:
                    async for piece in pieces(file):
                        payloads = entries.feed(piece)
                        await _append(writer, payloads, appended, under_way)
                        bar.advance(len(piece), len(payloads))
                    await _append(writer, entries.end(), appended, under_way)
                    while under_way:
                        appended.add(await under_way.popleft())
                    if appended.end is None:
                        appended.end = await streams.end(appending.name)
            except PodkeeperError as error:
                _collect(under_way, appended)
                if writer.ledger_id < 0:
                    raise  # nothing was appended
                raise type(error)(f"{error} ({_what_is_there(appended)})") from error
            except asyncio.CancelledError:
                with suppress(PodkeeperError):  # it may have come while the stream's ledger was being closed
                    await writer.close()
                _collect(under_way, appended)
                click.echo(f"bookie: stopped: {_what_is_there(appended)}", err=True)
                raise
            except OSError as error:
                _collect(under_way, appended)
                message = f"{error.strerror} ({_what_is_there(appended)})"
                raise OSError(error.errno, message, appending.source.path) from error
    finally:
        file.close()
    appended.seconds = time.perf_counter() - began
    return appended


def report(appended: Appended, as_json: bool) -> str:
    """The position behind it, or a JSON object with what was appended."""
    if not as_json:
        return str(appended.end)
    return json.dumps(
        {
            "stream": appended.name,
            "entries": appended.entries,
            "bytes": appended.nbytes,
            "start": str(appended.start or appended.end),
            "end": str(appended.end),
            "seconds": round(appended.seconds, 6),
        }
    )


async def _append(
    writer: StreamWriter,
    payloads: list[bytes],
    appended: Appended,
    under_way: deque[asyncio.Future[list[StreamPosition]]],
) -> None:
    if payloads:
        under_way.append(await writer.submit_many(payloads))
        appended.nbytes += sum(map(len, payloads))
    while under_way and (under_way[0].done() or len(under_way) > _UNDER_WAY):
        appended.add(await under_way.popleft())


def _collect(under_way: deque[asyncio.Future[list[StreamPosition]]], appended: Appended) -> None:
    """Count the entries that were acknowledged before the end."""
    for each in under_way:
        if each.done() and not each.cancelled() and each.exception() is None:
            appended.add(each.result())


def _what_is_there(appended: Appended) -> str:
    return f"stream {appended.name} has the first {appended.entries} entries of the input"
