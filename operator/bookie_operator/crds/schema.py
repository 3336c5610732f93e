"""Structural OpenAPI v3 schemas, made from the typed sources, as a CustomResourceDefinition wants them.

Invariants
- The outcome is structural: no references, no `anyOf`, one type for each node; unknown fields are pruned but where
  `x-kubernetes-preserve-unknown-fields` keeps them.
- Every default of the typed source is a default of the schema. That of an object is complete: the API server judges a
  default by the rules of its node, before the defaults of its fields are filled in.
- A field that may be None has no default: absent means None. A null is refused by the API server.

Source: Kubernetes documentation, CustomResourceDefinition, "Specifying a structural schema" and "Defaulting".

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

Schema = dict[str, Any]

_KEPT: Final = (
    "type",
    "format",
    "description",
    "default",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
)
_INT32: Final = 2**31 - 1
_PRESERVED: Final = "x-kubernetes-preserve-unknown-fields"


def structural_schema(model: type[BaseModel], *, defaults: bool = True) -> Schema:
    """The schema of a model. `defaults` False: without defaults, for `status`, which only the operator writes."""
    document = model.model_json_schema(by_alias=True, mode="validation")
    schema = _resolved(document, document.get("$defs", {}))
    return schema if defaults else _without_defaults(schema)


def _resolved(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    node = _single(_inlined(node, definitions), definitions)
    schema: Schema = {name: node[name] for name in _KEPT if name in node}
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    if schema.get("default", ...) is None:
        del schema["default"]
    if "const" in node:
        schema["enum"] = [node["const"]]
    match schema.get("type"):
        case "integer":
            schema["format"] = "int32" if schema.get("maximum", _INT32 + 1) <= _INT32 else "int64"
        case "array":
            schema["items"] = _resolved(node["items"], definitions)
            schema.setdefault("x-kubernetes-list-type", "atomic")
        case "object":
            _resolve_object(schema, node, definitions)
    return schema


def _resolve_object(schema: Schema, node: Mapping[str, Any], definitions: Mapping[str, Any]) -> None:
    if "properties" in node:
        schema["properties"] = {name: _resolved(child, definitions) for name, child in node["properties"].items()}
        if "default" in schema:
            schema["default"] = _present(schema["default"])
    elif isinstance(values := node.get("additionalProperties"), Mapping) and _PRESERVED not in schema:
        schema["additionalProperties"] = _resolved(values, definitions)


def _inlined(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace a reference by what it names, with the members beside the reference in their place."""
    while "$ref" in node:
        beside = {name: value for name, value in node.items() if name != "$ref"}
        node = {**definitions[node["$ref"].rpartition("/")[2]], **beside}
    return node


def _single(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """`X | None` is X; any other choice of types has no structural schema. Raises ValueError."""
    if "anyOf" not in node:
        return node
    choices = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
    if len(choices) != 1:
        raise ValueError(f"a field of several types has no structural schema: {node.get('title', node)}")
    beside = {name: value for name, value in node.items() if name != "anyOf"}
    return {**_inlined(choices[0], definitions), **beside}


def _present(value: Any) -> Any:
    """Leave out fields that are None: absent means None."""
    if isinstance(value, Mapping):
        return {name: _present(child) for name, child in value.items() if child is not None}
    return value


def _without_defaults(schema: Schema) -> Schema:
    bare = {name: value for name, value in schema.items() if name != "default"}
    if "properties" in bare:
        bare["properties"] = {name: _without_defaults(child) for name, child in bare["properties"].items()}
    for name in ("items", "additionalProperties"):
        if name in bare:
            bare[name] = _without_defaults(bare[name])
    return bare
