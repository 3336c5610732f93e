"""Tables for people. On a terminal they fit it; elsewhere no line is folded, because programs read lines."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table

_UNFOLDED: Final = 100_000


def print_table(table: Table) -> None:
    """Print to standard output."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_UNFOLDED)
    console.print(table)


def facts() -> Table:
    """A table of names and values, to be filled with `add_row`."""
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table
