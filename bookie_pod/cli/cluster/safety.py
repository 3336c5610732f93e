"""`bookie cluster safety-check` and `replicas`: what would be lost, and what is there."""

from __future__ import annotations

import click

from bookie_pod.cli.cluster.group import cluster
from bookie_pod.cli.connection import Connection, connects
from bookie_pod.cli.options import AS_JSON


@cluster.command("safety-check")
@click.argument("bookies", metavar="BOOKIE[,BOOKIE...]")
@AS_JSON
@connects
def safety_check(connection: Connection, bookies: str, as_json: bool) -> int:
    """Tell which ledgers would fall below their ack quorum, or have no copy left, if these bookies went now.

    Answered from metadata, marks and live state; nothing is changed. What cannot be told counts as unsafe. The exit
    code is 0 if it is safe, 10 if not.
    """
    from bookie_pod.cli.cluster.recover_run import bookie_ids
    from bookie_pod.cli.cluster.safety_run import show_safety

    ids = bookie_ids(bookies)
    return connection.run(lambda found: show_safety(found, ids, as_json=as_json))


@cluster.command()
@click.argument("ledger_id", metavar="LEDGER", type=click.IntRange(min=0))
@click.option("--everywhere", is_flag=True, help="Ask every registered bookie, not only those that the ledger names.")
@AS_JSON
@connects
def replicas(connection: Connection, ledger_id: int, everywhere: bool, as_json: bool) -> int:
    """Show what each bookie really holds of LEDGER, beside what it should. The exit code is 13 if entries are missing
    somewhere, 12 if some bookie could not tell."""
    from bookie_pod.cli.cluster.safety_run import show_replicas

    return connection.run(lambda found: show_replicas(found, ledger_id, everywhere=everywhere, as_json=as_json))
