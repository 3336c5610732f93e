"""The clusters of examples/kubernetes: the definition takes them, and the operator finds nothing wrong with them."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.validation import validate
from tests.support.chart_files import ROOT

FOLDER = ROOT / "examples" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
DEFINITION = yaml.safe_load((ROOT / "crds" / "bookieclusters.podkeeper.dev.yaml").read_text())


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """As JSON schema, with fields refused that the definition does not have."""
    copy = {name: value for name, value in schema.items() if not name.startswith("x-kubernetes") and name != "format"}
    if "properties" in copy:
        copy["properties"] = {name: closed(child) for name, child in copy["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            copy["additionalProperties"] = False
    if "items" in copy:
        copy["items"] = closed(copy["items"])
    return copy


def test_there_are_three_and_the_page_names_them() -> None:
    page = (FOLDER / "README.md").read_text()
    assert [each.stem for each in FILES] == ["development", "production", "smallest"]
    assert all(f"({each.name})" in page for each in FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_cluster_is_valid(file: Any) -> None:
    (made,) = yaml.safe_load_all(file.read_text())
    assert (made["apiVersion"], made["kind"]) == ("podkeeper.dev/v1alpha1", "BookieCluster")
    schema = DEFINITION["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    jsonschema.validate(made["spec"], closed(schema["properties"]["spec"]))
    assert validate(BookieClusterSpec.model_validate(made["spec"]), BookieClusterStatus()) == ()
