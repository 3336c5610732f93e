"""Jobs in tests of Spark: run in this process, on the session that is there, or in one of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyspark_bookie.jobs.framework.command import main
from tests.support.spark_environment import spark_environment


@dataclass(frozen=True)
class JobRun:
    """`row` is the last line of standard output."""

    code: int
    row: dict[str, Any]
    output: str
    errors: str


def run_job(capfd: pytest.CaptureFixture[str], *arguments: str) -> JobRun:
    """In this process. What was printed before is lost."""
    capfd.readouterr()
    code = main(arguments)
    printed = capfd.readouterr()
    return JobRun(code, json.loads(printed.out.splitlines()[-1]), printed.out, printed.err)


def start_job(work: Path, module: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """As a process that leads a group of its own, Java and all workers included that do not leave it. It does not step
    back for the other tests of a busy machine."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments, "--niceness", "0"],
        cwd=work,
        env=spark_environment(python=False, **environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
