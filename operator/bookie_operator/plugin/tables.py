"""Tables and times for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import click
from rich.console import RenderableType
from rich.table import Table

from bookie_protocol.console import console

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"))


def print_to_terminal(*parts: RenderableType) -> None:
    """Print to standard output."""
    shown = console()
    if shown.is_terminal:
        for part in parts:
            shown.print(part)
        return
    with shown.capture() as captured:
        for part in parts:
            shown.print(part)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def plain_table(*columns: str) -> Table:
    """A table with a header and no lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def facts_table() -> Table:
    """Names and values."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table


def age(time: str, now: datetime | None = None) -> str:
    """Return the age of an RFC 3339 time, in two units at most; empty for none, or one that cannot be read."""
    try:
        seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(time)).total_seconds()
    except (ValueError, TypeError):
        return ""
    return duration(max(0.0, seconds))


def duration(seconds: float) -> str:
    """`3d4h`, `2h5m`, `1m30s`, `12s`."""
    left = int(seconds)
    parts = []
    for size, unit in _UNITS:
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    if left or not parts:
        parts.append(f"{left}s")
    return "".join(parts[:2])
