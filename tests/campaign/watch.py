"""What must hold at every moment, whatever goes on: a bookie that says it is ready answers adds, and none takes more
memory than twice its budget.

A bookie that cannot be reached, because it is held up or cut off, is not asked. Event loop only.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from pathlib import Path
from typing import Final

from tests.campaign.history import History
from tests.campaign.world import BUDGET_MB, PORT, Bookie, World
from tests.support.frames import entry, v2_add

_EVERY_S: Final = 1.0
_ANSWER_S: Final = 4.0
_SILENT: Final = 4
"""Looks in a row at which it says that it is ready and answers nobody."""
_LARGE: Final = 3
"""Looks in a row at which it is too large."""
_PROBES: Final = 1 << 50
"""Ledgers from this id on belong to nobody: their adds are answered, whatever the answer is."""


class Watch:
    """`run` until it is cancelled."""

    def __init__(self, world: World, history: History) -> None:
        self._world = world
        self._history = history
        self._silent: Counter[str] = Counter()
        self._large: Counter[str] = Counter()
        self._number = 0

    async def run(self) -> None:
        while True:
            await asyncio.gather(*(self._look(bookie) for bookie in self._world.bookies.values()))
            await asyncio.sleep(_EVERY_S)

    async def _look(self, bookie: Bookie) -> None:
        if not bookie.program.is_running:
            return
        if bookie.kind.is_ours:
            self._judge_memory(bookie)
        starts = bookie.program.starts
        if bookie.is_unreachable or not await self._world.says_ready(bookie):
            self._silent[bookie.name] = 0
            return
        bookie.failed_starts = 0
        self._history.counts["readiness compared with an add"] += 1
        if await self._answers(bookie) or bookie.is_unreachable or bookie.program.starts != starts:
            self._silent[bookie.name] = 0
            return
        if not bookie.program.is_running or not await self._world.says_ready(bookie):
            return
        self._silent[bookie.name] += 1
        if self._silent[bookie.name] == _SILENT:
            self._history.breach("readiness", f"{bookie.name} says that it is ready, and answers no add")

    def _judge_memory(self, bookie: Bookie) -> None:
        resident = _resident_kb(bookie.program.pid)
        bookie.most_kb = max(bookie.most_kb, resident)
        if resident <= 2 * BUDGET_MB * 1024:
            self._large[bookie.name] = 0
            return
        self._large[bookie.name] += 1
        if self._large[bookie.name] == _LARGE:
            self._history.breach(
                "memory", f"{bookie.name} has {resident // 1024} MB, twice its budget are {2 * BUDGET_MB} MB"
            )

    async def _answers(self, bookie: Bookie) -> bool:
        self._number += 1
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection(bookie.host.address, PORT)
                try:
                    writer.write(v2_add(entry(_PROBES + self._number, 0)))
                    (length,) = struct.unpack(">I", await reader.readexactly(4))
                    await reader.readexactly(length)
                finally:
                    writer.close()
        except (OSError, EOFError, TimeoutError):
            return False
        return True


def _resident_kb(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0
