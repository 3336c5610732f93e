"""`bookie cluster placement`: where a new ledger would go, and why."""

from __future__ import annotations

import click

from bookie_pod.cli.cluster.group import cluster
from bookie_pod.cli.connection import Connection, connects
from bookie_pod.cli.options import AS_JSON, quorum_options


@cluster.command()
@quorum_options(2)
@click.option(
    "--exclude",
    "excluded",
    multiple=True,
    metavar="BOOKIE[,BOOKIE...]",
    help="As if it were gone. May be given again.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Draws among bookies that are equally good; one seed gives one choice. Ledgers have another each time.",
)
@AS_JSON
@connects
def placement(
    connection: Connection,
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    excluded: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> int:
    """Show which bookies a new ledger would get, and why every other bookie would not be one of them.

    A dry run on the bookies as they are now, of the configuration's placement policy (ensemblePlacementPolicy and the
    keys beside it), or without one of the client's own, rack-aware. Nothing is changed. The exit code is 10 if there is
    no such ensemble.
    """
    from bookie_pod.cli.cluster.placement_run import DryRun, show_placement
    from bookie_pod.cli.cluster.recover_run import bookie_ids

    without = frozenset[str]().union(*map(bookie_ids, excluded))
    wanted = DryRun((ensemble, write_quorum, ack_quorum), without, seed)
    return connection.run(lambda found: show_placement(found, wanted, as_json=as_json))
