"""`bookie cluster cookie`: the cookies that the metadata service keeps for bookies."""

from __future__ import annotations

from pathlib import Path

import click

from bookie_pod.cli.cluster import cluster
from bookie_pod.cli.connection import Cluster, Connection, connects
from bookie_pod.cli.options import AS_JSON, tell
from bookie_protocol.errors import (
    InvalidConfiguration,
    InvalidCookie,
    MetadataExists,
    MetadataNotFound,
    NotThere,
    Refused,
)
from bookie_protocol.metadata_service.service_info import is_valid_bookie_id

_FILE = click.option(
    "-cf", "--cookie-file", "path", required=True, metavar="FILE", help="A cookie, as in a VERSION file."
)
_BOOKIE = click.argument("bookie_id", metavar="BOOKIE")


@cluster.group()
def cookie() -> None:
    """Look at and repair the cookies of bookies.

    A cookie ties a bookie's directories to its id and cluster. Deleting one by hand lets the bookie start empty under
    its old id, and lose what ledgers say that it holds: use `bookie cluster decommission`.
    """


@cookie.command()
@_BOOKIE
@_FILE
@AS_JSON
@connects
def create(connection: Connection, bookie_id: str, path: str, as_json: bool) -> None:
    """Store the cookie of FILE for BOOKIE, which has none."""
    data, instance = _read(path, bookie_id)

    async def work(found: Cluster) -> None:
        await _check_cluster(found, path, instance)
        try:
            await found.service.cookies.create(bookie_id, data)
        except MetadataExists as error:
            raise Refused(f"bookie {bookie_id} has a cookie already; nothing was changed") from error

    connection.run(work)
    tell(as_json, f"cookie of {bookie_id} created", bookie_id=bookie_id, created=True)


@cookie.command()
@_BOOKIE
@AS_JSON
@connects
def get(connection: Connection, bookie_id: str, as_json: bool) -> None:
    """Print the cookie of BOOKIE, as it is stored; as JSON also its fields, which are null if it cannot be read."""

    async def work(found: Cluster) -> bytes:
        try:
            return (await found.service.cookies.read(bookie_id)).value
        except MetadataNotFound as error:
            raise _none(bookie_id) from error

    stored = connection.run(work)
    if not as_json:
        click.echo(stored, nl=False)
        return
    from bookie_pod.node.identity.cookies import parse_cookie

    try:
        cookie = parse_cookie(stored, bookie_id)
    except InvalidCookie:
        cookie = None
    fields = None if cookie is None else {name: getattr(cookie, name) for name in cookie.__slots__}
    tell(True, "", bookie_id=bookie_id, cookie=stored.decode("utf-8", "replace"), fields=fields)


@cookie.command()
@_BOOKIE
@_FILE
@AS_JSON
@connects
def update(connection: Connection, bookie_id: str, path: str, as_json: bool) -> None:
    """Replace the cookie of BOOKIE by the one of FILE."""
    data, instance = _read(path, bookie_id)

    async def work(found: Cluster) -> None:
        await _check_cluster(found, path, instance)
        try:
            known = await found.service.cookies.read(bookie_id)
            await found.service.cookies.update(bookie_id, data, known.identity)
        except MetadataNotFound as error:
            raise _none(bookie_id) from error

    connection.run(work)
    tell(as_json, f"cookie of {bookie_id} updated", bookie_id=bookie_id, updated=True)


@cookie.command()
@_BOOKIE
@click.option("--force", is_flag=True, help="Also while the bookie is registered, or ledgers name it.")
@AS_JSON
@connects
def delete(connection: Connection, bookie_id: str, force: bool, as_json: bool) -> None:
    """Delete the cookie of BOOKIE. Refuses while the bookie is registered or any ledger names it."""

    async def work(found: Cluster) -> None:
        if not force:
            from bookie_pod.autorecovery.decommission.proof import delete_unneeded_cookie

            await delete_unneeded_cookie(found.service, bookie_id)
            return
        try:
            await found.service.cookies.delete(bookie_id)
        except MetadataNotFound as error:
            raise _none(bookie_id) from error

    connection.run(work)
    tell(as_json, f"cookie of {bookie_id} deleted", bookie_id=bookie_id, deleted=True)


@cookie.command()
@_BOOKIE
@click.option("-j", "--journal-dirs", required=True, metavar="DIRS", help="Journal directories, with commas.")
@click.option("-l", "--ledger-dirs", required=True, metavar="DIRS", help="Ledger directories, with commas.")
@click.option("-ix", "--index-dirs", metavar="DIRS", help="Index directories, with commas, if they are apart.")
@click.option("-i", "--instance-id", metavar="ID", help="Instance id. [default: the cluster's]")
@click.option("-o", "--output-file", "path", required=True, metavar="FILE", help="Where to write it.")
@AS_JSON
@connects
def generate(
    connection: Connection,
    bookie_id: str,
    journal_dirs: str,
    ledger_dirs: str,
    index_dirs: str | None,
    instance_id: str | None,
    path: str,
    as_json: bool,
) -> None:
    """Write the cookie that BOOKIE would have with these directories to FILE. Changes nothing in the cluster."""
    from bookie_pod.node.identity.cookies import BookieDirectories, Cookie, format_cookie

    _check_id(bookie_id)

    async def work(found: Cluster) -> str | None:
        return await found.service.cluster.instance_id()

    directories = BookieDirectories(
        _split(journal_dirs), _split(ledger_dirs), _split(index_dirs) if index_dirs is not None else None
    )
    instance = instance_id if instance_id is not None else connection.run(work)
    Path(path).write_bytes(format_cookie(Cookie.expected(bookie_id, directories, instance)))
    tell(as_json, f"cookie of {bookie_id} written to {path}", bookie_id=bookie_id, path=path)


def _none(bookie_id: str) -> NotThere:
    return NotThere(f"bookie {bookie_id} has no cookie")


async def _check_cluster(found: Cluster, path: str, instance: str | None) -> None:
    """Refuse a cookie of another cluster: the bookie would be refused at its next start, with advice for another
    case."""
    here = await found.service.cluster.instance_id()
    if instance != here:
        raise Refused(
            f"{path} is a cookie of the cluster with instance id {instance or '(none)'}, this one has"
            f" {here or '(none)'}; nothing was changed: generate one with `bookie cluster cookie generate`"
        )


def _read(path: str, bookie_id: str) -> tuple[bytes, str | None]:
    """The cookie in a file, which must be this bookie's, and the instance id that it names."""
    from bookie_pod.node.identity.cookies import parse_cookie

    _check_id(bookie_id)
    data = Path(path).read_bytes()
    try:
        found = parse_cookie(data, path)
    except InvalidCookie as error:
        raise InvalidConfiguration(str(error)) from error
    if found.bookie_id != bookie_id:
        raise InvalidConfiguration(f"{path} is the cookie of bookie {found.bookie_id}, not of {bookie_id}")
    return data, found.instance_id


def _check_id(bookie_id: str) -> None:
    if not is_valid_bookie_id(bookie_id):
        raise InvalidConfiguration(f"{bookie_id!r} is not a valid bookie id")


def _split(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise InvalidConfiguration(f"{text!r} is not a list of directories")
    return parts
