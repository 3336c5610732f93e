"""The group with all its commands: importing this module adds them.

Those that fit on a page are here; the code that they run is loaded when they are called.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

import click

from bookie_pod.cli.cluster import (  # noqa: F401 - they add their commands to `cluster`
    autorecovery,
    cluster,
    cookie,
    metadata,
    moves,
    rename_bookie,
)
from bookie_pod.cli.connection import Cluster, Connection, connects
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON, Seconds, config_option, confirmed, overrides, quorum_options, set_option
from bookie_protocol.errors import ExitCode, InvalidConfiguration, MetadataUnavailable, ServerStartFailed

__all__ = ["cluster"]

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


@cluster.command("health-check")
@click.option(
    "--ensemble", default=3, show_default=True, type=click.IntRange(1), help="Writable bookies that new ledgers need."
)
@AS_JSON
@connects
def health_check(connection: Connection, ensemble: int, as_json: bool) -> int:
    """Say whether the cluster is healthy: bookies that are down, read-only or full, ledgers that lack copies, too few
    bookies for new ledgers.

    The exit code is 0 if it is healthy, 13 if not, and 12 if the metadata service does not answer.
    """
    from bookie_pod.cli.cluster.health import show_health

    uri = connection.uri()
    return connection.run(lambda found: show_health(found, uri, ensemble, as_json=as_json))


@cluster.command("client-quarantine")
@click.argument("switch", required=False, type=click.Choice(["on", "off"]))
@AS_JSON
@connects
def client_quarantine(connection: Connection, switch: str | None, as_json: bool) -> None:
    """Show whether clients may quarantine bookies with many errors, or switch it for the whole cluster.

    Off: every client that heeds it, Java's too, takes its quarantined bookies back within its
    """

    async def work(found: Cluster) -> bool:
        switches = found.service.cluster
        if switch == "on":
            await switches.enable_health_check()
        elif switch == "off":
            await switches.disable_health_check()
        return await switches.is_health_check_enabled()

    enabled = connection.run(work)
    if as_json:
        click.echo(json.dumps({"client_quarantine": enabled}))
    else:
        click.echo("on: clients may quarantine bookies" if enabled else "off: clients quarantine no bookie")


@cluster.command()
@quorum_options(2)
@click.option(
    "--exclude",
    "excluded",
    multiple=True,
    metavar="BOOKIE[,BOOKIE...]",
    help="As if it were gone. May be given again.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Draws among bookies that are equally good; one seed gives one choice. Ledgers have another each time.",
)
@AS_JSON
@connects
def placement(
    connection: Connection,
    ensemble: int,
    write_quorum: int,
    ack_quorum: int,
    excluded: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> int:
    """Show which bookies a new ledger would get, and why every other bookie would not be one of them.

    A dry run on the bookies as they are now, of the configuration's placement policy (ensemblePlacementPolicy and the
    keys beside it), or without one of the client's own, rack-aware. Nothing is changed. The exit code is 10 if there is
    no such ensemble.
    """
    from bookie_pod.cli.cluster.recover_run import bookie_ids
    from bookie_pod.cli.cluster.showing import DryRun, show_placement

    without = frozenset[str]().union(*map(bookie_ids, excluded))
    wanted = DryRun((ensemble, write_quorum, ack_quorum), without, seed)
    return connection.run(lambda found: show_placement(found, wanted, as_json=as_json))


@cluster.command()
@click.argument("bookie_id", metavar="BOOKIE")
@click.option("--plan", is_flag=True, help="Show what is to be done and what speaks against it; change nothing.")
@click.option("--status", is_flag=True, help="Show how far a decommission is, whichever process carries it out.")
@click.option("--undo", is_flag=True, help="Take it back: the bookie becomes writable again.")
@click.option("--stopped", is_flag=True, help="Refuse unless the bookie is stopped.")
@click.option("--live", is_flag=True, help="Refuse unless the bookie is up, so that its own copies can be read.")
@click.option("--keep-cookie", is_flag=True, help="Leave the bookie's cookie where it is.")
@click.option("--wait-only", is_flag=True, help="Fence no writer: wait until writers leave the bookie by themselves.")
@click.option(
    "--grace",
    type=Seconds(),
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


@cluster.command("safety-check")
@click.argument("bookies", metavar="BOOKIE[,BOOKIE...]")
@AS_JSON
@connects
def safety_check(connection: Connection, bookies: str, as_json: bool) -> int:
    """Tell which ledgers would fall below their ack quorum, or have no copy left, if these bookies went now.

    Answered from metadata, marks and live state; nothing is changed. An unknown state counts as unsafe. The exit code
    is 0 if it is safe, 10 if not.
    """
    from bookie_pod.cli.cluster.recover_run import bookie_ids
    from bookie_pod.cli.cluster.showing import show_safety

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
    from bookie_pod.cli.cluster.showing import show_replicas

    return connection.run(lambda found: show_replicas(found, ledger_id, everywhere=everywhere, as_json=as_json))


@cluster.command()
@click.option(
    "--state", "wanted", type=click.Choice(("writable", "read-only", "down")), multiple=True, help="Only these."
)
@AS_JSON
@connects
def bookies(connection: Connection, wanted: tuple[str, ...], as_json: bool) -> None:
    """List the bookies: state, address, space."""
    from bookie_pod.cli.cluster.showing import show_bookies

    connection.run(lambda found: show_bookies(found, connection.uri(), wanted, as_json=as_json))


@cluster.command()
@click.option("--ledgers/--no-ledgers", default=True, show_default=True, help="Count the ledgers, by state.")
@AS_JSON
@connects
def status(connection: Connection, ledgers: bool, as_json: bool) -> int:
    """Show the cluster in a few lines. The exit code is 12 if no bookie takes writes."""
    from bookie_pod.cli.cluster.showing import show_status

    return connection.run(lambda found: show_status(found, connection.uri(), count=ledgers, as_json=as_json))


@cluster.command()
@config_option("The bookie's properties file.")
@set_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def whoami(file: str | None, assignments: tuple[str, ...], as_json: bool) -> int:
    """Show which bookie this configuration makes: id, address, registration, cookies, instance id.

    Changes nothing. The exit code is 1 if the bookie would refuse to start; the reason is one line.
    """
    import asyncio
    from dataclasses import asdict

    from bookie_pod.config.load import load_config
    from bookie_pod.node.identity.published import who_am_i
    from bookie_pod.storage.files_posix import PosixFiles

    config = load_config(file, overrides=overrides(assignments, {}))
    try:
        found = asyncio.run(who_am_i(config, PosixFiles()))
    except MetadataUnavailable as error:
        raise ServerStartFailed(f"the metadata service does not answer: {error}") from error
    code = ExitCode.OK if found.problem is None else ExitCode.INVALID_CONFIGURATION
    if as_json:
        click.echo(json.dumps(asdict(found) | {"instance_id_matches": found.instance_id_matches}))
        return code
    matches = {True: " (as in every cookie)", False: " (a cookie names another)", None: ""}[found.instance_id_matches]
    for name, value in (
        ("bookie id", found.bookie_id),
        ("advertised address", found.advertised_address),
        ("registered", found.registered or "no"),
        ("registered address", found.registered_address or "-"),
        ("metadata service", found.metadata_service),
        ("instance id", (found.instance_id or "none") + matches),
        ("cookie", found.cookie),
    ):
        click.echo(f"{name:<20}{value}")
    if found.problem is not None:
        click.echo(f"bookie: {found.problem}", err=True)
    return code
