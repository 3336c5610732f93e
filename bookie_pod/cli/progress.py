"""Progress of long work: a bar on standard error when it is a terminal, nothing elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

_UPDATES: Final = 200
"""Bars are redrawn ten times a second at most; telling them more often costs the work."""


class Shown:
    """A context manager that shows `_bars` while it lasts; they are gone afterwards."""

    _bars: Progress

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


class Bar(Shown):
    """One bar; a context manager. `total` None: the end is not known. `in_bytes`: show sizes and a rate."""

    def __init__(self, text: str, total: float | None = None, *, in_bytes: bool = False) -> None:
        console = Console(stderr=True)
        counts: tuple[ProgressColumn, ...] = (
            (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
        )
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            *counts,
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task(text, total=total)
        self._step = (total or 0) / _UPDATES
        self._held_back = 0.0

    def advance(self, amount: float) -> None:
        """So much more is done."""
        self._held_back += amount
        if self._held_back >= self._step:
            self._bars.advance(self._task, self._held_back)
            self._held_back = 0.0
