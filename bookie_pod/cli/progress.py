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
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

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
    """Return bars, each with its text and these columns behind it, which are drawn on a terminal only."""
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
    """One bar; a context manager. `total` None: the end is not known. `in_bytes`: show sizes and their rate. `rate`:
    show how many entries a second were done."""

    def __init__(self, text: str, total: float | None = None, *, in_bytes: bool = False, rate: bool = False) -> None:
        counts = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
        rates = (EntriesPerSecond(),) if rate else ()
        self._bars = bars(console(stderr=True), *counts, *rates, TimeRemainingColumn())
        self._task = self._bars.add_task(text, total=total, entries=0)
        self._step = (total or 0) / _UPDATES
        self._held_back = 0.0
        self._entries = 0

    def advance(self, amount: float, entries: int = 0) -> None:
        """Show that so much more is done. `entries`: how many of them were in it."""
        self._held_back += amount
        self._entries += entries
        if self._held_back >= self._step:
            self._bars.update(self._task, advance=self._held_back, entries=self._entries)
            self._held_back = 0.0


class EntriesPerSecond(ProgressColumn):
    """The entries of a `Bar` by the seconds since it began."""

    def render(self, task: Task) -> Text:
        entries = task.fields.get("entries", 0)
        return Text(f"{entries / task.elapsed:,.0f} entries/s" if entries and task.elapsed else "")


class Reached(NamedTuple):
    """The progress of the work in one directory; `total` 0: the end is not known."""

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
