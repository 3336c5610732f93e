"""Counters, gauges and summaries, and the registry of one node: names, labels and the text that Prometheus reads.

Summaries are in `summary`. Quantiles cannot be added up over bookies, so the few latencies that dashboards need for a
whole cluster (`summed`) also have a histogram, under their name with `_hist`.

Names are scopes and the metric's name joined by `_`; characters that Prometheus does not allow become `_`. The text is
made in `text`.

Invariants
- Every method may be called from any thread, never blocks for long and never raises but as described here. `pieces`
  cost about 20 microseconds per summary.
- No global state: every node has a `Registry` of its own.
- A name has one type; a name with the same labels exists once. Asking again for a counter or summary gives
  the one that exists; a second gauge of that name is a mistake and raises ValueError.

Source: docs/internals/bookie-behaviour.md, section 11.1.
"""

from __future__ import annotations

import math
import os
import re
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from bookie_pod.metrics.summary import HISTOGRAM
from bookie_pod.metrics.summary import QUANTILES as QUANTILES
from bookie_pod.metrics.summary import OpStats as OpStats
from bookie_pod.metrics.text import PLAIN, TextFormat

_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")
_FORBIDDEN: Final = re.compile(r"[^a-zA-Z0-9_:]")
_MAX_THREADS: Final = 256
_THREAD_NAME: Final = re.compile(r"(?P<pool>.*?)[-_]?(?P<ordinal>\d+)")


class Counter:
    """A number that grows; a few of the reference implementation's counters also shrink."""

    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: float = 0

    def add(self, n: float = 1) -> None:
        """Add `n`, which may be negative for a counter that is really a level."""
        with self._lock:
            self._value += n

    @property
    def value(self) -> int:
        """The current number; fractions of a ms add up but do not show."""
        return int(self._value)


