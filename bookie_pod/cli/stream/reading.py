"""Reading and following a stream."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field

from bookie_client.streams import Manifest, StreamPosition, Streams
from bookie_client.streams.reader import From
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.entry_streams import Output
from bookie_pod.cli.ledger.entries import put_out
from bookie_pod.cli.progress import Bar


@dataclass(frozen=True, slots=True)
class StreamReading:
    """What is read, and where it goes."""

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
    with Output(reading.output) as output, Bar("reading", count) as bar:
        async with aclosing(streams.reader(reading.name).entries(first, end)) as entries:
            await put_out(entries, reading.format, output, bar)


async def tail_stream(cluster: Cluster, reading: StreamReading, start: str) -> None:
    """Put out entries as they are confirmed, for ever."""
    reader = Streams(cluster.client, password=reading.password).reader(reading.name)
    with Output(reading.output) as output:
        async with aclosing(reader.tail(place(start))) as entries:
            await put_out(entries, reading.format, output, None)
