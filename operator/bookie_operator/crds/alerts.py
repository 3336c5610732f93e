"""The alerts about a cluster, as the chart `podkeeper-cluster` has them.

`alerts.json` is generated of the chart's files (`python charts/generate.py`), because a chart can hold files of its own
only and so can a package; a test compares the two.

Invariants
- Names of clusters are in place of placeholders such as `__CLUSTER__`, as in the chart's template.

Threads: values that are read once, for any thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any


@cache
def alert_names() -> frozenset[str]:
    return frozenset(each["alert"] for each in json.loads(_text()))


def named_alerts(names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rules of Prometheus, sorted by their names. `names`: by placeholder, without characters that JSON escapes."""
    text = _text()
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    return list(json.loads(text))


@cache
def _text() -> str:
    return resources.files(__package__).joinpath("alerts.json").read_text(encoding="utf-8")
