"""`bookie gc`: a bookie's garbage collection, through its admin API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from bookie_pod.cli.bookie_api import asks_bookie
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON, show_json

if TYPE_CHECKING:
    from bookie_protocol.admin_api.client import BlockingAdmin
    from bookie_protocol.admin_api.gc import GcProgress

POLL_S: Final = 0.25
"""Seconds between two looks at a pass that is watched."""
WATCH_S: Final = 1.0
"""Seconds between two looks at the state."""


@click.group()
def gc() -> None:
    """Look at and control the garbage collection of one bookie.

    Every command asks the bookie's HTTP server (--url). Exit codes: 0 done; 1 wrong command line; 10 refused; 11 no
    such entry log; 12 the bookie cannot be reached or failed.
    """


@gc.command()
@click.option("--watch", is_flag=True, help="Go on until interrupted; with --json one line per change.")
@AS_JSON
@asks_bookie
def status(api: BlockingAdmin, watch: bool, as_json: bool) -> None:
    """Show what the collectors do and did."""
    from bookie_pod.cli.gc_view import StatusWatch, read_status, show_status, status_json

    found = read_status(api)
    if watch:
        with StatusWatch() as view:
            while True:
                view.show(found, as_json=as_json)
                time.sleep(WATCH_S)
                found = read_status(api)
    elif as_json:
        click.echo(status_json(found))
    else:
        show_status(found)


@gc.command()
@click.option("--major/--no-major", default=None, help="Compact up to the major threshold, also while suspended.")
@click.option("--minor/--no-minor", default=None, help="Compact up to the minor threshold, also while suspended.")
@click.option("--watch", is_flag=True, help="Wait until the pass has ended, and show its progress and result.")
@AS_JSON
@asks_bookie
def run(api: BlockingAdmin, major: bool | None, minor: bool | None, watch: bool, as_json: bool) -> int:
    """Collect garbage now. Without --major and --minor: what is not suspended.

    With --watch the exit code is 12 if a part of the pass failed.
    """
    from msgspec import UNSET

    from bookie_pod.cli.gc_view import reached, show_result
    from bookie_pod.cli.progress import DirectoryBars
    from bookie_protocol.admin_api import gc as routes

    body = routes.ForceBody(*(UNSET if given is None else given for given in (major, minor)))
    message = api.ask(routes.FORCE, body if body != routes.ForceBody() else None)
    if not watch:
        click.echo(
            json.dumps({"triggered": True}) if as_json else f"{message}. See `bookie gc status`, or use --watch."
        )
        return CommandExit.OK
    with DirectoryBars() as bars:
        for collectors in _until_done(api):
            bars.show(map(reached, collectors))
    result = _result(api)
    if as_json:
        show_json(result)
    else:
        show_result(result)
    failed = any(each.last_pass is not None and each.last_pass.errors for each in result)
    return CommandExit.COULD_NOT_TELL if failed else CommandExit.OK


def _until_done(api: BlockingAdmin) -> Iterator[list[GcProgress]]:
    """Yield the work of the collectors, now and then, until the forced pass has ended."""
    from bookie_protocol.admin_api import gc as routes

    while api.ask(routes.FORCE_STATE).in_force_gc == "true":
        yield _result(api)
        time.sleep(POLL_S)


def _result(api: BlockingAdmin) -> list[GcProgress]:
    from bookie_pod.cli.gc_view import read_progress

    return read_progress(api)


@gc.command()
@click.argument("entry_log")
@click.option("--ledgers", default=20, show_default=True, type=click.IntRange(min=0), help="Show so many ledgers.")
@AS_JSON
@asks_bookie
def why(api: BlockingAdmin, entry_log: str, ledgers: int, as_json: bool) -> None:
    """Say why ENTRY_LOG is still there, who keeps it alive, and when it will go.

    ENTRY_LOG is a file's name (1f.log), hexadecimal (0x1f) or decimal (31).
    """
    from bookie_pod.cli.gc_view import show_why
    from bookie_protocol.admin_api import gc as routes

    found = api.ask(routes.WHY, query=routes.EntryLogQuery(entry_log))
    if as_json:
        show_json(found)
    else:
        show_why(found, ledgers)


@gc.command()
@click.option(
    "--sort", type=click.Choice(["age", "live"]), default="age", show_default=True, help="Oldest, or emptiest, first."
)
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(1, 10_000), help="Show so many logs of each storage."
)
@AS_JSON
@asks_bookie
def logs(api: BlockingAdmin, sort: str, limit: int, as_json: bool) -> None:
    """List the entry logs of a running bookie, with their age and how much of them lives.

    The live share is that of the last pass. `bookie gc why` tells about one log.
    """
    from bookie_pod.cli.gc_view import show_logs, sorted_logs
    from bookie_protocol.admin_api import gc as routes

    query = routes.LogsQuery(limit if sort == "age" else routes.MOST_LOGS)
    found = sorted_logs(api.ask(routes.LOGS, query=query), sort, limit)
    if as_json:
        show_json(found)
    else:
        show_logs(found)


@gc.command()
@AS_JSON
@asks_bookie
def forecast(api: BlockingAdmin, as_json: bool) -> None:
    """Show how full the entry logs are, and what compaction would give back."""
    from bookie_pod.cli.gc_view import show_forecast
    from bookie_protocol.admin_api import gc as routes

    found = api.ask(routes.FORECAST)
    if as_json:
        show_json(found)
    else:
        show_forecast(found)


@gc.command()
@AS_JSON
@asks_bookie
def quarantine(api: BlockingAdmin, as_json: bool) -> None:
    """List damaged entry logs, which are neither deleted nor compacted."""
    from bookie_pod.cli.gc_view import show_quarantine
    from bookie_protocol.admin_api import gc as routes

    found = api.ask(routes.QUARANTINE)
    if as_json:
        show_json(found)
    else:
        show_quarantine(found)


_MAJOR = click.option("--major", is_flag=True, help="Major compaction only.")
_MINOR = click.option("--minor", is_flag=True, help="Minor compaction only.")


@gc.command()
@_MAJOR
@_MINOR
@AS_JSON
@asks_bookie
def suspend(api: BlockingAdmin, major: bool, minor: bool, as_json: bool) -> None:
    """Hold back compaction, both kinds unless one is named. A disk that gets room again resumes it."""
    _switch(api, "suspend", major, minor, as_json)


@gc.command()
@_MAJOR
@_MINOR
@AS_JSON
@asks_bookie
def resume(api: BlockingAdmin, major: bool, minor: bool, as_json: bool) -> None:
    """Allow compaction again, both kinds unless one is named."""
    _switch(api, "resume", major, minor, as_json)


@gc.command("allow-deletions")
@click.option(
    "--ledgers",
    default=0,
    type=click.IntRange(min=0),
    help="Delete up to this many ledgers that the metadata service does not have, however unusual that is.",
)
@click.option(
    "--older-metadata",
    is_flag=True,
    help="Believe the metadata service although it was put back to an older state. Ledgers created since are lost.",
)
@AS_JSON
@asks_bookie
def allow_deletions(api: BlockingAdmin, ledgers: int, older_metadata: bool, as_json: bool) -> None:
    """Let the next pass, which begins now, delete what `gc status` says is held."""
    from bookie_pod.cli.gc_view import show_result
    from bookie_protocol.admin_api import gc as routes

    if not ledgers and not older_metadata:
        raise click.UsageError("nothing is allowed: name --ledgers or --older-metadata")
    found = api.ask(routes.ALLOW_DELETIONS, routes.AllowDeletionsBody(ledgers, older_metadata))
    if as_json:
        show_json(found)
    else:
        show_result(found)


def _switch(api: BlockingAdmin, verb: str, major: bool, minor: bool, as_json: bool) -> None:
    from bookie_protocol.admin_api import gc as routes

    both = major == minor
    route = routes.SUSPEND if verb == "suspend" else routes.RESUME
    api.ask(route, route.body(major or both, minor or both))
    state = api.ask(routes.SUSPENSIONS)
    now = {"major": state.major_suspended == "true", "minor": state.minor_suspended == "true"}
    if as_json:
        click.echo(json.dumps({f"{kind}Suspended": suspended for kind, suspended in now.items()}))
        return
    for kind, suspended in now.items():
        click.echo(f"{kind} compaction: {'suspended' if suspended else 'not suspended'}")
