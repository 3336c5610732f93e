"""`kubectl bookie support-bundle`."""

from __future__ import annotations

import io
import os
import tarfile
import time

import click

from bookie_operator.plugin.connection import Api, Connection, connects


@click.command("support-bundle")
@click.argument("name")
@click.option("-o", "--output", metavar="FILE", help="Where to; ends in .tar.gz. [default: NAME-support-TIME.tar.gz]")
@click.option("--tail", type=click.IntRange(0, 1_000_000), default=20_000, show_default=True, help="Lines of each log.")
@connects
def support_bundle(connection: Connection, name: str, output: str | None, tail: int) -> None:
    """Everything that helps to understand cluster NAME, in one file.

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
    unfinished, count, top = f"{path}.part", 0, f"{name}-support"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            async for part, text in bundle.files():
                content = text.encode()
                info = tarfile.TarInfo(f"{top}/{part}")
                info.size, info.mtime, info.mode = len(content), int(time.time()), 0o600
                archive.addfile(info, io.BytesIO(content))
                count += 1
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise
    return count, bundle.missing
