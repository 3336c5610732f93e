"""What `bookie cluster safety-check` and `replicas` do."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

import click
from rich.table import Table

from bookie_client.replication.replica_listing import EntryRuns, LedgerReplicas, replicas_of
from bookie_client.replication.safety import SafetyReport, safety_check
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.progress import Bar
from bookie_pod.cli.tables import print_table
from bookie_protocol.metadata_service.interface import BookieGroup

_RUNS: Final = 4


async def warn_of_strangers(cluster: Cluster, bookies: frozenset[str]) -> None:
    """One line for each. Without it a mistyped name would be that of a bookie which no ledger needs, and no more."""
    unknown = bookies
    for group in BookieGroup:
        unknown -= (await cluster.service.bookies.list(group)).bookies
    for bookie in sorted(unknown):
        click.echo(f"warning: bookie {bookie} has no cookie and is not registered: is the name right?", err=True)


async def show_safety(cluster: Cluster, going: frozenset[str], *, as_json: bool) -> int:
    """Print the report; returns the exit code."""
    await warn_of_strangers(cluster, going)
    with Bar("ledgers") as bar:
        seen = 0

        def told(ledgers: int, at_risk: int) -> None:
            nonlocal seen
            bar.advance(ledgers - seen)
            seen = ledgers

        report = await safety_check(cluster.client, going, progress=told)
    if as_json:
        click.echo(json.dumps(safety_members(report)))
    else:
        _print_safety(report)
    return CommandExit.OK if report.is_safe else CommandExit.REFUSED


def safety_members(report: SafetyReport) -> dict[str, Any]:
    """A report as JSON shows it."""
    listed = [asdict(ledger) | {"risk": ledger.risk.value} for ledger in report.listed]
    return asdict(report) | {"going": sorted(report.going), "listed": listed, "is_safe": report.is_safe}


def _print_safety(report: SafetyReport) -> None:
    if report.listed:
        table = Table("ledger", "risk", "from entry", "copies left", "ack quorum", "detail", box=None)
        for ledger in report.listed:
            numbers = (str(ledger.first_entry), str(ledger.copies_left), str(ledger.ack_quorum))
            table.add_row(str(ledger.ledger_id), ledger.risk.value, *numbers, ledger.detail)
        print_table(table)
    click.echo(
        f"{'safe' if report.is_safe else 'NOT SAFE'}: of {report.ledgers_seen} ledgers {report.ledgers_concerned} are"
        f" concerned; without a copy {report.no_copy}, below their ack quorum {report.below_ack_quorum}, the same"
        f" because it is as large as the write quorum {report.no_slack}, nobody can tell {report.unknown}"
    )


async def show_replicas(cluster: Cluster, ledger_id: int, *, everywhere: bool, as_json: bool) -> int:
    """Print what each bookie holds; returns the exit code."""
    found = await replicas_of(cluster.client, ledger_id, everywhere=everywhere)
    if as_json:
        click.echo(json.dumps(replica_members(found)))
    else:
        table = Table("bookie", "registered", "should hold", "holds", "missing", "surplus", "problem", box=None)
        for each in found.bookies:
            runs = map(_shown, (each.expected, each.held, each.missing, each.surplus))
            table.add_row(each.bookie, each.registration.value, *runs, each.error or "")
        print_table(table)
        click.echo(f"ledger {ledger_id}: {found.metadata.state.value}, last entry {found.last_entry}")
    if any(each.missing is not None and each.missing.count for each in found.bookies):
        return CommandExit.DAMAGED
    if any(each.error is not None for each in found.bookies):
        return CommandExit.COULD_NOT_TELL
    return CommandExit.OK


def replica_members(found: LedgerReplicas) -> dict[str, Any]:
    """What each bookie holds, as JSON shows it."""
    bookies = [asdict(each) | {"registration": each.registration.value} for each in found.bookies]
    state = found.metadata.state.value
    return {"ledger_id": found.ledger_id, "state": state, "last_entry": found.last_entry, "bookies": bookies}


def _shown(runs: EntryRuns | None) -> str:
    """`12: 0-5, 7-12` and so on; `?`: nobody knows."""
    if runs is None:
        return "?"
    if not runs.count:
        return "-"
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs.runs[:_RUNS]]
    more = ", ..." if len(runs.runs) > _RUNS else ""
    return f"{runs.count}: {', '.join(shown)}{more}"
