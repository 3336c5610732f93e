"""`bookie cluster recover`: re-replicate what lost bookies held."""

from __future__ import annotations

from dataclasses import replace

import click

from bookie_pod.cli.cluster.decommission import AT_ONCE, RATE
from bookie_pod.cli.cluster.group import cluster
from bookie_pod.cli.confirm import confirmed
from bookie_pod.cli.connection import Connection, connects
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON


@cluster.command()
@click.argument("bookies", metavar="BOOKIE[,BOOKIE...]")
@click.option("-q", "--query", is_flag=True, help="Only list the ledgers that name the bookies.")
@click.option("-dr", "--dry-run", is_flag=True, help="Show what would be copied; change nothing.")
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
@click.option("-l", "--ledger", "ledger_id", type=click.IntRange(min=0), help="Only this ledger.")
@click.option("-sk", "--skip-open", is_flag=True, help="Leave ledgers in state OPEN alone.")
@click.option("-d", "--delete-cookie", is_flag=True, help="Delete the bookies' cookies once nothing names them.")
@click.option("-sku", "--skip-unrecoverable", is_flag=True, help="Go on past ledgers that cannot be restored.")
@RATE
@AT_ONCE
@AS_JSON
@connects
def recover(
    connection: Connection,
    bookies: str,
    query: bool,
    dry_run: bool,
    force: bool,
    ledger_id: int | None,
    skip_open: bool,
    delete_cookie: bool,
    skip_unrecoverable: bool,
    rate: int,
    parallel: int,
    as_json: bool,
) -> int:
    """Copy everything that the lost bookies held to others, by this command itself, without auditor or workers.

    A ledger that is still open and names one of them in its last ensemble is recovered first: its writer is fenced.
    Every ledger is locked while it is worked on. The exit code is 10 if some ledger could not be restored.
    """
    from bookie_pod.cli.cluster import recover_run as work

    ids = work.bookie_ids(bookies)
    if query or dry_run:
        return connection.run(
            lambda found: work.show_ledgers(found, ids, ledger_id, skip_open=skip_open, as_json=as_json)
        )
    question = f"Replace {', '.join(sorted(ids))} in all ledgers, and fence their writers? (--force asks nothing)"
    if not force and not confirmed("recover", "replaces bookies", question, unless="--force"):
        return CommandExit.USAGE
    wanted = work.Wanted(
        bookies=ids,
        ledger_id=ledger_id,
        skip_open=skip_open,
        delete_cookies=delete_cookie,
        skip_unrecoverable=skip_unrecoverable,
        copying=replace(connection.configuration.auto_recovery, rate_by_bytes=rate),
        parallel=parallel,
    )
    return connection.run(lambda found: work.restore(found, wanted, as_json=as_json))
