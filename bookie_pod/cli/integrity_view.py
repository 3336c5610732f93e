"""The output of `bookie scrub` and `bookie index` for people."""

from __future__ import annotations

import click
from rich.table import Table

from bookie_pod.cli.progress import Reached
from bookie_pod.cli.tables import facts, print_table, size_text
from bookie_protocol.admin_api.integrity import DamageFound, RebuildProgress, ScrubProgress, ScrubStatus
from bookie_protocol.shown import time_text


def show_status(found: ScrubStatus) -> None:
    """The scrubber, and each directory."""
    table = facts()
    table.add_row("scrubber", _when(found))
    more = f", and {found.damages_not_kept:,} more that are not kept" if found.damages_not_kept else ""
    table.add_row("damages", f"{found.damages:,}{more}" if found.damages else "none known")
    print_table(table)
    for each in found.directories:
        print_table(_directory(each))


def _when(found: ScrubStatus) -> str:
    if found.running:
        return "a pass goes on"
    if found.next_pass_time is None:
        return "waits for a request: passes do not come by themselves (localScrubInterval=0)"
    return f"the next pass begins at {time_text(found.next_pass_time)}"


def _directory(each: ScrubProgress) -> Table:
    table = facts()
    table.add_row("directory", each.directory)
    of = f", {each.done:,} of {each.total:,}" if each.total else ""
    table.add_row("doing", each.phase + of)
    ended = time_text(each.completed_time) if each.completed_time else "never"
    table.add_row("last complete pass", ended)
    if each.pass_number:
        table.add_row(
            f"pass {each.pass_number:,}",
            f"{each.entries:,} entries ({each.digests:,} digests), {each.rows:,} index rows"
            f" ({each.restored_rows:,} put back), {each.entry_logs:,} entry logs, {each.journals:,} journals",
        )
    for error in each.errors:
        table.add_row("not checked", error)
    return table


def show_damages(found: list[DamageFound]) -> None:
    """One line per finding."""
    if not found:
        click.echo("nothing is known to be damaged")
        return
    table = Table("found", "kind", "ledger", "entry", "damage", box=None)
    for each in found:
        table.add_row(time_text(each.found_time), each.kind, _id(each.ledger_id), _id(each.entry_id), each.detail)
    print_table(table)


def _id(number: int | None) -> str:
    return "-" if number is None else str(number)


def reached(each: RebuildProgress) -> Reached:
    """Return the progress of the rebuild in a directory."""
    doing = each.phase if each.outcome == "running" else each.outcome
    return Reached(f"{each.directory}: {doing}", each.bytes_done, each.bytes_total)


def show_rebuilds(found: list[RebuildProgress]) -> None:
    """Print the rebuild of each directory."""
    if not found:
        click.echo("this bookie's engine has no databases: `bookie disk rebuild-index-files` is for a stopped one")
    for each in found:
        print_table(_rebuilt(each))


def _rebuilt(each: RebuildProgress) -> Table:
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
