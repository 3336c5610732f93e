"""What `bookie index` shows to people."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from bookie_pod.cli.progress import Reached
from bookie_pod.cli.tables import facts, print_table
from bookie_pod.cli.units import size_text, time_text


def reached(each: dict[str, Any]) -> Reached:
    """How far the rebuild in a directory is."""
    doing = each["phase"] if each["outcome"] == "running" else each["outcome"]
    return Reached(f"{each['directory']}: {doing}", each["bytesDone"], each["bytesTotal"])


def show(found: list[dict[str, Any]]) -> None:
    """Each directory."""
    if not found:
        click.echo("this bookie's engine has no databases: `bookie disk rebuild-index-files` is for a stopped one")
    for each in found:
        print_table(_directory(each))


def _directory(each: dict[str, Any]) -> Table:
    table = facts()
    table.add_row("directory", each["directory"])
    if each["outcome"] == "none":
        table.add_row("last rebuild", "none since the bookie was started")
        return table
    doing = f"{each['phase']}, {size_text(each['bytesDone'])} of {size_text(each['bytesTotal'])}"
    table.add_row("rebuild", doing if each["outcome"] == "running" else each["outcome"])
    if each["detail"]:
        table.add_row("why", each["detail"])
    if each["endedTime"]:
        table.add_row("from, to", f"{time_text(each['startedTime'])}, {time_text(each['endedTime'])}")
    table.add_row(
        "location index",
        f"{each['entries']:,} entries in {each['entryLogs']:,} entry logs, {each['entriesOfUnknownLedgers']:,} of"
        f" deleted ledgers; {each['changedRows']:,} rows changed, {each['salvagedRows']:,} kept from behind damage,"
        f" {each['danglingRows']:,} lead nowhere",
    )
    table.add_row(
        "ledger index",
        f"{each['ledgers']:,} ledgers, {each['restoredLedgers']:,} restored and fenced, {each['ledgersWithoutKey']:,}"
        " of these without a key",
    )
    for damage in each["damages"]:
        table.add_row("damaged", damage)
    if each["oldIndexUnreadable"]:
        table.add_row("old index", f"not read to its end: {each['oldIndexUnreadable']}")
    for backup in each["backups"]:
        table.add_row("backup", backup)
    return table
