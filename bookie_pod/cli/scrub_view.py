"""What `bookie scrub` shows to people."""

from __future__ import annotations

import click
from rich.table import Table

from bookie_pod.cli.tables import facts, print_table, time_text
from bookie_protocol.admin_api.integrity import DamageFound, ScrubProgress, ScrubStatus


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
