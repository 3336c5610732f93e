"""Structural OpenAPI schemas as the API server treats them: walking, defaulting and pruning."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every node with its path; `[]` are items, `{}` values of a map."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def defaulted(value: Any, schema: Schema) -> Any:
    """The value with what the API server fills in."""
    if isinstance(value, dict) and "properties" in schema:
        filled = dict(value)
        for name, child in schema["properties"].items():
            if name not in filled and "default" in child:
                filled[name] = copy.deepcopy(child["default"])
        properties = schema["properties"]
        return {
            name: defaulted(child, properties[name]) if name in properties else child for name, child in filled.items()
        }
    if isinstance(value, dict) and "additionalProperties" in schema:
        return {name: defaulted(child, schema["additionalProperties"]) for name, child in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [defaulted(item, schema["items"]) for item in value]
    return value


def pruned(value: Any, schema: Schema) -> Any:
    """The value without fields that the schema does not know."""
    if isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        if "additionalProperties" in schema:
            return {name: pruned(child, schema["additionalProperties"]) for name, child in value.items()}
        properties = schema.get("properties", {})
        return {name: pruned(child, properties[name]) for name, child in value.items() if name in properties}
    if isinstance(value, list):
        return [pruned(item, schema["items"]) for item in value]
    return value
