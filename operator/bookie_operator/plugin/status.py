"""`kubectl bookie status`."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import click

from bookie_operator.plugin.connection import Api, Connection, connects

if TYPE_CHECKING:
    from rich.console import RenderableType

_EVERY_S: Final = 2.0


@click.command()
@click.argument("name", required=False)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="List the clusters of all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Show every change, until interrupted.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@connects
def status(connection: Connection, name: str | None, everywhere: bool, watch: bool, output: str) -> None:
    """Conditions, bookies, and what the operator waits for and why.

    Without NAME: the only cluster of the namespace, or a list of them.
    """
    if watch:
        connection.run(lambda api: _watched(api, name, everywhere, output))
        return
    content = connection.run(lambda api: _content(api, name, everywhere))
    if output == "json":
        click.echo(_as_json(content))
        return
    from bookie_operator.plugin.tables import print_to_terminal

    print_to_terminal(_as_text(content))


async def _content(api: Api, name: str | None, everywhere: bool) -> list[dict[str, Any]]:
    """Return each cluster; one alone with its tasks and jobs."""
    from bookie_operator.plugin.clusters import find_cluster, jobs_of, list_clusters, tasks_of

    if name is None:
        found = await list_clusters(api, everywhere=everywhere)
        if len(found) > 1 or (everywhere and found):
            return [{"cluster": cluster} for cluster in found]
    cluster = await find_cluster(api, name)
    own = cluster["metadata"]["name"]
    return [{"cluster": cluster, "tasks": await tasks_of(api, own), "jobs": await jobs_of(api, own)}]


def _as_json(content: list[dict[str, Any]]) -> str:
    shown = _without_secrets(content)
    return json.dumps(shown[0] if len(shown) == 1 and "tasks" in shown[0] else shown, indent=2)


def _without_secrets(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whole objects are shown, and a spec may hold passwords."""
    from bookie_protocol.redaction import Redactor

    redactor = Redactor()
    return [
        {
            "cluster": redactor.redacted(each["cluster"]),
            **{kind: [redactor.redacted(one) for one in each[kind]] for kind in ("tasks", "jobs") if kind in each},
        }
        for each in content
    ]


def _as_text(content: list[dict[str, Any]]) -> RenderableType:
    from bookie_operator.plugin.status_view import details, overview

    if len(content) == 1 and "tasks" in content[0]:
        return details(content[0]["cluster"], content[0]["tasks"], content[0]["jobs"])
    return overview([each["cluster"] for each in content])


async def _watched(api: Api, name: str | None, everywhere: bool, output: str) -> None:
    """Show one picture that is redrawn on a terminal; elsewhere each state that differs from the one before."""
    from rich.live import Live

    from bookie_operator.plugin.tables import print_to_terminal
    from bookie_protocol.console import console

    shown = console()
    if output == "text" and shown.is_terminal:
        with Live(console=shown, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_as_text(await _content(api, name, everywhere)), refresh=True)
                await asyncio.sleep(_EVERY_S)
    before = None
    while True:
        content = await _content(api, name, everywhere)
        if content != before:
            before = content
            if output == "json":
                click.echo(json.dumps(_without_secrets(content)))
            else:
                print_to_terminal(_as_text(content), "")
        await asyncio.sleep(_EVERY_S)
