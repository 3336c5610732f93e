"""Gives unused memory back to the operating system, and checks that the process takes no more than it may.

Entries and frames are allocated one by one, and the C library keeps what they leave: after a burst the process would
stay as large as the burst made it, which a container's memory limit counts. A trim holds the allocator's locks for some
milliseconds, some tens of them for hundreds of megabytes. So it is done while little is written, and if it is
worth it.

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

from bookie_pod.callers import FIRST_SHARE, Callers
from bookie_pod.logs import FewLines
from bookie_pod.server.grpc.resident import Known, ResidentBound
from bookie_protocol.errors import ExitCode

CALM_S: Final = 5
"""After so many seconds in which little is written memory may be given back."""
CALM_BYTES: Final = 4 * 1024 * 1024
"""Bytes written in a calm second, at most: the caches fill no faster than that afterwards."""
WORTH_BYTES: Final = 24 * 1024 * 1024
"""Growth since the last trim, beside what clients hold, that makes another one worth its cost."""
GUARD_INTERVAL_S: Final = 0.01
"""A fast network brings some ten megabytes in this time."""
QUIET_INTERVAL_S: Final = 0.1
"""Seconds by which the next look is later while no gRPC call runs and nothing is held.

A hundred looks in a second take a sixtieth of a processor.
"""
GUARD_SHARE: Final = 5 / 4
"""The multiple of the budget that may be resident before calls are ended.

