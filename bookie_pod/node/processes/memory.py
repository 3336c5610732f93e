"""Gives memory that the caches no longer use back to the operating system, and looks that no more is taken than may be.

Entries are allocated one by one, and the C library keeps what they leave: after a burst the process would stay as
large as the burst made it, which a container's memory limit counts. A trim holds the allocator's locks for some
milliseconds, so it is done when no adds arrive, and only when it is worth it.

Threads: event loop; the trim runs on a worker thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from bookie_pod.callers import Callers
from bookie_pod.server.grpc.receiving import FIRST_SHARE

CHECK_INTERVAL_S: Final = 1.0
"""Seconds without an add after which memory may be given back."""

WORTH_BYTES: Final = 64 * 1024 * 1024
"""Growth since the last trim that makes another one worth its cost."""

GUARD_INTERVAL_S: Final = 0.01
"""A fast network brings some ten megabytes in this time."""
QUIET_INTERVAL_S: Final = 0.1
"""So much later is the next look where nobody calls over gRPC and nothing is held: a hundred looks in a second are a
sixtieth of a processor."""
GUARD_SHARE: Final = 5 / 4
"""So many times the budget may be resident before anybody is in the way; a container may have twice the budget, and
what comes in until calls have ended has to fit in between."""
TRIM_AGAIN_S: Final = 1.0
MOST_TRIM_AGAIN_S: Final = 60.0
"""Of a process that is too large, after a trim; ever later while trims bring nothing."""
COLLECT_SHARE: Final = 30
"""So many times as long as a collection of garbage took the next one waits at least: each holds up the event loop."""
GROWTH_S: Final = 60
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
    collect: Callable[[], object] = lambda: gc.collect(1),
) -> None:
    """Look every now and then whether somebody is in the way of others (`MemoryGovernor.relieve`), and whether the
    process is larger than it should be: what clients have given back lies between what others hold, and is returned by
    a trim alone.

    And the last resort against messages that come in over gRPC all at once (`server.grpc.receiving`): when the process
    is above its budget, and has grown lately by a good part of what clients may have, and not by what they are known to
    hold, end the calls into which messages may come, but for as many as there is room for. Until they have ended, as
    much may come as came since the look before: it is awaited. The first call of a process that was quiet is looked
    at when it begins. Runs until cancelled."""
    memory = callers.memory
    while (begin := _known(resident)) is None:
        await asyncio.sleep(interval)
        memory.relieve(time.perf_counter())
    most = max(int(budget * GUARD_SHARE), begin + memory.limit)
    worth = memory.limit // 4
    message = max(1, 2 * memory.limit // FIRST_SHARE)  # as large as one may be, with what it takes beside
    trims = _Trims(trim or trimmer() or (lambda: None), collect, begin, worth)
    lows, second = deque([begin - memory.total], maxlen=GROWTH_S), time.monotonic()  # of each second
    before = begin
    while True:
        await asyncio.sleep(interval)
        if not memory.total:
            with suppress(TimeoutError):
                async with asyncio.timeout(QUIET_INTERVAL_S):
                    await callers.anybody.wait()
        memory.relieve(time.perf_counter())
        if (now := _known(resident)) is None:
            continue
        unseen = now - memory.total
        soon, before = now + max(0, now - before), now
        is_growing = soon > most and soon - memory.total - min(lows) > worth
        if now > budget and is_growing and callers.receivers > (keep := max(0, (2 * budget - soon) // message)):
            # All at once: what comes in meanwhile comes as fast as the network is.
            _log.warning("memory is short: calls that receive were ended", calls=callers.cut_receivers(keep))
        if time.monotonic() - second > 1:
            lows.append(unseen)
            second += 1
        lows[-1] = min(lows[-1], unseen)
        trims.look(now, wanted=now > budget, urgent=now > most)


def _known(resident: Callable[[], int]) -> int | None:
    """None where there is no `/proc`, or no descriptor to read it with: what is governed does not depend on it."""
    try:
        return resident()
    except OSError:
        return None


class _Trims:
    """Trims a process that is too large: on a worker thread, one at a time, as it grows; and now and then as long as
    it is far too large, since what made it so may be given back after a trim.

    Young garbage is collected before: each gRPC call leaves its metadata in a cycle, and thousands of calls come
    between two of `collect_cycles`, which sees to what died old. To look at everything is a long turn of the loop."""

    def __init__(self, trim: Callable[[], None], collect: Callable[[], object], resident: int, worth: int) -> None:
        self._trim = trim
        self._collect = collect
        self._collect_at = 0.0
        self._worth = worth
        self._floor = self._before = resident
        self._began = 0.0
        self._pause = TRIM_AGAIN_S
        self._running: asyncio.Task[None] | None = None

    def look(self, now: int, *, wanted: bool, urgent: bool) -> None:
        """`now`: bytes that are resident."""
        if self._running is not None:
            if not self._running.done():
                return
            brought = self._before - now > self._worth
            self._pause = TRIM_AGAIN_S if brought else min(MOST_TRIM_AGAIN_S, 2 * self._pause)
            self._running, self._floor = None, now
        self._floor = min(self._floor, now)
        grown = now - self._floor > self._worth
        if (wanted and grown) or (urgent and time.monotonic() - self._began > self._pause):
            self._before, self._began = now, time.monotonic()
            if self._began >= self._collect_at:
                self._collect()
                self._collect_at = time.monotonic() + COLLECT_SHARE * (time.monotonic() - self._began)
            self._running = asyncio.create_task(asyncio.to_thread(self._trim))
