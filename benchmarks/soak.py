"""Does a bookie leak? Mixed load for minutes, and slopes of what its process holds.

    python -m benchmarks.soak [--minutes M] [--budget MB] [--out FILE.png] [--directory PATH]

One bookie with auto-recovery and the gateway, on the embedded metadata service. Clients write, read, tail, recover and
delete short ledgers, over its own port and over gRPC; others connect, ask for the metrics and go. Every few seconds:
resident memory, descriptors, threads, and the objects of each type that the collector knows.

The first third of the time is for caches and free lists to fill. In the rest nothing may grow: what a line through the
other samples rises by in that time is held against `ALLOWED`, and the exit code is 1 if it is more. Of objects those
types count that rise in each of four quarters, as a leak does.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import aiohttp
import grpc
import numpy as np
import psutil

from bookie_client import Client
from bookie_protocol.errors import PodkeeperError
from bookie_protocol.ledger_service import ledger_service_pb2 as messages
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.support.bookie_process import free_port
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_process import ServeProcess

EVERY_S: Final = 2.0
"""Between two samples."""
COUNT_S: Final = 5.0
"""Between two counts of objects, which take some tenths of a second of the process."""
PAUSE_S: Final = 0.02
"""Of each client, between two ledgers."""
ALLOWED: Final = {"resident MB": 16.0, "descriptors": 8.0, "threads": 3.0}
"""So much may rise from the first third's end to the last sample."""
ALLOWED_OBJECTS: Final = 2000
OBJECTS: Final = "objects.jsonl"
_PAYLOAD: Final = bytes(1000)


@dataclass
class Samples:
    """What was seen, in order."""

    seconds: list[float] = field(default_factory=list)
    levels: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ALLOWED})
    objects: list[dict[str, int]] = field(default_factory=list)
    """By type, as the bookie wrote them."""

    def rise(self, values: Sequence[float]) -> float:
        """What a line through all but the first third rises by."""
        start = len(values) // 3
        at = np.array(self.seconds[start : len(values)])
        slope = np.polyfit(at, np.array(values[start:]), 1)[0] if len(at) > 1 else 0.0
        return float(slope * (at[-1] - at[0])) if len(at) else 0.0

    def growing_types(self) -> dict[str, int]:
        """Types of which there are more in each quarter of the rest than in the one before, and by how much in all."""
        rest = self.objects[len(self.objects) // 3 :]
        quarters = np.array_split(np.arange(len(rest)), 4)
        found = {}
        for name in set().union(*rest):
            means = [np.mean([rest[i].get(name, 0) for i in quarter]) for quarter in quarters if len(quarter)]
            steps = np.diff(means)
            if len(steps) and min(steps) > 0 and means[-1] - means[0] > ALLOWED_OBJECTS:
                found[name] = int(means[-1] - means[0])
        return found


# --- the load -------------------------------------------------------------------------------------------------------


async def _again(work: Callable[[], Awaitable[object]], counts: dict[str, int], name: str) -> NoReturn:
    while True:
        try:
            await work()
            counts[name] = counts.get(name, 0) + 1
        except (PodkeeperError, OSError, grpc.aio.AioRpcError, aiohttp.ClientError, TimeoutError) as error:
            reason = error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__
            failed = f"{name} that failed ({reason})"
            counts[failed] = counts.get(failed, 0) + 1
        await asyncio.sleep(PAUSE_S)


async def _ledger(client: Client) -> None:
    """Written, read while it is tailed, closed or recovered, and deleted."""
    async with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        ledger_id = writer.ledger_id
        await writer.append_many([_PAYLOAD] * 100)
        async with client.open(ledger_id) as reader:
            await reader.read(0, reader.last_add_confirmed)
        if ledger_id % 3 == 0:
            await client.recover(ledger_id)
    async with client.open(ledger_id) as reader:
        async for _ in reader.tail():
            pass
    await client.delete(ledger_id)


async def _gateway_ledger(stub: Any) -> None:
    create = messages.CreateRequest(ensemble_size=1, write_quorum=1, ack_quorum=1)
    requests = [messages.AppendRequest(create=create), *[messages.AppendRequest(entries=[_PAYLOAD] * 50)] * 2]
    responses = [response async for response in stub.Append(iter(requests))]
    ledger_id = responses[0].ledger_id
    async for _ in stub.Tail(messages.TailRequest(ledger_id=ledger_id, first_entry_id=0)):
        pass
    given_up = stub.Read(messages.ReadRequest(ledger_id=ledger_id))
    await given_up.read()
    given_up.cancel()
    async for _ in stub.List(messages.ListRequest()):
        pass
    await stub.Delete(messages.DeleteRequest(ledger_id=ledger_id))


async def _http(port: int) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("/metrics", "/healthz", "/api/v1/ledger/list"):
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                await answer.read()


async def _comes_and_goes(port: int) -> None:
    """One that sends half a frame, and one that says nothing."""
    for data in (b"\x00\x00\x10\x00half", b""):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        await writer.drain()
        writer.close()


async def load(bookie: ServeProcess, grpc_port: int, http_port: int, counts: dict[str, int]) -> None:
    """Until it is cancelled."""
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}")
    stub = LedgerServiceStub(channel)  # type: ignore[no-untyped-call]
    async with channel, Client(bookie.settings["metadataServiceUri"]) as client:
        await asyncio.gather(
            *(_again(lambda: _ledger(client), counts, "ledgers") for _ in range(2)),
            *(_again(lambda: _gateway_ledger(stub), counts, "ledgers of the gateway") for _ in range(2)),
            _again(lambda: _http(http_port), counts, "visits over HTTP"),
            _again(lambda: _comes_and_goes(bookie.port), counts, "connections that came and went"),
        )


