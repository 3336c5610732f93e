"""The charts' files, and what is in them: alerts, dashboards and the metrics that they ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import yaml

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
OPERATOR = CHARTS / "podkeeper-operator"
CLUSTER = CHARTS / "podkeeper-cluster"
RUNBOOKS = ROOT / "docs" / "runbooks"

PLACEHOLDERS = {
    "__NAMESPACE__": "storage",
    "__CLUSTER__": "events",
    "__ENSEMBLE_SIZE__": "3",
    "__OPERATOR__": "podkeeper-operator",
    "__RUNBOOKS__": "https://podkeeper.github.io/podkeeper/latest/runbooks",
}
"""What the templates put in their place, with an example."""
GRAFANA = {"$__rate_interval": "5m", "$__range": "3h"}
FROM_PROMETHEUS = frozenset({"up"})
"""Metrics that Prometheus makes itself."""


@dataclass(frozen=True)
class Query:
    """A PromQL expression; `where` for messages."""

    where: str
    text: str


def named(text: str) -> str:
    for placeholder, example in PLACEHOLDERS.items():
        text = text.replace(placeholder, example)
    return text


def alert_files() -> list[Path]:
    return sorted(CHARTS.glob("*/alerts/*.yaml"))


@cache
def alert(path: Path) -> Mapping[str, Any]:
    """As it is rendered for a cluster."""
    return dict(yaml.load(named(path.read_text(encoding="utf-8")), yaml.CSafeLoader))


def dashboard_files() -> list[Path]:
    return sorted(CHARTS.glob("*/dashboards/*.json"))


def dashboard(path: Path) -> dict[str, Any]:
    return dict(json.loads(named(path.read_text(encoding="utf-8"))))


def queries() -> Iterator[Query]:
    """Every expression of every alert, panel and variable."""
    for path in alert_files():
        yield Query(path.name, alert(path)["expr"])
    for path in dashboard_files():
        board = dashboard(path)
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield Query(f"{path.name}: {panel['title']}", in_grafana(target["expr"]))
        for variable in board["templating"]["list"]:
            if found := re.fullmatch(r"label_values\((?P<expr>.*), \w+\)", variable.get("definition", "")):
                yield Query(f"{path.name}: variable {variable['name']}", found["expr"])


def in_grafana(expression: str) -> str:
    for variable, example in GRAFANA.items():
        expression = expression.replace(variable, example)
    return expression


def parsed(query: Query) -> promql_parser.Expr:
    try:
        return promql_parser.parse(query.text)
    except ValueError as error:
        raise AssertionError(f"{query.where}: {error}: {query.text}") from None


def metrics(query: Query) -> set[str]:
    """Names, and regular expressions of names (`~...`), that an expression selects."""
    found: set[str] = set()

    def visit(node: promql_parser.Expr) -> bool:
        selector = node.vector_selector if isinstance(node, promql_parser.MatrixSelector) else node
        if isinstance(selector, promql_parser.VectorSelector):
            found.add(selector.name or _pattern(selector, query))
        return True

    promql_parser.walk(parsed(query), visit)
    return found


def _pattern(selector: promql_parser.VectorSelector, query: Query) -> str:
    for matcher in selector.matchers.matchers:
        if matcher.name == "__name__":
            return f"~{matcher.value}"
    raise AssertionError(f"{query.where}: a selector without a name: {query.text}")
