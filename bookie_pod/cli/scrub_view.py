"""What `bookie scrub` shows to people."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from bookie_pod.cli.tables import facts, print_table
from bookie_pod.cli.units import time_text


def show_status(found: dict[str, Any]) -> None:
    """The scrubber, and each directory."""
    table = facts()
    table.add_row("scrubber", _when(found))
    more = f", and {found['damagesNotKept']:,} more that are not kept" if found["damagesNotKept"] else ""
    table.add_row("damages", f"{found['damages']:,}{more}" if found["damages"] else "none known")
    print_table(table)
    for each in found["directories"]:
        print_table(_directory(each))


def _when(found: dict[str, Any]) -> str:
    if found["running"]:
        return "a pass goes on"
    if found["nextPassTime"] is None:
        return "waits for a request: passes do not come by themselves (localScrubInterval=0)"
    return f"the next pass begins at {time_text(found['nextPassTime'])}"


def _directory(each: dict[str, Any]) -> Table:
    table = facts()
    table.add_row("directory", each["directory"])
    of = f", {each['done']:,} of {each['total']:,}" if each["total"] else ""
    table.add_row("doing", each["phase"] + of)
    ended = time_text(each["completedTime"]) if each["completedTime"] else "never"
    table.add_row("last complete pass", ended)
    if each["passNumber"]:
        table.add_row(
            f"pass {each['passNumber']:,}",
            f"{each['entries']:,} entries ({each['digests']:,} digests), {each['rows']:,} index rows"
            f" ({each['restoredRows']:,} put back), {each['entryLogs']:,} entry logs, {each['journals']:,} journals",
        )
    for error in each["errors"]:
        table.add_row("not checked", error)
    return table


def show_damages(found: list[dict[str, Any]]) -> None:
    """One line per finding."""
    if not found:
        click.echo("nothing is known to be damaged")
        return
    table = Table("found", "kind", "ledger", "entry", "damage", box=None)
    for each in found:
        table.add_row(
            time_text(each["foundTime"]), each["kind"], _id(each["ledgerId"]), _id(each["entryId"]), each["detail"]
        )
    print_table(table)


def _id(number: int | None) -> str:
    return "-" if number is None else str(number)
