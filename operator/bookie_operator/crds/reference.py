"""`docs/bookiecluster.md`: every field, rule and column of the custom resources, made of the same source as their
definitions.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from bookie_operator.crds import names
from bookie_operator.crds.config_keys import RESERVED, known_keys
from bookie_operator.crds.definitions import CLUSTER, TASK, Kind, resource_schema
from bookie_operator.crds.schema import Schema

_INTRODUCTION: Final = """\
# BookieCluster and BookieTask

This page is generated: edit the docstrings in `operator/bookie_operator/crds/` and run
`python -m bookie_operator.crds.generate`, which writes the definitions in `crds/` too.

The smallest cluster, with a ZooKeeper of yours:

```yaml
apiVersion: podkeeper.dev/v1alpha1
kind: BookieCluster
metadata:
  name: demo
spec:
  version: "0.1.0"
  metadataService:
    uri: zk+hierarchical://zookeeper:2181
  storage:
    journal: {size: 10Gi}
    ledger: {size: 100Gi}
```

`kubectl get bkc`, `kubectl scale bkc demo --replicas=4` and `kubectl explain bkc.spec.storage` work as for any
resource; `kubectl bookie status demo` tells more ([kubectl-bookie.md](kubectl-bookie.md)).

What is wrong with a resource shows in one of two places. What the API server can tell by itself it refuses at once.
What depends on the state of the cluster, or may come with a sync of Git, is accepted; then the condition `SpecValid`
is false, its message names field and remedy, and nothing is changed until it is mended.
"""
_ANNOTATIONS: Final = (
    (names.PAUSED, "`true`: the operator finishes the step that it is in and then changes nothing more, until it is "
     "removed. Not even a deletion goes on."),
    (names.CONFIRM_DELETE, "the name of the cluster: with `storage.retention.whenDeleted: Delete`, a deletion takes "
     "the volumes and the metadata too."),
    (names.RESTART, "any text, such as the time: each change restarts all bookies, through the gates of an update."),
    (names.SKIP_REPLICATION_CHECK, "id of the running operation (`status.operation.id`): it no longer waits until "
     "every ledger has its copies."),
    (names.ACCEPT_LEDGER_LOSS, "the value that the condition names: the ledgers that it lists are given up, and the "
     "repair goes on."),
)  # fmt: skip


def reference_page() -> str:
    """The whole page as Markdown."""
    lines = [_INTRODUCTION]
    for kind in (CLUSTER, TASK):
        lines += kind_reference(kind)
    lines += _annotations()
    lines += _config()
    return "\n".join(lines).rstrip() + "\n"


def kind_reference(kind: Kind) -> Iterator[str]:
    """Lines of its fields, rules and columns."""
    schema = resource_schema(kind)
    yield f"## {kind.kind}"
    yield ""
    yield f"{kind.description} Short name `{kind.short}`, category `bookkeeper`."
    yield ""
    for part in ("spec", "status"):
        yield from _object(part, schema["properties"][part], defaults=part == "spec")
    yield f"### What is refused in a {kind.kind}"
    yield ""
    yield "| Where | Message |"
    yield "|---|---|"
    for rule in kind.rules:
        where = ".".join(word for word in (rule.path, rule.field) if word)
        yield f"| {f'`{where}`' if where else 'resource'} | {_cell(rule.message)} |"
    yield ""
    yield "### Columns of `kubectl get`"
    yield ""
    yield "| Column | From | Meaning |"
    yield "|---|---|---|"
    for column in kind.columns:
        wide = ", with `-o wide`" if column.get("priority") else ""
        yield f"| {column['name'].upper()}{wide} | `{_cell(column['jsonPath'])}` | {column['description']} |"
    yield ""


def _object(path: str, schema: Schema, *, defaults: bool) -> Iterator[str]:
    """One table, and one for each object below."""
    yield f"### `{path}`"
    yield ""
    yield schema["description"]
    yield ""
    yield "| Field | Type | Default | Meaning |" if defaults else "| Field | Type | Meaning |"
    yield "|---|---|---|---|" if defaults else "|---|---|---|"
    below: list[tuple[str, Schema]] = []
    for name, child in schema["properties"].items():
        inner = child["items"] if child["type"] == "array" else child
        if "properties" in inner:
            below.append((f"{path}.{name}" + ("[]" if child["type"] == "array" else ""), inner))
        cells = [f"`{name}`", _type(child), _cell(child.get("description", ""))]
        if defaults:
            cells.insert(2, _default(name, child, schema.get("required", ())))
        yield "| " + " | ".join(cells) + " |"
    yield ""
    for place, child in below:
        yield from _object(place, child, defaults=defaults)


def _type(schema: Schema) -> str:
    match schema["type"]:
        case "array":
            return f"list of at most {schema['maxItems']}: {_type(schema['items'])}"
        case "object" if "properties" in schema:
            return "object"
        case "object" if "additionalProperties" in schema:
            return f"map of at most {schema['maxProperties']}: {_type(schema['additionalProperties'])}"
        case "object":
            return "object as in Kubernetes"
        case "string" if "enum" in schema:
            return ", ".join(f"`{value}`" for value in schema["enum"] if value)
        case "string":
            return "text"
        case "integer":
            return f"whole number{_limits(schema)}"
    return "true, false"


def _limits(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f", {low} to {high}"
    return f", at least {low}" if low is not None else ""


def _default(name: str, schema: Schema, required: Any) -> str:
    if name in required:
        return "required"
    if "default" not in schema:
        return "unset"
    default = schema["default"]
    if "properties" in schema:
        return "see below"
    return f"`{json.dumps(default)}`" if not isinstance(default, str) else (f"`{default}`" if default else "empty")


def _annotations() -> Iterator[str]:
    yield f"## Annotations of a {CLUSTER.kind}"
    yield ""
    yield "They are for a person at a moment, and have no place in Git."
    yield ""
    yield "| Annotation | Value and meaning |"
    yield "|---|---|"
    for name, text in _ANNOTATIONS:
        yield f"| `{name}` | {text} |"
    yield ""


def _config() -> Iterator[str]:
    yield "## Keys of `spec.config`"
    yield ""
    yield "Keys and values are those of [configuration.md](configuration.md), all values as text. An unknown key or a"
    yield "value of the wrong kind makes the condition `SpecValid` false. A change of these keys counts at once,"
    yield "without a restart; a change of any other restarts the bookies one by one:"
    dynamic = sorted({f"`{key.name}`" for key in known_keys().values() if key.dynamic})
    yield ", ".join(dynamic) + "."
    yield ""
    yield "The operator sets these keys itself:"
    yield ""
    yield "| Key | Instead |"
    yield "|---|---|"
    for key, remedy in RESERVED.items():
        yield f"| `{key}` | {remedy} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
