"""What an audit with a byte limit costs those who write meanwhile.

Threads: the event loop.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Final

from benchmarks.paced_load import PacedLoad, Timed, quantile_ms
from tests.support.bookie_process import BookieProcess

LIMIT: Final = "16m"
QUANTILES: Final = {"p50": 0.5, "p99": 0.99}
_IDLE_S: Final = 60.0
"""As long as the bookies' `flushInterval`: what adds wait for a flush belongs to both."""
_WORKERS_START_S: Final = 3.0
"""Spark starts its Python workers when the first piece of work is there."""
_FIRST_LEDGER: Final = 5_000_000
_LEDGERS: Final = 4
_ADDS_PER_SECOND: Final = 300


class AuditBesideWriter:
    """Adds of 1 KB on a schedule to each of the bookies, alone and while the audit runs, in turn."""

    def __init__(self, metadata_uri: str, bookies: Sequence[BookieProcess], log: Callable[[str], None]) -> None:
        self._metadata_uri = metadata_uri
        self._log = log
        payload = Random(3).randbytes(1024)
        self._loads = [
            PacedLoad(
                int(bookie.configuration["bookiePort"]),
                range(first, first + _LEDGERS),
                [],
                payload,
                adds_per_second=_ADDS_PER_SECOND,
                reads_per_second=0.0,
            )
            for first, bookie in zip(count(_FIRST_LEDGER, _LEDGERS), bookies, strict=False)
        ]

    async def measure(self, ids: Sequence[int]) -> dict[str, float]:
        """For each of `QUANTILES`, the latency during an audit of these ledgers over that without: all the time that
        the job runs, and while it reads. Raises `RuntimeError`."""
        await asyncio.gather(*(load.run(_IDLE_S) for load in self._loads))
        idle = self._taken()
        running = [asyncio.create_task(load.run()) for load in self._loads]
        try:
            summary, reading_since = await self._audit(ids)
        finally:
            for load in self._loads:
                load.stop()
            await asyncio.gather(*running)
        busy = self._taken()
        ratios = {}
        for label, share in QUANTILES.items():
            alone, during = quantile_ms(idle, share), quantile_ms(busy, share)
            reading = quantile_ms(busy, share, reading_since + _WORKERS_START_S)
            if alone is None or during is None or reading is None:
                raise RuntimeError("no add was answered")
            ratios[f"{label}, with Spark's start"] = during / alone
            ratios[f"{label}, reading"] = reading / alone
            told = (
                f"add {label} {alone:.2f} ms alone, {during:.2f} ms during the audit, {reading:.2f} ms while it reads"
            )
            self._log(f"  audit beside a writer: {told}")
        self._log(f"  audit beside a writer: {summary}")
        return ratios

    def _taken(self) -> list[Timed]:
        """The adds since the last time."""
        taken = [each for load in self._loads for each in load.adds]
        for load in self._loads:
            load.adds.clear()
        return taken

    async def _audit(self, ids: Sequence[int]) -> tuple[str, float]:
        """Run the job as a process of its own; the last line of what it says, and when it began to read."""
        command = [sys.executable, "-m", "pyspark_bookie.jobs", "audit", "--metadata", self._metadata_uri]
        command += ["--max-bytes-per-second", LIMIT, "--master", "local[2]", "--digests", "--placement", "none"]
        command += ["--ledgers", ",".join(map(str, ids))]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # as from a terminal of its own
        )
        assert process.stdout is not None
        assert process.stderr is not None
        (told, reading_since), out = await asyncio.gather(_progress(process.stderr), process.stdout.read())
        if await process.wait() != 0 or reading_since is None:
            raise RuntimeError(f"audit: {told[-800:]}")
        return out.decode().strip().splitlines()[-1], reading_since


async def _progress(stream: asyncio.StreamReader) -> tuple[str, float | None]:
    """All that the job says of its progress, and when it did so first."""
    told, since = "", None
    async for line in stream:
        told += line.decode()
        if since is None and line.startswith(b"audit: 0 of "):
            since = time.perf_counter()
    return told, since
