"""`bookie cluster init|format|nuke`: the cluster's metadata as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from bookie_pod.cli.cluster import cluster
from bookie_pod.cli.connection import Connection
from bookie_pod.cli.options import Seconds, config_option, tell
from bookie_protocol.errors import (
    ExitCode,
    InvalidConfiguration,
    MetadataExists,
    MetadataNotFound,
    MetadataUnavailable,
    ServerStartFailed,
)
from bookie_protocol.quiet import quiet_grpc, quiet_kazoo

if TYPE_CHECKING:
    from bookie_pod.config.sections.security import MetadataConfig
    from bookie_protocol.metadata_service.tree.service import MetadataService

T = TypeVar("T")
RETRY_S: Final = 1.0
"""Seconds between two tries of a metadata service that does not answer."""
TELL_AFTER_S: Final = 5.0
"""Seconds after which a command that waits for a metadata service says so."""

CONFIG_HELP: Final = "Take zkTimeout, TLS and logins to the metadata service from this properties file."
_uri = click.argument("uri")
_config = config_option(CONFIG_HELP)
TIMEOUT: Final = click.option(
    "--timeout",
    type=Seconds(above=True),
    help="Seconds to wait for the metadata service. [default: zkTimeout]",
)
_confirm = click.option("--confirm", is_flag=True, help="Yes, do it.")
JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@cluster.command()
@_uri
@click.option("--if-absent", is_flag=True, help="A cluster that exists already is fine: exit code 0.")
@click.option("--instance-id", help="Instance id of a cluster that is made. [default: a new UUID]")
@click.option(
    "--wait",
    type=Seconds(),
    default=0,
    metavar="SECONDS",
    help="How long a metadata service that does not answer is tried again; said once after 5 s. [default: not at all]",
)
@_config
@TIMEOUT
@JSON
def init(
    uri: str,
    if_absent: bool,
    instance_id: str | None,
    wait: float,
    file: str | None,
    timeout: float | None,
    as_json: bool,
) -> int:
    """Make a new cluster at URI, such as zk+hierarchical://zk1:2181;zk2:2181/ledgers.

    Writes the layout and an instance id. A cluster that exists already is left as it is, with exit code 1, or 0
    with --if-absent: so may it be repeated, by a Job of Kubernetes for example.
    """
    try:
        made = _run(
            uri,
            file,
            timeout,
            lambda service: service.cluster.initialize(instance_id=instance_id),
            wait=wait,
            make_store=True,
        )
    except MetadataExists:
        if if_absent:
            return _tell_of_existing(uri, file, timeout, as_json)
        click.echo(f"bookie: {uri} holds a cluster already; nothing was changed", err=True)
        return ExitCode.INVALID_CONFIGURATION
    tell(as_json, f"new cluster {made} at {uri}", uri=uri, instance_id=made)
    return ExitCode.OK


def _tell_of_existing(uri: str, file: str | None, timeout: float | None, as_json: bool) -> int:
    instance_id = _run(uri, file, timeout, lambda service: service.cluster.instance_id())
    if instance_id is None:
        raise ServerStartFailed(
            f"{uri} holds a cluster without an instance id, so bookies cannot tell it from others: was its creation"
            " interrupted? If it is new, remove it with `bookie cluster nuke` and repeat"
        )
    tell(as_json, f"cluster {instance_id} exists at {uri}", uri=uri, instance_id=instance_id)
    return ExitCode.OK


@cluster.command("format")
@_uri
@click.option("--instance-id", help="The cluster's instance id.")
@_confirm
@click.option("--force", is_flag=True, help="Also without an instance id, and while bookies are registered.")
@_config
@TIMEOUT
@JSON
def format_(
    uri: str,
    instance_id: str | None,
    confirm: bool,
    force: bool,
    file: str | None,
    timeout: float | None,
    as_json: bool,
) -> int:
    """Erase the metadata of every ledger of the cluster at URI, and all cookies. The data is lost.

    Marks of under-replicated ledgers and the generation of ledger ids go too; the cluster gets a new instance id, so
    that bookies with old data refuse to start. The settings of auto-recovery stay. Refuses while bookies are
    registered, or if --instance-id is not the cluster's. Where there is no cluster, one is made. No bookie starts in a
    cluster in which this was interrupted, until it is repeated.
    """
    if not confirm:
        raise InvalidConfiguration(
            f"formatting {uri} erases the metadata of all its ledgers, and with it their data; repeat with --confirm"
        )

    async def work(service: MetadataService) -> str:
        if instance_id is None and not force and await service.cluster.exists():
            raise InvalidConfiguration(f"formatting {uri} needs its --instance-id, or --force; nothing was changed")
        return await service.cluster.format(instance_id=instance_id, force=force)

    new = _run(uri, file, timeout, work, make_store=True)
    tell(as_json, f"cluster at {uri} formatted; new instance id {new}", uri=uri, instance_id=new)
    return ExitCode.OK


@cluster.command()
@_uri
@click.option("--root", required=True, help="The cluster's root, exactly as in URI: /ledgers for example.")
@click.option("--instance-id", help="The cluster's instance id.")
@click.option("--bookie-suffix", default="", help="Refuse if a bookie has a cookie and its id does not end with this.")
@click.option("--if-exists", is_flag=True, help="Exit with 0 if there is no cluster at URI.")
@_confirm
@click.option("--force", is_flag=True, help="Also without an instance id, and although there are ledgers.")
@_config
@TIMEOUT
@JSON
def nuke(
    uri: str,
    root: str,
    instance_id: str | None,
    bookie_suffix: str,
    if_exists: bool,
    confirm: bool,
    force: bool,
    file: str | None,
    timeout: float | None,
    as_json: bool,
) -> int:
    """Remove the cluster at URI with everything below its root.

    Refuses while bookies are registered, if the root holds nodes that are none of BookKeeper's, if --root,
    --instance-id or --bookie-suffix does not match, and, without --force, if there are ledgers. With --if-exists
    it may be repeated, for example by a Kubernetes Job.
    """
    from bookie_protocol.metadata_service.uri_parser import parse_metadata_service_uri

    found = parse_metadata_service_uri(uri).root
    if root != found:
        raise InvalidConfiguration(f"--root {root}: the root of {uri} is {found}; nothing was changed")
    if instance_id is None and not force:
        raise InvalidConfiguration(f"removing {uri} needs its --instance-id, or --force; nothing was changed")
    if not confirm:
        raise InvalidConfiguration(f"removing {uri} cannot be undone; repeat with --confirm")

    async def work(service: MetadataService) -> None:
        await service.cluster.nuke(instance_id=instance_id, with_ledgers=force, bookie_suffix=bookie_suffix)

    try:
        _run(uri, file, timeout, work)
    except MetadataNotFound:
        if not if_exists:
            raise
        tell(as_json, f"there is no cluster at {uri}; nothing was changed", uri=uri, removed="")
        return ExitCode.OK
    tell(as_json, f"cluster at {uri} removed", uri=uri, removed=root)
    return ExitCode.OK


def _run(
    uri: str,
    file: str | None,
    timeout: float | None,
    work: Callable[[MetadataService], Coroutine[Any, Any, T]],
    *,
    wait: float = 0,
    make_store: bool = False,
) -> T:
    """Connect, do the work, disconnect."""

    async def connected() -> T:
        async with opened(uri, file, timeout, wait=wait, make_store=make_store) as service:
            return await work(service)

    return finished(connected())


def finished(work: Coroutine[Any, Any, T]) -> T:
    """Run this, which uses metadata services."""
    import asyncio

    quiet_grpc()
    quiet_kazoo()
    try:
        return asyncio.run(work)
    except MetadataUnavailable as error:
        raise ServerStartFailed(f"the metadata service does not answer: {error}") from error


@asynccontextmanager
async def opened(
    uri: str, file: str | None, timeout: float | None, *, wait: float = 0, make_store: bool = False
) -> AsyncIterator[MetadataService]:
    """A metadata service. `wait`: seconds for which a connection is tried again. `make_store`: as in
    `MetadataServiceOptions`."""
    from dataclasses import replace

    config = Connection(uri, file, ()).configuration.metadata
    if timeout is not None:
        config = replace(config, zk_timeout_ms=round(timeout * 1000))
    service = await _connect(config, uri, wait, make_store)
    try:
        yield service
    finally:
        await service.close()


async def _connect(config: MetadataConfig, uri: str, wait: float, make_store: bool) -> MetadataService:
    import asyncio

    from bookie_pod.node.metadata import open_metadata

    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    told = loop.call_later(TELL_AFTER_S, _tell_of_waiting, uri, wait) if wait > TELL_AFTER_S else None
    try:
        while True:
            try:
                return await open_metadata(config, uri, make_store=make_store)
            except MetadataUnavailable:
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(min(RETRY_S, max(0.0, deadline - loop.time())))
    finally:
        if told is not None:
            told.cancel()


def _tell_of_waiting(uri: str, wait: float) -> None:
    click.echo(f"bookie: the metadata service {uri} does not answer yet; it is tried for {wait:g} s", err=True)
