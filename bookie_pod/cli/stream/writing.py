"""Appending a file, or standard input, to a stream."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import click

from bookie_client.streams import StreamPosition, Streams, StreamWriter
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.entry_formats import splitter
from bookie_pod.cli.entry_streams import open_input, pieces, size_of
from bookie_pod.cli.ledger.entries import MAX_ENTRY_BYTES, Source
from bookie_pod.cli.progress import Bar
from bookie_protocol.errors import PodkeeperError

_UNDER_WAY: Final = 64
"""Pieces of the input whose acknowledgement is not awaited before the next one is read."""


@dataclass(frozen=True, slots=True)
class Appending:
    """What is appended, and where."""

    name: str
    source: Source
    password: bytes = field(repr=False)
    create: bool = field(kw_only=True)
    take_over: bool = field(kw_only=True)


@dataclass(slots=True)
class Appended:
    """What became of it; `nbytes` of payload."""

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
        with Bar("appending", size_of(file), in_bytes=True) as bar:
            writer = streams.writer(appending.name, take_over=appending.take_over)
            under_way: deque[asyncio.Future[list[StreamPosition]]] = deque()
            try:
                async with writer:
                    async for piece in pieces(file):
                        await _append(writer, entries.feed(piece), appended, under_way)
                        bar.advance(len(piece))
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
    """What was acknowledged before it ended."""
    for each in under_way:
        if each.done() and not each.cancelled() and each.exception() is None:
            appended.add(each.result())


def _what_is_there(appended: Appended) -> str:
    return f"stream {appended.name} has the first {appended.entries} entries of the input"
