"""The values of the charts: every one is documented and in the schema, and wrong ones are refused with a place."""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.support.chart_files import CHARTS, CLUSTER, OPERATOR, ROOT

FREEFORM = {"spec", "resources", "requests", "limits", "labels", "config"}
"""Values whose members are not the chart's own."""
MINIMAL = {"spec": {"metadataService": {"uri": "zk+hierarchical://zk-0:2181"}}}

each_chart = pytest.mark.parametrize("chart", [OPERATOR, CLUSTER], ids=lambda chart: chart.name)


@cache
def values(chart: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8")))


@cache
def schema(chart: Path) -> dict[str, Any]:
    return dict(json.loads((chart / "values.schema.json").read_text(encoding="utf-8")))


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """As Helm lays a file of values over another."""
    result = copy.deepcopy(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def complaints(chart: Path, over: dict[str, Any]) -> list[str]:
    """Where values are wrong, and what is wrong with them."""
    errors = Draft7Validator(schema(chart)).iter_errors(merged(values(chart), over))
    return sorted(f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors)


@each_chart
def test_schema_is_a_schema(chart: Path):
    Draft7Validator.check_schema(schema(chart))


def test_defaults_of_the_operator_are_valid():
    assert complaints(OPERATOR, {}) == []


def test_defaults_of_a_cluster_lack_the_metadata_service_alone():
    assert complaints(CLUSTER, {}) == ["spec.metadataService: 'uri' is a required property"]
    assert complaints(CLUSTER, MINIMAL) == []
    assert complaints(CLUSTER, {"spec": {"metadataService": {"type": "Embedded"}}}) == []


@each_chart
def test_every_value_is_in_the_schema_and_documented(chart: Path):
    documented = comments(chart / "values.yaml")

    def look(given: dict[str, Any], known: dict[str, Any], path: tuple[str, ...], told: bool) -> None:
        for key, value in given.items():
            here = (*path, key)
            assert key in known["properties"], f"{'.'.join(here)} is not in the schema"
            said = told or here in documented
            if isinstance(value, dict) and value and key not in FREEFORM:
                look(value, known["properties"][key], here, said)
            else:
                assert said or key in PLAIN, f"{'.'.join(here)} is not documented"

    look(values(chart), schema(chart), (), False)


PLAIN = {
    *("pullPolicy", "create", "annotations", "labels", "interval", "resources", "podLabels", "podAnnotations"),
    *("nodeSelector", "tolerations", "affinity", "priorityClassName", "enabled"),
}
"""Values that mean what they mean everywhere."""


def comments(path: Path) -> set[tuple[str, ...]]:
    """Keys with a `# -- ` above them."""
    found: set[tuple[str, ...]] = set()
    stack: list[tuple[int, str]] = []
    commented = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.lstrip().startswith("#"):
            commented = commented or line.lstrip().startswith("# -- ")
            continue
        if key := re.match(r"(?P<indent> *)(?P<name>[A-Za-z]\w*):", line):
            indent = len(key["indent"])
            stack = [each for each in stack if each[0] < indent] + [(indent, key["name"])]
            if commented:
                found.add(tuple(name for _, name in stack))
        commented = False
    return found


@each_chart
def test_every_value_of_the_schema_has_a_default(chart: Path):
    """`global` is Helm's own."""
    given, known = values(chart), schema(chart)["properties"]
    assert set(known) - {"global"} == set(given)


OPERATOR_MISTAKES = {
    "unknown key": ({"replicaCount": 2}, "'replicaCount' was unexpected"),
    "three replicas": ({"replicas": 3}, "replicas: 3 is greater than the maximum of 2"),
    "namespaces of a cluster-wide operator": (
        {"clusterWide": True, "namespaces": ["a"]},
        "namespaces: ['a'] is expected to be empty",
    ),
    "a namespace that is none": ({"namespaces": ["Storage"]}, "namespaces.0: 'Storage' does not match"),
    "a namespace twice": ({"namespaces": ["a", "a"]}, "namespaces: ['a', 'a'] has non-unique elements"),
    "log level": ({"logLevel": "verbose"}, "logLevel: 'verbose' is not one of"),
    "digest": ({"image": {"digest": "latest"}}, "image.digest: 'latest' does not match"),
}
CLUSTER_MISTAKES = {
    "unknown key of spec": ({"spec": {"replica": 3}}, "spec: Additional properties are not allowed ('replica' was"),
    "unknown key below": ({"spec": {"storage": {"ledger": {"sizes": "1Gi"}}}}, "spec.storage.ledger: Additional"),
    "replicas as text": ({"spec": {"replicas": "4"}}, "spec.replicas: '4' is not of type 'integer'"),
    "number in config": ({"spec": {"config": {"gcWaitTime": 5}}}, "spec.config.gcWaitTime: 5 is not of type 'string'"),
    "name of 41": ({"clusterName": "a" * 41}, "is too long"),
    "name that begins with a digit": ({"clusterName": "1demo"}, "clusterName: '1demo' does not match"),
    "an alert's unknown part": (
        {"prometheusRule": {"overrides": {"PodkeeperBookieDown": {"severity": "page"}}}},
        "prometheusRule.overrides.PodkeeperBookieDown: Additional properties",
    ),
    "a job without a name": ({"jobs": [{"kind": "audit"}]}, "jobs.0: 'name' is a required property"),
    "a job that there is not": ({"jobs": [{"name": "a", "kind": "dance"}]}, "jobs.0.kind: 'dance' is not one of"),
    "a job of another cluster": (
        {"jobs": [{"name": "a", "kind": "audit", "clusterRef": {"name": "b"}}]},
        "jobs.0: Additional properties are not allowed ('clusterRef' was",
    ),
    "no entries": ({"test": {"entries": 0}}, "test.entries: 0 is less than the minimum of 1"),
}


@pytest.mark.parametrize("mistake", OPERATOR_MISTAKES)
def test_mistakes_in_values_of_the_operator(mistake: str):
    over, message = OPERATOR_MISTAKES[mistake]
    assert any(message in complaint for complaint in complaints(OPERATOR, over)), complaints(OPERATOR, over)


@pytest.mark.parametrize("mistake", CLUSTER_MISTAKES)
def test_mistakes_in_values_of_a_cluster(mistake: str):
    over, message = CLUSTER_MISTAKES[mistake]
    found = complaints(CLUSTER, merged(MINIMAL, over))
    assert any(message in complaint for complaint in found), found


@pytest.mark.parametrize("path", sorted(CHARTS.glob("*/ci/*.yaml")), ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_example_values_are_valid(path: Path):
    assert complaints(path.parents[1], yaml.safe_load(path.read_text(encoding="utf-8"))) == []


def test_every_field_of_spec_can_be_given():
    definition = yaml.safe_load((ROOT / "crds" / "bookieclusters.podkeeper.dev.yaml").read_text(encoding="utf-8"))
    (version,) = definition["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]

    def names(node: dict[str, Any], path: str = "") -> set[str]:
        found = {f"{path}{key}" for key in node.get("properties", {})}
        for key, child in node.get("properties", {}).items():
            found |= names(child, f"{path}{key}.")
        return found

    assert names(schema(CLUSTER)["properties"]["spec"]) == names(spec)
    assert len(names(spec)) > 80
