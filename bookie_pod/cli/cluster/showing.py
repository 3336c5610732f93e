"""The output of the commands of `bookie cluster` that change nothing.

It shows bookies, a summary, a dry run of the placement policy, ledgers at risk, and the holders of entries.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from rich.table import Table

from bookie_client.distribution import Quorums, check_ensemble_size
from bookie_client.placement.explain import CandidateFate, Explanation, explain_cluster
from bookie_client.placement.policy import ClusterView
from bookie_client.placement.topology import format_location
from bookie_client.placement.weighted import WeightedPlacement, ask_free_bytes
from bookie_client.replication.replica_listing import EntryRuns, LedgerReplicas, replicas_of
from bookie_client.replication.safety import SafetyReport, safety_check
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.local_clusters import LocalCluster, running
from bookie_pod.cli.progress import Bar
from bookie_pod.cli.tables import print_table
from bookie_pod.node.standalone.bookie_process import last_words, log_of
from bookie_protocol.errors import MetadataNotFound, NoSuchLedger, PodkeeperError
from bookie_protocol.metadata_service.interface import BookieGroup

ASKED_AT_A_TIME: Final = 32
_FULL: Final = 0.05
"""A bookie takes no entries when less of its disks is free (diskUsageThreshold=0.95)."""
_GB: Final = 1_000_000_000
_RUNS: Final = 4


@dataclass(slots=True)
class BookieState:
    """One bookie; sizes in bytes. `problem`: what is wrong with it, or why it could not be asked."""

    bookie_id: str
    state: str
    address: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    problem: str | None = None


async def bookie_states(cluster: Cluster, uri: str) -> list[BookieState]:
    """Return every bookie that has stamped a cookie or is registered, in the order of ids.

    `uri` is that of the metadata service: for a bookie of `bookie standalone` on this machine the last message is
    included. Raises `MetadataError`.
    """
    registry = cluster.service.bookies
    writable = (await registry.list(BookieGroup.WRITABLE)).bookies
    read_only = (await registry.list(BookieGroup.READ_ONLY)).bookies
    known = (await registry.list(BookieGroup.ALL)).bookies
    states = []
    for bookie_id in sorted(writable | read_only | known):
        state = "writable" if bookie_id in writable else "read-only" if bookie_id in read_only else "down"
        states.append(BookieState(bookie_id, state))
    places = asyncio.Semaphore(ASKED_AT_A_TIME)
    await asyncio.gather(*(_ask(cluster, bookie, places) for bookie in states if bookie.state != "down"))
    local = next((each for each in running() if each.metadata_service == uri), None)
    for bookie in states:
        if bookie.state == "down":
            bookie.problem = _why_down(bookie.bookie_id, local)
    return states


def _why_down(bookie_id: str, local: LocalCluster | None) -> str:
    text = "it is not registered: it has stopped, or does not reach the metadata service"
    last = None if local is None else last_words(log_of(Path(local.data) / bookie_id))
    return f"{text}; its log says why" if last is None else f"{text}; its last words: {last}"


async def show_bookies(cluster: Cluster, uri: str, wanted: Sequence[str] = (), *, as_json: bool) -> None:
    """Print those in a `wanted` state, without any all of them; as JSON one object a line."""
    states = [state for state in await bookie_states(cluster, uri) if not wanted or state.state in wanted]
    if as_json:
        for state in states:
            click.echo(json.dumps(asdict(state)))
        return
    table = Table("bookie", "state", "address", "free", "of", "problem", box=None)
    for state in states:
        sizes = (_size(state.free_bytes), _size(state.total_bytes))
        table.add_row(state.bookie_id, state.state, state.address or "-", *sizes, state.problem or "")
    print_table(table)


async def show_status(cluster: Cluster, uri: str, *, count: bool, as_json: bool) -> int:
    """Print the whole; returns the exit code."""
    service = cluster.service.cluster
    layout = await service.layout()
    states = Counter(bookie.state for bookie in await bookie_states(cluster, uri))
    status: dict[str, object] = {
        "metadata_service": uri,
        "instance_id": await service.instance_id(),
        "layout": layout.value.rpartition(".")[2] if layout is not None else None,
        "bookies": {name: states[name] for name in ("writable", "read-only", "down")},
    }
    if count:
        status["ledgers"] = await _count_ledgers(cluster)
    if as_json:
        click.echo(json.dumps(status))
    else:
        table = Table(show_header=False, box=None)
        table.add_column(style="bold")
        for name, value in status.items():
            shown = (
                ", ".join(f"{number:,} {kind}" for kind, number in value.items()) if isinstance(value, dict) else value
            )
            table.add_row(name.replace("_", " "), str(shown))
        print_table(table)
    return CommandExit.OK if states["writable"] else CommandExit.COULD_NOT_TELL


async def _count_ledgers(cluster: Cluster) -> dict[str, int]:
    states = Counter[str]()
    with Bar("counting ledgers") as bar:
        async for ledger_id in cluster.client.list():
            try:
                states[(await cluster.client.metadata(ledger_id)).state.value.lower()] += 1
            except NoSuchLedger:
                continue  # deleted since it was listed
            bar.advance(1)
    return {name: states[name] for name in ("open", "in_recovery", "closed")}


async def _ask(cluster: Cluster, bookie: BookieState, places: asyncio.Semaphore) -> None:
    async with places:
        try:
            address = (await cluster.service.bookies.service_info(bookie.bookie_id)).bookie_address()
            bookie.address = f"{address[0]}:{address[1]}" if address else None
            info = await cluster.client.bookie_info(bookie.bookie_id)
        except MetadataNotFound:
            bookie.state = "down"
        except PodkeeperError as error:
            bookie.problem = str(error)
        else:
            bookie.total_bytes, bookie.free_bytes = info.total_bytes, info.free_bytes
            if info.free_bytes < _FULL * info.total_bytes:
                share = info.free_bytes / info.total_bytes
                bookie.problem = f"its disks are full ({share:.0%} free): free some room, or enlarge its volumes"


def _size(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / _GB:,.1f} GB"


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
        f" concerned; without a copy {report.no_copy}, below their ack quorum {report.below_ack_quorum},"
        f" the same because it is as large as the write quorum {report.no_slack}, unknown {report.unknown}"
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
    """Return the holdings of each bookie as JSON shows them."""
    bookies = [asdict(each) | {"registration": each.registration.value} for each in found.bookies]
    state = found.metadata.state.value
    return {"ledger_id": found.ledger_id, "state": state, "last_entry": found.last_entry, "bookies": bookies}


def _shown(runs: EntryRuns | None) -> str:
    """Format runs of entries as `12: 0-5, 7-12`; `?`: unknown."""
    if runs is None:
        return "?"
    if not runs.count:
        return "-"
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs.runs[:_RUNS]]
    more = ", ..." if len(runs.runs) > _RUNS else ""
    return f"{runs.count}: {', '.join(shown)}{more}"


class DryRun(NamedTuple):
    """`quorums`: ensemble, write and ack quorum. `excluded`: bookies that are left out. `seed`: of the draw."""

    quorums: tuple[int, int, int]
    excluded: frozenset[str]
    seed: int


async def show_placement(cluster: Cluster, wanted: DryRun, *, as_json: bool) -> int:
    """Print who would be taken and why the others would not; returns the exit code. Raises `BadRequest` for quorums
    that do not fit, or are too large."""
    quorums = Quorums(*wanted.quorums)
    check_ensemble_size(quorums.ensemble)
    account = explain_cluster(cluster.client.placement, quorums, await _view(cluster, wanted.excluded), wanted.seed)
    click.echo(json.dumps(_as_dict(account, wanted.seed)) if as_json else str(account))
    return CommandExit.REFUSED if account.error else CommandExit.OK


async def _view(cluster: Cluster, excluded: frozenset[str]) -> ClusterView:
    """The bookies as the policy would see them, with free space where it weighs. A client that runs for a while has
    heard of all of this; this one has just begun, so it asks."""
    client = cluster.client
    await client.bookies.read_only()
    view = await client.cluster_view()
    known = view.writable | view.read_only | (await cluster.service.bookies.list(BookieGroup.ALL)).bookies
    reasons = {bookie: "excluded" if bookie in known else "excluded; not known here" for bookie in excluded}
    reasons |= dict.fromkeys(known - view.writable - view.read_only - excluded, "down")
    if isinstance(client.placement, WeightedPlacement):
        told: dict[str, int] = {}  # by those that answer; the policy knows what to make of the others
        await ask_free_bytes(view.writable, client.context.free_bytes, told)
        view = replace(view, free_bytes=told)
    return replace(view, excluded=reasons)


def _as_dict(account: Explanation, seed: int) -> dict[str, Any]:
    quorums, report = account.quorums, account.report
    return {
        "policy": account.policy,
        "rule": account.rule,
        "ensemble_size": quorums.ensemble,
        "write_quorum": quorums.write,
        "ack_quorum": quorums.ack,
        "seed": seed,
        "ensemble": list(account.ensemble),
        "error": account.error,
        "adherence": report.adherence.value if report is not None else None,
        "problems": list(report.problems) if report is not None else [],
        "relaxed": list(account.relaxed),
        "candidates": [_candidate(one) for one in account.candidates],
    }


def _candidate(one: CandidateFate) -> dict[str, Any]:
    return {
        "bookie_id": one.bookie,
        "fate": one.fate.value,
        "reason": one.reason,
        "position": one.position,
        "location": format_location(one.location) if one.location else None,
        "free_bytes": one.free_bytes,
    }
