"""What an API server makes of the status of a custom resource: it is judged by the schema of the definition, and one
that is applied may have no field beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import yaml

from bookie_operator.api.kinds import Resource
from tests.support.fake_kubernetes.objects import Object
from tests.support.fake_kubernetes.store import Refused

_DEFINITIONS: Final = Path(__file__).parents[3] / "crds"


@cache
def schemas() -> dict[str, Any]:
    """Of statuses, by kind."""
    found = {}
    for path in sorted(_DEFINITIONS.glob("*.yaml")):
        definition = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
        (version,) = definition["spec"]["versions"]
        found[definition["spec"]["names"]["kind"]] = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    return found


@cache
def _validators() -> dict[str, Any]:
    return {kind: jsonschema_rs.Draft4Validator(schema) for kind, schema in schemas().items()}


def declared(by: Mapping[str, Any], body: Object) -> None:
    """A status that is applied has no field that the definition lacks; `by`: schemas by kind."""
    beside = _beside(by.get(body["kind"], {}), body["status"])
    unknown = [f".status{path}: field not declared in schema" for path in beside]
    if unknown:
        named = f"{body['metadata']['name']}; {body['apiVersion']}, Kind={body['kind']}"
        raise Refused(500, "", f"failed to create typed patch object ({named}): errors:\n  " + "\n  ".join(unknown))


def _beside(schema: Any, value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from (f"[{number}]{path}" for path in _beside(schema["items"], item))
    elif isinstance(value, dict) and "properties" in schema:
        for key, item in value.items():
            if key not in schema["properties"]:
                yield f".{key}"
            else:
                yield from (f".{key}{path}" for path in _beside(schema["properties"][key], item))


def judge_status(resource: Resource, new: Object, live: Object | None) -> None:
    status = new.get("status")
    validator = _validators().get(resource.kind)
    if validator is None or not status or status == (live or {}).get("status"):
        return
    for fault in validator.iter_errors(status):
        path = ".".join(map(str, ["status", *fault.instance_path]))
        raise Refused(422, "Invalid", f'{resource.kind} "{new["metadata"]["name"]}" is invalid: {path}: {fault}')
