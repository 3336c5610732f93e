"""The schemas are structural and bounded, and agree with the typed source they are made of."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel, ConfigDict

from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.definitions import KINDS, Kind, resource_schema
from bookie_operator.crds.schema import structural_schema
from bookie_operator.crds.task_spec import BookieTaskSpec, BookieTaskStatus
from tests.support.structural_schemas import defaulted, nodes, pruned
from tests.unit.bookie_operator.crds.examples import PARTIAL

EVERY_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
_FORBIDDEN = {"$ref", "$defs", "definitions", "anyOf", "oneOf", "allOf", "not", "title", "const", "exclusiveMinimum"}
_ROOT = {"", "metadata"}


@EVERY_KIND
def test_every_node_has_one_type_and_nothing_that_a_structural_schema_forbids(kind: Kind) -> None:
    for path, node in nodes(resource_schema(kind)):
        assert node["type"] in {"object", "array", "string", "integer", "boolean"}, path
        assert not _FORBIDDEN & set(node), path
        assert not ("properties" in node and "additionalProperties" in node), path


@EVERY_KIND
def test_everything_is_bounded(kind: Kind) -> None:
    for path, node in nodes(resource_schema(kind)):
        match node["type"]:
            case "string":
                assert "maxLength" in node or "enum" in node, path
            case "array":
                assert "maxItems" in node, path
            case "object":
                assert "properties" in node or "maxProperties" in node or path in _ROOT, path
            case "integer":
                assert "minimum" in node, path
                assert node["format"] in ("int32", "int64"), path


@EVERY_KIND
def test_every_field_is_described(kind: Kind) -> None:
    schema = resource_schema(kind)
    for part in ("spec", "status"):
        for path, node in nodes(schema["properties"][part], part):
            if not path.endswith(("[]", "{}")) or "properties" in node:
                assert node.get("description"), path


@EVERY_KIND
def test_lists_say_how_they_are_merged_and_maps_have_their_key(kind: Kind) -> None:
    for path, node in nodes(resource_schema(kind)):
        if node["type"] != "array":
            continue
        match node["x-kubernetes-list-type"]:
            case "map":
                (key,) = node["x-kubernetes-list-map-keys"]
                assert key in node["items"]["required"], path
            case "set":
                assert node["items"]["type"] in ("string", "integer"), path
            case other:
                assert other == "atomic", path


@EVERY_KIND
def test_every_default_is_valid_by_its_own_schema_and_complete(kind: Kind) -> None:
    defaults = 0
    for path, node in nodes(resource_schema(kind)):
        if "default" in node:
            default = node["default"]
            jsonschema.validate(default, _judged(node))
            assert pruned(default, node) == default, path
            assert defaulted(default, node) == default, f"{path}: rules are judged before fields are filled in"
            defaults += 1
    assert defaults > 0


def _judged(schema: dict[str, Any]) -> dict[str, Any]:
    """As JSON schema, with unknown fields refused."""
    copy = {name: value for name, value in schema.items() if not name.startswith("x-kubernetes") and name != "format"}
    if "properties" in copy:
        copy["properties"] = {name: _judged(child) for name, child in copy["properties"].items()}
        copy["additionalProperties"] = False
    if "items" in copy:
        copy["items"] = _judged(copy["items"])
    return copy


@pytest.mark.parametrize("spec", PARTIAL)
def test_the_server_fills_in_what_the_typed_source_does(spec: dict[str, Any]) -> None:
    filled = defaulted(spec, structural_schema(BookieClusterSpec))
    typed = BookieClusterSpec.model_validate(spec)
    assert filled == typed.model_dump(by_alias=True, exclude_none=True, mode="json")
    assert BookieClusterSpec.model_validate(filled) == typed, "what is stored reads as what was written"


def test_the_same_for_tasks() -> None:
    spec = {"cluster": "demo", "type": "Restart"}
    filled = defaulted(spec, structural_schema(BookieTaskSpec))
    assert filled == BookieTaskSpec.model_validate(spec).model_dump(by_alias=True, mode="json")


@pytest.mark.parametrize("model", [BookieClusterStatus, BookieTaskStatus])
def test_a_status_has_no_defaults(model: type[BaseModel]) -> None:
    schema = structural_schema(model, defaults=False)
    assert [path for path, node in nodes(schema) if "default" in node] == []


def test_nothing_of_a_full_status_is_pruned() -> None:
    status = {
        "observedGeneration": 3,
        "conditions": [{"type": "Ready", "status": "True", "reason": "AllBookiesReady", "message": ""}],
        "operation": {"id": "Rollout-1", "type": "Rollout", "step": "Evict", "saved": {"a": "b"}},
        "bookies": [{"name": "demo-bookie-0", "ordinal": 0, "state": "Writable"}],
        "recordedReplicas": {"demo-bookie": 3},
        "ledgers": {"underReplicated": 0},
    }
    full = BookieClusterStatus.model_validate(status).model_dump(by_alias=True, exclude_none=True, mode="json")
    schema = structural_schema(BookieClusterStatus, defaults=False)
    assert pruned(full, schema) == full
    jsonschema.validate(full, _judged(schema))


def test_a_message_in_a_status_is_cut_at_its_bound() -> None:
    bound = structural_schema(BookieClusterStatus)["properties"]["operation"]["properties"]["message"]["maxLength"]
    operation = {"id": "Rollout-1", "type": "Rollout", "step": "Evict", "message": "x" * (bound + 10)}
    read = BookieClusterStatus.model_validate({"operation": operation})
    assert read.operation is not None
    assert len(read.operation.message) == bound
    assert read.operation.message.endswith("…")


def test_a_status_of_a_newer_operator_can_be_read_and_a_spec_cannot() -> None:
    assert BookieClusterStatus.model_validate({"observedGeneration": 1, "newer": True}).observed_generation == 1
    with pytest.raises(ValueError, match="newer"):
        BookieClusterSpec.model_validate({**PARTIAL[0], "newer": True})


def test_names_are_in_camel_case() -> None:
    for path, _ in nodes(structural_schema(BookieClusterSpec)):
        for part in re.split(r"[.\[\]{}]+", path):
            assert re.fullmatch(r"([a-z][A-Za-z0-9]*)?", part), path


def test_a_field_of_two_types_is_refused() -> None:
    class Either(BaseModel):
        model_config = ConfigDict(extra="forbid")
        value: int | str = 1

    with pytest.raises(ValueError, match="several"):
        structural_schema(Either)
