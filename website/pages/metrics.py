"""`docs/reference/metrics.md`: type, labels, unit and meaning of every metric."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from bookie_operator.metrics import OperatorMetrics
from website.pages.text import code, heading, plain, table

_FILE: Final = Path(__file__).parents[1] / "metrics.toml"
_INTRODUCTION: Final = """\
Bookies and `bookie autorecovery` serve them at `/metrics` of their HTTP port. Names, types and labels are Apache
BookKeeper's, so that its dashboards fill; *own* marks those that Apache does not have. There are no HELP lines, as
there.

A *summary* has `NAME{quantile="..."}` of the minute before, and `NAME_count` and `NAME_sum` since the start, each for
`success="true"` and `success="false"`. Counters count from the start of the process. The charts have alerts and
dashboards that use these names; each alert has a [runbook](../runbooks/README.md)."""
_OPERATOR: Final = """\
The operator serves them at `/metrics` of its own port, with `namespace` and `cluster` or `job` as labels."""


@dataclass(frozen=True)
class Metric:
    """A metric of a bookie or of auto-recovery. `name` may have the placeholder PATH."""

    name: str
    type: str
    labels: tuple[str, ...]
    unit: str
    meaning: str
    own: bool


@dataclass(frozen=True)
class Group:
    """Metrics about one subject."""

    title: str
    text: str
    metrics: tuple[Metric, ...]


def groups() -> list[Group]:
    """Return what `metrics.toml` says."""
    return [_group(each) for each in tomllib.loads(_FILE.read_text(encoding="utf-8"))["group"]]


def metrics_page() -> str:
    """Return the page."""
    source = "`website/metrics.toml`, which a test compares with real processes, and from the operator's metrics"
    lines = [*heading("Metrics", source, _INTRODUCTION)]
    for group in groups():
        lines += [f"## {group.title}", ""]
        lines += [group.text, ""] if group.text else []
        lines += table(("metric", "type", "labels", "unit", "meaning"), (_row(each) for each in group.metrics))
    lines += ["## Operator", "", _OPERATOR, ""]
    lines += table(("metric", "type", "labels", "unit", "meaning"), sorted(_of_the_operator()))
    return "\n".join(lines).rstrip() + "\n"


def _group(found: dict[str, Any]) -> Group:
    labels = tuple(found.get("labels", ()))
    metrics = [
        Metric(found["prefix"] + name, kind, (*labels, *more), unit, meaning, own == "own")
        for own in ("apache", "own")
        for name, kind, unit, meaning, *more in found[own]
    ]
    return Group(found["title"], found.get("text", ""), tuple(metrics))


def _row(metric: Metric) -> tuple[str, str, str, str, str]:
    own = " *own*" if metric.own else ""
    return code(metric.name) + own, metric.type, ", ".join(map(code, metric.labels)), metric.unit, plain(metric.meaning)


def _of_the_operator() -> Iterator[tuple[str, str, str, str, str]]:
    registry = CollectorRegistry()
    OperatorMetrics(registry)
    for collector, names in registry._collector_to_names.items():
        labels = ", ".join(map(code, getattr(collector, "_labelnames", ())))
        for family in collector.collect() or getattr(collector, "describe", list)():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            assert name in names or family.name in names
            yield code(name), family.type, labels, _unit(name), plain(family.documentation) + "."


def _unit(name: str) -> str:
    """Return the unit of one of the operator's metrics, which their names end with, as Prometheus advises."""
    ends = {"_timestamp_seconds": "s since 1970", "_seconds": "s", "_total": "times", "s": "objects", "active": "runs"}
    return next((unit for end, unit in ends.items() if name.endswith(end)), "state")
