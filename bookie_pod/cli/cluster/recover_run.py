"""The work of `bookie cluster recover`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import click
from rich.table import Table

from bookie_pod.autorecovery.decommission.drain import DrainOptions
from bookie_pod.autorecovery.decommission.moving import ClientMover
from bookie_pod.autorecovery.decommission.recover import Recover, RecoverOptions, find_ledgers
from bookie_pod.cli.cluster.decommission_run import while_restoring
from bookie_pod.cli.cluster.showing import warn_of_strangers
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.tables import print_table, size_text
from bookie_pod.client_options import replication_options
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.service_info import is_readable_bookie_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The request of the command line, and of the configuration (`copying`)."""

    bookies: frozenset[str]
    ledger_id: int | None
    skip_open: bool
    delete_cookies: bool
    skip_unrecoverable: bool
    copying: AutoRecoveryConfig
    parallel: int


def bookie_ids(text: str) -> frozenset[str]:
    """Ids between commas. `InvalidConfiguration` names what is none."""
    ids = [word.strip() for word in text.split(",")]
    for bookie_id in ids:
        if not is_readable_bookie_id(bookie_id):
            raise InvalidConfiguration(f"{bookie_id!r} is not a valid bookie id")
    return frozenset(ids)


async def show_ledgers(
    cluster: Cluster, bookies: frozenset[str], ledger_id: int | None, *, skip_open: bool, as_json: bool
) -> int:
    """Print the ledgers that name the bookies, as JSON one object a line."""
    await warn_of_strangers(cluster, bookies)
    found = await find_ledgers(cluster.service, bookies, ledger_id)
    kept = [ledger for ledger in found if not (skip_open and ledger.state is LedgerState.OPEN)]
    if as_json:
        for ledger in kept:
            shown = {"ledger_id": ledger.ledger_id, "state": ledger.state.value, "bytes": ledger.nbytes}
            click.echo(json.dumps(shown | {"bookies": sorted(ledger.bookies)}))
        return CommandExit.OK
    table = Table("ledger", "state", "to copy", "names", box=None)
    for ledger in kept:
        names = ", ".join(sorted(ledger.bookies))
        table.add_row(str(ledger.ledger_id), ledger.state.value, size_text(ledger.nbytes), names)
    print_table(table)
    click.echo(f"{len(kept)} ledgers, about {size_text(sum(ledger.nbytes for ledger in kept))}", err=True)
    return CommandExit.OK


async def restore(cluster: Cluster, wanted: Wanted, *, as_json: bool) -> int:
    """Restore them with progress; returns the exit code."""
    await warn_of_strangers(cluster, wanted.bookies)
    mover = ClientMover(cluster.client, replication_options(wanted.copying))
    options = RecoverOptions(
        ledger_id=wanted.ledger_id,
        skip_open=wanted.skip_open,
        skip_unrecoverable=wanted.skip_unrecoverable,
        delete_cookies=wanted.delete_cookies,
        drain=DrainOptions(ledgers_at_once=wanted.parallel),
    )
    recover = Recover(cluster.service, mover, wanted.bookies, options)
    title = f"recovery of {', '.join(sorted(wanted.bookies))}"
    result = await while_restoring(recover.run(), recover.meter, title)
    if as_json:
        shown = asdict(result) | {"bytes_copied": recover.meter.bytes_copied}
        click.echo(json.dumps(shown))
    else:
        click.echo(f"restored {result.restored} ledgers, copied {size_text(recover.meter.bytes_copied)}")
        for ledger_id in result.skipped:
            click.echo(f"skipped ledger {ledger_id}: OPEN")
        for ledger_id, reason in sorted(result.failed.items()):
            click.echo(f"failed ledger {ledger_id}: {reason}")
        for bookie_id in result.cookies_deleted:
            click.echo(f"deleted the cookie of {bookie_id}")
    return CommandExit.REFUSED if result.failed else CommandExit.OK
