"""`bookie cluster`: the cluster's metadata."""

from __future__ import annotations

import click

from bookie_protocol.errors import ExitCode, MetadataExists, MetadataUnavailable, ServerStartFailed


@click.group()
def cluster() -> None:
    """Look after a cluster's metadata."""


@cluster.command()
@click.argument("uri")
@click.option("--timeout", default=10.0, show_default=True, help="Seconds to wait for the metadata service.")
def init(uri: str, timeout: float) -> int:
    """Make a new cluster at URI, such as zk+hierarchical://zk1:2181;zk2:2181/ledgers.

    Writes the layout and a fresh instance id. A cluster that exists already is left as it is, with exit code 1.
    """
    import asyncio

    try:
        instance_id = asyncio.run(_init(uri, timeout))
    except MetadataExists:
        click.echo(f"bookie: {uri} holds a cluster already; nothing was changed", err=True)
        return ExitCode.INVALID_CONFIGURATION
    except MetadataUnavailable as error:
        raise ServerStartFailed(f"the metadata service does not answer: {error}") from error
    click.echo(f"new cluster {instance_id} at {uri}")
    return ExitCode.OK


async def _init(uri: str, timeout: float) -> str:
    from bookie_protocol.metadata_service.uri import open_metadata_service

    service = await open_metadata_service(uri, timeout=timeout)
    try:
        return await service.cluster.initialize()
    finally:
        await service.close()
