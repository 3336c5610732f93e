"""The `kubectl-bookie` command: installed on the path, kubectl runs it as `kubectl bookie`.

An error that a person can act on is exactly one line on standard error; exit codes are in `faults`. Commands import
what they need when they run, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from bookie_operator.plugin.connection import connection_options
from bookie_operator.plugin.faults import ExitCode, Fault
from bookie_operator.plugin.logs import logs
from bookie_operator.plugin.migrate import migrate
from bookie_operator.plugin.plan import plan
from bookie_operator.plugin.status import status
from bookie_operator.plugin.support_bundle import support_bundle
from bookie_operator.plugin.tasks import (
    accept_loss,
    adopt,
    audit,
    decommission,
    move,
    pause,
    replace,
    restart,
    resume,
)
from bookie_protocol.shown import one_line, take_any_text


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="podkeeper", prog_name="kubectl-bookie", message="%(prog)s %(version)s")
@connection_options
def cli(namespace: str | None, context: str | None, kubeconfig: str | None) -> None:
    """Clusters of bookies that the Podkeeper operator runs.

    Everything goes through Kubernetes' API server, with your rights. Documentation: docs/kubectl-bookie.md.
    """


@cli.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed_version

    click.echo(f"kubectl-bookie {installed_version('podkeeper')}")


for _command in (
    status,
    plan,
    decommission,
    move,
    replace,
    restart,
    audit,
    accept_loss,
    adopt,
    pause,
    resume,
    logs,
    support_bundle,
    migrate,
):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    take_any_text(sys.stdout)
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process's) and return its exit code."""
    try:
        code = cli.main(args=arguments, prog_name="kubectl bookie", standalone_mode=False)
    except Fault as fault:
        click.echo(f"kubectl-bookie: {one_line(fault)}", err=True)
        return fault.code
    except OSError as error:
        click.echo(f"kubectl-bookie: {error.filename or 'input or output'}: {error.strerror or error}", err=True)
        return ExitCode.COULD_NOT_TELL
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    return code if isinstance(code, int) else ExitCode.OK


if __name__ == "__main__":
    main()
