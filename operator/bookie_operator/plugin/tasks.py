"""Commands that ask the operator for work: each makes a BookieTask.

The operator's gates and proofs hold as ever. `pause` and `resume` let it rest.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from bookie_operator.crds import names
from bookie_operator.plugin.connection import Api, Connection, connects
from bookie_operator.plugin.faults import Fault, NotThereFault, RefusedFault, UsageFault

_EVERY_S: Final = 2.0
_FAILURES: Final = 30
"""Questions in a row without an answer, before waiting is given up."""


def _waits(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--timeout", type=click.FloatRange(min=0), default=0, help="With --wait: seconds; 0: as long as it takes."
    )(command)
    return click.option("--wait", is_flag=True, help="Show progress until it is over.")(command)


@click.command()
@click.argument("name")
@click.argument("bookie")
@_waits
@connects
def decommission(connection: Connection, name: str, bookie: str, wait: bool, timeout: float) -> None:
    """Take BOOKIE (its pod's name) out of cluster NAME, once its copies are elsewhere."""
    _ask(connection, name, "Decommission", [bookie], (), wait, timeout)


@click.command()
@click.argument("name")
@click.argument("bookie")
@_waits
@connects
def replace(connection: Connection, name: str, bookie: str, wait: bool, timeout: float) -> None:
    """Start BOOKIE of cluster NAME again with empty disks, once its copies are elsewhere.

    For a bookie whose disk or node is lost. One that serves is drained first, while it serves.
    """
    _ask(connection, name, "Replace", [bookie], (), wait, timeout)


@click.command()
@click.argument("name")
@click.argument("bookie")
@_waits
@connects
def move(connection: Connection, name: str, bookie: str, wait: bool, timeout: float) -> None:
    """Give BOOKIE of cluster NAME new volumes, once its copies are elsewhere. It serves until then.

    For a bookie whose disk or node is to be changed. To keep it off its node, run `kubectl cordon` for the node first.
    """
    _ask(connection, name, "Replace", [bookie], (), wait, timeout)


@click.command()
@click.argument("name")
@click.argument("bookies", nargs=-1)
@_waits
@connects
def restart(connection: Connection, name: str, bookies: tuple[str, ...], wait: bool, timeout: float) -> None:
    """Restart BOOKIES of cluster NAME, one after the other; without any: all of them."""
    _ask(connection, name, "Restart", bookies, (), wait, timeout)


@click.command()
@click.argument("name")
@_waits
@connects
def audit(connection: Connection, name: str, wait: bool, timeout: float) -> None:
    """Look now for ledgers of cluster NAME with too few copies."""
    _ask(connection, name, "Audit", (), (), wait, timeout)


@click.command("accept-loss")
@click.argument("name")
@click.argument("ledgers", nargs=-1, required=True, type=click.IntRange(min=0))
@click.option("--yes", is_flag=True, help="Do not ask.")
@_waits
@connects
def accept_loss(
    connection: Connection, name: str, ledgers: tuple[int, ...], yes: bool, wait: bool, timeout: float
) -> None:
    """Give up the entries of LEDGERS that no bookie of cluster NAME has any more.

    What waits for them goes on, and they cannot be had back afterwards.
    """
    if not yes:
        if not sys.stdin.isatty():
            raise UsageFault("accept-loss gives up data: add --yes")
        click.confirm(f"Give up what is lost of {len(set(ledgers))} ledgers of {name}?", abort=True)
    _ask(connection, name, "AcceptLoss", (), sorted(set(ledgers)), wait, timeout)


def _ask(
    connection: Connection,
    name: str,
    kind: str,
    bookies: Sequence[str],
    ledgers: Sequence[int],
    wait: bool,
    timeout: float,
) -> None:
    connection.run(lambda api: _asked(api, name, kind, bookies, ledgers, wait, timeout))


async def _asked(
    api: Api, name: str, kind: str, bookies: Sequence[str], ledgers: Sequence[int], wait: bool, timeout: float
) -> None:
    from bookie_operator.plugin.clusters import check_bookies, find_cluster

    cluster = await find_cluster(api, name)
    check_bookies(cluster, bookies)
    spec: dict[str, Any] = {"cluster": name, "type": kind}
    if bookies:
        spec["bookies"] = list(dict.fromkeys(bookies))
    if ledgers:
        spec["ledgers"] = list(ledgers)
    task = f"{name}-{kind.lower()}-{secrets.token_hex(3)}"
    await api.kubernetes.create(
        {
            "apiVersion": f"{names.GROUP}/{names.VERSION}",
            "kind": "BookieTask",
            "metadata": {"name": task, "namespace": api.namespace, "labels": {names.INSTANCE: name}},
            "spec": spec,
        }
    )
    click.echo(f"bookietask/{task} created")
    if wait:
        await _finished(api, name, task, timeout)
    else:
        click.echo(f"`kubectl bookie status {name} -n {api.namespace}` shows how far it is")


async def _finished(api: Api, name: str, task: str, timeout: float) -> None:
    """A line for each change. Raises `RefusedFault` for a task that failed, `Fault` when the time is over."""
    try:
        async with asyncio.timeout(timeout or None):
            await _followed(api, name, task)
    except TimeoutError:
        raise Fault(f"bookietask/{task} is not over after {timeout:g} s; it goes on by itself") from None


async def _followed(api: Api, name: str, task: str) -> None:
    from bookie_operator.api.errors import TooManyRequests, Unreachable
    from bookie_operator.api.kinds import TASK

    told, failures = "", 0
    while True:
        try:
            found = await api.kubernetes.find(TASK, api.namespace, task)
            doing = await _operation(api, name)
        except (Unreachable, TooManyRequests) as exc:
            failures += 1
            if failures > _FAILURES:
                raise
            click.echo(f"kubectl-bookie: {exc}; asks again", err=True)
            await asyncio.sleep(_EVERY_S)
            continue
        failures = 0
        if found is None:
            raise RefusedFault(f"bookietask/{task} was deleted before it was over")
        status = found.get("status") or {}
        phase, message = status.get("phase") or "Waits", status.get("message", "")
        line = f"{phase}: {message or doing}".rstrip(": ")
        if line != told:
            told = line
            click.echo(line)
        if phase == "Done":
            return
        if phase == "Failed":
            raise RefusedFault(f"bookietask/{task} failed: {message or 'no reason was given'}")
        await asyncio.sleep(_EVERY_S)


async def _operation(api: Api, name: str) -> str:
    """Return what the operator does at the moment."""
    from bookie_operator.api.kinds import CLUSTER
    from bookie_operator.plugin.clusters import status_of

    cluster = await api.kubernetes.find(CLUSTER, api.namespace, name)
    operation = status_of(cluster).operation if cluster is not None else None
    if operation is None:
        return ""
    return f"{operation.type.value} {operation.bookie}: {operation.step}: {operation.message}".rstrip(": ")


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


@click.command()
@click.argument("name")
@click.argument("claims", nargs=-1, required=True)
@connects
def adopt(connection: Connection, name: str, claims: tuple[str, ...]) -> None:
    """Make CLAIMS, which have the names of bookies' claims, belong to cluster NAME.

    For a volume that was restored from a snapshot or bound by hand. The operator then labels the claims, and grows and
    deletes them like its own.
    """
    connection.run(lambda api: _adopted(api, name, claims))


async def _adopted(api: Api, name: str, claims: Sequence[str]) -> None:
    from bookie_operator.api.kinds import CLAIM
    from bookie_operator.plugin.clusters import find_cluster

    await find_cluster(api, name)
    missing = [each for each in claims if await api.kubernetes.find(CLAIM, api.namespace, each) is None]
    if missing:
        raise NotThereFault(f"there is no claim {missing[0]} in namespace {api.namespace}")
    for each in claims:
        await api.kubernetes.merge(CLAIM, api.namespace, each, {"metadata": {"annotations": {names.ADOPT: name}}})
        click.echo(f"claim {each} is to belong to {name}")


async def _annotate(api: Api, name: str, value: str | None) -> bool:
    """Set or remove the annotation; return whether that changed anything."""
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
