"""The gRPC gateway: `python -m benchmarks.gateway [--quick]`.

One bookie of ours with the gateway that it starts, or, with `--own-process`, one of its own, and one client, this
process, with the code that grpcio generates. `--bookies 3`: three, and every entry on each. Streams of Append and Read,
with many entries in each message; entries per second and what an entry costs in CPU on either side. `TARGET` is what a
gateway should reach in batches.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import click
import grpc
import psutil
import uvloop

from benchmarks.environment import Environment
from benchmarks.samples import OURS, Samples
from benchmarks.session import DEFAULT_OUT, Session
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.support.bookie_process import BookieProcess, free_port
from tests.support.gateway_command import GatewayCommand

TARGET: Final = 100_000
"""Entries per second, appended or read."""
_READY_S: Final = 30.0
_END_S: Final = 60.0


@dataclass(frozen=True)
class Load:
    """`size`: bytes of an entry; `entries`: of them in a message."""

    size: int
    entries: int

    @property
    def name(self) -> str:
        return f"{self.size} B, {self.entries} a message"


@dataclass(frozen=True)
class GatewayPlan:
    """Durations in seconds. `read_entries`: of the ledger that is read, again and again, from the bookies' memory."""

    rounds: int
    warmup: float
    duration: float
    read_entries: int


LOADS: Final = tuple(Load(size, entries) for size in (1024, 128) for entries in (100, 1000))
QUICK: Final = GatewayPlan(rounds=1, warmup=1, duration=2, read_entries=20_000)


@dataclass
class Progress:
    """What a load counts, and how it is told to end."""

    entries: int = 0
    is_over: bool = False


@dataclass(frozen=True)
class Usage:
    """Where everything stands at one moment; seconds."""

    entries: int
    at: float
    client: float
    gateway: float
    bookies: float


