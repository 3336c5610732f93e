"""Quantities as Kubernetes writes them, as bytes, and bytes as people read them.

Threads: pure functions, any thread.

Source: Kubernetes API conventions, serialisation of quantities.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Final

_SUFFIXES: Final = {
    "": Decimal(1),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("n", "u", "m"), start=-3)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}
_QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_of(quantity: str) -> int:
    """Whole bytes, rounded up as Kubernetes does. Raises ValueError: it is no quantity."""
    found = _QUANTITY.fullmatch(quantity.strip())
    if found is None:
        raise ValueError(f"{quantity!r} is no quantity such as 100Gi")
    number, exponent, suffix = found.groups()
    factor = Decimal(f"1{exponent}") if exponent else _SUFFIXES[suffix or ""]
    return int((Decimal(number) * factor).to_integral_value(ROUND_CEILING))


def known_bytes(quantity: str) -> int | None:
    """As `bytes_of`; None: there is none yet, or it cannot be read."""
    try:
        return bytes_of(quantity)
    except ValueError:
        return None


def readable(count: int) -> str:
    """Such as `1.5 GiB`."""
    size, unit = float(count), 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} bytes" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
