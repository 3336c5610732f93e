"""What bookies say of their disks and their entry logs.

Driver only; several bookies are asked at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pyspark_bookie.jobs.space.admin import AdminApi, AdminError

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


def ask_bookies(api: AdminApi, most_logs: int) -> list[BookieSpace]:
    """Every bookie; of each at most so many entry logs are looked at one by one."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(partial(ask_bookie, api, most_logs=most_logs), api.bookies))


def ask_bookie(api: AdminApi, bookie: str, *, most_logs: int) -> BookieSpace:
    """One bookie; what it does not tell is its `problem`."""
    try:
        info = api.get(bookie, "info")
        forecasts = api.get(bookie, "gc/forecast")
        quarantined = api.get(bookie, "gc/quarantine")
        logs = tuple(_logs(api, bookie, most_logs)) if most_logs else ()
        tenths = [tenth for forecast in forecasts for tenth in forecast["usage"]]
        return BookieSpace(
            bookie,
            total_bytes=int(info["totalSpace"]),
            free_bytes=int(info["freeSpace"]),
            log_bytes=_sum(tenths, "totalBytes"),
            garbage_bytes=_sum(tenths, "reclaimableBytes"),
            minor_reclaimable=_sum([each["minor"] for each in forecasts], "reclaimableBytes"),
            minor_rewritten=_sum([each["minor"] for each in forecasts], "rewrittenBytes"),
            major_reclaimable=_sum([each["major"] for each in forecasts], "reclaimableBytes"),
            major_rewritten=_sum([each["major"] for each in forecasts], "rewrittenBytes"),
            unmeasured_logs=_sum(forecasts, "unmeasuredLogs"),
            quarantined_logs=len(quarantined),
            logs=logs,
        )
    except AdminError as error:
        return BookieSpace(bookie, problem=str(error))
    except (KeyError, TypeError, ValueError) as error:
        return BookieSpace(bookie, problem=f"bookie {bookie}: its answer cannot be understood: {error!r}")


def _logs(api: AdminApi, bookie: str, most: int) -> Iterator[LogSpace]:
    listing = api.get(bookie, "list_disk_file", file_type="entrylog")
    names = [name for text in listing.values() for name in str(text).split() if name.endswith(".log")]
    for name in names[:most]:
        try:
            found: Sequence[Any] = api.get(bookie, "gc/why", entryLog=name)
        except AdminError:
            continue  # it went meanwhile
        for each in found:
            owners = tuple(int(share["ledgerId"]) for share in each["owners"] or ())
            yield LogSpace(bookie, name, int(each["size"]), each["liveBytes"], owners, str(each["reason"]))


def _sum(items: Sequence[Any], name: str) -> int:
    return sum(int(item[name]) for item in items)