@dataclass
class GatewayStages:
    """The measurements through one gateway: that of the first bookie, or `gateway` on its own."""

    stub: LedgerServiceStub
    bookies: list[psutil.Process]
    gateway: psutil.Process | None
    plan: GatewayPlan
    samples: Samples
    session: Session

    async def run(self) -> None:
        """All loads, round after round; what fails leaves a line, and those after it still run."""
        for _ in range(self.plan.rounds):
            for load in LOADS:
                for name, stage in (("append", self._append), ("read", self._read)):
                    try:
                        await stage(load)
                    except (grpc.aio.AioRpcError, RuntimeError, TimeoutError) as error:
                        self.samples.failures.append(f"{name} {load.name}: {str(error)[-800:]}")

    async def _append(self, load: Load) -> None:
        """One call; what counts is acknowledged."""
        progress = Progress()
        ledger_id = await self._measure(
            f"append {load.name}", progress, self._write(load, progress, lambda: progress.is_over)
        )
        await self.stub.Delete(pb.DeleteRequest(ledger_id=ledger_id))

    async def _read(self, load: Load) -> None:
        """A ledger that was just written, from its first entry to its last, again and again."""
        written, progress = Progress(), Progress()
        ledger_id = await self._write(load, written, lambda: written.entries >= self.plan.read_entries)
        request = pb.ReadRequest(ledger_id=ledger_id, max_batch_entries=load.entries)

        async def read() -> None:
            while not progress.is_over:
                before = progress.entries
                async for response in self.stub.Read(request):
                    progress.entries += len(response.entries)
                if progress.entries - before != written.entries:
                    raise RuntimeError(f"{progress.entries - before} of {written.entries} entries were read")

        await self._measure(f"read {load.name}", progress, read())
        await self.stub.Delete(pb.DeleteRequest(ledger_id=ledger_id))

    async def _write(self, load: Load, progress: Progress, is_over: Callable[[], bool]) -> int:
        """Append to a new ledger until it is over and close it; returns its id."""
        copies = len(self.bookies)
        create = pb.CreateRequest(ensemble_size=copies, write_quorum=copies, ack_quorum=copies // 2 + 1)
        message = pb.AppendRequest(entries=[Random(1).randbytes(load.size)] * load.entries)
        call = self.stub.Append()
        await call.write(pb.AppendRequest(create=create))

        async def send() -> int:
            sent = 0
            while not is_over():
                await call.write(message)
                sent += load.entries
            await call.done_writing()
            return sent

        sending = asyncio.create_task(send())
        try:
            async for response in call:
                progress.entries = response.last_entry_id + 1
        finally:
            call.cancel()  # nothing, unless it has failed: then it ends the sender too
            sent = (await asyncio.gather(sending, return_exceptions=True))[0]
        if progress.entries != sent or not response.closed:
            raise RuntimeError(f"{progress.entries} of {sent} entries were acknowledged")
        return int(response.ledger_id)

    async def _measure(self, name: str, progress: Progress, load: Coroutine[Any, Any, Any]) -> Any:
        """Run a load, note what happens after the warm-up, and end it; returns what it returns."""
        working = asyncio.create_task(load)
        try:
            await _lasts(working, self.plan.warmup)
            before = self._usage(progress)
            await _lasts(working, self.plan.duration)
            self._note(name, before, self._usage(progress))
            progress.is_over = True
            return await asyncio.wait_for(working, _END_S)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    def _usage(self, progress: Progress) -> Usage:
        own = os.times()
        cpu = [sum(bookie.cpu_times()[:2]) for bookie in self.bookies]
        gateway = cpu[0] if self.gateway is None else sum(self.gateway.cpu_times()[:2])
        return Usage(progress.entries, time.perf_counter(), own.user + own.system, gateway, sum(cpu))

    def _note(self, name: str, before: Usage, after: Usage) -> None:
        entries = after.entries - before.entries
        if not entries:
            raise RuntimeError("not one entry while it was measured")
        rate = entries / (after.at - before.at)
        whose = "the gateway's bookie" if self.gateway is None else "the gateway"
        costs = {whose: after.gateway - before.gateway, "the client": after.client - before.client}
        if len(self.bookies) > 1 or self.gateway is not None:
            costs["all bookies"] = after.bookies - before.bookies
        self.samples.add(OURS, name, "entries/s", "more", rate)
        shown = []
        for who, seconds in costs.items():
            self.samples.add(OURS, f"{name}, CPU of {who}", "us an entry", "less", seconds * 1e6 / entries)
            shown.append(f"{who} {seconds * 1e6 / entries:.2f}")
        self.session.log(f"  {name}: {rate:,.0f} entries/s; us of CPU an entry: {', '.join(shown)}")


async def _lasts(working: asyncio.Task[Any], seconds: float) -> None:
    """Wait so long; raises what the load failed with meanwhile."""
    done, _ = await asyncio.wait([working], timeout=seconds)
    if done:
        working.result()
        raise RuntimeError("the load ended before its time")


async def measure(
    plan: GatewayPlan, count: int, own_process: bool, parent: Path | None, samples: Samples, session: Session
) -> None:
    """All stages on so many fresh bookies."""
    with Environment(parent) as environment, ExitStack() as gateways:
        bookies: list[BookieProcess] = []
        for _ in range(count):
            settings = {"gcWaitTime": "3600000"}
            if not own_process:
                settings |= {"grpcServerEnabled": "true", "grpcServerPort": str(free_port())}
            bookies.append(environment.bookie(OURS, settings))
            await asyncio.to_thread(bookies[-1].start)
        gateway = None
        address = f"127.0.0.1:{bookies[0].configuration.get('grpcServerPort')}"
        if own_process:
            command = GatewayCommand(environment.directory / "gateway", environment.metadata_uri)
            await asyncio.to_thread(gateways.enter_context, command)
            gateway, address = psutil.Process(command.pid), command.address
        async with grpc.aio.insecure_channel(address) as channel:
            await asyncio.wait_for(channel.channel_ready(), _READY_S)
            stub = LedgerServiceStub(channel)  # type: ignore[no-untyped-call]
            processes = [psutil.Process(bookie.pid) for bookie in bookies]
            if gateway is None:
                (gateway,) = processes[0].children()
            await GatewayStages(stub, processes, gateway, plan, samples, session).run()


def verdict(samples: Samples) -> str:
    """The slowest of all loads beside the target; nothing if nothing was measured."""
    rates = {
        row.metric.name: samples.median(OURS, row.metric.name) or 0.0
        for row in samples.rows()
        if row.metric.unit == "entries/s"
    }
    if not rates:
        return ""
    slowest = min(rates, key=rates.__getitem__)
    reached = "reached" if rates[slowest] >= TARGET else "missed"
    return f"\nAt least {TARGET:,} entries/s are wanted: {reached}; the slowest is {slowest}, {rates[slowest]:,.0f}.\n"


@click.command()
@click.option("--quick", is_flag=True, help="One short round.")
@click.option("--bookies", type=click.IntRange(1, 3), default=1, show_default=True, help="Each has every entry.")
@click.option("--own-process", is_flag=True, help="`bookie gateway`, not the one that the bookie starts.")
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--duration", type=click.FloatRange(1, 600), default=8.0, show_default=True, help="Seconds of a load.")
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Parent of the bookies' directories.")
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True)
def main(
    quick: bool, bookies: int, own_process: bool, rounds: int, duration: float, parent: Path | None, out: Path
) -> None:
    """Measures Append and Read of the gateway."""
    session, samples = Session("gateway"), Samples()
    plan = QUICK if quick else GatewayPlan(rounds, warmup=3, duration=duration, read_entries=100_000)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(plan, bookies, own_process, parent, samples, session))
    session.report(samples, out, verdict(samples))


if __name__ == "__main__":
    main()
