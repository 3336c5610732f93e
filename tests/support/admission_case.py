"""One case of what the API server judges, and the resource that it is about."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`changes` of the smallest resource are refused. With `before`, as a change of one that is stored with these."""

    name: str
    changes: Object
    message: str
    """Part of what is said: field and words."""
    before: Object | None = None
    status: Object = field(default_factory=dict)
    kind: str = "BookieCluster"


SMALLEST: dict[str, Object] = {
    "BookieCluster": {
        "version": "1.2.0",
        "metadataService": {"uri": "zk+hierarchical://zk-0:2181"},
        "storage": {"journal": {"size": "10Gi"}, "ledger": {"size": "100Gi"}},
    },
    "BookieTask": {"cluster": "demo", "type": "Audit"},
    "BookieJob": {"clusterRef": {"name": "demo"}, "kind": "audit"},
}
"""Specs."""


def resource(kind: str, name: str, changes: Mapping[str, Any]) -> Object:
    """The smallest resource that is valid, changed: maps are merged, None removes a field."""
    smallest = {"spec": SMALLEST[kind]}
    whole = {"apiVersion": "podkeeper.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, **smallest}
    return _merged(whole, changes)


def _merged(value: Any, changes: Any) -> Any:
    if not isinstance(value, Mapping) or not isinstance(changes, Mapping):
        return copy.deepcopy(changes)
    merged = {**value, **{name: _merged(value.get(name), change) for name, change in changes.items()}}
    return {name: child for name, child in merged.items() if child is not None}
