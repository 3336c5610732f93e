"""Python files that `spark-submit --py-files` or `spark.submit.pyFiles` names reach planner and tasks.

What is shipped is Podkeeper itself, to a Python that has what it depends on, and finds it nowhere else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from bookie_client import BlockingClient
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.jobs import spark as settings
from bookie_operator.builders.jobs.build import build_job
from bookie_operator.builders.jobs.pod import SUBMIT_VARIABLE, TERMINATION_LOG
from tests.spark.ledgers import numbered, write_ledger
from tests.support.operator_clusters import cluster as cluster_view
from tests.support.operator_jobs import ONCE, job
from tests.support.spark_environment import REPOSITORY, spark_environment

SECONDS = 240.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 60)]

ENTRIES = 200
SHIPPED = ("bookie_protocol", "bookie_client", "pyspark_bookie")
PROGRAM = """
import sys
from pyspark.sql import SparkSession
import pyspark_bookie

uri, ledger_id = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
reader = spark.read.format("bookkeeper").option("metadataServiceUri", uri).option("ledgers", ledger_id)
try:
    reader.load()
except Exception as error:
    print("DATA_SOURCE_NOT_FOUND" in str(error))
spark.dataSource.register(pyspark_bookie.DefaultSource)
print(pyspark_bookie.__file__, reader.load().distinct().count())
"""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shipped") / "podkeeper.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for package in SHIPPED:
            for file in sorted((REPOSITORY / package).rglob("*.py")):
                made.write(file, file.relative_to(REPOSITORY))
    return path


@pytest.fixture
def ledger_id(tool: BlockingClient) -> int:
    return write_ledger(tool, numbered(ENTRIES))


def environment(work: Path, **more: str) -> dict[str, str]:
    """Of a process whose Spark is configured by a file in `work`."""
    (work / "spark-defaults.conf").write_text(
        "spark.ui.enabled false\nspark.driver.host 127.0.0.1\nspark.driver.bindAddress 127.0.0.1\n"
    )
    return spark_environment(python=False, SPARK_CONF_DIR=str(work), **more)


def run(work: Path, words: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=work,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def submit(work: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`spark-submit` with a Python that leaves out the `.pth` files, by one of which this repository is installed."""
    python = work / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    installed = str(Path(pyarrow.__file__).parents[1])
    variables = environment(work, PYSPARK_PYTHON=str(python), PYTHONPATH=installed)
    return run(work, [_beside("spark-submit"), "--master", "local[1]", *words], variables)


def _beside(program: str) -> str:
    return str(Path(sys.executable).with_name(program))


def test_a_program_reads_by_a_source_that_it_registers(uri: str, ledger_id: int, shipped: Path, tmp_path: Path) -> None:
    """Spark itself does not look for sources in there."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = submit(tmp_path, "--py-files", str(shipped), "program.py", uri, str(ledger_id))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["True", f"{shipped}/pyspark_bookie/__init__.py {ENTRIES}"]


def test_a_job(uri: str, ledger_id: int, shipped: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_bytes((REPOSITORY / "docker" / "spark" / "job.py").read_bytes())
    words = ("audit", "--metadata", uri, "--ledgers", str(ledger_id), "--digests", "--niceness", "0")
    done = submit(tmp_path, "--py-files", str(shipped), "job.py", *words)
    assert done.stdout, done.stderr[-3000:]
    row = json.loads(done.stdout.splitlines()[-1])
    assert (row["status"], row["ledgers"], row["entries"]) == ("ok", 1, 3 * ENTRIES), done.stderr[-3000:]
    assert "No module named 'pyspark_bookie'" in submit(tmp_path, "job.py", *words).stdout, "it is nowhere else"


def test_those_of_a_bookie_job(uri: str, ledger_id: int, shipped: Path, tmp_path: Path) -> None:
    """As the operator begins the driver, whose Python was there before Java."""
    own = {
        "spark.submit.pyFiles": str(shipped),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": tmp_path.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }
    given = {**ONCE, "kind": "audit", "args": ["--ledgers", str(ledger_id)], "sparkConf": own}
    objects = build_job(cluster_view(), job(given), BuildContext())
    for name, text in objects.support[0]["data"].items():
        (tmp_path / name).write_text(text)
    container = objects.runner["spec"]["template"]["spec"]["containers"][0]
    (arguments,) = (each["value"] for each in container["env"] if each["name"] == SUBMIT_VARIABLE)
    arguments = arguments.replace(settings.DIRECTORY, str(tmp_path)).replace("local[*]", "local[1]")
    command: list[str] = [*container["command"], *container["args"]]
    words = [word.replace(TERMINATION_LOG, str(tmp_path / "result")) for word in command[1:]]
    variables = environment(tmp_path, BK_metadataServiceUri=uri, **{SUBMIT_VARIABLE: arguments})
    (tmp_path / "spark-defaults.conf").write_text(objects.support[0]["data"][settings.DEFAULTS_FILE])
    done = run(tmp_path, [_beside(command[0]), *words], variables)
    assert json.loads((tmp_path / "result").read_text())["ledgers"] == 1, done.stderr[-3000:]
    assert _classpath(tmp_path).get(shipped.as_uri()) == "Added By User"


def _classpath(work: Path) -> dict[str, Any]:
    """What Spark handed to executors, of the only application that it logged."""
    (log,) = work.glob("local-*")
    events = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    told = [event["Classpath Entries"] for event in events if event["Event"] == "SparkListenerEnvironmentUpdate"]
    return dict(told[-1])
