"""The registry of one node: names, labels and the text that Prometheus reads.

Names are scopes and the metric's name joined by `_`; characters that Prometheus does not allow become `_`.
The text has one TYPE line per name and no HELP lines, as Apache BookKeeper's has, so that its dashboards keep
working.

Invariants
- No global state: every node has a `Registry` of its own.
- A name has one type; a name with the same labels exists once. Asking again for a counter or summary gives
  the one that exists; a second gauge of that name is a mistake and raises ValueError.
- Every method may be called from any thread. `pieces` cost about 20 microseconds per summary.

Source: reference bookie behaviour, section 11.1.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from bookie_pod.metrics.instruments import QUANTILES, Counter, Gauge, OpStats

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_FORBIDDEN: Final = re.compile(r"[^a-zA-Z0-9_:]")
_MAX_THREADS: Final = 256
_THREAD_NAME: Final = re.compile(r"(?P<pool>.*?)[-_]?(?P<ordinal>\d+)")

Instrument = Counter | Gauge | OpStats
T = TypeVar("T", Counter, OpStats)


class Sample(NamedTuple):
    """One value of a collector, without labels."""

    name: str
    type: str
    value: float


class _Family(NamedTuple):
    type: str
    series: dict[str, Instrument]
    """By the text of their labels."""


class Registry:
    """All metrics of one node."""

    def __init__(self, rollover_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        """`rollover_s`: the period in seconds that quantiles cover."""
        self._rollover_s = rollover_s
        self._clock = clock
        self._lock = threading.Lock()
        self._families: dict[str, _Family] = {}
        self._collectors: list[Callable[[], Iterable[Sample]]] = []

    def scope(self, name: str = "", **labels: str) -> Scope:
        """A scope at the root."""
        return Scope(self, name, labels)

    def add_collector(self, collect: Callable[[], Iterable[Sample]]) -> None:
        """Have `collect` called at every look at all metrics."""
        with self._lock:
            self._collectors.append(collect)

    def counter(self, name: str, labels: Mapping[str, str]) -> Counter:
        """The counter of this name and these labels."""
        return self._existing_or(name, labels, "counter", Counter, Counter)

    def op_stats(self, name: str, labels: Mapping[str, str]) -> OpStats:
        """The summary of this name and these labels."""
        return self._existing_or(name, labels, "summary", OpStats, lambda: OpStats(self._rollover_s, self._clock))

    def gauge(self, name: str, labels: Mapping[str, str], read: Callable[[], float], kind: str = "gauge") -> Gauge:
        """A gauge that asks `read`; ValueError if it exists. `kind` is the type that Prometheus is told."""
        gauge = Gauge(read)
        with self._lock:
            series = self._family(name, kind)
            text = _label_text(labels)
            if text in series:
                raise ValueError(f"gauge {name}{{{text}}} exists")
            series[text] = gauge
        return gauge

    def render(self) -> str:
        """Everything as Prometheus text, names in alphabetical order."""
        return "".join(self.pieces())

    def pieces(self) -> Iterator[str]:
        """The same in pieces, each of which takes little time."""
        with self._lock:
            families = [(name, kind, list(series.items())) for name, (kind, series) in self._families.items()]
            collectors = list(self._collectors)
        for name, kind, series in sorted(families, key=lambda family: family[0]):
            if series:
                yield f"# TYPE {name} {kind}\n"
            for labels, instrument in series:
                lines: list[str] = []
                _render(lines, name, labels, instrument)
                yield "".join(f"{line}\n" for line in lines)
        for collect in collectors:
            for sample in collect():
                yield f"# TYPE {sample.name} {sample.type}\n{sample.name} {_number(sample.value)}\n"

    def _existing_or(self, name: str, labels: Mapping[str, str], kind: str, cls: type[T], make: Callable[[], T]) -> T:
        with self._lock:
            series = self._family(name, kind)
            found = series.setdefault(_label_text(labels), make())
        assert isinstance(found, cls)
        return found

    def _family(self, name: str, kind: str) -> dict[str, Instrument]:
        name = sanitise(name)
        family = self._families.setdefault(name, _Family(kind, {}))
        if family.type != kind:
            raise ValueError(f"{name} is a {family.type} already, not a {kind}")
        return family.series


class Scope:
    """A prefix and labels that everything below shares."""

    def __init__(self, registry: Registry, prefix: str, labels: Mapping[str, str]) -> None:
        self._registry = registry
        self._prefix = prefix
        self._labels = dict(labels)

    def scope(self, name: str = "", **labels: str) -> Scope:
        """A scope below this one; without a name only labels are added."""
        return Scope(self._registry, self._join(name), self._labels | labels)

    def counter(self, name: str) -> Counter:
        """A counter."""
        return self._registry.counter(self._join(name), self._labels)

    def op_stats(self, name: str) -> OpStats:
        """A summary."""
        return self._registry.op_stats(self._join(name), self._labels)

    def gauge(self, name: str, read: Callable[[], float]) -> Gauge:
        """A gauge that asks `read` whenever somebody looks."""
        return self._registry.gauge(self._join(name), self._labels, read)

    def level_counter(self, name: str, read: Callable[[], float]) -> Gauge:
        """A level that the reference implementation exports as a counter."""
        return self._registry.gauge(self._join(name), self._labels, read, kind="counter")

    def thread_counter(self, name: str) -> ThreadCounter:
        """A counter with one series per thread that adds to it."""
        return ThreadCounter(self, name)

    def for_thread(self, pool: str, ordinal: int) -> Scope:
        """This scope with the labels of a thread."""
        return self.scope(threadPool=pool, thread=str(ordinal))

    def _join(self, name: str) -> str:
        return "_".join(part for part in (self._prefix, name) if part)


class ThreadCounter:
    """A counter with labels `threadPool` and `thread`, taken from the adding thread's name (`read-3`)."""

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope = scope
        self._name = name
        self._counters: dict[str, Counter] = {}

    def add(self, n: float = 1) -> None:
        """Add to the series of the calling thread."""
        name = threading.current_thread().name
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counter(name)
        counter.add(n)

    def _counter(self, name: str) -> Counter:
        match = _THREAD_NAME.fullmatch(name)
        pool, ordinal = (match["pool"], int(match["ordinal"])) if match else (name, 0)
        if len(self._counters) >= _MAX_THREADS:  # thread names that never repeat must not fill the memory
            return self._scope.for_thread("other", 0).counter(self._name)
        counter = self._scope.for_thread(pool, ordinal).counter(self._name)
        self._counters[name] = counter
        return counter


def sanitise(name: str) -> str:
    """`name` with `_` for everything that a Prometheus name must not hold."""
    return _FORBIDDEN.sub("_", name)


def _label_text(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _render(lines: list[str], name: str, labels: str, instrument: Instrument) -> None:
    if not isinstance(instrument, OpStats):
        braces = f"{{{labels}}}" if labels else ""
        lines.append(f"{name}{braces} {_number(instrument.value)}")
        return
    more = f", {labels}" if labels else ""
    for success in (False, True):
        outcome = f'success="{"true" if success else "false"}"'
        values, count, total = instrument.snapshot(success)
        for quantile, value in zip(QUANTILES, values, strict=True):
            lines.append(f'{name}{{{outcome},quantile="{quantile}"{more}}} {_number(float(value))}')
        lines.append(f"{name}_count{{{outcome}{more}}} {count}")
        lines.append(f"{name}_sum{{{outcome}{more}}} {float(total)}")


def _number(value: float) -> str:
    if isinstance(value, bool):  # a gauge may ask for a flag; Prometheus refuses a whole page for one word
        return str(int(value))
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "+Inf" if value > 0 else "-Inf"
    return str(value)
