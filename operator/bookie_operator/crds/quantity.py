"""Amounts of bytes as Kubernetes writes them, `100Gi`, `1.5G` or `1e9`, and as people read them, `1.5 GiB`.

Threads: pure functions, any thread.

Source: Kubernetes API conventions, serialisation of quantities.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Final

_FACTORS: Final = {
    "": Decimal(1),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("n", "u", "m"), start=-3)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}
_QUANTITY: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)")


def bytes_of(text: str) -> int:
    """Whole bytes, rounded up as Kubernetes does. Raises ValueError: it is no quantity."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a quantity such as 100Gi")
    number, exponent, suffix = found.groups()
    factor = Decimal(f"1{exponent}") if exponent else _FACTORS[suffix or ""]
    return int((Decimal(number) * factor).to_integral_value(ROUND_CEILING))


def known_bytes(text: str) -> int | None:
    """Return what `bytes_of` returns; None if the text is not a quantity."""
    try:
        return bytes_of(text)
    except ValueError:
        return None


_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def readable(count: int) -> str:
    """Return the bytes in words, such as `1.5 GiB`."""
    size, unit = float(count), 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} bytes" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
