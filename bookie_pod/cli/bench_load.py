"""The work of `bookie bench`: writers and readers as many as asked for, each operation timed.

Invariants
- The load ends by itself: after so many entries, or after the time.
- Ledgers that a benchmark made are deleted at its end, whatever ended it, unless they are to be kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

import click

from bookie_client.reading.handle import LedgerReader
from bookie_client.writing.writer import LedgerWriter
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.progress import Bar
from bookie_pod.cli.tables import facts, print_table
from bookie_protocol.errors import BadRequest, PodkeeperError

QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))
_MB: Final = 1_000_000
PAYLOADS: Final = 64
"""Different payloads, so that neither compression nor equal bytes flatter the cluster."""


@dataclass(slots=True)
class Measured:
    """The result of a benchmark.

    Times in seconds, sizes in bytes of payload. `latencies` has one value for each operation.
    """

    operation: str
    entries: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    failed: int = 0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    ledgers: list[int] = field(default_factory=list)
    """Ledgers that are left behind."""

    def quantiles(self) -> dict[str, float]:
        """Latency in ms at each of `QUANTILES`; zeros without operations."""
        ordered = sorted(self.latencies)
        last = len(ordered) - 1
        return {
            name: round(ordered[min(last, int(quantile * len(ordered)))] * 1000, 3) if ordered else 0.0
            for name, quantile in QUANTILES
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the result as `--json` prints it."""
        seconds = self.seconds or float("inf")
        return {
            "operation": self.operation,
            "entries": self.entries,
            "bytes": self.nbytes,
            "seconds": round(self.seconds, 6),
            "failed": self.failed,
            "entries_per_second": round(self.entries / seconds, 1),
            "bytes_per_second": round(self.nbytes / seconds, 1),
            "latency_ms": self.quantiles(),
            "ledgers": self.ledgers,
        }


