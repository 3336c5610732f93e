"""The `bookie` command.

Commands import what they need when they run, so that `bookie version` and `--help` answer at once.

Exit codes of `serve` are those of the reference implementation (`bookie_protocol.errors.ExitCode`), those of commands
that use a cluster are in `exit_codes`; a wrong command line counts as invalid configuration. An error that a person can
act on is exactly one line on standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

import click

from bookie_pod.cli.audited import audit_changes
from bookie_pod.cli.bench import bench
from bookie_pod.cli.bookie_api import URI_VARIABLE
from bookie_pod.cli.cluster.commands import cluster
from bookie_pod.cli.completion import completion, man
from bookie_pod.cli.config import config
from bookie_pod.cli.disk.commands import disk
from bookie_pod.cli.doctor.command import doctor
from bookie_pod.cli.drain_clients import drain_clients
from bookie_pod.cli.exit_codes import CommandExit, Terminated, exit_code_of
from bookie_pod.cli.gc import gc
from bookie_pod.cli.index import index
from bookie_pod.cli.ledger.commands import ledger
from bookie_pod.cli.local_clusters import running
from bookie_pod.cli.options import AS_JSON, tell
from bookie_pod.cli.scrub import scrub
from bookie_pod.cli.serve import autorecovery, gateway, metadata_service, serve
from bookie_pod.cli.shell import shell
from bookie_pod.cli.standalone import standalone
from bookie_pod.cli.stream.commands import stream
from bookie_pod.cli.support.command import support_bundle
from bookie_pod.cli.trial import trial
from bookie_protocol.errors import ExitCode, InvalidConfiguration, NotEnoughBookies, PodkeeperError, QuorumLost
from bookie_protocol.extras import install_command
from bookie_protocol.shown import one_line, shown_uri, take_any_text

_JOBS: Final = "pyspark_bookie.jobs"
_JOBS_NEED: Final = {"pyspark_bookie": "podkeeper", "pyspark": "pyspark", "pyarrow": "pyarrow"}


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Documentation of every key: docs/configuration.md, or `bookie config docs`.",
)
@click.version_option(package_name="podkeeper", message="podkeeper %(version)s")
def cli() -> None:
    """Podkeeper: Apache BookKeeper for Kubernetes.

    `bookie serve` runs a bookie, `bookie standalone` a whole cluster on this machine.
    """


@cli.command()
@AS_JSON
def version(as_json: bool) -> None:
    """Print the version."""
    from importlib.metadata import version as installed_version

    installed = installed_version("podkeeper")
    tell(as_json, f"podkeeper {installed}", version=installed)


@cli.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
    epilog="Jobs and their arguments: docs/jobs.md.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def job(arguments: tuple[str, ...]) -> None:
    """Run a job over many ledgers on Spark: offload, restore, audit, ...

    `bookie job --help` lists them, `bookie job NAME --help` tells about one.
    """
    # The process becomes the job's, so that signals and exit codes are its own. This package does not import
    # `pyspark_bookie`: jobs need Spark, bookies do not.
    missing = [package for module, package in _JOBS_NEED.items() if find_spec(module) is None]
    if missing:
        command = install_command("spark", *missing)
        raise InvalidConfiguration(
            f"jobs need Java 17 and {' and '.join(missing)}: {command}; or use the image with Spark"
        )
    if URI_VARIABLE not in os.environ and len(found := running()) == 1:
        os.environ[URI_VARIABLE] = found[0].metadata_service
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", _JOBS, *arguments])


cli.add_command(serve)
cli.add_command(doctor)
cli.add_command(support_bundle)
cli.add_command(drain_clients)
cli.add_command(autorecovery)
cli.add_command(gateway)
cli.add_command(config)
cli.add_command(standalone)
cli.add_command(metadata_service)
cli.add_command(cluster)
cli.add_command(ledger)
cli.add_command(stream)
cli.add_command(disk)
cli.add_command(bench)
cli.add_command(trial)
cli.add_command(gc)
cli.add_command(scrub)
cli.add_command(index)
cli.add_command(shell)
cli.add_command(completion)
cli.add_command(man)
audit_changes(cli)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    take_any_text(sys.stdout)
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: the process's) and return its exit code."""
    try:
        code = cli.main(args=arguments, prog_name="bookie", standalone_mode=False)
    except PodkeeperError as error:
        # Which bookies are down, full or read-only, the client cannot tell: it only knows that they did not answer.
        hint = "; `bookie cluster health-check` says which" if isinstance(error, QuorumLost | NotEnoughBookies) else ""
        click.echo(f"bookie: {one_line(error)}{hint}", err=True)
        return exit_code_of(error)
    except OSError as error:
        what = "input or output" if error.filename is None else error.filename or "a file without a name"
        click.echo(f"bookie: {one_line(f'{what}: {error.strerror or error}')}", err=True)
        return CommandExit.COULD_NOT_TELL
    except UnicodeEncodeError as error:  # an argument as the system gave it, in a place for text
        click.echo(f"bookie: {shown_uri(error.object)[:200]!r} is not text in UTF-8: correct it", err=True)
        return ExitCode.INVALID_CONFIGURATION
    except click.ClickException as error:
        error.show()
        return ExitCode.INVALID_CONFIGURATION
    except click.Abort:
        return CommandExit.INTERRUPTED
    except Terminated:
        return CommandExit.TERMINATED
    except SystemExit as error:
        # click's answer to output without a reader, or its end of a completion; no command ends the process.
        return CommandExit.BROKEN_PIPE if error.code else CommandExit.OK
    return code if isinstance(code, int) else ExitCode.OK


if __name__ == "__main__":
    main()
