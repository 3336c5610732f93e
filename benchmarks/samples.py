"""What was measured, by metric, kind of bookie and round; and the table that comes of it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

OURS, JAVA = "ours", "java"


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
        self.values.setdefault(Metric(name, unit, better), {OURS: [], JAVA: []})[kind].append(value)

    def median(self, kind: str, name: str) -> float | None:
        """The median of a metric, None if it was not measured."""
        for metric, by_kind in self.values.items():
            if metric.name == name and by_kind[kind]:
                return median(by_kind[kind])
        return None

    def rows(self) -> Iterator[Row]:
        """One row per metric."""
        for metric, by_kind in self.values.items():
            yield Row(metric, by_kind[OURS], by_kind[JAVA])


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    metric: Metric
    ours: list[float]
    java: list[float]

    def ratio(self) -> float | None:
        """Median of ours over median of Java's; None if either is missing or nothing."""
        if not self.ours or not self.java or median(self.java) == 0:
            return None
        return median(self.ours) / median(self.java)

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


_HEADINGS = ("metric", OURS, JAVA, "ours / java", "by round", "better")


def markdown(samples: Samples) -> str:
    """The table: medians, the ratio of the medians, its spread over the rounds."""
    lines = ["| " + " | ".join(_HEADINGS) + " |", "|---|" + "---:|" * (len(_HEADINGS) - 2) + "---|"]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in samples.rows()]
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
