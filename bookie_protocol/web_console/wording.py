"""Numbers, sizes, rates and times as people read them. Pure; any thread.

Numbers are of others, so any may come; those beyond 64 bits are shown as the largest one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from bookie_protocol.web_console.limits import number as bounded

UNKNOWN: Final = "—"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_LATEST: Final = 253_402_300_799_000
"""The last time that a date can name, in ms since 1970."""


def size(nbytes: float | None) -> str:
    """`1.4 GiB`."""
    if nbytes is None:
        return UNKNOWN
    value, unit = float(bounded(nbytes)), 0
    while abs(value) >= 1023.95 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 or value >= 99.95 else f"{value:.1f} {_UNITS[unit]}"


def count(number: int | None) -> str:
    """`12,345`."""
    return UNKNOWN if number is None else f"{bounded(number):,}"


def many(number: int, what: str) -> str:
    """`1 ledger`, `2 ledgers`. `what` ends with `y` for words like `entry`."""
    plural = f"{what[:-1]}ies" if what.endswith("ry") else f"{what}s"
    return f"{count(number)} {what if number == 1 else plural}"


def rate(per_second: float | None) -> str:
    """`1,234/s`."""
    if per_second is None:
        return UNKNOWN
    per_second = bounded(per_second)
    return f"{per_second:,.0f}/s" if per_second >= 10 or per_second == 0 else f"{per_second:.1f}/s"


def byte_rate(per_second: float | None) -> str:
    """`1.4 MiB/s`."""
    return UNKNOWN if per_second is None else f"{size(per_second)}/s"


def latency(ms: float | None) -> str:
    """`1.25 ms`."""
    if ms is None:
        return UNKNOWN
    ms = bounded(ms)
    if ms >= 1000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 10 else f"{ms:.2f} ms"


def percent(share: float | None) -> str:
    """Return the text of a share between 0 and 1: `37 %`."""
    if share is None:
        return UNKNOWN
    shown = 100 * bounded(share)
    return f"{shown:.1f}\u00a0%" if 0 < shown < 9.95 else f"{shown:.0f}\u00a0%"


def duration(seconds: float | None) -> str:
    """`3 min 20 s`."""
    if seconds is None:
        return UNKNOWN
    whole = max(0, round(bounded(seconds)))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 and whole % 60 else f"{whole // 60} min"
    if whole < 86400:
        minutes = whole % 3600 // 60
        return f"{whole // 3600} h {minutes} min" if minutes else f"{whole // 3600} h"
    hours = whole % 86400 // 3600
    return f"{whole // 86400} d {hours} h" if hours else f"{whole // 86400} d"


def moment(ms: int | None) -> str:
    """Return the text of ms since 1970: `2026-01-31 12:00:00 UTC`."""
    if ms is None or not 0 < ms <= _LATEST:
        return UNKNOWN
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
