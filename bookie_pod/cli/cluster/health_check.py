"""`bookie cluster health-check`: the switch over clients' quarantine of bookies."""

from __future__ import annotations

import json

import click

from bookie_pod.cli.cluster.group import cluster
from bookie_pod.cli.connection import Cluster, Connection, connects
from bookie_pod.cli.options import AS_JSON


@cluster.command("health-check")
@click.argument("switch", required=False, type=click.Choice(["on", "off"]))
@AS_JSON
@connects
def health_check(connection: Connection, switch: str | None, as_json: bool) -> None:
    """Show whether clients may quarantine bookies with many errors, or switch it for the whole cluster.

    Off: every client that heeds it, Java's too, takes its quarantined bookies back within its
    bookieHealthCheckIntervalSeconds.
    """

    async def work(found: Cluster) -> bool:
        metadata = found.service.cluster
        if switch == "on":
            await metadata.enable_health_check()
        elif switch == "off":
            await metadata.disable_health_check()
        return await metadata.is_health_check_enabled()

    enabled = connection.run(work)
    if as_json:
        click.echo(json.dumps({"health_check": enabled}))
    else:
        click.echo("on: clients may quarantine bookies" if enabled else "off: clients quarantine no bookie")
