"""Small appends one after the other, as the edit logs of name services are written: `python -m benchmarks.edit_log`.

Three bookies of ours (E = Qw = 3, Qa = 2). Each writer has a stream of its own and appends its next entry when the one
before it is acknowledged, so that what is measured is latency; several writers share the bookies' group commits. Beside
the streams a plain ledger, to tell what a stream costs. All writers are in this process, on one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import click
import uvloop

from benchmarks.environment import Environment
from benchmarks.samples import OURS, Samples
from benchmarks.session import DEFAULT_OUT, Session
from bookie_client import Client
from bookie_client.streams import Streams, StreamSettings
from bookie_protocol.errors import PodkeeperError

BOOKIES: Final = 3
WRITERS: Final = (1, 4)
QUANTILES: Final = {"p50": 0.5, "p99": 0.99}
_QUORUMS: Final = {"ensemble": BOOKIES, "write_quorum": BOOKIES, "ack_quorum": 2}

Append = Callable[[bytes], Awaitable[Any]]


class EditLogStages:
    """The measurements of one round. `warmup` and `duration` in seconds."""

    def __init__(
        self, uri: str, payload: bytes, warmup: float, duration: float, samples: Samples, session: Session
    ) -> None:
        self._uri = uri
        self._payload = payload
        self._warmup = warmup
        self._duration = duration
        self._samples = samples
        self._session = session
        self._streams = 0

    async def run(self, writers: int) -> None:
        """Streams first, then ledgers. Raises `PodkeeperError`."""
        for what, open_one in (("streams", self._stream), ("ledgers", self._ledger)):
            async with Client(self._uri) as client, AsyncExitStack() as stack:
                appends = [await stack.enter_async_context(open_one(client)) for _ in range(writers)]
                took = await self._append_all(appends)
            self._note(f"{writers} {what if writers > 1 else what.removesuffix('s')}", took)

    @asynccontextmanager
    async def _stream(self, client: Client) -> AsyncIterator[Append]:
        streams, name = Streams(client), f"edits-{self._streams}"
        self._streams += 1
        await streams.create(name, StreamSettings(**_QUORUMS))
        async with streams.writer(name) as writer:
            yield writer.append

    @asynccontextmanager
    async def _ledger(self, client: Client) -> AsyncIterator[Append]:
        async with client.create(**_QUORUMS) as ledger:
            yield ledger.append

    async def _append_all(self, appends: Sequence[Append]) -> list[float]:
        """Seconds that each append took behind the warm-up, of all writers, ascending."""
        took: list[float] = []
        measure_at = time.perf_counter() + self._warmup
        end_at = measure_at + self._duration

        async def work(append: Append) -> None:
            while (began := time.perf_counter()) < end_at:
                await append(self._payload)
                if began >= measure_at:
                    took.append(time.perf_counter() - began)

        await asyncio.gather(*map(work, appends))
        return sorted(took)

    def _note(self, who: str, took: Sequence[float]) -> None:
        rate = len(took) / self._duration
        self._samples.add(OURS, who, "entries/s", "more", rate)
        told = [f"{rate:,.0f} entries/s"]
        for label, share in QUANTILES.items():
            ms = took[int(len(took) * share)] * 1000
            self._samples.add(OURS, f"{who}, {label}", "ms", "less", ms)
            told.append(f"{label} {ms:.2f} ms")
        self._session.log(f"  {who}: {', '.join(told)}")


async def measure(
    rounds: int, size: int, warmup: float, duration: float, parent: Path | None, samples: Samples, session: Session
) -> None:
    """All of `WRITERS`, round after round; what fails leaves a line, and those after it still run."""
    with Environment(parent) as environment:
        for _ in range(BOOKIES):
            bookie = environment.bookie(OURS, {"gcWaitTime": "3600000"})
            await asyncio.to_thread(bookie.start)
        stages = EditLogStages(
            environment.metadata_uri, Random(size).randbytes(size), warmup, duration, samples, session
        )
        for _ in range(rounds):
            for writers in WRITERS:
                try:
                    await stages.run(writers)
                except (PodkeeperError, TimeoutError) as error:
                    samples.failures.append(f"{writers} writers: {str(error)[-800:]}")


@click.command()
@click.option("--quick", is_flag=True, help="One short round, to see that it works.")
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--size", type=click.IntRange(0, 1_000_000), default=200, show_default=True, help="Bytes of an entry.")
@click.option("--duration", type=click.FloatRange(1, 600), default=8.0, show_default=True, help="Seconds of a load.")
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Parent of the bookies' directories.")
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True)
def main(quick: bool, rounds: int, size: int, duration: float, parent: Path | None, out: Path) -> None:
    """Measures synchronous appends to streams and to ledgers on three bookies of ours."""
    session, samples = Session("edit_log"), Samples()
    if quick:
        rounds, duration = 1, 2.0
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(rounds, size, duration / 4, duration, parent, samples, session))
    session.report(samples, out)


if __name__ == "__main__":
    main()
