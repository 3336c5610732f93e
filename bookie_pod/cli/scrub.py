"""`bookie scrub`: what a bookie's scrubber does and has found, through its admin API."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

import click

from bookie_pod.cli.bookie_server import asks_bookie
from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.options import AS_JSON

if TYPE_CHECKING:
    from bookie_pod.cli.bookie_api import BookieApi

POLL_S: Final = 0.5
"""Between two looks at a pass that is watched, in seconds."""


@click.group()
def scrub() -> None:
    """Look at and start the scrub of one bookie: everything stored is read and checked.

    Every command asks the bookie's HTTP server (--url). Exit codes: 0 done; 1 wrong command line; 10 refused; 12 the
    bookie cannot be reached or failed, or a watched pass could not check everything.
    """


@scrub.command()
@AS_JSON
@asks_bookie
def status(api: BookieApi, as_json: bool) -> None:
    """Show what the scrubber does and did."""
    from bookie_pod.cli.scrub_view import show_status

    found = api.get("bookie/scrub")
    if as_json:
        click.echo(json.dumps(found))
    else:
        show_status(found)


@scrub.command()
@click.option("--watch", is_flag=True, help="Wait until the pass has ended, and show its progress and result.")
@AS_JSON
@asks_bookie
def run(api: BookieApi, watch: bool, as_json: bool) -> int:
    """Begin a pass now, at the scrubber's pace (localScrubRateLimit, localScrubRateByBytes)."""
    from bookie_pod.cli.gc_view import reached
    from bookie_pod.cli.progress import DirectoryBars
    from bookie_pod.cli.scrub_view import show_status

    before = _passes(api.get("bookie/scrub"))
    answer = api.put("bookie/scrub")
    if not watch:
        text = "a pass begins" if answer["triggered"] else "a pass goes on, or was asked for before"
        click.echo(json.dumps(answer) if as_json else text)
        return CommandExit.OK
    with DirectoryBars() as bars:
        begun = False
        while True:
            found = api.get("bookie/scrub")
            bars.show(map(reached, found["directories"]))
            begun = begun or found["running"] or _passes(found) != before
            if begun and not found["running"]:
                break
            time.sleep(POLL_S)
    if as_json:
        click.echo(json.dumps(found))
    else:
        show_status(found)
    unchecked = any(each["errors"] for each in found["directories"])
    return CommandExit.COULD_NOT_TELL if unchecked else CommandExit.OK


def _passes(found: dict[str, Any]) -> list[tuple[int, int]]:
    """What changes when a pass begins or ends."""
    return [(each["passNumber"], each["completedTime"]) for each in found["directories"]]


@scrub.command()
@AS_JSON
@asks_bookie
def damages(api: BookieApi, as_json: bool) -> None:
    """List what is known to be damaged: refused to readers, and kept from garbage collection."""
    from bookie_pod.cli.scrub_view import show_damages

    found = api.get("bookie/scrub/damages")
    if as_json:
        click.echo(json.dumps(found))
    else:
        show_damages(found)
