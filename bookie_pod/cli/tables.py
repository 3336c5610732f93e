"""Tables, sizes and times, as people read them."""

from __future__ import annotations

from typing import Final

from rich.table import Table

from bookie_protocol.console import console

_DAY_MINUTES: Final = 24 * 60
_SIZES: Final = ("B", "KB", "MB", "GB", "TB", "PB")


def print_table(table: Table) -> None:
    """Print to standard output."""
    console().print(table)


def facts() -> Table:
    """A table of names and values, to be filled with `add_row`."""
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table


def size_text(nbytes: int) -> str:
    """`1.5 GB`: units of 1000."""
    value, unit = float(nbytes), 0
    while abs(value) >= 1000 and unit < len(_SIZES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:,.1f} {_SIZES[unit]}" if unit else f"{nbytes} B"


def duration_text(seconds: float) -> str:
    """`12 days`, `2 h 5 min`, `3 min`, `20 s`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    if minutes >= 2 * _DAY_MINUTES:
        return f"{minutes // _DAY_MINUTES} days"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
