"""What bookies say of their disks and their entry logs.

Driver only, event loop of the client; several bookies are asked at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bookie_protocol.admin_api import bookie as bookie_api
from bookie_protocol.admin_api import gc
from bookie_protocol.admin_api.client import AdminClient, Place
from bookie_protocol.errors import NotThere, PodkeeperError
from pyspark_bookie.common.together import bounded

AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class LogSpace:
    """One entry log. `live_bytes` None: not measured yet."""

    bookie: str
    name: str
    size: int
    live_bytes: int | None
    owners: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class BookieSpace:
    """One bookie. `log_bytes` and `garbage_bytes`: of the entry logs that were measured; `minor` and `major`: what the
    two compactions would give back now, and what they would copy for it. `problem`: why nothing more is known."""

    bookie: str
    total_bytes: int = 0
    free_bytes: int = 0
    log_bytes: int = 0
    garbage_bytes: int = 0
    minor_reclaimable: int = 0
    minor_rewritten: int = 0
    major_reclaimable: int = 0
    major_rewritten: int = 0
    unmeasured_logs: int = 0
    quarantined_logs: int = 0
    logs: tuple[LogSpace, ...] = ()
    problem: str = ""

    @property
    def used_bytes(self) -> int:
        return self.total_bytes - self.free_bytes


async def ask_bookies(api: AdminClient, places: Mapping[str, Place | None], most_logs: int) -> list[BookieSpace]:
    """Every bookie; of each at most so many entry logs are looked at one by one."""

    async def ask(item: tuple[str, Place | None]) -> BookieSpace:
        bookie, at = item
        if at is None:
            return BookieSpace(bookie, problem=f"bookie {bookie} publishes no admin API: set httpServerEnabled=true")
        try:
            return await _ask(api, bookie, at, most_logs)
        except PodkeeperError as error:
            return BookieSpace(bookie, problem=f"bookie {bookie}: {error}")

    return await bounded(sorted(places.items()), ask, at_a_time=AT_ONCE)


async def _ask(api: AdminClient, bookie: str, at: Place, most_logs: int) -> BookieSpace:
    info = await api.ask(at, bookie_api.INFO)
    forecasts = await api.ask(at, gc.FORECAST)
    quarantined = await api.ask(at, gc.QUARANTINE)
    logs = await _logs(api, bookie, at, most_logs) if most_logs else []
    tenths = [tenth for forecast in forecasts for tenth in forecast.usage]
    return BookieSpace(
        bookie,
        total_bytes=info.total_space,
        free_bytes=info.free_space,
        log_bytes=sum(each.total_bytes for each in tenths),
        garbage_bytes=sum(each.reclaimable_bytes for each in tenths),
        minor_reclaimable=sum(each.minor.reclaimable_bytes for each in forecasts),
        minor_rewritten=sum(each.minor.rewritten_bytes for each in forecasts),
        major_reclaimable=sum(each.major.reclaimable_bytes for each in forecasts),
        major_rewritten=sum(each.major.rewritten_bytes for each in forecasts),
        unmeasured_logs=sum(each.unmeasured_logs for each in forecasts),
        quarantined_logs=len(quarantined),
        logs=tuple(logs),
    )


async def _logs(api: AdminClient, bookie: str, at: Place, most: int) -> list[LogSpace]:
    listing = await api.ask(at, bookie_api.DISK_FILES, query={"file_type": "entrylog"})
    names = [name for text in listing.values() for name in text.split() if name.endswith(".log")]
    found = []
    for name in names[:most]:
        try:
            reports = await api.ask(at, gc.WHY, query={"entryLog": name})
        except NotThere:
            continue  # it went meanwhile
        for each in reports:
            owners = tuple(share.ledger_id for share in each.owners or ())
            found.append(LogSpace(bookie, name, each.size, each.live_bytes, owners, each.reason))
    return found
