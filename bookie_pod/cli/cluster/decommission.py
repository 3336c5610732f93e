"""`bookie cluster decommission`: take a bookie out of the cluster, see how far that is, take it back."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import click

from bookie_pod.cli.cluster import cluster
from bookie_pod.cli.connection import Connection, connects
from bookie_pod.cli.options import AS_JSON
from bookie_protocol.errors import InvalidConfiguration

RATE: Final = click.option(
    "--rate",
    type=click.IntRange(min=0),
    default=16 * 1024 * 1024,
    show_default=True,
    metavar="BYTES",
    help="Copy at most so many bytes a second, and less while bookies are busy. 0: no limit.",
)
AT_ONCE: Final = click.option(
    "--parallel", type=click.IntRange(1, 256), default=4, show_default=True, help="Ledgers in work at the same time."
)


@cluster.command()
@click.argument("bookie_id", metavar="BOOKIE")
@click.option("--plan", is_flag=True, help="Show what is to be done and what speaks against it; change nothing.")
@click.option("--status", is_flag=True, help="Show how far a decommission is, whoever carries it out.")
@click.option("--undo", is_flag=True, help="Take it back: the bookie becomes writable again.")
@click.option("--stopped", is_flag=True, help="Refuse unless the bookie is stopped.")
@click.option("--live", is_flag=True, help="Refuse unless the bookie is up, so that its own copies can be read.")
@click.option("--keep-cookie", is_flag=True, help="Leave the bookie's cookie where it is.")
@click.option("--wait-only", is_flag=True, help="Fence no writer: wait until writers leave the bookie by themselves.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a writer has to leave the bookie before its ledger is recovered, which fences it.",
)
@RATE
@AT_ONCE
@click.option(
    "--accept-loss",
    "losses",
    metavar="FILE",
    help="Ledger ids, one a line, that may go on naming the bookie: their data on it is given up.",
)
@click.option("--force", is_flag=True, help="Begin although the plan speaks against it.")
@click.option("--admin-url", metavar="URL", help="The bookie's admin API. [default: where it publishes it]")
@click.option("--token-file", metavar="FILE", help="A file with the token that the admin API demands.")
@click.option("--ca-file", metavar="FILE", help="Speak https, and trust the certificates of this PEM file.")
@click.option("--cert-file", metavar="FILE", help="With --ca-file: the client's key and certificate, as PEM.")
@AS_JSON
@connects
def decommission(
    connection: Connection,
    bookie_id: str,
    plan: bool,
    status: bool,
    undo: bool,
    stopped: bool,
    live: bool,
    keep_cookie: bool,
    wait_only: bool,
    grace: float,
    rate: int,
    parallel: int,
    losses: str | None,
    force: bool,
    admin_url: str | None,
    token_file: str | None,
    ca_file: str | None,
    cert_file: str | None,
    as_json: bool,
) -> int | None:
    """Take BOOKIE out of the cluster: make it read-only, copy what it holds to others, prove that nothing needs it, and
    delete its cookie.

    The bookie stays up meanwhile and serves reads, so no ledger ever has fewer copies than before. A bookie that is
    stopped is replaced from the other copies. Interrupted, it goes on where it was when the command is repeated. When
    it is done, stop the bookie and remove its volumes.
    """
    if sum((plan, status, undo)) > 1 or (stopped and live):
        raise InvalidConfiguration("give one of --plan, --status and --undo, and one of --stopped and --live")
    from bookie_pod.cli.cluster import decommission_run as work

    if plan:
        return connection.run(lambda found: work.show_plan(found, bookie_id, as_json=as_json))
    if status:
        return connection.run(lambda found: work.show_status(found, bookie_id, as_json=as_json))
    admin = work.AdminAccess(connection.configuration.http, admin_url, token_file, ca_file, cert_file)
    if undo:
        return connection.run(lambda found: work.take_back(found, bookie_id, admin, as_json=as_json))
    wanted = work.Wanted(
        bookie_id=bookie_id,
        form=work.form(stopped=stopped, live=live),
        delete_cookie=not keep_cookie,
        recover_open=not wait_only,
        grace=grace,
        copying=replace(connection.configuration.auto_recovery, rate_by_bytes=rate),
        parallel=parallel,
        accepted_losses=work.read_ledger_ids(losses) if losses is not None else frozenset(),
        force=force,
    )
    return connection.run(lambda found: work.carry_out(found, wanted, admin, as_json=as_json))
