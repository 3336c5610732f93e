"""The pages of the operator and docs/gitops.md: examples are valid, links lead somewhere, reasons are explained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import Backup, BookieClusterSpec, Bootstrap, MetadataService
from bookie_operator.crds.task_spec import BookieTaskSpec
from bookie_operator.main import main
from bookie_operator.planner.view import REASONS
from tests.docs.examples import blocks
from tests.support.chart_files import ROOT

PAGE = ROOT / "docs" / "operator.md"
TABLE = ROOT / "docs" / "operator-reasons.md"
GITOPS = ROOT / "docs" / "gitops.md"
PLANNER = ROOT / "operator" / "bookie_operator" / "planner"
_TELLING = {"Wait", "Obstacle", "wait", "_stalled"}
"""Calls whose first argument is the reason of a condition."""
_ANNOTATIONS = (
    names.PAUSED,
    names.CONFIRM_DELETE,
    names.ACCEPT_LEDGER_LOSS,
    names.ACCEPT_METADATA,
    names.SKIP_REPLICATION_CHECK,
    names.RESTART,
)


def reasons() -> Iterator[str]:
    """That plans give, as constants."""
    for path in PLANNER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            text = node.args[0].value
            if called in _TELLING and isinstance(text, str) and re.fullmatch(r"[A-Z][A-Za-z]+", text):
                yield text
    yield from REASONS.values()


def told(page: Path) -> set[str]:
    """Reasons in the first column of the page's tables."""
    rows = re.findall(r"^\| (`[^|]+) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize("reason", sorted(set(reasons())))
def test_every_reason_has_its_remedy(reason: str):
    assert reason in told(TABLE), f"{reason} is not explained in {TABLE.name}"


def test_reasons_are_found():
    assert {"DecommissionBlocked", "NoAuditor", "AdoptMismatch", "CookieMismatch", "Soaking"} <= set(reasons())


@pytest.mark.parametrize("annotation", _ANNOTATIONS)
def test_every_annotation_is_explained(annotation: str):
    assert f"| `{annotation}: " in PAGE.read_text(encoding="utf-8")


def test_resources_in_the_page_are_valid():
    kinds = []
    for block in blocks(PAGE):
        resource = yaml.safe_load(block.code)
        match resource.get("kind"):
            case "BookieCluster":
                BookieClusterSpec.model_validate(resource["spec"])
            case "BookieTask":
                BookieTaskSpec.model_validate(resource["spec"])
            case None:
                parts = {"backup": Backup, "bootstrap": Bootstrap, "metadataService": MetadataService}
                for part, given in resource["spec"].items():
                    parts[part].model_validate(given)
        kinds.append(resource.get("kind"))
    assert kinds.count("BookieCluster") == 1
    assert kinds.count("BookieTask") == 2


def test_scripts_in_the_gitops_page_are_those_that_are_tested():
    """Argo CD's configuration holds the scripts by value."""
    found = [yaml.safe_load(block.code) for block in blocks(GITOPS)]
    data = next(each["data"] for each in found if each.get("kind") == "ConfigMap")
    folder = ROOT / "charts" / "podkeeper-operator" / "argocd"
    for kind, script in (
        ("BookieCluster", "health.lua"),
        ("BookieJob", "bookiejob-health.lua"),
        ("BookieTask", "bookietask-health.lua"),
    ):
        expected = (folder / script).read_text(encoding="utf-8")
        assert data[f"resource.customizations.health.podkeeper.dev_{kind}"] == expected


def test_every_option_of_the_operator_is_explained():
    text = PAGE.read_text(encoding="utf-8")
    told_options = set(re.findall(r"^\| `(--[a-z-]+)", text, re.MULTILINE))
    parameters = main.commands["run"].params
    assert told_options == {parameter.opts[0] for parameter in parameters}
    for parameter in parameters:
        if isinstance(parameter.envvar, str):
            assert f"| `{parameter.envvar}`" in text, parameter.envvar
