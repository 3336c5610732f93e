"""What was measured, by metric, kind of bookie and round; and the table that comes of it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

OURS, JAVA = "ours", "java"
CEILING = "ceiling"
"""What the same client reaches where nothing but client and machine limits it."""


@dataclass(frozen=True)
class Metric:
    """A named figure. `better` says which way is good."""

    name: str
    unit: str
    better: str  # "more" or "less"


@dataclass
class Samples:
    """Figures in the order in which metrics first came up; the n-th of each kind belong to the same round."""

    values: dict[Metric, dict[str, list[float]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, kind: str, name: str, unit: str, better: str, value: float) -> None:
        self.values.setdefault(Metric(name, unit, better), {OURS: [], JAVA: [], CEILING: []})[kind].append(value)

    def median(self, kind: str, name: str) -> float | None:
        """The median of a metric, None if it was not measured."""
        for metric, by_kind in self.values.items():
            if metric.name == name and by_kind[kind]:
                return median(by_kind[kind])
        return None

    def rows(self) -> Iterator[Row]:
        """One row per metric."""
        for metric, by_kind in self.values.items():
            yield Row(metric, by_kind[OURS], by_kind[JAVA], by_kind[CEILING])


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    metric: Metric
    ours: list[float]
    java: list[float]
    ceiling: list[float] = field(default_factory=list)

    def ratio(self) -> float | None:
        """Median of ours over median of Java's; None if either is missing or nothing."""
        if not self.ours or not self.java or median(self.java) == 0:
            return None
        return median(self.ours) / median(self.java)

    def of_ceiling(self) -> float | None:
        """Median of ours over that of the ceiling."""
        return median(self.ours) / median(self.ceiling) if self.ours and self.ceiling else None

    def spread(self) -> tuple[float, float] | None:
        """Least and greatest ratio of one round."""
        ratios = [a / b for a, b in zip(self.ours, self.java, strict=False) if b]
        return (min(ratios), max(ratios)) if ratios else None

    def winner(self) -> str:
        """The kind that is better in every round, or nothing where rounds disagree."""
        spread = self.spread()
        if spread is None or spread[0] <= 1 <= spread[1]:
            return ""
        ours_more = spread[0] > 1
        return OURS if ours_more == (self.metric.better == "more") else JAVA

    def cells(self) -> tuple[str, ...]:
        ratio, spread = self.ratio(), self.spread()
        return (
            f"{self.metric.name} ({self.metric.unit})",
            _figures(self.ours),
            _figures(self.java),
            "-" if ratio is None else f"{ratio:.2f}",
            "-" if spread is None else f"{spread[0]:.2f} to {spread[1]:.2f}",
            self.winner(),
        )

    def ceiling_cells(self) -> tuple[str, ...]:
        ratio = self.of_ceiling()
        return _figures(self.ceiling), "-" if ratio is None else f"{ratio:.2f}"


_HEADINGS = ("metric", OURS, JAVA, "ours / java", "by round", "better")
_CEILING_HEADINGS = (CEILING, f"ours / {CEILING}")


def markdown(samples: Samples) -> str:
    """The table: medians, the ratio of the medians, its spread over the rounds; and the ceiling, if it was measured."""
    rows = list(samples.rows())
    headings, cells = _HEADINGS, [row.cells() for row in rows]
    if any(row.ceiling for row in rows):
        headings += _CEILING_HEADINGS
        cells = [(*each, *row.ceiling_cells()) for each, row in zip(cells, rows, strict=True)]
    marks = ["---" if heading in ("metric", "better") else "---:" for heading in headings]
    lines = ["| " + " | ".join(line) + " |" for line in (headings, *cells)]
    lines.insert(1, f"|{'|'.join(marks)}|")
    if samples.failures:
        lines += ["", "Failed:", "", *(f"- {each}" for each in samples.failures)]
    return "\n".join(lines) + "\n"


def as_json(samples: Samples) -> list[dict[str, object]]:
    """Every figure of every round."""
    return [
        {
            "metric": row.metric.name,
            "unit": row.metric.unit,
            "better": row.metric.better,
            OURS: row.ours,
            JAVA: row.java,
            CEILING: row.ceiling,
            "ratio": row.ratio(),
            "ratio_by_round": row.spread(),
        }
        for row in samples.rows()
    ]


def _figures(values: list[float]) -> str:
    if not values:
        return "-"
    middle = median(values)
    return f"{middle:,.0f}" if middle >= 100 else f"{middle:.2f}"
