"""`bookie cluster bookies` and `bookie cluster status`: what the cluster looks like from here."""

from __future__ import annotations

import click

from bookie_pod.cli.cluster.group import cluster
from bookie_pod.cli.connection import Connection, connects
from bookie_pod.cli.options import AS_JSON


@cluster.command()
@click.option(
    "--state", "wanted", type=click.Choice(("writable", "read-only", "down")), multiple=True, help="Only these."
)
@AS_JSON
@connects
def bookies(connection: Connection, wanted: tuple[str, ...], as_json: bool) -> None:
    """List the bookies: state, address, space."""
    from bookie_pod.cli.cluster.state import show_bookies

    connection.run(lambda found: show_bookies(found, wanted, as_json=as_json))


@cluster.command()
@click.option("--ledgers/--no-ledgers", default=True, show_default=True, help="Count the ledgers, by state.")
@AS_JSON
@connects
def status(connection: Connection, ledgers: bool, as_json: bool) -> int:
    """Show the cluster in a few lines. The exit code is 12 if no bookie takes writes."""
    from bookie_pod.cli.cluster.state import show_status

    return connection.run(lambda found: show_status(found, connection.uri(), count=ledgers, as_json=as_json))
