"""The command lines that docs/jobs.md begins with: each starts Spark in another way, and each ends by the result row.

`spark-submit` is the strange one: Java is begun first and runs the driver, whose exit code and output it passes on.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_client import BlockingClient
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from tests.spark.ledgers import FULL, numbered, write_ledger
from tests.support.spark_environment import REPOSITORY, spark_environment
from tests.support.spark_jobs import JobRun

pytestmark = pytest.mark.slow

ENTRIES = 200
ABSENT = 77_000_000
"""A ledger whose bookie there is not."""
_SECONDS = 300.0
_PAGE = REPOSITORY / "docs" / "jobs.md"
_LINES = _PAGE.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0].splitlines()
_PLACES = {
    "k8s://...": "local[1]",
    "local:///opt/podkeeper/job.py": f"local://{REPOSITORY / 'docker' / 'spark' / 'job.py'}",
}


def run_line(line: str, work: Path, name: str, *arguments: str) -> JobRun:
    """Run a line of the page, on this machine, with this job. Spark logs its events in `work`."""
    program, *words = [_PLACES.get(word, word) for word in shlex.split(line.partition(" NAME ")[0])]
    (work / "spark-defaults.conf").write_text(
        "spark.ui.enabled false\nspark.driver.host 127.0.0.1\nspark.driver.bindAddress 127.0.0.1\n"
        f"spark.eventLog.enabled true\nspark.eventLog.dir {work.as_uri()}\n"
        "spark.eventLog.rolling.enabled false\nspark.eventLog.compress false\n"
    )
    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *words, name, *arguments],
        cwd=work,
        env=spark_environment(SPARK_CONF_DIR=str(work)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.stdout, done.stderr[-3000:]
    return JobRun(done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout, done.stderr)


def application(work: Path) -> dict[str, str]:
    """The properties of the only application that Spark logged."""
    (log,) = work.glob("local-*")
    events = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    found = next(event for event in events if event["Event"] == "SparkListenerEnvironmentUpdate")
    return dict(found["Spark Properties"])


@pytest.fixture
def ledgers(tool: BlockingClient) -> Iterator[list[int]]:
    """One that is whole, and one whose only copy is at a bookie that is registered nowhere."""
    whole = write_ledger(tool, numbered(ENTRIES), **FULL)
    lost = LedgerMetadata(ABSENT, 1, 1, 1, {0: ("bookie-99",)}, LedgerState.CLOSED, ENTRIES - 1, ENTRIES)
    tool.run(lambda client: client.metadata_service.ledgers.create(lost))
    yield [whole, ABSENT]
    tool.delete(ABSENT)


@pytest.mark.timeout(_SECONDS + 60)
@pytest.mark.parametrize("line", _LINES, ids=lambda line: line.partition(" ")[0])
def test_a_job_by_each_command_line(line: str, uri: str, ledgers: list[int], tmp_path: Path) -> None:
    arguments = ["--metadata", uri, "--ledgers", ",".join(map(str, ledgers)), "--digests", "--recheck", "100ms"]
    if "--master" not in line:
        arguments += ["--master", "local[1]", "--niceness", "0"]
    result = tmp_path / "row.json"
    run = run_line(line, tmp_path, "audit", *arguments, "--result", str(result))
    assert run.code == 2, run.errors[-3000:]
    row = run.row
    assert (row["job"], row["status"], row["exit_code"], row["complete"]) == ("audit", "findings", 2, True)
    assert (row["ledgers"], row["entries"], row["replicas"]) == (2, 3 * ENTRIES, 4)
    assert (row["lost"], row["missing"], row["damaged"], row["unreachable"]) == (1, 0, 0, 0)
    assert (row["no_cookie"], row["unregistered"], row["overdue"]) == (1, 0, 0)
    assert json.loads(result.read_text()) == row
    assert f" {ABSENT} " in run.output
    properties = application(tmp_path)
    assert (properties["spark.master"], properties["spark.app.name"]) == ("local[1]", "podkeeper audit")


@pytest.mark.timeout(_SECONDS + 60)
def test_spark_submit_passes_the_exit_code_of_wrong_arguments_on(tmp_path: Path) -> None:
    (line,) = (line for line in _LINES if line.startswith("spark-submit"))
    run = run_line(line, tmp_path, "audit", "--ledgers", "many")
    assert (run.code, run.row["status"], run.row["exit_code"]) == (1, "error", 1)
    assert "many" in run.row["error"]
