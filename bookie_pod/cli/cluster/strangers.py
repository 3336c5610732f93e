"""Bookies of the command line that the cluster does not know."""

from __future__ import annotations

import click

from bookie_pod.cli.connection import Cluster
from bookie_protocol.metadata_service.interface import BookieGroup


async def warn_of_strangers(cluster: Cluster, bookies: frozenset[str]) -> None:
    """One line for each. Without it a mistyped name would be that of a bookie which no ledger needs, and no more."""
    unknown = bookies
    for group in BookieGroup:
        unknown -= (await cluster.service.bookies.list(group)).bookies
    for bookie in sorted(unknown):
        click.echo(f"warning: bookie {bookie} has no cookie and is not registered: is the name right?", err=True)
