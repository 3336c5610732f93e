"""Progress of long work: a bar on standard error when it is a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Final, NamedTuple, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from bookie_protocol.console import console

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


def bars(shown: Console, *counts: ProgressColumn) -> Progress:
    """What draws bars, each with its text and these columns behind it, if it is a terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *counts,
        console=shown,
        transient=True,
        disable=not shown.is_terminal,
    )


class Bar(Shown):
    """One bar; a context manager. `total` None: the end is not known. `in_bytes`: show sizes and a rate."""

    def __init__(self, text: str, total: float | None = None, *, in_bytes: bool = False) -> None:
        counts = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
        self._bars = bars(console(stderr=True), *counts, TimeRemainingColumn())
        self._task = self._bars.add_task(text, total=total)
        self._step = (total or 0) / _UPDATES
        self._held_back = 0.0

    def advance(self, amount: float) -> None:
        """Show that so much more is done."""
        self._held_back += amount
        if self._held_back >= self._step:
            self._bars.advance(self._task, self._held_back)
            self._held_back = 0.0


class Reached(NamedTuple):
    """How far the work in one directory is; `total` 0: the end is not known."""

    text: str
    done: int
    total: int


class DirectoryBars(Shown):
    """A bar per directory of a bookie; a context manager. `in_bytes`: show sizes."""

    def __init__(self, *, in_bytes: bool = False) -> None:
        self._bars = bars(console(stderr=True), DownloadColumn() if in_bytes else MofNCompleteColumn())
        self._tasks: list[TaskID] = []

    def show(self, directories: Iterable[Reached]) -> None:
        """The directories, always the same ones in the same order, are there now."""
        for place, each in enumerate(directories):
            if place == len(self._tasks):
                self._tasks.append(self._bars.add_task(each.text, total=None))
            self._bars.update(self._tasks[place], description=each.text, completed=each.done, total=each.total or None)
