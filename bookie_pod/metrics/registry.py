"""Counters, gauges and summaries, and the registry of one node: names, labels and the text that Prometheus reads.

A summary (`OpStats`, Apache BookKeeper's name) counts and adds up for ever, and keeps for its quantiles one
histogram of the running period and one of the period before it. A histogram has 32 buckets per power of two,
so a quantile is off by less than 1.6 %; quantile 1.0 is exact.

Names are scopes and the metric's name joined by `_`; characters that Prometheus does not allow become `_`.
The text has one TYPE line per name and no HELP lines, as Apache BookKeeper's has, so that its dashboards keep
working.

Invariants
- Every method may be called from any thread, never blocks for long and never raises but as told here. `pieces` cost
  about 20 microseconds per summary.
- Memory is bounded: a histogram has fewer than 3000 buckets however many values it saw.
- Observe once per batch with `count`, not once per entry.
- No global state: every node has a `Registry` of its own.
- A name has one type; a name with the same labels exists once. Asking again for a counter or summary gives
  the one that exists; a second gauge of that name is a mistake and raises ValueError.

Source: reference bookie behaviour, section 11.1.
"""

from __future__ import annotations

import math
import os
import re
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

QUANTILES: Final = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
_SUB_BUCKETS: Final = 32
_MIN_EXPONENT: Final = -20
_MAX_EXPONENT: Final = 64
_LARGEST: Final = 2.0**_MAX_EXPONENT
_NOTHING: Final = -(2**31)
_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")


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
    """A level that is asked for when somebody looks. `read` must be cheap; what it raises shows as NaN."""

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


class Histogram:
    """Counts of values in logarithmic buckets. Not thread-safe: `OpStats` holds its lock."""

    __slots__ = ("buckets", "largest", "total")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.total = 0
        self.largest = -math.inf

    def add(self, value: float, count: int) -> None:
        """Note `count` occurrences of `value`."""
        index = _bucket(value)
        self.buckets[index] = self.buckets.get(index, 0) + count
        self.total += count
        if value > self.largest:
            self.largest = value

    def quantiles(self) -> list[float]:
        """One value per `QUANTILES`, all NaN if nothing was noted."""
        if not self.total:
            return [math.nan] * len(QUANTILES)
        ordered = sorted(self.buckets.items())
        found: list[float] = []
        position, seen = 0, ordered[0][1]
        for quantile in QUANTILES[:-1]:
            rank = math.ceil(quantile * self.total)
            while seen < rank:
                position += 1
                seen += ordered[position][1]
            found.append(min(_middle(ordered[position][0]), self.largest))
        found.append(self.largest)
        return found


_EMPTY: Final = Histogram()
"""What was noted in a period in which nothing was; never added to."""


class _Outcome:
    """One side of a summary: what succeeded, or what failed."""

    __slots__ = ("count", "current", "previous", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.current = Histogram()
        self.previous = _EMPTY


class OpStats:
    """A summary of latencies in ms, or of sizes, apart for success and failure."""

    __slots__ = ("_clock", "_failure", "_lock", "_period", "_rollover_s", "_success")

    def __init__(self, rollover_s: float, clock: Callable[[], float]) -> None:
        self._rollover_s = rollover_s
        self._clock = clock
        self._lock = threading.Lock()
        self._success = _Outcome()
        self._failure = _Outcome()
        self._period = int(clock() / rollover_s)

    def observe(self, value: float, count: int = 1, success: bool = True) -> None:
        """Note `count` occurrences of `value`; a count below 1 notes nothing."""
        if count < 1:
            return
        with self._lock:
            self._roll()
            outcome = self._success if success else self._failure
            outcome.count += count
            outcome.total += value * count
            outcome.current.add(value, count)

    def observe_ms(self, value: float, count: int = 1, success: bool = True) -> None:
        """Note `count` operations that took `value` ms each."""
        self.observe(value, count, success)

    def snapshot(self, success: bool) -> tuple[list[float], int, float]:
        """Quantiles of the previous period; count and sum since the start."""
        with self._lock:
            self._roll()
            outcome = self._success if success else self._failure
            return outcome.previous.quantiles(), outcome.count, outcome.total

    def _roll(self) -> None:
        period = int(self._clock() / self._rollover_s)
        if period == self._period:
            return
        for outcome in (self._success, self._failure):
            # If nobody observed or looked for a whole period, the running histogram is too old to show.
            outcome.previous = outcome.current if period == self._period + 1 else _EMPTY
            outcome.current = Histogram()
        self._period = period


def _bucket(value: float) -> int:
    if not value > 0:  # zero, negative (a clock that went back) or NaN
        return _NOTHING
    mantissa, exponent = math.frexp(min(value, _LARGEST))
    if exponent < _MIN_EXPONENT:
        return _MIN_EXPONENT * _SUB_BUCKETS
    return exponent * _SUB_BUCKETS + int((mantissa - 0.5) * 2 * _SUB_BUCKETS)


def _middle(index: int) -> float:
    if index == _NOTHING:
        return 0.0
    exponent, part = divmod(index, _SUB_BUCKETS)
    return math.ldexp(0.5 + (part + 0.5) / (2 * _SUB_BUCKETS), exponent)


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
    return ",".join([f'{name}="{_escape(value)}"' for name, value in labels.items()])


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
