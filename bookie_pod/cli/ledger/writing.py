"""Writing a ledger from a file or from standard input."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass

import click

from bookie_client.writing.creation import NewLedger, create_writer
from bookie_client.writing.writer import LedgerWriter
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.entry_formats import splitter
from bookie_pod.cli.entry_streams import open_input, pieces, size_of
from bookie_pod.cli.progress import Bar
from bookie_protocol.errors import PodkeeperError

MAX_ENTRY_BYTES = 64 * 1024 * 1024
"""No input is collected beyond this; the client's own limit (`max_frame_size`) is smaller."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where entries come from; `size` in bytes counts for the format `fixed`."""

    path: str
    format: str
    size: int


@dataclass(frozen=True, slots=True)
class Written:
    """What became of it; `nbytes` of payload."""

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
        with Bar("writing", size_of(file), in_bytes=True) as bar:
            ledger = await create_writer(cluster.client.context, LedgerWriter, new)
            try:
                async with ledger:
                    async for piece in pieces(file):
                        await _append(ledger, entries.feed(piece))
                        bar.advance(len(piece))
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
