"""A dry run of the client's placement policy on the cluster as it is now, printed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NamedTuple

import click

from bookie_client.distribution import Quorums
from bookie_client.placement.explain import CandidateFate, Explanation, explain_cluster
from bookie_client.placement.policy import ClusterView
from bookie_client.placement.topology import format_location
from bookie_client.placement.weighted import WeightedPlacement, ask_free_bytes
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.exit_codes import CommandExit
from bookie_protocol.metadata_service.interface import BookieGroup


class DryRun(NamedTuple):
    """`quorums`: ensemble, write and ack quorum. `excluded`: bookies that are left out. `seed`: of the draw."""

    quorums: tuple[int, int, int]
    excluded: frozenset[str]
    seed: int


async def show_placement(cluster: Cluster, wanted: DryRun, *, as_json: bool) -> int:
    """Print who would be taken and why the others would not; returns the exit code. Raises `BadRequest` for quorums
    that do not fit."""
    quorums = Quorums(*wanted.quorums)
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
