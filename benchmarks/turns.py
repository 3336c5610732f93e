"""A bookie that notes how long the turns of its event loop are; `benchmarks.hostile` starts it.

    python -m tests.support.warm ... benchmarks.turns:main FILE serve --config CONFIGURATION

A timer of a millisecond that comes late was held up by the turn before it. How much of that the loop's own thread was
at work says whose fault it is: of a long turn all of it, of a machine with too few processors little. Each line of the
file is such a delay: when it ended (`time.monotonic`), how long it took, and the processor time of the loop's thread in
it, in seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from bookie_pod.cli.main import main as bookie
from bookie_pod.config.model import BookieConfig
from bookie_pod.node.processes import bookie as process

TICK_S: Final = 0.001
NOTED_S: Final = 0.005
"""What is shorter is not noted."""


async def note_turns(path: Path) -> NoReturn:
    """Until cancelled."""
    with path.open("w", buffering=1) as file:
        began, worked = time.monotonic(), time.thread_time()
        while True:
            await asyncio.sleep(TICK_S)
            now, at_work = time.monotonic(), time.thread_time()
            if now - began > NOTED_S:
                file.write(f"{now:.4f} {now - began:.4f} {at_work - worked:.4f}\n")
            began, worked = time.monotonic(), time.thread_time()


def longest(path: Path, since: float) -> tuple[float, float]:
    """The longest turn by the work of its thread, and by the clock, in seconds, of those that ended since then."""
    noted = list(_noted(path, since))
    return max((worked for _, worked in noted), default=0.0), max((took for took, _ in noted), default=0.0)


def _noted(path: Path, since: float) -> Iterator[tuple[float, float]]:
    for line in path.read_text().splitlines():
        ended, took, worked = map(float, line.split())
        if ended >= since:
            yield took, worked


def main(arguments: list[str]) -> object:
    """`FILE`, and what follows `bookie`."""
    path, serve = Path(arguments[0]), process._serve
    sys.argv = ["bookie", *arguments[1:]]

    async def noting(config: BookieConfig) -> int:
        turns = asyncio.create_task(note_turns(path))
        try:
            return await serve(config)
        finally:
            turns.cancel()

    process._serve = noting
    return bookie(arguments[1:])