async def watch(process: psutil.Process, until: float, samples: Samples) -> None:
    """Sample until `until` (`time.monotonic`)."""
    began = time.monotonic()
    while (now := time.monotonic()) < until:
        with process.oneshot():
            values = (process.memory_info().rss / (1 << 20), float(process.num_fds()), float(process.num_threads()))
        samples.seconds.append(now - began)
        for name, value in zip(ALLOWED, values, strict=True):
            samples.levels[name].append(value)
        await asyncio.sleep(EVERY_S)


# --- what is printed ------------------------------------------------------------------------------------------------


def report(samples: Samples, counts: dict[str, int]) -> bool:
    """Print it; whether nothing leaks."""
    sound = True
    hours = (samples.seconds[-1] - samples.seconds[len(samples.seconds) // 3]) / 3600
    print("| | at first | at last | rise after the first third | an hour | |\n|---|---|---|---|---|---|")
    for name, values in samples.levels.items():
        rise = samples.rise(values)
        leaks = rise > ALLOWED[name]
        sound &= not leaks
        print(
            f"| {name} | {values[0]:.0f} | {values[-1]:.0f} | {rise:+.1f} | {rise / hours:+.0f}"
            f" | {'**leaks**' if leaks else f'at most {ALLOWED[name]:g}'} |"
        )
    growing = samples.growing_types()
    sound &= not growing
    first, last = sum(samples.objects[0].values()), sum(samples.objects[-1].values())
    print(f"| objects | {first} | {last} | | | {'**leaks**' if growing else 'no type grows'} |")
    for name, count in sorted(growing.items(), key=lambda each: -each[1])[:10]:
        print(f"| objects: {name} | | | {count:+d} | {count / hours:+.0f} | **leaks** |")
    print("; ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return sound


def draw(samples: Samples, out: Path) -> None:
    """A panel for each level, over time."""
    from PIL import Image, ImageDraw, ImageFont

    width, height, margin = 900, 180, 50
    panels = {**samples.levels, "objects": [float(sum(each.values())) for each in samples.objects]}
    image = Image.new("RGB", (width, height * len(panels)), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    for number, (name, values) in enumerate(panels.items()):
        top, bottom = number * height + 30, (number + 1) * height - 20
        low, high = min(values), max(values)
        span, last = high - low or 1.0, max(1, len(values) - 1)
        points = [
            (margin + (width - 2 * margin) * i / last, bottom - (bottom - top) * (value - low) / span)
            for i, value in enumerate(values)
        ]
        pen.line([(margin, top), (margin, bottom), (width - margin, bottom)], fill="gray")
        pen.line([(points[len(points) // 3][0], top), (points[len(points) // 3][0], bottom)], fill="lightgray")
        pen.line(points, fill="navy", width=2)
        title = f"{name}: {low:.0f} to {high:.0f} in {samples.seconds[-1] / 60:.1f} min; the grey line ends the warming"
        pen.text((margin, top - 22), title, fill="black", font=font)
    out.parent.mkdir(parents=True, exist_ok=True)
    image.save(out)


async def soak(minutes: float, budget: int, folder: Path) -> tuple[Samples, dict[str, int]]:
    """What was seen of a bookie, and how often the load did what."""
    grpc_port, http_port = free_port(), free_port()
    metadata = MetadataProcess(folder / "metadata")
    objects = folder / OBJECTS
    settings = {
        "metadataServiceUri": metadata.uri(),
        "memoryBudgetMb": str(budget),
        "autoRecoveryDaemonEnabled": "true",
        "auditorPeriodicBookieCheckInterval": "20",
        "auditorPeriodicCheckInterval": "30",
        "gcWaitTime": "10000",
        "minorCompactionInterval": "20",
        "httpServerEnabled": "true",
        "httpServerHost": "127.0.0.1",
        "httpServerPort": str(http_port),
        "grpcServerEnabled": "true",
        "grpcServerHost": "127.0.0.1",
        "grpcServerPort": str(grpc_port),
    }
    samples, counts = Samples(), dict[str, int]()
    metadata.start()
    try:
        ServeProcess.command("cluster", "init", metadata.uri())
        with ServeProcess(folder / "bookie", settings) as bookie:
            bookie.program = [sys.executable, "-m", "benchmarks.soak", "--count", str(objects)]
            bookie.start()
            assert bookie.process is not None
            loading = asyncio.create_task(load(bookie, grpc_port, http_port, counts))
            until = time.monotonic() + 60 * minutes
            await watch(psutil.Process(bookie.process.pid), until, samples)
            loading.cancel()
            with suppress(asyncio.CancelledError):
                await loading
    finally:
        metadata.stop()
    return samples, counts


def run(minutes: float, budget: int, folder: Path, out: Path | None = None) -> bool:
    """Soak, draw and report; whether nothing leaks."""
    samples, counts = asyncio.run(soak(minutes, budget, folder))
    samples.objects = [json.loads(line) for line in (folder / OBJECTS).read_text().splitlines()]
    if out is not None:
        draw(samples, out)
        print(f"drawn to {out}")
    return report(samples, counts)


def serve_counted(objects: Path, arguments: Sequence[str]) -> None:
    """The `bookie` command, in a process that writes every now and then how many objects of each type there are. Those
    that are there when it begins to serve are left out, as `gc.freeze` says."""

    def count() -> None:
        with objects.open("w") as file:
            while True:
                time.sleep(COUNT_S)
                types = Counter(type(each).__name__ for each in gc.get_objects())
                file.write(json.dumps(types) + "\n")
                file.flush()

    threading.Thread(target=count, name="counts objects", daemon=True).start()
    sys.argv = ["bookie", *arguments]
    from bookie_pod.cli.main import main as serve

    sys.exit(serve())


def main() -> int:
    if sys.argv[1:2] == ["--count"]:
        serve_counted(Path(sys.argv[2]), sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--budget", type=int, default=64, help="memoryBudgetMb")
    parser.add_argument("--out", type=Path, help="a PNG with the levels over time")
    parser.add_argument("--directory", type=Path, help="parent of the data directories")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        return int(not run(given.minutes, given.budget, Path(folder), given.out))


if __name__ == "__main__":
    sys.exit(main())
