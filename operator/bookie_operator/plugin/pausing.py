"""`kubectl bookie pause` and `resume`."""

from __future__ import annotations

import click

from bookie_operator.crds import names
from bookie_operator.plugin.connection import Api, Connection, connects


@click.command()
@click.argument("name")
@connects
def pause(connection: Connection, name: str) -> None:
    """Stop changing cluster NAME.

    The operator ends the step that it is in, goes on watching, and changes nothing until `resume`. Not even a
    deletion goes on.
    """
    if connection.run(lambda api: _annotate(api, name, "true")):
        click.echo(f"{name} is paused: nothing is changed until `kubectl bookie resume {name}`")
    else:
        click.echo(f"{name} was paused already")


@click.command()
@click.argument("name")
@connects
def resume(connection: Connection, name: str) -> None:
    """Let the operator go on with cluster NAME where it was."""
    if connection.run(lambda api: _annotate(api, name, None)):
        click.echo(f"{name} goes on")
    else:
        click.echo(f"{name} was not paused")


async def _annotate(api: Api, name: str, value: str | None) -> bool:
    """Whether that changed anything."""
    from bookie_operator.api.kinds import CLUSTER
    from bookie_operator.plugin.clusters import find_cluster

    cluster = await find_cluster(api, name)
    annotations = cluster["metadata"].get("annotations") or {}
    paused = annotations.get(names.PAUSED, "").lower() == "true"
    if paused == (value is not None):
        return False
    patch = {"metadata": {"annotations": {names.PAUSED: value}}}
    await api.kubernetes.merge(CLUSTER, api.namespace, name, patch)
    return True
