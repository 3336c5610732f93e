"""`bookie index`: rebuilding the indexes of a bookie that serves, through its admin API."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from bookie_pod.cli.bookie_api import asks_bookie
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON, show_json

if TYPE_CHECKING:
    from bookie_protocol.admin_api.client import BlockingAdmin
    from bookie_protocol.admin_api.integrity import RebuildProgress

POLL_S: Final = 0.5
"""Seconds between two looks at a rebuild that is watched."""
_CODES: Final = {
    "done": CommandExit.OK,
    "none": CommandExit.OK,
    "damaged": CommandExit.DAMAGED,
    "stopped": CommandExit.INTERRUPTED,
}


@click.group()
def index() -> None:
    """Rebuild location index and ledger index of one bookie from its entry logs, while it serves.

    Every command asks the bookie's HTTP server (--url). A stopped bookie's indexes are rebuilt by `bookie disk`. Exit
    codes: 0 done; 1 wrong command line; 10 refused; 12 the bookie cannot be reached, or a rebuild failed; 13 entry logs
    are damaged, the old index is used; 130 stopped.
    """


@index.command()
@click.option("--directory", "directories", multiple=True, help="A ledger directory; may be repeated. Default: all.")
@click.option("--locations/--no-locations", default=True, show_default=True, help="Rebuild the location index.")
@click.option("--ledgers/--no-ledgers", default=True, show_default=True, help="Rebuild the ledger index.")
@click.option(
    "--accept-damage",
    is_flag=True,
    help="Use the new index although entry logs are damaged: what lies behind the damage may be missing.",
)
@click.option("--watch/--no-watch", default=True, show_default=True, help="Show progress and wait for the end.")
@AS_JSON
@asks_bookie
def rebuild(
    api: BlockingAdmin,
    directories: tuple[str, ...],
    locations: bool,
    ledgers: bool,
    accept_damage: bool,
    watch: bool,
    as_json: bool,
) -> int:
    """Rebuild the indexes, at the pace of indexRebuildRateByBytes.

    Until it has ended, reads of what the old index does not name are answered "ledger state unknown". Interrupting a
    watched rebuild (Ctrl-C) stops it: the old index is used.
    """
    from msgspec import UNSET

    from bookie_protocol.admin_api import integrity

    named = list(directories) or UNSET
    answer = api.ask(integrity.REBUILD, integrity.RebuildBody(named, locations, ledgers, accept_damage))
    if not answer.triggered:
        click.echo("bookie: a rebuild runs already: see `bookie index status`", err=True)
        return CommandExit.REFUSED
    if not watch:
        if as_json:
            show_json(answer)
        else:
            click.echo("a rebuild begins")
        return CommandExit.OK
    try:
        found = _watch(api)
    except KeyboardInterrupt:
        api.ask(integrity.STOP_REBUILD)
        found = _watch(api)
    _show(found, as_json=as_json)
    return _code(found)


def _watch(api: BlockingAdmin) -> list[RebuildProgress]:
    from bookie_pod.cli.integrity_view import reached
    from bookie_pod.cli.progress import DirectoryBars
    from bookie_protocol.admin_api import integrity

    with DirectoryBars(in_bytes=True) as bars:
        while True:
            found = api.ask(integrity.REBUILD_STATUS)
            bars.show(map(reached, found))
            if not any(each.outcome == "running" for each in found):
                return found
            time.sleep(POLL_S)


def _code(found: list[RebuildProgress]) -> int:
    """The exit code: of several that went wrong the first of could not tell, damaged, stopped."""
    codes = {_CODES.get(each.outcome, CommandExit.COULD_NOT_TELL) for each in found}
    return min(codes - {CommandExit.OK}, default=CommandExit.OK)


def _show(found: list[RebuildProgress], *, as_json: bool) -> None:
    from bookie_pod.cli.integrity_view import show_rebuilds

    if as_json:
        show_json(found)
    else:
        show_rebuilds(found)


@index.command()
@AS_JSON
@asks_bookie
def status(api: BlockingAdmin, as_json: bool) -> None:
    """Show the rebuild that runs, or ran last, in each ledger directory."""
    from bookie_protocol.admin_api import integrity

    _show(api.ask(integrity.REBUILD_STATUS), as_json=as_json)


@index.command()
@AS_JSON
@asks_bookie
def stop(api: BlockingAdmin, as_json: bool) -> None:
    """Stop the rebuild that runs; the old index is used."""
    from bookie_protocol.admin_api import integrity

    answer = api.ask(integrity.STOP_REBUILD)
    if as_json:
        show_json(answer)
    else:
        click.echo("the rebuild stops" if answer.stopping else "no rebuild runs")
