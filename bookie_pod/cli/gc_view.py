"""What `bookie gc` shows to people."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from bookie_pod.cli.bookie_api import BookieApi
from bookie_pod.cli.progress import Reached
from bookie_pod.cli.tables import facts, print_table
from bookie_pod.cli.units import duration_text, size_text, time_text
from bookie_protocol.errors import NotThere

_BAR: Final = 30


def read_progress(api: BookieApi) -> list[dict[str, Any]]:
    """What each collector does; of Apache's bookies, which do not tell, as much as follows from `gc_details`."""
    try:
        return list(api.get("bookie/gc/progress"))
    except NotThere:
        return [_guessed(each) for each in api.get("bookie/gc_details")]


def _guessed(details: dict[str, Any]) -> dict[str, Any]:
    running = [kind for kind in ("major", "minor") if details[f"{kind}Compacting"]]
    phase = f"{running[0]} compaction" if running else "collecting" if details["forceCompacting"] else "waiting"
    return {"directory": "-", "phase": phase, "done": 0, "total": 0, "lastPass": None}


def read_status(api: BookieApi) -> list[dict[str, Any]]:
    """State of each storage: what `gc_details` says, its progress, and what is suspended."""
    details, progress = api.get("bookie/gc_details"), read_progress(api)
    suspended = api.get("bookie/gc/suspend_compaction")
    flags = {
        f"{kind}Suspended": suspended[f"is{kind.capitalize()}GcSuspended"] == "true" for kind in ("major", "minor")
    }
    return [flags | one | other for one, other in zip(details, progress, strict=True)]


def show_status(found: list[dict[str, Any]]) -> None:
    """The state of all storages."""
    for each in found:
        print_table(_status(each))


class StatusWatch:
    """The same again and again: on a terminal in one place, elsewhere after each change. A context manager."""

    def __init__(self) -> None:
        console = Console(highlight=False, markup=False)
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._before: list[dict[str, Any]] | None = None

    def __enter__(self) -> StatusWatch:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, found: list[dict[str, Any]], *, as_json: bool) -> None:
        """This is the state now."""
        if found == self._before:
            return
        self._before = found
        if as_json:
            click.echo(json.dumps(found))
        elif self._live is not None:
            self._live.update(Group(*map(_status, found)), refresh=True)
        else:
            show_status(found)


def _status(each: dict[str, Any]) -> Table:
    table = facts()
    table.add_row("storage", each["directory"])
    table.add_row("doing", _phase(each) + (" (forced)" if each["forceCompacting"] else ""))
    for kind in ("major", "minor"):
        state = "runs" if each[f"{kind}Compacting"] else "suspended" if each[f"{kind}Suspended"] else "allowed"
        count, last = each[f"{kind}CompactionCounter"], each[f"last{kind.capitalize()}CompactionTime"]
        made = f"{count:,} so far, the last at {time_text(last)}" if count else "none so far"
        table.add_row(f"{kind} compaction", f"{state}, {made}")
    if each["lastPass"] is not None:
        table.add_row("last pass", _pass(each["lastPass"]))
        for error in each["lastPass"]["errors"]:
            table.add_row("", error)
    return table


def _phase(each: dict[str, Any]) -> str:
    return str(each["phase"]) + (f", {each['done']:,} of {each['total']:,} logs" if each["total"] else "")


def _pass(last: dict[str, Any]) -> str:
    kind = f" ({last['compaction']} compaction)" if last["compaction"] else ""
    errors = f", {len(last['errors'])} errors" if last["errors"] else ""
    return (
        f"{last['ledgersDeleted']:,} ledgers and {last['logsDeleted']:,} logs deleted,"
        f" {last['logsCompacted']:,} logs compacted{kind}, {size_text(last['reclaimedBytes'])} given back{errors}"
    )


def show_result(found: list[dict[str, Any]]) -> None:
    """What the pass did, one line per storage."""
    for each in found:
        last = each["lastPass"]
        click.echo(f"{each['directory']}: {_pass(last) if last is not None else 'done'}")
        for error in last["errors"] if last is not None else ():
            click.echo(f"bookie: {error}", err=True)


def reached(each: dict[str, Any]) -> Reached:
    """How far a collector, or the scrubber, is in a directory."""
    return Reached(f"{each['directory']}: {each['phase']}", each["done"], each["total"])


def show_why(found: list[dict[str, Any]], ledgers: int) -> None:
    """Each log of that id."""
    for each in found:
        table = facts()
        table.add_row("entry log", f"{each['entryLog']} (id {each['entryLogId']:,})")
        table.add_row("file", f"{each['path']}, {size_text(each['size'])}")
        if "ageSeconds" in each:  # a bookie of an older release does not tell
            table.add_row("written", f"{duration_text(each['ageSeconds'])} ago")
        if each["usage"] is not None:
            doubt = f", {size_text(each['inDoubtBytes'])} of them in doubt" if each["inDoubtBytes"] else ""
            table.add_row("lives", f"{each['usage']:.1%}, {size_text(each['liveBytes'])}{doubt}")
        table.add_row("why", each["reason"])
        owners = each["owners"]
        if owners is None:
            table.add_row("ledgers", "not known yet")
        else:
            rows = [f"{one['ledgerId']}: {size_text(one['bytes'])}" for one in owners[:ledgers]]
            more = [f"and {len(owners) - ledgers:,} more"] if len(owners) > ledgers else []
            table.add_row("ledgers", "\n".join(rows + more) or "none")
        print_table(table)


def show_forecast(found: list[dict[str, Any]]) -> None:
    """Usage by tenths, and both compactions."""
    for each in found:
        click.echo(each["directory"])
        largest = max((row["totalBytes"] for row in each["usage"]), default=0) or 1
        table = Table("live", "logs", "size", "garbage", "oldest", "", box=None)
        for row in each["usage"]:
            table.add_row(
                f"{row['fromPercent']}-{row['toPercent']} %",
                f"{row['logs']:,}",
                size_text(row["totalBytes"]),
                size_text(row["reclaimableBytes"]),
                duration_text(row["oldestAgeSeconds"]) if row["logs"] and "oldestAgeSeconds" in row else "",
                "#" * round(_BAR * row["totalBytes"] / largest),
            )
        print_table(table)
        for kind in ("minor", "major"):
            click.echo(f"{kind} compaction, {_outlook(each[kind])}")
        if each["unmeasuredLogs"]:
            click.echo(f"not counted: {each['unmeasuredLogs']:,} logs that are written or were not looked at yet")


def _outlook(each: dict[str, Any]) -> str:
    due = each["dueInSeconds"]
    when = "off or suspended" if due is None else "due with the next pass" if due == 0 else f"due in {due:,} s"
    return (
        f"{when}: would rewrite {each['logs']:,} logs below {each['threshold']:.0%}"
        f" ({size_text(each['rewrittenBytes'])}) and give back {size_text(each['reclaimableBytes'])}"
    )


def show_quarantine(found: list[dict[str, Any]]) -> None:
    """One line per log."""
    if not found:
        click.echo("no entry log is quarantined")
        return
    table = Table("storage", "entry log", "damage", box=None)
    for each in found:
        table.add_row(each["directory"], each["entryLog"], each["detail"])
    print_table(table)
