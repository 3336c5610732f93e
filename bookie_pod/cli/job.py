"""`bookie job`: runs a job of `pyspark_bookie`, which this package does not import: jobs need Spark, bookies do not.

The process becomes the job's, so that signals and exit codes are its own.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Final

import click

from bookie_protocol.errors import InvalidConfiguration

_NEEDED: Final = {"pyspark_bookie": "podkeeper", "pyspark": "pyspark", "pyarrow": "pyarrow"}
_MODULE: Final = "pyspark_bookie.jobs"


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
    epilog="Jobs and their arguments: docs/jobs.md.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def job(arguments: tuple[str, ...]) -> None:
    """Run a job over many ledgers on Spark: offload, restore, audit, ...

    `bookie job --help` lists them, `bookie job NAME --help` tells about one.
    """
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise InvalidConfiguration(
            f"jobs need {' and '.join(missing)}: install podkeeper[spark] and Java 17, or use the image with Spark"
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", _MODULE, *arguments])
