"""The `bookie` command line: `serve`, `standalone`, `ledger`, `bench`, `cluster`, `config`, `trial`, `version`."""

from bookie_protocol.starting import run_with


def command() -> None:
    """`bookie`, as it is installed."""
    run_with("bookie", "bookie_pod.cli.main")
