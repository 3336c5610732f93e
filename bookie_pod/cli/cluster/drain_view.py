"""Progress of a drain on standard error: a live view on a terminal; elsewhere a line for each phase and fault, and one
now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from bookie_pod.autorecovery.decommission.coordinator import Watched
from bookie_pod.autorecovery.decommission.drain import DrainMeter
from bookie_pod.autorecovery.decommission.state import DrainProgress, Phase
from bookie_pod.cli.tables import duration_text, size_text

T = TypeVar("T")

_REDRAW_S: Final = 0.25
_LINE_S: Final = 10.0
_LOOK_S: Final = 0.5
_SHOWN: Final = 10


async def while_draining(work: Awaitable[T], watched: Watched, title: str) -> T:
    """Await the work of a coordinator and show how far it is."""
    return await _while_shown(
        work, lambda: _coordinator_lines(watched, title), lambda: _notes(watched), lambda: _stage(watched)
    )


async def while_restoring(work: Awaitable[T], meter: DrainMeter, title: str) -> T:
    """The same for a recovery."""
    return await _while_shown(
        work, lambda: [f"{title}: {_line(meter.progress())}", *_blockers(meter.progress())], list, int
    )


async def _while_shown(
    work: Awaitable[T], lines: Callable[[], list[str]], notes: Callable[[], list[str]], stage: Callable[[], object]
) -> T:
    """`stage`: where no view is live, a line is due at once when this changes."""
    console = Console(stderr=True, highlight=False, markup=False)
    showing = asyncio.create_task(_show(console, lines, notes, stage))
    try:
        return await work
    finally:
        showing.cancel()
        await asyncio.wait([showing])


async def _show(
    console: Console, lines: Callable[[], list[str]], notes: Callable[[], list[str]], stage: Callable[[], object]
) -> None:
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while True:
                for note in notes():
                    live.console.print(note)
                live.update(Text("\n".join(lines())), refresh=True)
                await asyncio.sleep(_REDRAW_S)
    loop = asyncio.get_running_loop()
    said, said_at, said_of = "", 0.0, None
    try:
        while True:
            for note in notes():
                click.echo(note, err=True)
            now, line = stage(), lines()[0]
            if line != said and (now != said_of or loop.time() >= said_at + _LINE_S):
                click.echo(line, err=True)
                said, said_at, said_of = line, loop.time(), now
            await asyncio.sleep(_LOOK_S)
    finally:  # what came since the last look, such as how far it was when it was interrupted
        if stage() != said_of:
            click.echo(lines()[0], err=True)


def _stage(watched: Watched) -> object:
    """What a person wants to hear of without delay."""
    record, meter = watched.record, watched.meter
    listed = meter is not None and meter.progress().ledgers_total > 0
    return None if record is None else (record.phase, listed, watched.waiting_for)


def _notes(watched: Watched) -> list[str]:
    """Each once."""
    notes, watched.notes = watched.notes, []
    return [f"note: {note}" for note in notes]


def _coordinator_lines(watched: Watched, title: str) -> list[str]:
    record, meter = watched.record, watched.meter
    if record is None:
        return [f"{title}: begins"]
    if record.phase is Phase.DRAINING and meter is not None:
        progress = meter.progress()
        if not progress.ledgers_total:
            return [f"{title}: listing ledgers, {watched.ledgers_read} so far{_waiting(watched)}"]
        in_work = [f"  ledger {i}: {size_text(nbytes)} copied" for i, nbytes in list(meter.in_work.items())[:_SHOWN]]
        return [f"{title}: {_line(progress)}{_waiting(watched)}", *in_work, *_blockers(progress)]
    detail = f", {watched.ledgers_read} ledgers read" if record.phase is Phase.PROVING else ""
    return [f"{title}: {record.phase.value}{detail}{_waiting(watched)}"]


def _waiting(watched: Watched) -> str:
    return f"; waits: {watched.waiting_for}" if watched.waiting_for else ""


def _line(progress: DrainProgress) -> str:
    parts = [
        f"{progress.ledgers_left} of {progress.ledgers_total} ledgers left",
        f"{size_text(progress.bytes_left)} of {size_text(progress.bytes_total)} left",
        f"{size_text(progress.bytes_copied)} copied",
    ]
    if progress.eta_s:
        parts.append(f"about {duration_text(progress.eta_s)}")
    if progress.blocked:
        first = progress.blockers[0]
        parts.append(f"{progress.blocked} blocked (ledger {first.ledger_id}: {first.reason})")
    return ", ".join(parts)


def _blockers(progress: DrainProgress) -> list[str]:
    return [f"  ledger {blocker.ledger_id}: {blocker.reason}" for blocker in progress.blockers[:_SHOWN]]
