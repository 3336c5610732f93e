"""`bookie cluster health-check`: it checks that the cluster takes new ledgers and holds every copy.

The exit code is for scripts and probes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import click

from bookie_pod.cli.cluster.showing import BookieState, bookie_states
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.tables import facts, print_table
from bookie_protocol.metadata_service.records import DECOMMISSION
from bookie_protocol.shown import one_line

_COUNTED: Final = 100_000
"""Marks of ledgers that are counted at most: beyond it is "at least"."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `kind` is for programs, `text` says what it is and what helps."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Health:
    """The answer of the command."""

    healthy: bool
    bookies: dict[str, int]
    """Number of bookies by state."""
    under_replicated_ledgers: int
    auto_recovery: bool
    """True if auto-recovery is enabled."""
    auditor: str | None
    problems: tuple[Problem, ...]


async def show_health(cluster: Cluster, uri: str, needed: int, *, as_json: bool) -> int:
    """Print the health of a cluster whose new ledgers need so many bookies; return the exit code."""
    health = await _health(cluster, uri, needed)
    if as_json:
        click.echo(json.dumps(asdict(health)))
    else:
        table = facts()
        table.add_row("health", "healthy" if health.healthy else "NOT HEALTHY")
        table.add_row("bookies", ", ".join(f"{count:,} {state}" for state, count in health.bookies.items()))
        table.add_row("under-replicated", f"{health.under_replicated_ledgers:,} ledgers")
        table.add_row("auto-recovery", _auto_recovery(health))
        print_table(table)
        for problem in health.problems:
            click.echo(one_line(f"{problem.kind}: {problem.text}"))
    return CommandExit.OK if health.healthy else CommandExit.DAMAGED


def _auto_recovery(health: Health) -> str:
    if not health.auto_recovery:
        return "disabled"
    return "enabled, no auditor" if health.auditor is None else f"enabled, auditor {health.auditor}"


async def _health(cluster: Cluster, uri: str, needed: int) -> Health:
    states = await bookie_states(cluster, uri)
    leaving = set(await cluster.service.records(DECOMMISSION).names())
    marks = cluster.service.under_replication
    enabled, auditor = await marks.is_enabled(), await cluster.service.auditor_election.current_auditor()
    marked = 0
    async for _ in marks.list():
        marked += 1
        if marked == _COUNTED:
            break
    counts = Counter(bookie.state for bookie in states)
    problems = [*_of_bookies(states, leaving), *_of_room(counts["writable"], needed)]
    if marked:
        problems.append(
            Problem("under-replicated", f"{marked:,} ledgers lack copies: `bookie cluster list-under-replicated`")
        )
    if problems:
        problems += _of_healing(enabled, auditor)
    bookies = {state: counts[state] for state in ("writable", "read-only", "down")}
    return Health(not problems, bookies, marked, enabled, auditor, tuple(problems))


def _of_room(writable: int, needed: int) -> Iterator[Problem]:
    if writable < needed:
        yield Problem(
            "too-few-bookies", f"new ledgers need {needed} writable bookies, and there are {writable}: start more"
        )


def _of_bookies(states: Sequence[BookieState], leaving: set[str]) -> Iterator[Problem]:
    for bookie in states:
        if bookie.state == "down":
            yield Problem("bookie-down", f"{bookie.bookie_id}: {bookie.problem}")
        elif bookie.state == "read-only" and bookie.bookie_id not in leaving:
            why = bookie.problem or "it takes no entries: its log says why"
            yield Problem("bookie-read-only", f"{bookie.bookie_id}: {why}")
        elif bookie.problem is not None:
            yield Problem("bookie-unreachable", f"{bookie.bookie_id}: {bookie.problem}")


def _of_healing(enabled: bool, auditor: str | None) -> Iterator[Problem]:
    """Yield the problems of healing, only if ledgers have to be healed: a small cluster may run without
    auto-recovery."""
    if not enabled:
        yield Problem("auto-recovery-disabled", "nothing is healed: `bookie cluster autorecovery enable`")
    elif auditor is None:
        yield Problem("no-auditor", "nothing is healed: run `bookie autorecovery`, or set autoRecoveryDaemonEnabled")
