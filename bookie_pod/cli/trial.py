"""`bookie trial`: see the whole system work on this machine, with a bookie killed in the middle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bookie_pod.cli.options import AS_JSON
from bookie_protocol.quiet import quiet_grpc

if TYPE_CHECKING:
    from bookie_pod.node.standalone.trial import TrialReport

FAILED = 1


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--bookies", default=3, show_default=True, type=click.IntRange(3, 16), help="Bookie processes.")
@click.option(
    "--entry-size",
    default=1024,
    show_default=True,
    type=click.IntRange(1, 4 * 1024 * 1024),
    help="Bytes of the file that make one entry.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for the bookies' data; kept. [default: a temporary one, removed]",
)
@click.option("--kill/--no-kill", default=True, show_default=True, help="Kill a bookie in the middle of writing.")
@AS_JSON
def trial(file: Path | None, bookies: int, entry_size: int, data: Path | None, kill: bool, as_json: bool) -> int:
    """Write FILE as a ledger, kill a bookie meanwhile, read every byte back.

    Starts an embedded metadata service and bookies as processes of their own on this machine. FILE (default:
    a generated log of 64 MiB) is written with ensemble 3, write quorum 3, ack quorum 2. In the middle one
    bookie gets SIGKILL. The ledger is closed, read back and compared byte for byte. The exit code is 0 only
    if every byte came back.
    """
    quiet_grpc()
    import asyncio

    import uvloop

    from bookie_pod import logs
    from bookie_pod.cli.exit_codes import end_with_sigterm
    from bookie_pod.cli.trial_view import TrialProgress, report_members, report_table
    from bookie_pod.node.standalone.trial import TrialOptions, run_trial
    from bookie_protocol.console import console

    logs.configure("console", "warning")
    shown = console(stderr=as_json)
    options = TrialOptions(file=file, bookies=bookies, entry_size=entry_size, data=data, kill=kill)

    async def run() -> TrialReport:
        end_with_sigterm()
        with TrialProgress(shown) as progress:
            return await run_trial(options, progress)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(run())
    except asyncio.CancelledError:
        click.echo("bookie: trial stopped", err=True)
        return FAILED
    if as_json:
        click.echo(json.dumps(report_members(report)))
    else:
        shown.print(report_table(report))
    if report.problem is not None:
        click.echo(f"bookie: trial failed: {report.problem}", err=True)
        return FAILED
    return 0
