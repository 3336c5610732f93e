"""Gives memory that the caches no longer use back to the operating system, and looks that no more is taken than may be.

Entries are allocated one by one, and the C library keeps what they leave: after a burst the process would stay as
large as the burst made it, which a container's memory limit counts. A trim holds the allocator's locks for some
milliseconds, so it is done when no adds arrive, and only when it is worth it.

Threads: event loop; the trim runs on a worker thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from bookie_pod.callers import Callers

CHECK_INTERVAL_S: Final = 1.0
"""Seconds without an add after which memory may be given back."""

WORTH_BYTES: Final = 64 * 1024 * 1024
"""Growth since the last trim that makes another one worth its cost."""

GUARD_INTERVAL_S: Final = 0.05
GUARD_SHARE: Final = 7 / 4
"""So many times the budget may be resident; a container may have twice the budget."""
GROWTH_S: Final = 60.0
"""What grew longer ago than this did not come in with the messages that come in now."""

_STATM: Final = Path("/proc/self/statm")
_log = structlog.get_logger(__name__)


def resident_bytes() -> int:
    """Resident memory of this process, in bytes."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trimmer() -> Callable[[], None] | None:
    """The C library's trim, which frees the interpreter while it runs; None where there is none (musl, macOS)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None else lambda: trim(0)


async def give_back_memory(
    activity: Callable[[], object],
    trim: Callable[[], None] | None,
    resident: Callable[[], int] = resident_bytes,
    interval: float = CHECK_INTERVAL_S,
) -> None:
    """Trim whenever `activity` (anything that differs after an add) stands still and the process has grown by
    `WORTH_BYTES` since the last trim. Runs until cancelled; ends at once where the platform cannot trim."""
    if trim is None:
        return
    floor, before = resident(), activity()
    while True:
        await asyncio.sleep(interval)
        now = activity()
        if now == before and resident() - floor >= WORTH_BYTES:
            await asyncio.to_thread(trim)
            floor = resident()
        before = now


async def guard_memory(
    callers: Callers,
    budget: int,
    trim: Callable[[], None] | None = None,
    resident: Callable[[], int] = resident_bytes,
    interval: float = GUARD_INTERVAL_S,
) -> None:
    """Look every now and then whether somebody is in the way of others (`MemoryGovernor.relieve`), and whether the
    process is larger than it should be: what clients have given back lies between what others hold, and is returned by
    a trim alone.

    And the last resort against messages that come in over gRPC all at once (`server.grpc.receiving`): when the process
    is far above its budget, and has grown lately by a good part of what clients may have, end calls into which messages
    come. Runs until cancelled."""
    trim = trim or trimmer() or (lambda: None)
    floor = resident()
    most = max(int(budget * GUARD_SHARE), floor + callers.memory.limit)
    worth = callers.memory.limit // 4
    seen: deque[int] = deque(maxlen=max(1, round(GROWTH_S / interval)))
    while True:
        await asyncio.sleep(interval)
        callers.memory.relieve(time.perf_counter())
        now = resident()
        if now > budget and now - floor > worth:
            await asyncio.to_thread(trim)
            now = floor = resident()
        if now > most and seen and now - min(seen) > worth and callers.receivers:
            _log.warning("memory is short: calls that receive were ended", calls=callers.cut_receivers())
        floor = min(floor, now)
        seen.append(now)