class Gauge:
    """A level that is read when the metrics are rendered. `read` must be cheap; what it raises shows as NaN."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read

    @property
    def value(self) -> float:
        """The current level, NaN if it could not be read."""
        try:
            return self._read()
        except Exception:
            return math.nan


Instrument = Counter | Gauge | OpStats
T = TypeVar("T", Counter, OpStats)


class Sample(NamedTuple):
    """One value of a collector, without labels."""

    name: str
    type: str
    value: float


class Number(NamedTuple):
    """A counter or gauge of another process. `labels` is the text between the braces."""

    name: str
    kind: str
    labels: str
    value: int | float


class _Family(NamedTuple):
    type: str
    series: dict[str, Instrument]
    """Values by the text of their labels."""


class Registry:
    """All metrics of one node."""

    def __init__(self, rollover_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        """`rollover_s`: the period in seconds that quantiles cover."""
        self._rollover_s = rollover_s
        self._clock = clock
        self._lock = threading.Lock()
        self._families: dict[str, _Family] = {}
        self._collectors: list[Callable[[], Iterable[Sample]]] = []
        self.has_exemplars = False
        """True if traces are exemplars of the histograms, which only `OPEN_METRICS` has."""

    def scope(self, name: str = "", **labels: str) -> Scope:
        """A scope at the root."""
        return Scope(self, name, labels)

    def add_collector(self, collect: Callable[[], Iterable[Sample]]) -> None:
        """Have `collect` called at every look at all metrics."""
        with self._lock:
            self._collectors.append(collect)

    def counter(self, name: str, labels: Mapping[str, str]) -> Counter:
        """Return the counter of this name and these labels."""
        return self._existing_or(name, labels, "counter", Counter, Counter)

    def op_stats(self, name: str, labels: Mapping[str, str], *, summed: bool = False) -> OpStats:
        """The summary of this name and these labels; `summed`: with a histogram beside it."""
        stats = self._existing_or(name, labels, "summary", OpStats, lambda: OpStats(self._rollover_s, self._clock))
        if summed:
            stats.keep_histogram()
        return stats

    def gauge(self, name: str, labels: Mapping[str, str], read: Callable[[], float], kind: str = "gauge") -> Gauge:
        """Make a gauge that calls `read`; ValueError if it exists. `kind` is its type for Prometheus."""
        gauge = Gauge(read)
        with self._lock:
            series = self._family(name, kind)
            text = _label_text(labels)
            if text in series:
                raise ValueError(f"gauge {name}{{{text}}} exists")
            series[text] = gauge
        return gauge

    def numbers(self, *prefixes: str) -> list[Number]:
        """The counters and gauges whose names begin with one of these, but for those that cannot be read."""
        with self._lock:
            found = [
                (name, kind, labels, instrument)
                for name, (kind, series) in self._families.items()
                if name.startswith(prefixes)
                for labels, instrument in series.items()
            ]
        return [
            Number(name, kind, labels, value)
            for name, kind, labels, each in found
            if not isinstance(each, OpStats) and not math.isnan(value := each.value)
        ]

    def summaries(self, name: str) -> list[OpStats]:
        """Return the summaries of this name, one for each set of labels."""
        with self._lock:
            family = self._families.get(name)
            return [] if family is None else [each for each in family.series.values() if isinstance(each, OpStats)]

    def every_summary(self) -> list[tuple[str, str, OpStats]]:
        """Return all summaries, with their names and the texts of their labels."""
        with self._lock:
            return [
                (name, labels, each)
                for name, (_, series) in self._families.items()
                for labels, each in series.items()
                if isinstance(each, OpStats)
            ]

    def show(self, numbers: Iterable[Number]) -> None:
        """Have these numbers of another process, until it tells others. ValueError: one has another type here."""
        with self._lock:
            for name, kind, labels, value in numbers:
                self._family(name, kind)[labels] = Gauge(partial(_the_same, value))

    def render(self, text: TextFormat = PLAIN) -> str:
        """Return all metrics as text, names in alphabetical order."""
        return "".join(self.pieces(text))

    def pieces(self, text: TextFormat = PLAIN) -> Iterator[str]:
        """Yield the same in pieces, each of which takes little time."""
        with self._lock:
            families = [(name, kind, list(series.items())) for name, (kind, series) in self._families.items()]
            collectors = list(self._collectors)
        for name, kind, series in sorted(families, key=lambda family: family[0]):
            if series:
                yield text.head(name, kind)
            for labels, instrument in series:
                if isinstance(instrument, OpStats):
                    yield text.summary(name, labels, instrument)
                else:
                    yield text.number(name, labels, instrument.value)
            summed = [(labels, each) for labels, each in series if isinstance(each, OpStats) and each.has_histogram]
            if summed:
                yield text.head(f"{name}{HISTOGRAM}", "histogram")
            for labels, stats in summed:
                yield text.histogram(f"{name}{HISTOGRAM}", labels, stats)
        for collect in collectors:
            for sample in collect():
                yield text.head(sample.name, sample.type) + text.number(sample.name, "", sample.value)
        yield text.end

    def _existing_or(self, name: str, labels: Mapping[str, str], kind: str, cls: type[T], make: Callable[[], T]) -> T:
        with self._lock:
            series, text = self._family(name, kind), _label_text(labels)
            found = series.get(text)
            if found is None:
                found = series[text] = make()
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

    def op_stats(self, name: str, *, summed: bool = False) -> OpStats:
        """A summary of latencies or sizes; `summed`: of latencies in ms, with a histogram beside it."""
        return self._registry.op_stats(self._join(name), self._labels, summed=summed)

    def gauge(self, name: str, read: Callable[[], float]) -> Gauge:
        """Make a gauge that calls `read` whenever the metrics are rendered."""
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


def _the_same(value: float) -> float:
    return value


def sanitise(name: str) -> str:
    """`name` with `_` for everything that a Prometheus name must not hold."""
    return _FORBIDDEN.sub("_", name)


def _label_text(labels: Mapping[str, str]) -> str:
    return ",".join([f'{name}="{_escape(value)}"' for name, value in labels.items()])


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class ProcessCollector:
    """Collector of `process_*`, by the names that Prometheus clients share; give it to `Registry.add_collector`.

    Reads `/proc/self` at every scrape; where there is none (not Linux) nothing is reported. Any thread may call.
    """

    def __init__(self, proc: str = "/proc") -> None:
        """`proc` is where the kernel's process information is mounted."""
        self._proc = proc
        self._boot_time = self._read_boot_time()

    def __call__(self) -> Iterator[Sample]:
        """CPU time, memory, start time and open files."""
        try:
            with open(os.path.join(self._proc, "self/stat"), encoding="utf-8", errors="replace") as file:
                # The second field is the command in parentheses and may hold blanks.
                fields = file.read().rpartition(")")[2].split()
            open_files = len(os.listdir(os.path.join(self._proc, "self/fd")))
        except OSError:
            return
        user, system, start, virtual, resident = (int(fields[i]) for i in (11, 12, 19, 20, 21))
        yield Sample("process_cpu_seconds_total", "counter", (user + system) / _CLOCK_TICKS)
        if self._boot_time is not None:
            yield Sample("process_start_time_seconds", "gauge", self._boot_time + start / _CLOCK_TICKS)
        yield Sample("process_virtual_memory_bytes", "gauge", virtual)
        yield Sample("process_resident_memory_bytes", "gauge", resident * _PAGE_SIZE)
        yield Sample("process_open_fds", "gauge", open_files)
        yield Sample("process_max_fds", "gauge", resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def _read_boot_time(self) -> int | None:
        try:
            with open(os.path.join(self._proc, "stat"), encoding="ascii") as file:
                return next((int(line.split()[1]) for line in file if line.startswith("btime ")), None)
        except OSError:
            return None
