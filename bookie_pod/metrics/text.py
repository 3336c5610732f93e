"""Metrics as text: the plain format of Prometheus, and OpenMetrics, which has exemplars.

Both have one TYPE line per name and no HELP lines, as Apache BookKeeper's text has, so that its dashboards keep
working. For their sake names are the same in both, too: OpenMetrics wants `_total` at the end of a counter's name, so
counters are of its type `unknown` there, which Prometheus stores alike.

Invariants
- Of a bucket there is one exemplar at most, of 40 characters (OpenMetrics allows 128), and in OpenMetrics alone.

Pure but for the locks of what is shown; any thread.

Source: docs/internals/bookie-behaviour.md, section 11.1; OpenMetrics 1.0,
https://prometheus.io/docs/specs/om/open_metrics_spec/.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bookie_pod.metrics.summary import BOUNDS, QUANTILES, Exemplar, OpStats

_OPEN_METRICS: Final = "application/openmetrics-text"
_REFUSED: Final = re.compile(r"q\s*=\s*0(\.0*)?")
"""The parameter of a media type that a client does not take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat:
    """A format of text. Each method returns whole lines."""

    content_type: str
    separator: str
    """The text between two labels."""
    counter: str
    """The type of counters."""
    exemplars: bool
    end: str
    """The last line."""

    def head(self, name: str, kind: str) -> str:
        """Return the line before the series of a name."""
        return f"# TYPE {name} {self.counter if kind == 'counter' else kind}\n"

    def number(self, name: str, labels: str, value: float) -> str:
        """Return a counter or gauge. `labels` is the text between the braces."""
        return f"{name}{{{labels}}} {_number(value)}\n" if labels else f"{name} {_number(value)}\n"

    def summary(self, name: str, labels: str, stats: OpStats) -> str:
        """Return a summary: quantiles, count and sum of successes and of failures."""
        return "".join(self._summary(name, f"{self.separator}{labels}" if labels else "", stats))

    def histogram(self, name: str, labels: str, stats: OpStats) -> str:
        """Return the histogram beside a summary."""
        return "".join(self._histogram(name, f"{self.separator}{labels}" if labels else "", stats))

    def _summary(self, name: str, more: str, stats: OpStats) -> Iterator[str]:
        for success in (False, True):
            outcome = _outcome(success)
            values, count, total = stats.snapshot(success)
            for quantile, value in zip(QUANTILES, values, strict=True):
                yield f'{name}{{{outcome},quantile="{quantile}"{more}}} {_number(float(value))}\n'
            yield f"{name}_count{{{outcome}{more}}} {count}\n"
            yield f"{name}_sum{{{outcome}{more}}} {float(total)}\n"

    def _histogram(self, name: str, more: str, stats: OpStats) -> Iterator[str]:
        for success in (False, True):
            outcome = _outcome(success)
            exemplars = stats.exemplars(success) if self.exemplars else {}
            counts, total = stats.histogram(success)
            for place, (bound, count) in enumerate(zip((*map(_bound, BOUNDS), "+Inf"), counts, strict=True)):
                shown = _exemplar(exemplars[place]) if place in exemplars else ""
                yield f'{name}_bucket{{{outcome},le="{bound}"{more}}} {count}{shown}\n'
            yield f"{name}_count{{{outcome}{more}}} {counts[-1]}\n"
            yield f"{name}_sum{{{outcome}{more}}} {float(total)}\n"


PLAIN: Final = TextFormat(
    content_type="text/plain; version=0.0.4; charset=utf-8",
    separator=", ",
    counter="counter",
    exemplars=False,
    end="",
)
OPEN_METRICS: Final = TextFormat(
    content_type=f"{_OPEN_METRICS}; version=1.0.0; charset=utf-8",
    separator=",",
    counter="unknown",
    exemplars=True,
    end="# EOF\n",
)


def takes_open_metrics(accept: str) -> bool:
    """Return whether a client with this header `Accept` names OpenMetrics, as Prometheus does."""
    for part in accept.split(","):
        kind, *parameters = (each.strip().lower() for each in part.split(";"))
        if kind == _OPEN_METRICS:
            return not any(map(_REFUSED.fullmatch, parameters))
    return False


def _outcome(success: bool) -> str:
    return f'success="{"true" if success else "false"}"'


def _exemplar(found: Exemplar) -> str:
    return f' # {{trace_id="{found.trace_id:032x}"}} {_number(found.value)} {found.noted_at:.3f}'


def _bound(value: float) -> str:
    return f"{value:g}" if value < 1 else f"{value:.1f}"


def _number(value: float) -> str:
    if isinstance(value, bool):  # a gauge may ask for a flag; Prometheus refuses a whole page for one word
        return str(int(value))
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "+Inf" if value > 0 else "-Inf"
    return str(value)
