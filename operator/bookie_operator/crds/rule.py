"""One rule in CEL, and how rules come into a schema (`x-kubernetes-validations`).

Threads: values and pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bookie_operator.crds.schema import Schema


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `path`: the node that `self` is, from the root of the resource (empty); `[]`: each item of a list."""

    path: str
    rule: str
    message: str
    expression: str = ""
    """Message made of the object by CEL; `message` where that fails."""
    field: str = ""
    """The field that is named, below `path`; empty: the node itself."""

    def rendered(self) -> dict[str, Any]:
        """The rule as an item of `x-kubernetes-validations`."""
        item: dict[str, Any] = {"rule": self.rule, "message": self.message}
        if self.expression:
            item["messageExpression"] = self.expression
        if self.field:
            item["fieldPath"] = f".{self.field}"
        return item


def with_rules(schema: Schema, rules: tuple[Rule, ...]) -> Schema:
    """A copy of a resource's schema that bears the rules. Raises KeyError for a rule on a node that is not there."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for rule in rules:
        grouped.setdefault(rule.path, []).append(rule.rendered())
    for path in grouped:
        node_at(schema, path)
    return _bearing(schema, "", grouped)


def node_at(schema: Schema, path: str) -> Schema:
    """The node at a rule's path. Raises KeyError."""
    node = schema
    for part in path.split(".") if path else ():
        node = node["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            node = node["items"]
    return node


def _bearing(schema: Schema, path: str, grouped: Mapping[str, list[dict[str, Any]]]) -> Schema:
    copy = dict(schema)
    if path in grouped:
        copy["x-kubernetes-validations"] = grouped[path]
    if "properties" in copy:
        copy["properties"] = {
            name: _bearing(child, f"{path}.{name}" if path else name, grouped)
            for name, child in copy["properties"].items()
        }
    if "items" in copy:
        copy["items"] = _bearing(copy["items"], f"{path}[]", grouped)
    return copy
