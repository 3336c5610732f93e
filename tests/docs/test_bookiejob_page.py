"""docs/bookiejob.md and the examples beside it: resources are valid, what people meet is explained, scripts do what
they say."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.jobs.build import build_job
from bookie_operator.crds.job_rules import validate_job
from bookie_operator.crds.job_spec import BookieJobSpec, JobKind, JobPhase
from bookie_operator.world.model import JobResource
from pyspark_bookie.jobs.framework.arguments import parse
from pyspark_bookie.jobs.framework.registry import find_job, job_names
from tests.docs.examples import blocks
from tests.support.chart_files import ROOT
from tests.support.operator_clusters import cluster
from tests.support.operator_jobs import job

PAGE = ROOT / "docs" / "bookiejob.md"
EXAMPLES = ROOT / "examples"
_PROGRAM = "/opt/podkeeper/job.py"
_PLANNER = ROOT / "operator" / "bookie_operator" / "planner" / "jobs"
_TEXT = PAGE.read_text(encoding="utf-8")


def resources() -> Iterator[JobResource]:
    for block in blocks(PAGE):
        resource = yaml.safe_load(block.code)
        if resource.get("kind") == "BookieJob":
            yield job(resource["spec"], name=resource["metadata"]["name"])


def reasons() -> set[str]:
    """Of what stands in a run's way, and phases."""
    found = {phase.value for phase in JobPhase} - {"Succeeded", "Findings", "Failed"} | {"RunFailed", "Refused"}
    for path in _PLANNER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Blocker":
                assert isinstance(node.args[0], ast.Constant)
                found.add(node.args[0].value)
    return found


def test_resources_in_the_page_are_valid() -> None:
    made = list(resources())
    assert len(made) == 3
    for each in made:
        assert isinstance(each.spec, BookieJobSpec)
        assert validate_job(each.spec) == ()
        assert build_job(cluster(), each, BuildContext()).runner["kind"] in ("Job", "CronJob")


def test_arguments_in_the_page_are_those_of_the_jobs() -> None:
    for each in resources():
        of = find_job(each.spec.kind.value).Arguments
        parse(of, each.spec.kind.value, "", [*each.spec.args, "--metadata", "zk+hierarchical://zk:2181/ledgers"])


@pytest.mark.parametrize("reason", sorted(reasons()))
def test_every_reason_has_its_remedy(reason: str) -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", _TEXT, re.MULTILINE)
    assert reason in {word for row in rows for word in re.findall(r"`(\w+)`", row)}


def test_kinds_are_the_jobs_that_there_are() -> None:
    assert {kind.value for kind in JobKind} == set(job_names())


def test_the_program_is_in_the_image() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    folder, _, name = _PROGRAM.rpartition("/")
    assert f"docker/spark/{name}" in dockerfile
    assert f"COPY --from=build-spark {folder} {folder}\n" in dockerfile
    assert f"local://{_PROGRAM}" in (EXAMPLES / "spark-submit.sh").read_text(encoding="utf-8")
    assert f"local://{_PROGRAM}" in _TEXT


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Programs that say what they were asked for."""
    for name, answer in (("kubectl", 'printf "https://kube.example:6443"'), ("spark-submit", 'printf "%s\\n" "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_a_job_as_an_application_of_spark(tools: Path) -> None:
    done = subprocess.run(
        [str(EXAMPLES / "spark-submit.sh"), "audit", "--where", "bytes > 1e9"],
        env={"PATH": f"{tools}:/usr/bin:/bin", "NAMESPACE": "storage"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    words = done.stdout.splitlines()
    assert words[words.index("--master") + 1] == "k8s://https://kube.example:6443"
    assert words[-4:] == [f"local://{_PROGRAM}", "audit", "--where", "bytes > 1e9"]
    conf = dict(words[place + 1].split("=", 1) for place, word in enumerate(words) if word == "--conf")
    template = Path(conf["spark.kubernetes.executor.podTemplateFile"])
    (container,) = yaml.safe_load(template.read_text(encoding="utf-8"))["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_without_a_job_it_tells_how(tools: Path) -> None:
    done = subprocess.run([str(EXAMPLES / "spark-submit.sh")], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "usage: " in done.stderr


def test_code_of_the_notebook_is_python() -> None:
    for cell in json.loads((EXAMPLES / "ledgers.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            ast.parse("".join(cell["source"]))
