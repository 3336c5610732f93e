"""The `bookie` command.

Commands import what they need when they run, so that `bookie version` and `--help` answer at once.

Exit codes are those of the reference implementation (`bookie_protocol.errors.ExitCode`); a wrong command line
counts as invalid configuration. An error that a person can act on is exactly one line on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from bookie_pod.cli.cluster import cluster
from bookie_pod.cli.config import config
from bookie_pod.cli.serve import serve
from bookie_pod.cli.trial import trial
from bookie_protocol.errors import ExitCode, StartupError


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Documentation of every key: docs/configuration.md, or `bookie config docs`.",
)
def cli() -> None:
    """Podkeeper: a BookKeeper bookie. Start one with `bookie serve`."""


@cli.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed_version

    click.echo(f"podkeeper {installed_version('podkeeper')}")


cli.add_command(serve)
cli.add_command(config)
cli.add_command(cluster)
cli.add_command(trial)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process's) and return its exit code."""
    try:
        code = cli.main(args=arguments, prog_name="bookie", standalone_mode=False)
    except StartupError as error:
        click.echo("bookie: " + " ".join(str(error).split()), err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return ExitCode.INVALID_CONFIGURATION
    except click.Abort:
        return 130  # as a shell reports SIGINT
    return code if isinstance(code, int) else ExitCode.OK


if __name__ == "__main__":
    main()
