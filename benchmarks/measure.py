"""One measurement against a running bookie, one line out: `python -m benchmarks.measure add --size 1024`.

The bookie is the one that `benchmarks.bookie_under_test` started, or any other with `--metadata` and `--pid`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from benchmarks.bookie_under_test import DEFAULT_STATE
from benchmarks.drivers import DriverError
from benchmarks.environment import PROJECT, drive


def summary(result: dict[str, Any]) -> str:
    """What one looks at first, on one line."""
    rate = result["entries_per_second"]
    cpu = [result.get("bookie_cpu_us_per_entry"), result["client_cpu_us_per_entry"]]
    bookie, client = ("-" if each is None else f"{each:.2f}" for each in cpu)
    return (
        f"{result['command']} {result['protocol']} {result['entry_bytes']} B: {rate:,.0f} entries/s, "
        f"p50/p99/p99.9 {result['p50_ms']:.1f}/{result['p99_ms']:.1f}/{result['p999_ms']:.1f} ms, "
        f"bookie {bookie} us CPU/entry, client {client} us CPU/entry, "
        f"bookie rss {result.get('bookie_rss_mb', float('nan')):.0f} MB"
    )


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@click.option("--state", type=click.Path(path_type=Path), default=DEFAULT_STATE, show_default=True)
@click.option("--metadata", help="Metadata service URI; default: from the state file.")
@click.option("--pid", type=int, help="Process of the bookie; default: from the state file.")
@click.option("--json", "as_json", is_flag=True, help="Print the driver's JSON instead of one line.")
@click.argument("driver", nargs=-1, required=True, type=click.UNPROCESSED)
def main(state: Path, metadata: str | None, pid: int | None, as_json: bool, driver: tuple[str, ...]) -> None:
    """Runs the driver with the arguments DRIVER.

    They are `add` or `read`, then options such as --size 128 --protocol v2 --window 4000 --ledgers 1 --rate 0
    --warmup 3 --duration 10.
    """
    if metadata is None:
        if not state.exists():
            raise click.ClickException(f"no {state}: start benchmarks.bookie_under_test, or give --metadata and --pid")
        known = json.loads(state.read_text())
        metadata, pid = known["metadata"], pid or known["pid"]
    arguments = [*driver, "--metadata", metadata]
    if pid is not None:
        arguments += ["--bookie-pid", str(pid)]
    try:
        result = drive(PROJECT.class_path(), *arguments)
    except DriverError as error:
        raise click.ClickException(str(error)) from None
    click.echo(json.dumps(result) if as_json else summary(result))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
