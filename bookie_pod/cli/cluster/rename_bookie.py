"""`bookie cluster rename-bookie`: a stopped bookie gets another id."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from bookie_pod.cli.cluster import cluster
from bookie_pod.cli.connection import Cluster, Connection, connects
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON, YES, confirmed
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.service_info import is_valid_bookie_id

if TYPE_CHECKING:
    from bookie_pod.node.identity.rename import Found

_TELL_S = 10.0


@cluster.command("rename-bookie")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("-dr", "--dry-run", is_flag=True, help="Show what would be renamed; change nothing.")
@click.option(
    "--rate",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    metavar="LEDGERS",
    help="Change at most so many ledgers a second. 0: no limit.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="LEDGERS", help="Stop after so many. [default: all]")
@YES
@AS_JSON
@connects
def rename_bookie(
    connection: Connection,
    old: str,
    new: str,
    dry_run: bool,
    rate: int,
    limit: int | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Give the stopped bookie OLD the id NEW: in all ledgers, and in its cookie. (Apache: updateBookieInLedger)

    No entry is copied. Refused while either is registered, and if NEW is or was another bookie. Ledgers that are not
    closed are left as they are, and the exit code is 10: close or recover them, and repeat the command. Interrupted, it
    goes on where it was. In the end `bookie disk rename-bookie` does the same for its directories.
    """
    for bookie_id in (old, new):
        if not is_valid_bookie_id(bookie_id):
            raise InvalidConfiguration(f"{bookie_id!r} is not a valid bookie id")
    if old == new:
        raise InvalidConfiguration(f"{old} is its id already")
    if dry_run or not yes:
        found = connection.run(lambda cluster: _looked(cluster, old, new))
        _tell(found, old, as_json=as_json)
        if dry_run:
            return CommandExit.REFUSED if found.blocked else CommandExit.OK
        if not confirmed("rename-bookie", "changes ledgers", f"Let {found.ready} ledgers name {new}?"):
            return CommandExit.USAGE
    found = connection.run(lambda cluster: _carried_out(cluster, old, new, rate, limit))
    _tell(found, old, as_json=as_json)
    if found.blocked:
        return CommandExit.REFUSED
    if not as_json:
        what = "repeat it for the rest" if found.ready else f"now run `bookie disk rename-bookie {old} {new}` there"
        click.echo(what)
    return CommandExit.OK


async def _looked(cluster: Cluster, old: str, new: str) -> Found:
    from bookie_pod.node.identity.rename import Rename

    return await Rename(cluster.service, old, new).look()


async def _carried_out(cluster: Cluster, old: str, new: str, rate: int, limit: int | None) -> Found:
    import asyncio

    from bookie_pod.node.identity.rename import Rename

    loop = asyncio.get_running_loop()
    told = loop.time()

    def progress(found: Found) -> None:
        nonlocal told
        if loop.time() - told >= _TELL_S:
            told = loop.time()
            click.echo(f"{found.renamed} ledgers renamed", err=True)

    return await Rename(cluster.service, old, new, rate=rate).run(limit, progress)


def _tell(found: Found, old: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    left = f"{found.ready} name {old} and can be renamed, {found.blocked} cannot"
    click.echo(f"{found.seen} ledgers seen, {found.renamed} renamed; {left}")
    for ledger_id, why in found.blockers.items():
        click.echo(f"  ledger {ledger_id}: {why}")
