"""The work of this bookie, in numbers that a page or a program asks for every few seconds.

All but the space on disk is in memory. Event loop only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Final

from bookie_pod.admin.bookie import ThisBookie
from bookie_pod.metrics.registry import QUANTILES, Registry
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, Json, Reply
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Operation, Resource
from bookie_protocol.admin_api import bookie as bookie_api
from bookie_protocol.admin_api.bookie import BookieLoad, BookieSpace

_ADDS: Final = "bookkeeper_server_ADD_ENTRY_REQUEST"
_READS: Final = "bookkeeper_server_READ_ENTRY_REQUEST"
_SYNCS: Final = "bookie_journal_JOURNAL_SYNC"
_MEDIAN: Final = QUANTILES.index(0.5)
_P99: Final = QUANTILES.index(0.99)
_WRITTEN: Final = "bookie_WRITE_BYTES"
_READ: Final = "bookie_READ_BYTES"
_WRITE_CACHE: Final = "bookie_write_cache_size"
_WRITE_CACHE_MAX: Final = "bookie_write_cache_max_size"
_READ_CACHE: Final = "bookie_read_cache_size"
_READ_CACHE_MAX: Final = "bookie_read_cache_max_size"
_LOGS: Final = "bookie_ENTRY_LOG_SPACE_BYTES"
_LIVE: Final = "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES"
_LEDGERS: Final = "bookie_ledgers_count"
_LEVELS: Final = (
    _WRITTEN,
    _READ,
    _WRITE_CACHE,
    _WRITE_CACHE_MAX,
    _READ_CACHE,
    _READ_CACHE_MAX,
    _LOGS,
    _LIVE,
    _LEDGERS,
)


def load_of(
    registry: Registry, space: BookieSpace, bookie_id: str, complaint: str | None, *, read_only: bool
) -> BookieLoad:
    """The numbers of a bookie whose metrics are in `registry`."""
    levels = _levels(registry)
    adds, adds_failed, add_ms = _summary(registry, _ADDS)
    reads, reads_failed, read_ms = _summary(registry, _READS)
    syncs = [quantiles[_P99] for quantiles in _quantiles(registry, _SYNCS)]
    used = space.fullest_used_percent
    return BookieLoad(
        bookie_id=bookie_id,
        read_only=read_only,
        complaint=complaint,
        clock_seconds=round(time.monotonic(), 3),
        free_space=space.free_space,
        total_space=space.total_space,
        fullest_used_percent=used if isinstance(used, float) else 0.0,
        file_systems=space.file_systems if isinstance(space.file_systems, list) else [],
        adds=adds,
        adds_failed=adds_failed,
        reads=reads,
        reads_failed=reads_failed,
        written_bytes=levels[_WRITTEN],
        read_bytes=levels[_READ],
        add_p50_ms=_ms(add_ms[_MEDIAN]),
        add_p99_ms=_ms(add_ms[_P99]),
        read_p50_ms=_ms(read_ms[_MEDIAN]),
        read_p99_ms=_ms(read_ms[_P99]),
        sync_p99_ms=_ms(max((each for each in syncs if not math.isnan(each)), default=math.nan)),
        write_cache_bytes=levels[_WRITE_CACHE],
        write_cache_max_bytes=levels[_WRITE_CACHE_MAX],
        read_cache_bytes=levels[_READ_CACHE],
        read_cache_max_bytes=levels[_READ_CACHE_MAX],
        entry_log_bytes=levels[_LOGS],
        live_bytes=levels[_LIVE],
        ledgers=levels[_LEDGERS],
    )


def _levels(registry: Registry) -> dict[str, int]:
    """Return each level, summed over directories. The limit of the write cache is that of each half of each
    directory."""
    found = dict.fromkeys(_LEVELS, 0)
    directories = 0
    for number in registry.numbers(*_LEVELS):
        if number.name in found:
            found[number.name] += int(number.value)
            directories += number.name == _WRITE_CACHE
    found[_WRITE_CACHE_MAX] *= max(1, directories)
    return found


def _summary(registry: Registry, name: str) -> tuple[int, int, list[float]]:
    """Return what succeeded, what failed, and the quantiles of what succeeded."""
    stats = registry.op_stats(name, {})
    quantiles, done, _ = stats.snapshot(True)
    return done, stats.snapshot(False)[1], quantiles


def _quantiles(registry: Registry, name: str) -> Iterable[list[float]]:
    return (stats.snapshot(True)[0] for stats in registry.summaries(name))


def _ms(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)


async def _load(context: Context, call: Call) -> Reply:
    node = context.room(ThisBookie)
    space = await context.workers.run(node.disk_space, call.caller)
    complaint = context.status.unhealthy_reason() or context.status.complaint()
    return Json(load_of(context.registry, space, node.bookie_id, complaint, read_only=node.state().read_only))


RESOURCES: Final = (
    Resource((Operation(bookie_api.LOAD, Role.VIEWER, "Rates, latencies, caches and space", _load, "The numbers."),)),
)