def show(measured: Measured, as_json: bool) -> None:
    """Print it."""
    values = measured.as_dict()
    if as_json:
        click.echo(json.dumps(values))
        return
    table = facts()
    table.add_row(measured.operation, f"{measured.entries:,} entries, {measured.nbytes:,} bytes")
    table.add_row("time", f"{measured.seconds:.3f} s")
    table.add_row(
        "rate", f"{values['entries_per_second']:,.0f} entries/s, {values['bytes_per_second'] / _MB:,.1f} MB/s"
    )
    table.add_row("latency", ", ".join(f"{name} {value:g} ms" for name, value in values["latency_ms"].items()))
    if measured.failed:
        table.add_row("failed", f"{measured.failed:,} operations", style="red")
    if measured.ledgers:
        table.add_row("ledgers", ", ".join(map(str, measured.ledgers)))
    print_table(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLoad:
    """`rate` in entries per second over all ledgers; `batch`: entries of one append; `quorums`: ensemble, write
    quorum, ack quorum."""

    entries: int
    seconds: float | None
    size: int
    ledgers: int
    batch: int
    rate: float | None
    quorums: tuple[int, int, int]
    keep: bool
    password: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLoad:
    """`batch` entries in each read, `window` reads at a time."""

    ledger_ids: Sequence[int]
    entries: int
    seconds: float | None
    batch: int
    window: int
    is_random: bool
    password: bytes


async def run_writes(cluster: Cluster, load: WriteLoad) -> Measured:
    """Write. Raises what stopped a writer."""
    ensemble, write_quorum, ack_quorum = load.quorums
    measured = Measured("written")
    made: list[LedgerWriter] = []
    try:
        for _ in range(load.ledgers):
            opening = cluster.client.create(
                ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, password=load.password
            )
            made.append(await opening)
        with Bar("writing", load.entries, rate=True) as bar:
            writes = _Writes(load, measured, bar)
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for number, ledger in enumerate(made):
                    group.create_task(writes.write(ledger, number))
            measured.seconds = time.perf_counter() - began
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        await _give_back(cluster, made, measured, load.keep)
    return measured


async def run_reads(cluster: Cluster, load: ReadLoad) -> Measured:
    """Read. Raises what stopped a reader; `BadRequest` when there is nothing to read."""
    measured = Measured("read")
    readers = [await cluster.client.open(ledger_id, password=load.password) for ledger_id in load.ledger_ids]
    if not any(reader.last_add_confirmed >= 0 for reader in readers):
        raise BadRequest(f"ledgers {', '.join(map(str, load.ledger_ids))} have no entries")
    with Bar("reading", load.entries, rate=True) as bar:
        reads = _Reads(load, [reader for reader in readers if reader.last_add_confirmed >= 0], measured, bar)
        began = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(load.window):
                    group.create_task(reads.read())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        measured.seconds = time.perf_counter() - began
    return measured


async def _give_back(cluster: Cluster, made: Sequence[LedgerWriter], measured: Measured, keep: bool) -> None:
    for ledger in made:
        with suppress(PodkeeperError):  # the benchmark's own error counts; recovery closes it otherwise
            await ledger.close()
        if keep:
            measured.ledgers.append(ledger.ledger_id)
        else:
            with suppress(PodkeeperError):
                await cluster.client.delete(ledger.ledger_id)


class _Writes:
    def __init__(self, load: WriteLoad, measured: Measured, bar: Bar) -> None:
        self._load = load
        self._measured = measured
        self._bar = bar
        self._payloads = [os.urandom(load.size) for _ in range(PAYLOADS)]
        self._deadline = time.perf_counter() + (load.seconds or float("inf"))

    async def write(self, ledger: LedgerWriter, number: int) -> None:
        """The share of the ledger with this number."""
        load = self._load
        count = load.entries // load.ledgers + (number < load.entries % load.ledgers)
        clock, payloads = time.perf_counter, self._payloads
        began, pause = clock(), load.ledgers / load.rate if load.rate else 0.0
        for entry in range(0, count, load.batch):
            now = clock()
            if now >= self._deadline:
                break
            if pause:
                due = began + entry * pause
                if due > now:
                    await asyncio.sleep(due - now)
                now = due
            size = min(load.batch, count - entry)
            future: asyncio.Future[Any]
            if size == 1:
                future = await ledger.submit(payloads[entry % PAYLOADS])
            else:
                future = await ledger.submit_many([payloads[i % PAYLOADS] for i in range(entry, entry + size)])
            future.add_done_callback(partial(self._ended, now, size))
        await ledger.flush()

    def _ended(self, began: float, entries: int, future: asyncio.Future[Any]) -> None:
        measured = self._measured
        if future.cancelled() or future.exception() is not None:
            measured.failed += 1
            return
        measured.latencies.append(time.perf_counter() - began)
        measured.entries += entries
        measured.nbytes += entries * self._load.size
        self._bar.advance(entries, entries)


class _Reads:
    """Hands out ranges to readers that take the next as soon as they have theirs."""

    def __init__(self, load: ReadLoad, readers: Sequence[LedgerReader], measured: Measured, bar: Bar) -> None:
        self._load = load
        self._readers = readers
        self._measured = measured
        self._bar = bar
        self._random = Random()
        self._next = [0] * len(readers)
        self._turn = 0
        self._asked = 0
        self._deadline = time.perf_counter() + (load.seconds or float("inf"))

    async def read(self) -> None:
        """Read until enough is asked for."""
        clock = time.perf_counter
        while self._asked < self._load.entries and clock() < self._deadline:
            reader, first, last = self._range()
            self._asked += last - first + 1
            began = clock()
            entries = await reader.read(first, last)
            self._measured.latencies.append(clock() - began)
            self._measured.entries += len(entries)
            self._measured.nbytes += sum(len(entry.payload) for entry in entries)
            self._bar.advance(len(entries), len(entries))

    def _range(self) -> tuple[LedgerReader, int, int]:
        """One reader after the other; each goes on where it was, and from the start after its end."""
        index = self._turn = (self._turn + 1) % len(self._readers)
        reader = self._readers[index]
        end = reader.last_add_confirmed
        count = min(self._load.batch, self._load.entries - self._asked, end + 1)
        first = self._random.randint(0, end + 1 - count) if self._load.is_random else self._next[index]
        last = min(first + count - 1, end)
        self._next[index] = 0 if last == end else last + 1
        return reader, first, last