A container may have twice the budget, and the bytes that arrive until calls have ended have to fit in between.
"""
TRIM_AGAIN_S: Final = 1.0
MOST_TRIM_AGAIN_S: Final = 60.0
"""Seconds after a trim of a process that is too large, at most; the pause grows while trims bring nothing."""
YOUNG_OBJECTS: Final = 10_000
"""Objects made since the last collection that make another one due: it takes about a millisecond."""
YOUNG_PASSES: Final = 4
"""After so many collections what survived them is looked at once more."""
GROWTH_S: Final = 60
"""Seconds after which growth is not due to the messages that come in now."""

ARENAS: Final = 2
_M_ARENA_MAX: Final = -8
_STATM: Final = Path("/proc/self/statm")
_log = structlog.get_logger(__name__)


def resident_bytes() -> int:
    """Resident memory of this process, in bytes."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def trimmer() -> Callable[[], None] | None:
    """The C library's trim, which frees the interpreter while it runs; None where there is none (musl, macOS)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None else lambda: trim(0)


def few_arenas() -> None:
    """Have glibc keep what threads free in few places, so that another thread uses it, and a trim gives it back. To be
    called before threads are started; without effect elsewhere."""
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_ARENA_MAX, ARENAS)


def resident_bound(budget: int, known: Known | None, *, ends: bool = False) -> ResidentBound:
    """The last bound of a process with so many bytes of budget: a quarter more, since it takes a while until what
    was cut is gone, and twice the budget is what a container may have. A process that takes most of a small budget at
    rest has half of the budget beside that. `ends`: the process does, if nothing else helps, shortly below that."""
    most = max(budget * 5 // 4, resident_bytes() + budget // 2)
    return ResidentBound(most, resident_bytes, trimmer(), known, _end if ends else None)


def _end() -> None:
    _log.critical("memory is short, and does not come back: the process ends, to be restarted")
    os._exit(ExitCode.BOOKIE_EXCEPTION)


async def guard_memory(
    callers: Callers,
    budget: int,
    trim: Callable[[], None] | None = None,
    resident: Callable[[], int] = resident_bytes,
    interval: float = GUARD_INTERVAL_S,
    written: Callable[[], int] = lambda: 0,
) -> None:
    """Relieve memory every now and then, until cancelled.

    Each look asks whether a client is in the way of others (`MemoryGovernor.relieve`), whether there is much young
    garbage, and whether the process is larger than it should be: memory that clients have given back lies between
    memory of others, and only a trim returns it. That is done at once in a process above its budget, and in every other
    one when it is calm. `written` returns how many bytes were put into caches, ever.

    It is also the last resort against messages that come in over gRPC all at once (`server.grpc.receiving`). When the
    process is above its budget, and has grown lately by a good part of what clients may have, and not by what they are
    known to hold, but may be messages for the most part, it ends the calls into which these may come, except for as
    many as there is room for. Until they have ended, as much may come as came since the look before: it is awaited. The
    first call of a process that was quiet is looked at when it begins.
    """
    memory = callers.memory
    while (begin := _known(resident)) is None:
        await asyncio.sleep(interval)
        memory.relieve(time.perf_counter())
    most = max(int(budget * GUARD_SHARE), begin + memory.limit)
    worth = memory.limit // 4
    message = max(1, 2 * memory.limit // FIRST_SHARE)  # as large as one may be, with what it takes beside
    trims = _Trims(trim or trimmer() or (lambda: None), begin, worth)
    lows, second = deque([begin - memory.total], maxlen=GROWTH_S), time.monotonic()  # of each second
    receivers = deque([0], maxlen=GROWTH_S)  # at most, of the same seconds
    before, calm, had_written, lines = begin, 0, written(), FewLines(_log)
    while True:
        await asyncio.sleep(interval)
        if not memory.total:
            with suppress(TimeoutError):
                async with asyncio.timeout(QUIET_INTERVAL_S):
                    await callers.anybody.wait()
        memory.relieve(time.perf_counter())
        collect_young()
        if (now := _known(resident)) is None:
            continue
        unseen = now - memory.total
        soon, before = now + max(0, now - before), now
        is_growing = soon > most and soon - memory.total - min(lows) > worth
        # Messages are no more of the growth than calls of late could receive. Strangers' headers are `ResidentBound`'s.
        receivers[-1] = max(receivers[-1], callers.receivers)
        is_growing = is_growing and 2 * message * max(receivers) >= soon - memory.total - min(lows)
        if now > budget and is_growing and callers.receivers > (keep := max(0, (2 * budget - soon) // message)):
            # All at once: what comes in meanwhile comes as fast as the network is.
            lines.warning("memory is short: calls that receive were ended", calls=callers.cut_receivers(keep))
        if time.monotonic() - second > 1:
            lows.append(unseen)
            receivers.append(0)
            second = time.monotonic()  # however long ago: nothing is known of the time without a look
            is_calm, had_written = written() - had_written <= CALM_BYTES, written()
            calm = calm + 1 if is_calm else 0
        lows[-1] = min(lows[-1], unseen)
        kept = min(lows[each] for each in range(-min(CALM_S, len(lows)), 0))
        trims.look(now, kept if calm >= CALM_S else 0, wanted=now > budget, urgent=now > most)


def collect_young() -> None:
    """Collect garbage among the objects made lately, where these are many.

    The collector is off in a bookie, and `collect_cycles` comes only now and then. Meanwhile each gRPC call leaves its
    metadata in a cycle, and each connection adds objects that have to be looked at: what is put off becomes a turn of
    the event loop for which other clients wait.
    """
    young, passes, _ = gc.get_count()
    if young > YOUNG_OBJECTS:
        gc.collect(1 if passes >= YOUNG_PASSES else 0)


def _known(resident: Callable[[], int]) -> int | None:
    """None where there is no `/proc`, or no descriptor to read it with: what is governed does not depend on it."""
    try:
        return resident()
    except OSError:
        return None


class _Trims:
    """Trims a process that is too large: on a worker thread, one at a time, as it grows; and now and then as long as
    it is far too large, since what made it so may be given back after a trim. And one that is calm, if it keeps much
    more than after the last trim."""

    def __init__(self, trim: Callable[[], None], resident: int, worth: int) -> None:
        self._trim = trim
        self._worth = worth
        self._floor = self._before = resident
        self._rest = 0  # what the start has left is given back too
        self._began = 0.0
        self._pause = TRIM_AGAIN_S
        self._running: asyncio.Task[None] | None = None

    def look(self, now: int, kept: int, *, wanted: bool, urgent: bool) -> None:
        """`now`: bytes that are resident. `kept`: those that no client has held for a while; 0: this is not known."""
        if self._running is not None:
            if not self._running.done():
                return
            brought = self._before - now
            self._pause = TRIM_AGAIN_S if brought > self._worth else min(MOST_TRIM_AGAIN_S, 2 * self._pause)
            self._running, self._floor = None, now
            self._rest = 0 if brought > WORTH_BYTES // 2 else kept or now  # more may be given back a moment later
        self._floor = min(self._floor, now)
        self._rest = min(self._rest, kept or self._rest)
        passed = time.monotonic() - self._began
        if (
            (wanted and now - self._floor > self._worth)
            or (urgent and passed > self._pause)
            or (kept - self._rest > WORTH_BYTES and passed > CALM_S)
        ):
            self._before, self._began = now, time.monotonic()
            self._running = asyncio.create_task(asyncio.to_thread(self._trim))
