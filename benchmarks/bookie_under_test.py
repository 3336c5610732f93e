"""Starts a ZooKeeper and one bookie, and keeps them until interrupted.

`python -m benchmarks.bookie_under_test java`. Where they are is written to a state file, which
`benchmarks.measure` reads.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import click

from benchmarks.environment import KINDS, Environment

DEFAULT_STATE = Path(__file__).parent.parent / "data" / "bench" / "under-test.json"


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Parent of the data directories.")
@click.option("--state", type=click.Path(path_type=Path), default=DEFAULT_STATE, show_default=True)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A further configuration key.")
def main(kind: str, parent: Path | None, state: Path, settings: tuple[str, ...]) -> None:
    """Starts a ZooKeeper and a bookie of KIND; ends them on Ctrl-C or SIGTERM."""
    # A handler rather than the default, so that what is started is also ended on SIGTERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Environment(parent) as environment:
        bookie = environment.bookie(kind, dict(each.split("=", 1) for each in settings))
        seconds = bookie.start()
        state.parent.mkdir(parents=True, exist_ok=True)
        known = {
            "kind": kind,
            "pid": bookie.pid,
            "bookie": bookie.bookie_id,
            "metadata": environment.metadata_uri,
            "directory": str(bookie.work),
            "log": str(bookie.log),
        }
        state.write_text(json.dumps(known, indent=1) + "\n")
        click.echo(f"ready in {seconds:.2f} s: {json.dumps(known)}")
        try:
            code = bookie.wait()
        except KeyboardInterrupt:
            click.echo("ending")
            return
        finally:
            state.unlink()
        raise click.ClickException(f"the bookie ended with exit code {code}:\n{bookie.tail()}")


if __name__ == "__main__":
    main()
