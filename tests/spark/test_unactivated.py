"""The source where a newcomer stands: a wheel in a virtual environment, activated or not, an editable install, a
program of spark-submit, and the cells of the notebook. Each is a process with none of this one's variables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bookie_client import BlockingClient
from tests.spark.ledgers import numbered, write_ledger
from tests.support.chart_files import ROOT
from tests.support.installed import Installed

SECONDS = 240.0
pytestmark = pytest.mark.timeout(SECONDS + 60)

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from pyspark_bookie import register

builder = SparkSession.builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "512m")
spark = builder.master("local[1]").getOrCreate()
if "unregistered" not in sys.argv:
    register(spark)
uri, ledger_id = sys.argv[1:3]
reader = spark.read.format("bookkeeper").option("metadataServiceUri", uri).option("ledgers", ledger_id)
print("rows", reader.load().distinct().count())
"""
NOTEBOOK = """
import json, sys
names = {}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), names)
print("alarms", names["read"](stream="notebook-alarms").count())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), "bookie", "spark")


@pytest.fixture
def arguments(installed: Installed, uri: str, tool: BlockingClient) -> tuple[str, str, str]:
    program = installed.home / "program.py"
    program.write_text(PROGRAM)
    return str(program), uri, str(write_ledger(tool, numbered(50)))


def test_script_in_an_environment_that_is_not_activated(installed: Installed, arguments: tuple[str, ...]) -> None:
    done = installed.run("python", *arguments, seconds=SECONDS)
    assert "rows 50" in done.stdout, done.stderr


def test_script_in_an_activated_environment_needs_no_call(installed: Installed, arguments: tuple[str, ...]) -> None:
    done = installed.run("python", *arguments, "unregistered", variables=installed.activated(), seconds=SECONDS)
    assert "rows 50" in done.stdout, done.stderr


def test_editable_install(installed: Installed, arguments: tuple[str, ...]) -> None:
    variables = installed.variables(PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    done = subprocess.run(
        [sys.executable, *arguments],
        env=variables,
        cwd=installed.home,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert "rows 50" in done.stdout, done.stderr


def test_spark_submit_with_the_python_of_the_environment(installed: Installed, arguments: tuple[str, ...]) -> None:
    variables = installed.variables(PYSPARK_PYTHON=installed.command("python"))
    done = installed.run("spark-submit", *arguments, variables=variables, seconds=SECONDS)
    assert "rows 50" in done.stdout, done.stderr


def test_workers_whose_python_lacks_the_package_are_named(installed: Installed, arguments: tuple[str, ...]) -> None:
    other = str(Path(sys.executable).resolve())  # has none of the packages of the environment of these tests
    variables = installed.variables(PYSPARK_PYTHON=other)
    done = installed.run("python", *arguments, variables=variables, seconds=SECONDS)
    assert done.returncode != 0
    assert f"{other}, the Python of Spark's workers" in done.stderr
    assert "PYSPARK_PYTHON" in done.stderr


def test_notebook(installed: Installed, uri: str) -> None:
    notebook = ROOT / "examples" / "ledgers.ipynb"
    variables = installed.variables(BK_metadataServiceUri=uri)
    done = installed.run("python", "-c", NOTEBOOK, str(notebook), variables=variables, seconds=SECONDS)
    assert done.stdout.splitlines()[-1:] == ["alarms 100"], done.stderr
    assert json.loads(notebook.read_text())["cells"]
