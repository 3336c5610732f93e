"""What stands in Chart.yaml, and the files that are copies of others."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.crds.job_spec import BookieJobSpec
from bookie_operator.crds.task_spec import BookieTaskSpec
from tests.support.chart_files import CHARTS, CLUSTER, OPERATOR, ROOT

LARGEST_DEFINITION = 256 * 1024
"""Bytes: with more, an apply of the client's side does not find room for its annotation."""

each_chart = pytest.mark.parametrize("chart", [OPERATOR, CLUSTER], ids=lambda chart: chart.name)


def chart_file(chart: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8")))


@each_chart
def test_version_is_that_of_the_package(chart: Path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = chart_file(chart)
    assert found["name"] == chart.name
    assert found["appVersion"] == project["version"]
    assert found["annotations"]["artifacthub.io/license"] == project["license"]


@each_chart
def test_annotations_are_texts_that_hold_yaml(chart: Path):
    annotations = chart_file(chart)["annotations"]
    assert all(isinstance(text, str) for text in annotations.values())
    for change in yaml.safe_load(annotations["artifacthub.io/changes"]):
        assert change["kind"] in {"added", "changed", "deprecated", "removed", "fixed", "security"}


def test_definitions_that_are_announced_are_those_that_are_there():
    announced = yaml.safe_load(chart_file(OPERATOR)["annotations"]["artifacthub.io/crds"])
    definitions = sorted((ROOT / "crds").glob("*.yaml"))
    there = [yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader) for path in definitions]
    assert [(each["name"], each["kind"], each["version"]) for each in announced] == [
        (each["metadata"]["name"], each["spec"]["names"]["kind"], each["spec"]["versions"][0]["name"]) for each in there
    ]


def test_examples_are_valid():
    examples = yaml.safe_load(chart_file(OPERATOR)["annotations"]["artifacthub.io/crdsExamples"])
    by_kind = {example["kind"]: example["spec"] for example in examples}
    assert BookieClusterSpec.model_validate(by_kind["BookieCluster"]).replicas == 4
    assert BookieTaskSpec.model_validate(by_kind["BookieTask"]).cluster == "events"
    assert BookieJobSpec.model_validate(by_kind["BookieJob"]).scheduled


def test_definitions_of_the_chart_are_the_definitions():
    there = {path.name: path.read_bytes() for path in (ROOT / "crds").glob("*.yaml")}
    assert there
    assert {path.name: path.read_bytes() for path in (OPERATOR / "files" / "crds").glob("*.yaml")} == there
    assert max(map(len, there.values())) < LARGEST_DEFINITION


def test_generated_files_are_as_they_would_be_written():
    done = subprocess.run(
        [sys.executable, str(CHARTS / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@each_chart
def test_no_template_looks_at_the_cluster_or_invents_values(chart: Path):
    """Argo CD and Flux render without a cluster, and again and again."""
    for path in (chart / "templates").rglob("*.*"):
        text = path.read_text(encoding="utf-8")
        for forbidden in ("lookup ", "randAlpha", "randNumeric", "randAscii", "uuidv4", "genCA", "now ", "htpasswd"):
            assert forbidden not in text, f"{path.name}: {forbidden}"
        hooks = [line.split(":", 1)[1].strip() for line in text.splitlines() if "helm.sh/hook:" in line]
        assert set(hooks) <= {"test", "pre-delete"}, path.name
