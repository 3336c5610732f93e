"""What a comparison measures, and for how long. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One setting of an append load."""

    protocol: str  # v2 or v3
    size: int  # payload bytes of an entry

    @property
    def name(self) -> str:
        return f"{self.protocol} {self.size} B"


@dataclass(frozen=True)
class Plan:
    """Durations are seconds. Every list is measured once per round and kind of bookie."""

    rounds: int
    latency_rounds: int
    bookie_warmup: int  # load before the first measurement: a JVM compiles, caches fill
    warmup: int  # before each measurement, for the client's JVM
    duration: int
    throughput: tuple[Point, ...]
    latency: tuple[Point, ...]
    window: int = 4000  # adds in flight
    read_window: int = 1000  # single reads in flight
    batch_window: int = 20  # batch reads in flight
    batch: int = 100  # entries of a batch read
    read_size: int = 1024
    cached_entries: int = 100_000  # fits into half of the write cache
    cold_entries: int = 100_000
    missed_entries: int = 400_000  # many times what the caches hold where misses are measured
    replay_entries: int = 150_000  # journaled, not yet flushed, when the bookie is killed


_SIZES = (128, 1024, 4096)

FULL = Plan(
    rounds=3,
    latency_rounds=3,
    bookie_warmup=10,
    warmup=2,
    duration=6,
    throughput=tuple(Point(protocol, size) for protocol in ("v2", "v3") for size in _SIZES),
    latency=(Point("v2", 128), Point("v2", 1024), Point("v2", 4096), Point("v3", 1024)),
)

QUICK = Plan(
    rounds=2,
    latency_rounds=1,
    bookie_warmup=4,
    warmup=1,
    duration=2,
    throughput=(*(Point("v2", size) for size in _SIZES), Point("v3", 1024)),
    latency=(Point("v2", 1024), Point("v3", 1024)),
    cached_entries=60_000,
    cold_entries=60_000,
    missed_entries=200_000,
    replay_entries=100_000,
)
