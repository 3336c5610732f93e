"""JSON schemas of what is answered and taken, for `/openapi.json`: made of the very types that are encoded and decoded.

A type that is described is a `Body` of `bookie_protocol.admin_api`, or a list, a mapping or a plain value of such; the
docstring of a field is the description of its member.

Pure; any thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from bookie_pod.config.document import field_texts
from bookie_protocol.admin_api.bodies import Body

Schema = dict[str, Any]
_PLACE: Final = "#/components/schemas/{name}"


class Schemas:
    """Makes schemas, and collects those of bodies under `#/components/schemas/`."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}
        self._kinds = {kind.__name__: kind for kind in _kinds(Body)}

    def of(self, kind: Any) -> Schema:
        """The schema of a type. `TypeError` for one that JSON does not know."""
        (schema,), found = msgspec.json.schema_components((kind,), ref_template=_PLACE)
        for name, each in found.items():
            self.components.setdefault(name, each | self._described(name, each))
        return schema

    def _described(self, name: str, schema: Schema) -> Schema:
        kind = self._kinds[name]
        texts = field_texts(kind)
        names = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
        properties = {
            member: described | {"description": texts[names[member]]}
            for member, described in schema["properties"].items()
        }
        # An answer has nothing else; that clients ignore what they do not know is their rule.
        return {
            "description": inspect.getdoc(kind) or name,
            "properties": properties,
            "additionalProperties": False,
        }


def _kinds(kind: type[Body]) -> Iterator[type[Body]]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)
