"""`bookie scrub`: what a bookie's scrubber does and has found, through its admin API."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from bookie_pod.cli.bookie_api import asks_bookie
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON, show_json

if TYPE_CHECKING:
    from bookie_protocol.admin_api.client import BlockingAdmin
    from bookie_protocol.admin_api.integrity import ScrubStatus

POLL_S: Final = 0.5
"""Seconds between two looks at a pass that is watched."""


@click.group()
def scrub() -> None:
    """Look at and start the scrub of one bookie: everything stored is read and checked.

    Every command asks the bookie's HTTP server (--url). Exit codes: 0 done; 1 wrong command line; 10 refused; 12 the
    bookie cannot be reached or failed, or a watched pass could not check everything.
    """


@scrub.command()
@AS_JSON
@asks_bookie
def status(api: BlockingAdmin, as_json: bool) -> None:
    """Show what the scrubber does and did."""
    from bookie_pod.cli.integrity_view import show_status
    from bookie_protocol.admin_api import integrity

    found = api.ask(integrity.SCRUB_STATUS)
    if as_json:
        show_json(found)
    else:
        show_status(found)


@scrub.command()
@click.option("--watch", is_flag=True, help="Wait until the pass has ended, and show its progress and result.")
@AS_JSON
@asks_bookie
def run(api: BlockingAdmin, watch: bool, as_json: bool) -> int:
    """Begin a pass now, at the scrubber's pace (localScrubRateLimit, localScrubRateByBytes)."""
    from bookie_pod.cli.gc_view import reached
    from bookie_pod.cli.integrity_view import show_status
    from bookie_pod.cli.progress import DirectoryBars
    from bookie_protocol.admin_api import integrity

    before = _passes(api.ask(integrity.SCRUB_STATUS))
    answer = api.ask(integrity.SCRUB)
    if not watch:
        text = "a pass begins" if answer.triggered else "a pass goes on, or was asked for before"
        if as_json:
            show_json(answer)
        else:
            click.echo(text)
        return CommandExit.OK
    with DirectoryBars() as bars:
        begun = False
        while True:
            found = api.ask(integrity.SCRUB_STATUS)
            bars.show(map(reached, found.directories))
            begun = begun or found.running or _passes(found) != before
            if begun and not found.running:
                break
            time.sleep(POLL_S)
    if as_json:
        show_json(found)
    else:
        show_status(found)
    unchecked = any(each.errors for each in found.directories)
    return CommandExit.COULD_NOT_TELL if unchecked else CommandExit.OK


def _passes(found: ScrubStatus) -> list[tuple[int, int]]:
    """Return the values that change when a pass begins or ends."""
    return [(each.pass_number, each.completed_time) for each in found.directories]


@scrub.command()
@AS_JSON
@asks_bookie
def damages(api: BlockingAdmin, as_json: bool) -> None:
    """List what is known to be damaged: refused to readers, and kept from garbage collection."""
    from bookie_pod.cli.integrity_view import show_damages
    from bookie_protocol.admin_api import integrity

    found = api.ask(integrity.DAMAGES)
    if as_json:
        show_json(found)
    else:
        show_damages(found)
