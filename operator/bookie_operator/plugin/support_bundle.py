"""`kubectl bookie support-bundle`."""

from __future__ import annotations

import time

import click

from bookie_operator.plugin.connection import Api, Connection, connects
from bookie_protocol.private_archive import PrivateArchive


@click.command("support-bundle")
@click.argument("name")
@click.option("-o", "--output", metavar="FILE", help="Where to; ends in .tar.gz. [default: NAME-support-TIME.tar.gz]")
@click.option("--tail", type=click.IntRange(0, 1_000_000), default=20_000, show_default=True, help="Lines of each log.")
@connects
def support_bundle(connection: Connection, name: str, output: str | None, tail: int) -> None:
    """Collect all that helps to understand cluster NAME, in one file.

    Resources, events, logs of the cluster and the operator, and what the pods say of themselves. Secrets, and values
    that sound like them, are left out; look at it all the same before you give it away.
    """
    path = output or f"{name}-support-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz"
    count, missing = connection.run(lambda api: _written(api, name, path, tail))
    click.echo(
        f"{path}: {count} files" + (f"; {len(missing)} parts could not be read (missing.txt)" if missing else "")
    )


async def _written(api: Api, name: str, path: str, tail: int) -> tuple[int, list[str]]:
    from bookie_operator.plugin.bundle import Bundle
    from bookie_operator.plugin.clusters import find_cluster
    from bookie_operator.plugin.forwarding import opener

    bundle = Bundle(api, await find_cluster(api, name), opener(api), tail)
    with PrivateArchive(path, f"{name}-support") as archive:
        async for part, text in bundle.files():
            archive.add(part, text)
    return archive.files, [*bundle.missing, *archive.cut]
