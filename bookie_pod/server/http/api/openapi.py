"""`/openapi.json`, made from the table of routes: it cannot say anything else than the server does.

The JSON schemas of what is answered and taken are made of the very types that are encoded and decoded. A type that is
described is a `Body` of `bookie_protocol.admin_api`, or a list, a mapping or a plain value of such; the docstring of
a field is the description of its member.

Pure; any thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import fields

from bookie_pod.config.document import field_texts
from bookie_pod.server.http.api.call import JSON_TYPE, TEXT_TYPE
from bookie_pod.server.http.api.table import Group, Operation, Resource
from bookie_protocol.admin_api.bodies import NOTHING, PROBLEM_TYPE, Body, Problem, Query

Schema = dict[str, Any]
_PLACE: Final = "#/components/schemas/{name}"
_TEXT: Final = {TEXT_TYPE: {"schema": {"type": "string"}}}
VERSION: Final = "3.1.0"
_ABOUT: Final = (
    "Administration, probes and metrics of one bookie. Paths, methods, parameters and bodies are those of Apache"
    " BookKeeper's admin API; what only Podkeeper has says so. An error of a path of Apache's is one"
    " line of text; one of Podkeeper's own is a problem (RFC 9457)."
)
_COMMON: Final = {
    400: "A parameter or the body is wrong.",
    401: "A bearer token is needed.",
    403: "The caller lacks the role.",
    408: "The body did not come within 10 s.",
    413: "The body is longer than 512 KiB.",
    500: "A bug; the bookie's log has it.",
    503: "The bookie does not serve, is busy, or a fault kept it from finding out.",
    504: "No result in time.",
}


class Schemas:
    """Makes schemas, and collects those of bodies under `#/components/schemas/`."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}
        self._kinds = {kind.__name__: kind for kind in _kinds(Body)}

    def of(self, kind: Any) -> Schema:
        """Return the schema of a type. `TypeError` for one that JSON does not know."""
        (schema,), found = msgspec.json.schema_components((kind,), ref_template=_PLACE)
        for name, each in found.items():
            if name not in self.components:
                self.components[name] = each | self._described(name, each)
        return schema

    def parameters(self, kind: type[Query]) -> list[Schema]:
        """Return the parameters with their schemas. An optional one is absent, never null."""
        _, found = msgspec.json.schema_components((kind,), ref_template=_PLACE)
        described = found[kind.__name__] | self._described(kind.__name__, found[kind.__name__])
        return [
            {
                "name": name,
                "in": "query",
                "required": name in described["required"],
                "description": schema.pop("description"),
                "schema": {"type": "string"}
                | (schema["anyOf"][0] if "anyOf" in schema else schema),  # choices tell no type
            }
            for name, schema in described["properties"].items()
        ]

    def _described(self, name: str, schema: Schema) -> Schema:
        kind = self._kinds[name]
        texts = {name: text for each in _ours(kind) for name, text in field_texts(each).items()}
        names = {field.encode_name: field.name for field in fields(kind)}
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


def _ours(kind: type[Body]) -> Iterator[type[Body]]:
    """The type and those that it has members of."""
    return (each for each in kind.mro() if issubclass(each, Body))


def _kinds(kind: type[Body]) -> Iterator[type[Body]]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)


def openapi(resources: Iterable[Resource], *, version: str, guarded: frozenset[Group] = frozenset()) -> dict[str, Any]:
    """The document; `guarded` groups demand a token."""
    schemas = Schemas()
    paths = {each.path: _path(each, schemas, each.group in guarded) for each in resources}
    document: dict[str, Any] = {
        "openapi": VERSION,
        "info": {"title": "Podkeeper bookie", "version": version, "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": schemas.components},
    }
    if guarded:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return document


def _path(resource: Resource, schemas: Schemas, guarded: bool) -> dict[str, Any]:
    return {each.route.method.lower(): _operation(resource, each, schemas, guarded) for each in resource.operations}


def _operation(resource: Resource, operation: Operation, schemas: Schemas, guarded: bool) -> dict[str, Any]:
    summary = operation.summary + (" (Podkeeper's own)" if resource.is_own else "")
    described: dict[str, Any] = {
        "operationId": _identifier(resource, operation),
        "tags": [resource.group.value],
        "summary": summary,
        "parameters": schemas.parameters(operation.route.query),
        "responses": _responses(resource, operation, schemas, guarded),
    }
    body = operation.route.body
    if body is not None:
        content = {TEXT_TYPE if body is str else JSON_TYPE: {"schema": schemas.of(body)}}
        described["requestBody"] = {"content": content, "required": operation.body_required}
    if operation.role is not None:
        described["description"] = f"Needs the role `{operation.role.value}`."
    if guarded:
        described["security"] = [{"token": []}]
    return described


def _identifier(resource: Resource, operation: Operation) -> str:
    words = resource.path.removeprefix("/api/v1").replace(".", "/").split("/")
    return "_".join([operation.route.method.lower(), *(word for word in words if word)])


def _responses(resource: Resource, operation: Operation, schemas: Schemas, guarded: bool) -> dict[str, Any]:
    answer = operation.route.answer
    content = {JSON_TYPE: {"schema": schemas.of(answer)}} if answer is not NOTHING else dict(_TEXT)
    found: dict[int, dict[str, Any]] = {200: {"description": operation.about, "content": content}}
    for other in operation.others:
        told = found.setdefault(other.status, {"description": other.about, "content": {}})
        told["content"] |= _error(resource, schemas) if other.status >= 400 else _TEXT
    if operation.missing is not None:
        missing = {"description": operation.missing.body, "content": dict(_TEXT)}
        found.setdefault(operation.missing.status, missing)
    for status in _common(resource, operation, guarded):
        found.setdefault(status, {"description": _COMMON[status], "content": _error(resource, schemas)})
    return {str(status): found[status] for status in sorted(found)}


def _common(resource: Resource, operation: Operation, guarded: bool) -> list[int]:
    statuses = [401] if guarded else []
    if resource.group is Group.ADMIN:
        statuses += [403, 500, 503, 504]
    if operation.route.body is not None:
        statuses += [400, 408, 413]
    return [*statuses, 400] if fields(operation.route.query) else statuses


def _error(resource: Resource, schemas: Schemas) -> dict[str, Any]:
    return {PROBLEM_TYPE: {"schema": schemas.of(Problem)}} if resource.is_own else dict(_TEXT)
