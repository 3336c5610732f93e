"""JSON schemas from dataclasses, and the same dataclasses as JSON values: an answer cannot drift from its schema.

A field `last_major_ms` is called `lastMajorMs` in JSON, unless it says otherwise (`field(metadata=called("..."))`).
Its docstring is the description. `field(metadata=limited(minimum=0))` adds keywords of JSON Schema.

Pure; any thread.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from bookie_pod.config.document import field_texts

Schema = dict[str, Any]
_JSON_NAME: Final = "json"
_LIMITS: Final = "limits"
_PLAIN: Final[dict[Any, Schema]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
}


def called(name: str) -> Mapping[str, str]:
    """Metadata of a dataclass field whose JSON name does not follow from its own."""
    return {_JSON_NAME: name}


def limited(**keywords: Any) -> Mapping[str, Any]:
    """Metadata of a dataclass field that takes less than its type does: keywords of JSON Schema."""
    return {_LIMITS: keywords}


def json_name(field: dataclasses.Field[Any]) -> str:
    """What a field is called in JSON."""
    if _JSON_NAME in field.metadata:
        return str(field.metadata[_JSON_NAME])
    first, *others = field.name.split("_")
    return first + "".join(part.capitalize() for part in others)


def to_json(value: Any) -> Any:
    """A value of dataclasses, sequences, mappings and plain values, as JSON knows them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {json_name(field): to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(item) for item in value]
    return value


class Schemas:
    """Makes schemas, and collects those of dataclasses under `#/components/schemas/`."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def of(self, annotation: Any) -> Schema:
        """The schema of a type: plain, optional, `Literal`, list, tuple or mapping of such, dataclass."""
        if annotation is Any:
            return {}
        if annotation in _PLAIN:
            return dict(_PLAIN[annotation])
        if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            return self._dataclass(annotation)
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.of(each) for each in arguments]}
        if origin is Literal:
            return {"type": "string", "enum": list(arguments)}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin in (list, tuple, Sequence):
            return {"type": "array", "items": self.of(arguments[0])}
        raise TypeError(f"{annotation} has no JSON schema")

    def _dataclass(self, kind: type[Any]) -> Schema:
        name = kind.__name__
        if name not in self.components:
            properties: dict[str, Schema] = {}
            self.components[name] = {}  # a type that holds itself finds this
            hints, texts = typing.get_type_hints(kind), field_texts(kind)
            for field in dataclasses.fields(kind):
                schema = self.of(hints[field.name]) | field.metadata.get(_LIMITS, {})
                properties[json_name(field)] = schema | {"description": texts[field.name]}
            self.components[name] = {
                "type": "object",
                "description": inspect.getdoc(kind) or name,
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
        return {"$ref": f"#/components/schemas/{name}"}
