"""The load driver of our client: the same options and the same output as the Java driver (`benchmarks/java`).

`python -m benchmarks.python_client add --metadata URI --size 1024 --window 4000 ...`

One process, one event loop. `--bulk N` hands over N entries a call (`submit_many`) instead of one (`submit`); latency
is then that of the whole call.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import struct
import sys
import time
from array import array
from collections.abc import Iterable, Sequence
from contextvars import copy_context
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import click
import uvloop

from bookie_client import Client, ClientOptions
from bookie_client.reading.handle import LedgerReader
from bookie_client.writing.writer import LedgerWriter

PASSWORD = b"bench"
_SINCE = struct.Struct(">d")
GC_THRESHOLD = 50_000
"""What docs/client.md recommends to programs that append or read much: entries under way are no garbage."""


class Meter:
    """Counts what is answered between `begin` and `end`."""

    def __init__(self) -> None:
        self.latencies = array("d")
        self.entries = 0
        self._measuring = False
        self._began = self._cpu = 0.0
        self.result: dict[str, float] = {}

    def begin(self) -> None:
        self._measuring, self._began, self._cpu = True, time.perf_counter(), _cpu_seconds()

    def answered(self, since: float, count: int = 1) -> None:
        if self._measuring:
            self.entries += count
            self.latencies.append(time.perf_counter() - since)

    def end(self) -> None:
        self._measuring = False
        seconds, cpu = time.perf_counter() - self._began, _cpu_seconds() - self._cpu
        ordered = sorted(self.latencies)

        def quantile(share: float) -> float:
            return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 if ordered else 0.0

        self.result = {
            "seconds": seconds,
            "entries": self.entries,
            "entries_per_second": self.entries / seconds,
            "p50_ms": quantile(0.5),
            "p99_ms": quantile(0.99),
            "p999_ms": quantile(0.999),
            "max_ms": quantile(1.0),
            "client_cpu_us_per_entry": cpu * 1e6 / self.entries if self.entries else 0.0,
            "client_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


class AddLoad:
    """Appends to several ledgers in turn, `window` entries in flight over all of them."""

    def __init__(self, meter: Meter, options: dict[str, Any]) -> None:
        self._meter = meter
        self._options = options
        self._bulk: int = options["bulk"]
        self._free: int = options["window"]
        self._room = asyncio.Event()
        self._error: BaseException | None = None

    async def run(self, ledgers: Sequence[LedgerWriter]) -> None:
        options, meter = self._options, self._meter
        payload, bulk = Random(1).randbytes(options["size"]), self._bulk
        batch = [payload] * bulk
        began = time.perf_counter()
        measure_at, end_at = began + options["warmup"], began + options["warmup"] + options["duration"]
        measuring, sent, rate = False, 0, options["rate"]
        context = copy_context()  # one for all call-backs, instead of a copy for each
        while self._error is None:
            while self._free < bulk:
                self._room.clear()
                await self._room.wait()
            now = time.perf_counter()
            if rate:
                due = began + sent / rate
                if due > now:
                    await asyncio.sleep(due - now)
                    now = time.perf_counter()
                since = due
            else:
                since = now
            if not measuring and now >= measure_at:
                measuring = True
                meter.begin()
            if now >= end_at:
                break
            self._free -= bulk
            ledger = ledgers[(sent // bulk) % len(ledgers)]
            sent += bulk
            future: asyncio.Future[Any]
            if bulk > 1:
                future = await ledger.submit_many(batch)
            else:
                future = await ledger.submit(payload)
            future.add_done_callback(partial(self._done, since), context=context)
        meter.end()
        for ledger in ledgers:
            await ledger.close()
        if self._error is not None:
            raise self._error

    def _done(self, since: float, future: asyncio.Future[Any]) -> None:
        self._free += self._bulk
        self._error = self._error or future.exception()
        self._meter.answered(since, self._bulk)
        self._room.set()


async def tail_load(meter: Meter, options: dict[str, Any], client: Client, ledger: LedgerWriter) -> None:
    """A writer with a fixed schedule and a reader that tails its ledger; latency is from the moment an entry was due
    until the reader has it."""

    async def follow() -> None:
        async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
            async for entry in reader.tail():
                meter.answered(_SINCE.unpack_from(entry.payload)[0])

    reading = asyncio.create_task(follow())
    began = time.perf_counter()
    measure_at, end_at = began + options["warmup"], began + options["warmup"] + options["duration"]
    padding, measuring, sent = bytes(max(0, options["size"] - _SINCE.size)), False, 0
    while (due := began + sent / options["rate"]) < end_at:
        sent += 1
        now = time.perf_counter()
        if due > now:
            await asyncio.sleep(due - now)
        if not measuring and due >= measure_at:
            measuring = True
            meter.begin()
        await ledger.submit(_SINCE.pack(due) + padding)
    meter.end()
    await ledger.close()
    await reading


async def read_load(meter: Meter, options: dict[str, Any], reader: LedgerReader) -> None:
    """Reads one ledger from its start to its end, again and again: `window` ranges of `batch` entries at a
    time."""
    read = reader.read_payloads if options["in_place"] else reader.read
    last, batch = reader.last_add_confirmed, options["batch"]
    began = time.perf_counter()
    measure_at, end_at = began + options["warmup"], began + options["warmup"] + options["duration"]
    position, measuring = 0, False

    async def work() -> None:
        nonlocal position, measuring
        while (now := time.perf_counter()) < end_at:
            if not measuring and now >= measure_at:
                measuring = True
                meter.begin()
            first, upto = position, min(position + batch - 1, last)
            position = 0 if upto == last else upto + 1
            found = await read(first, upto)
            meter.answered(now, len(found))

    await asyncio.gather(*(work() for _ in range(options["window"])))
    meter.end()


async def recover_load(meter: Meter, options: dict[str, Any], client: Client) -> None:
    """Opens with recovery each ledger of a file, once, `window` of them at a time. The first ledgers are not measured,
    but for the very first: what that took is told on its own, as `first_ms`. Raises `RuntimeError` when one ends
    elsewhere than the file says."""

    async def recover(ledgers: Iterable[list[int]]) -> None:
        for ledger_id, last, _ in ledgers:
            since = time.perf_counter()
            async with client.open(ledger_id, password=PASSWORD, recover=True) as reader:
                meter.answered(since)
                if reader.last_add_confirmed != last:
                    raise RuntimeError(f"ledger {ledger_id} ends at {reader.last_add_confirmed} instead of {last}")

    async def recover_all(ledgers: Sequence[list[int]]) -> None:
        queue = iter(ledgers)
        async with asyncio.TaskGroup() as workers:
            for _ in range(options["window"]):
                workers.create_task(recover(queue))

    ledgers, warm_ups = _remembered(options["ledger_file"]), options["warmup_ledgers"]
    began = time.perf_counter()
    await recover_all(ledgers[:1])
    first_ms = (time.perf_counter() - began) * 1000
    await recover_all(ledgers[1:warm_ups])
    meter.begin()
    await recover_all(ledgers[warm_ups:])
    meter.end()
    meter.result["first_ms"] = first_ms


def _remember(file: str, ledgers: Sequence[LedgerWriter]) -> None:
    Path(file).write_text("".join(f"{each.ledger_id}\n" for each in ledgers))


def _remembered(file: str) -> list[list[int]]:
    """A ledger a line, its id first."""
    return [[int(word) for word in line.split()] for line in Path(file).read_text().splitlines()]


async def _run(command: str, options: dict[str, Any]) -> dict[str, Any]:
    meter = Meter()
    settings = ClientOptions(
        protocol_version=int(options["protocol"][1]),
        write_window_entries=options["window"],
        write_window_bytes=1 << 30,
        batch_reads=options["batch"] > 1,
    )
    async with Client(options["metadata"], settings) as client:
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        quorums = {key: options[key] for key in ("ensemble", "write_quorum", "ack_quorum")}
        if command == "tail":
            await tail_load(meter, options, client, await client.create(password=PASSWORD, **quorums))
        elif command == "add":
            ledgers = [await client.create(password=PASSWORD, **quorums) for _ in range(options["ledgers"])]
            await AddLoad(meter, options).run(ledgers)
            if options["ledger_file"]:
                _remember(options["ledger_file"], ledgers)
        elif command == "recover":
            await recover_load(meter, options, client)
        else:
            async with client.open(_remembered(options["ledger_file"])[0][0], password=PASSWORD) as reader:
                await read_load(meter, options, reader)
    return {"command": command, "protocol": options["protocol"], "entry_bytes": options["size"], **meter.result}


@click.command()
@click.argument("command", type=click.Choice(["add", "read", "tail", "recover"]))
@click.option("--metadata", required=True)
@click.option("--protocol", type=click.Choice(["v2", "v3"]), default="v3", show_default=True)
@click.option("--ensemble", default=1)
@click.option("--write-quorum", default=1)
@click.option("--ack-quorum", default=1)
@click.option("--size", default=1024)
@click.option("--ledgers", default=1)
@click.option("--window", default=4000)
@click.option("--bulk", default=1, help="Entries of one call.")
@click.option("--batch", default=100, help="Entries of one read.")
@click.option("--in-place", is_flag=True, help="Read payloads as views of the bookies' answers, not as entries.")
@click.option("--rate", default=0)
@click.option("--warmup", default=2.0)
@click.option("--duration", default=5.0)
@click.option("--ledger-file", help="What `add` made, or what to read or recover.")
@click.option("--warmup-ledgers", default=1, help="Recover so many of the ledgers before it is measured.")
def main(command: str, **options: Any) -> None:
    """Runs one load and prints one JSON object."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        click.echo(json.dumps(runner.run(_run(command, options))))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
