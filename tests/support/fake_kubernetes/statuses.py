"""What an API server makes of the status of a custom resource: it is judged by the schema of the definition."""

from __future__ import annotations

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
def _validators() -> dict[str, Any]:
    """Of statuses, by kind."""
    found = {}
    for path in sorted(_DEFINITIONS.glob("*.yaml")):
        definition = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
        (version,) = definition["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]
        found[definition["spec"]["names"]["kind"]] = jsonschema_rs.Draft4Validator(schema)
    return found


def judge_status(resource: Resource, new: Object, live: Object | None) -> None:
    status = new.get("status")
    validator = _validators().get(resource.kind)
    if validator is None or not status or status == (live or {}).get("status"):
        return
    for fault in validator.iter_errors(status):
        path = ".".join(map(str, ["status", *fault.instance_path]))
        raise Refused(422, "Invalid", f'{resource.kind} "{new["metadata"]["name"]}" is invalid: {path}: {fault}')
