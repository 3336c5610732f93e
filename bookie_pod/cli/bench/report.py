"""What a benchmark measured."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any, Final

import click

from bookie_pod.cli.tables import facts, print_table

QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))
_MB: Final = 1_000_000


@dataclass(slots=True)
class Measured:
    """Times in seconds, sizes in bytes of payload. `latencies` has one value for each operation."""

    operation: str
    entries: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    failed: int = 0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    ledgers: list[int] = field(default_factory=list)
    """Those that are left behind."""

    def quantiles(self) -> dict[str, float]:
        """Latency in ms at each of `QUANTILES`; zeros without operations."""
        ordered = sorted(self.latencies)
        last = len(ordered) - 1
        return {
            name: round(ordered[min(last, int(quantile * len(ordered)))] * 1000, 3) if ordered else 0.0
            for name, quantile in QUANTILES
        }

    def as_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        seconds = self.seconds or float("inf")
        return {
            "operation": self.operation,
            "entries": self.entries,
            "bytes": self.nbytes,
            "seconds": round(self.seconds, 6),
            "failed": self.failed,
            "entries_per_second": round(self.entries / seconds, 1),
            "bytes_per_second": round(self.nbytes / seconds, 1),
            "latency_ms": self.quantiles(),
            "ledgers": self.ledgers,
        }


def show(measured: Measured, as_json: bool) -> None:
    """Print it."""
    values = measured.as_dict()
    if as_json:
        click.echo(json.dumps(values))
        return
    table = facts()
    table.add_row(measured.operation, f"{measured.entries:,} entries, {measured.nbytes:,} bytes")
    table.add_row("time", f"{measured.seconds:.3f} s")
    table.add_row(
        "rate", f"{values['entries_per_second']:,.0f} entries/s, {values['bytes_per_second'] / _MB:,.1f} MB/s"
    )
    table.add_row("latency", ", ".join(f"{name} {value:g} ms" for name, value in values["latency_ms"].items()))
    if measured.failed:
        table.add_row("failed", f"{measured.failed:,} operations", style="red")
    if measured.ledgers:
        table.add_row("ledgers", ", ".join(map(str, measured.ledgers)))
    print_table(table)
