"""The output of `bookie gc` for people."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Final, NamedTuple

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table

from bookie_pod.cli.progress import Reached
from bookie_pod.cli.tables import duration_text, facts, print_table, size_text
from bookie_protocol.admin_api import gc
from bookie_protocol.admin_api.bodies import plain
from bookie_protocol.admin_api.client import BlockingAdmin
from bookie_protocol.admin_api.gc import (
    CompactionOutlook,
    GcDetails,
    GcForecast,
    GcPass,
    GcProgress,
    LogWhy,
    QuarantinedLog,
    StorageLogs,
    Suspensions,
)
from bookie_protocol.admin_api.integrity import ScrubProgress
from bookie_protocol.console import console
from bookie_protocol.errors import NotThere
from bookie_protocol.shown import time_text

_BAR: Final = 30


class Storage(NamedTuple):
    """One storage of a bookie: what Apache's bookies tell too, and what ours tell besides."""

    details: GcDetails
    progress: GcProgress


def read_progress(api: BlockingAdmin) -> list[GcProgress]:
    """Return the work of each collector. Apache's bookies do not report it: use what follows from `gc_details`."""
    try:
        return api.ask(gc.PROGRESS)
    except NotThere:
        suspended = api.ask(gc.SUSPENSIONS)
        return [_guessed(each, suspended) for each in api.ask(gc.DETAILS)]


def _guessed(details: GcDetails, suspended: Suspensions) -> GcProgress:
    running = "major" if details.major_compacting else "minor" if details.minor_compacting else None
    phase = f"{running} compaction" if running else "collecting" if details.force_compacting else "waiting"
    held_back = (suspended.major_suspended == "true", suspended.minor_suspended == "true")
    return GcProgress("-", phase, 0, 0, details.force_compacting, *held_back, None)


def read_status(api: BlockingAdmin) -> list[Storage]:
    """State of each storage."""
    return [Storage(*each) for each in zip(api.ask(gc.DETAILS), read_progress(api), strict=True)]


def status_json(found: list[Storage]) -> str:
    """The same as one object per storage."""
    return json.dumps([plain(each.details) | plain(each.progress) for each in found])


def show_status(found: list[Storage]) -> None:
    """The state of all storages."""
    for each in found:
        print_table(_status(each))


class StatusWatch:
    """The same again and again: on a terminal in one place, elsewhere after each change. A context manager."""

    def __init__(self) -> None:
        shown = console()
        self._live = Live(console=shown, auto_refresh=False) if shown.is_terminal else None
        self._before: list[Storage] | None = None

    def __enter__(self) -> StatusWatch:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, found: list[Storage], *, as_json: bool) -> None:
        """This is the state now."""
        if found == self._before:
            return
        self._before = found
        if as_json:
            click.echo(status_json(found))
        elif self._live is not None:
            self._live.update(Group(*map(_status, found)), refresh=True)
        else:
            show_status(found)


def _status(each: Storage) -> Table:
    details, progress = each
    table = facts()
    table.add_row("storage", progress.directory)
    of = f", {progress.done:,} of {progress.total:,} logs" if progress.total else ""
    table.add_row("doing", progress.phase + of + (" (forced)" if details.force_compacting else ""))
    for kind, runs, suspended, count, last in (
        (
            "major",
            details.major_compacting,
            progress.major_suspended,
            details.major_compaction_counter,
            details.last_major_compaction_time,
        ),
        (
            "minor",
            details.minor_compacting,
            progress.minor_suspended,
            details.minor_compaction_counter,
            details.last_minor_compaction_time,
        ),
    ):
        state = "runs" if runs else "suspended" if suspended else "allowed"
        made = f"{count:,} so far, the last at {time_text(last)}" if count else "none so far"
        table.add_row(f"{kind} compaction", f"{state}, {made}")
    if progress.ledgers_awaiting_deletion:
        table.add_row("awaiting deletion", f"{progress.ledgers_awaiting_deletion:,} ledgers")
    if progress.deletions_held is not None:
        table.add_row("deletions held", progress.deletions_held)
    if progress.last_pass is not None:
        table.add_row("last pass", _pass(progress.last_pass))
        for error in progress.last_pass.errors:
            table.add_row("", error)
    return table


def _pass(last: GcPass) -> str:
    kind = f" ({last.compaction} compaction)" if last.compaction else ""
    errors = f", {len(last.errors)} errors" if last.errors else ""
    return (
        f"{last.ledgers_deleted:,} ledgers and {last.logs_deleted:,} logs deleted,"
        f" {last.logs_compacted:,} logs compacted{kind}, {size_text(last.reclaimed_bytes)} given back{errors}"
    )


