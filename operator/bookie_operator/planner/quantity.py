"""Amounts of bytes as people read them.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def readable(count: int) -> str:
    """Such as `1.5 GiB`."""
    size, unit = float(count), 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} bytes" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
