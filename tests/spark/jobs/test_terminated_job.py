"""A job that is the first process of its pod, as the operator starts it, when the pod is to end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.spark_jobs import start_job

_SECONDS = 200.0


def eventually(there: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _SECONDS
    while not there():
        assert time.monotonic() < end, f"no {what} after {_SECONDS:.0f} s"
        time.sleep(0.1)


def ended(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.timeout(4 * _SECONDS)
def test_it_ends_in_good_order(tmp_path: Path) -> None:
    """Where Spark runs stands in the arguments of spark-submit; the signal goes to the first process alone."""
    defaults, begun, result = (tmp_path / name for name in ("spark-defaults.conf", "begun", "result"))
    defaults.write_text("spark.sql.shuffle.partitions=13\nspark.ui.enabled=false\n")
    process = start_job(
        tmp_path,
        "tests.support.waiting_job",
        *("wait", "--metadata", "m", "--begun", str(begun), "--result", str(result)),
        PYSPARK_SUBMIT_ARGS=f"--master 'local[3]' --properties-file {defaults} pyspark-shell",
    )
    try:
        eventually(lambda: begun.exists() or process.poll() is not None, "task")
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=_SECONDS)
        assert process.returncode == 143, errors[-3000:]
        assert begun.read_text() == "local[3] 13"
        row = json.loads(result.read_text())
        assert row == json.loads(output.splitlines()[-1])
        assert (row["status"], row["complete"], row["exit_code"]) == ("interrupted", False, 143)
        eventually(lambda: ended(process.pid), "end of Java")
    finally:
        if not ended(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