def show_result(found: list[GcProgress]) -> None:
    """Print the work of the pass, one line per storage."""
    for each in found:
        last = each.last_pass
        click.echo(f"{each.directory}: {_pass(last) if last is not None else 'done'}")
        for error in last.errors if last is not None else ():
            click.echo(f"bookie: {error}", err=True)


def reached(each: GcProgress | ScrubProgress) -> Reached:
    """Return the progress of a collector, or of the scrubber, in a directory."""
    return Reached(f"{each.directory}: {each.phase}", each.done, each.total)


def show_why(found: list[LogWhy], ledgers: int) -> None:
    """Print each log of that id."""
    for each in found:
        table = facts()
        table.add_row("entry log", f"{each.entry_log} (id {each.entry_log_id:,})")
        table.add_row("file", f"{each.path}, {size_text(each.size)}")
        if each.age_seconds is not None:  # a bookie of an older release does not tell
            table.add_row("written", f"{duration_text(each.age_seconds)} ago")
        if each.usage is not None:
            doubt = f", {size_text(each.in_doubt_bytes)} of them in doubt" if each.in_doubt_bytes else ""
            table.add_row("lives", f"{each.usage:.1%}, {size_text(each.live_bytes or 0)}{doubt}")
        table.add_row("why", each.reason)
        if each.owners is None:
            table.add_row("ledgers", "not known yet")
        else:
            rows = [f"{one.ledger_id}: {size_text(one.bytes)}" for one in each.owners[:ledgers]]
            more = [f"and {len(each.owners) - ledgers:,} more"] if len(each.owners) > ledgers else []
            table.add_row("ledgers", "\n".join(rows + more) or "none")
        print_table(table)


def sorted_logs(found: list[StorageLogs], by: str, limit: int) -> list[StorageLogs]:
    """The first logs of each storage, by age or by live share; logs that were not measured come last."""
    if by == "age":
        return found
    return [
        StorageLogs(
            each.directory,
            sorted(each.logs, key=lambda log: (log.usage is None, log.usage or 0.0, log.entry_log_id))[:limit],
            each.left_out + max(0, len(each.logs) - limit),
        )
        for each in found
    ]


def show_logs(found: list[StorageLogs]) -> None:
    """A table for each storage."""
    for each in found:
        click.echo(each.directory)
        table = Table("entry log", "written", "size", "live", "state", box=None)
        for log in each.logs:
            table.add_row(
                log.entry_log,
                f"{duration_text(log.age_seconds)} ago",
                size_text(log.size),
                "not measured" if log.usage is None else f"{log.usage:.1%}",
                log.state,
            )
        print_table(table)
        if each.left_out:
            click.echo(f"and {each.left_out:,} more: see --limit")


def show_forecast(found: list[GcForecast]) -> None:
    """Usage by tenths, and both compactions."""
    for each in found:
        click.echo(each.directory)
        largest = max((row.total_bytes for row in each.usage), default=0) or 1
        table = Table("live", "logs", "size", "garbage", "oldest", "", box=None)
        for row in each.usage:
            age = row.oldest_age_seconds if row.logs else None
            table.add_row(
                f"{row.from_percent}-{row.to_percent} %",
                f"{row.logs:,}",
                size_text(row.total_bytes),
                size_text(row.reclaimable_bytes),
                duration_text(age) if age is not None else "",
                "#" * round(_BAR * row.total_bytes / largest),
            )
        print_table(table)
        for kind, outlook in (("minor", each.minor), ("major", each.major)):
            click.echo(f"{kind} compaction, {_outlook(outlook)}")
        if each.unmeasured_logs:
            click.echo(f"not counted: {each.unmeasured_logs:,} logs that are written or were not looked at yet")


def _outlook(each: CompactionOutlook) -> str:
    due = each.due_in_seconds
    when = "off or suspended" if due is None else "due with the next pass" if due == 0 else f"due in {due:,} s"
    return (
        f"{when}: would rewrite {each.logs:,} logs below {each.threshold:.0%}"
        f" ({size_text(each.rewritten_bytes)}) and give back {size_text(each.reclaimable_bytes)}"
    )


def show_quarantine(found: list[QuarantinedLog]) -> None:
    """One line per log."""
    if not found:
        click.echo("no entry log is quarantined")
        return
    table = Table("storage", "entry log", "damage", box=None)
    for each in found:
        table.add_row(each.directory, each.entry_log, each.detail)
    print_table(table)
