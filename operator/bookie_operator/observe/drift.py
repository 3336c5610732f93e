"""Drift: whether an object still is as the operator applied it, judged by the fields themselves.

Server-side apply writes down in `metadata.managedFields` which fields each writer answers for. Who changes a field in
any other way than by applying it with the same value takes it over, and who removes it takes it from everybody. So what
the operator applied and does not answer for any more was changed: by hand, by another controller, or by a webhook on
its way in. Values need not be compared, so metadata are enough, and a field that the API server writes in another way
than it got it (quantities, defaults) does not count.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bookie_operator.api.kinds import CLAIM, JOB, STATEFUL_SET
from bookie_operator.api.kubernetes import FIELD_MANAGER

_LEFT_ALONE: Final = frozenset({JOB.kind, CLAIM.kind})
"""Kinds that are made once, and belong to others from then on."""
_SHOWN: Final = 3
_MANAGERS: Final = 3
_HEADER: Final = ("labels", "annotations", "ownerReferences")
_SCALED: Final = ("replicas", "volumeClaimTemplates")
"""Fields of a StatefulSet: the one is scaled, the others are kept as they are."""

Fields = Mapping[str, Any]
"""A node of the tree of fields: names with `f:`, items of lists with `k:` or `v:`; empty: the whole value."""


def drift(manifest: Mapping[str, Any], metadata: Mapping[str, Any]) -> str:
    """Return which fields of `manifest`, as it was applied, are not the operator's any more, and whose; empty: none is,
    or that is unknown."""
    entries = metadata.get("managedFields") or ()
    applied = any(_is_own(each) and each.get("operation") == "Apply" for each in entries)
    if not applied or manifest["kind"] in _LEFT_ALONE:
        return ""
    own = [each.get("fieldsV1") or {} for each in entries if _is_own(each)]
    lost = list(_lost(_judged(manifest), own, ()))
    if not lost:
        return ""
    others = [each for each in entries if not _is_own(each)]
    names = list(dict.fromkeys(str(each.get("manager")) for path in lost for each in others if _reaches(each, path)))
    shown = ", ".join(_readable(path) for path in lost[:_SHOWN])
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    who = f" by {', '.join(names[:_MANAGERS])}" if names else ""
    return f"changed{who}: {shown}{more}"[:500]


def _is_own(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") == FIELD_MANAGER and entry.get("subresource") != "status"


def _judged(manifest: Mapping[str, Any]) -> dict[str, Any]:
    content = {key: each for key, each in manifest.items() if key not in ("apiVersion", "kind", "metadata", "status")}
    if manifest["kind"] == STATEFUL_SET.kind:
        content["spec"] = {key: each for key, each in content["spec"].items() if key not in _SCALED}
    header = {key: manifest["metadata"][key] for key in _HEADER if key in manifest["metadata"]}
    return {**content, "metadata": header}


def _lost(value: Any, nodes: Sequence[Fields], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Paths below `value` that none of `nodes` has. An empty value needs no owner."""
    for step, child in _children(value, nodes):
        if child is None or child == {} or child == []:
            continue
        below = [node[step] for node in nodes if step in node]
        if not below:
            yield (*path, step)
        elif all(below):
            yield from _lost(child, below, (*path, step))


def _children(value: Any, nodes: Sequence[Fields]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield f"f:{key}", child
    elif isinstance(value, list):
        steps = [step for node in nodes for step in node if step[:2] in ("k:", "v:")]
        for item in value:
            yield next((step for step in steps if _names(step, item)), _step_of(item)), item


def _names(step: str, item: Any) -> bool:
    """Return whether this step leads to the item. A key may have a default that is not in the manifest."""
    try:
        key = json.loads(step[2:])
    except ValueError:
        return False
    if step.startswith("v:") or not isinstance(item, dict) or not isinstance(key, dict):
        return bool(key == item)
    given = [name for name in key if name in item]
    return bool(given) and all(item[name] == key[name] for name in given)


def _step_of(item: Any) -> str:
    name = item.get("name") if isinstance(item, dict) else item
    return f"k:{json.dumps(name)}"


def _reaches(entry: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    """Return whether this writer answers for the field, or for something that it is a part of."""
    node: Fields = entry.get("fieldsV1") or {}
    for step in path:
        if step not in node:
            return False
        node = node[step]
        if not node:
            return True
    return True


def _readable(path: tuple[str, ...]) -> str:
    return ".".join(step[2:] if step.startswith("f:") else f"[{step[2:]}]" for step in path)
