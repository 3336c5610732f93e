"""What `bookie index` shows to people."""

from __future__ import annotations

import click
from rich.table import Table

from bookie_pod.cli.progress import Reached
from bookie_pod.cli.tables import facts, print_table, size_text, time_text
from bookie_protocol.admin_api.integrity import RebuildProgress


def reached(each: RebuildProgress) -> Reached:
    """How far the rebuild in a directory is."""
    doing = each.phase if each.outcome == "running" else each.outcome
    return Reached(f"{each.directory}: {doing}", each.bytes_done, each.bytes_total)


def show(found: list[RebuildProgress]) -> None:
    """Each directory."""
    if not found:
        click.echo("this bookie's engine has no databases: `bookie disk rebuild-index-files` is for a stopped one")
    for each in found:
        print_table(_directory(each))


def _directory(each: RebuildProgress) -> Table:
    table = facts()
    table.add_row("directory", each.directory)
    if each.outcome == "none":
        table.add_row("last rebuild", "none since the bookie was started")
        return table
    doing = f"{each.phase}, {size_text(each.bytes_done)} of {size_text(each.bytes_total)}"
    table.add_row("rebuild", doing if each.outcome == "running" else each.outcome)
    if each.detail:
        table.add_row("why", each.detail)
    if each.ended_time:
        table.add_row("from, to", f"{time_text(each.started_time)}, {time_text(each.ended_time)}")
    table.add_row(
        "location index",
        f"{each.entries:,} entries in {each.entry_logs:,} entry logs, {each.entries_of_unknown_ledgers:,} of"
        f" deleted ledgers; {each.changed_rows:,} rows changed, {each.salvaged_rows:,} kept from behind damage,"
        f" {each.dangling_rows:,} lead nowhere",
    )
    table.add_row(
        "ledger index",
        f"{each.ledgers:,} ledgers, {each.restored_ledgers:,} restored and fenced, {each.ledgers_without_key:,}"
        " of these without a key",
    )
    for damage in each.damages:
        table.add_row("damaged", damage)
    if each.old_index_unreadable:
        table.add_row("old index", f"not read to its end: {each.old_index_unreadable}")
    for backup in each.backups:
        table.add_row("backup", backup)
    return table
