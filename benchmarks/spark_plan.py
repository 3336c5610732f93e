"""What the Spark benchmark measures, how much of it, and the disk that this takes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from benchmarks.spark_driver import WARM_UPS
from bookie_client import TrafficClass

READING: Final = ("source", "client", "parquet")
WRITING: Final = ("sink", "client-write")
"""Each on bookies of its own."""
AUDITS: Final = ("audit", "audit-beside", "planning")
"""With entries of one size only."""
STAGES: Final = (*READING, *AUDITS, *WRITING, "to-parquet")
COPIES: Final = 2
"""Of every entry that is read."""
_WRITTEN_COPIES: Final = 3
_STORED: Final = 2 * 1.1
"""A copy lies in the journal and in an entry log; a tenth for headers and indexes."""
_APART: Final = 1_000_000_000
"""Bytes of all that does not grow with the payload: files that are allocated in advance, the writer beside an audit."""
_FREE_SHARE: Final = 0.02
_FREE_BYTES: Final = 2_000_000_000
"""With less left of the disk than its share, or than this, bookies would turn read-only."""


@dataclass(frozen=True)
class SparkPlan:
    """`megabytes`: payload of all ledgers; `times`: repetitions that count; `stages`: those of `STAGES` that run;
    `traffic_class`: of what source and client read."""

    megabytes: int
    ledgers: int
    small_ledgers: int
    times: int
    stages: frozenset[str]
    traffic_class: TrafficClass

    @property
    def has_parquet(self) -> bool:
        """Whether a stage reads the entries out of Parquet files."""
        return not self.stages.isdisjoint(("parquet", "sink", "to-parquet"))

    @property
    def has_ledgers(self) -> bool:
        """Whether a stage reads ledgers; Parquet files are made out of them."""
        return self.has_parquet or not self.stages.isdisjoint(("source", "client", "audit", "audit-beside"))

    @property
    def disk_bytes(self) -> int:
        """The most that lies on the disk at one time."""
        return _APART + int(self.megabytes * self._disk_bytes_of_one)

    @property
    def _disk_bytes_of_one(self) -> float:
        """Of each megabyte of payload."""
        reading = COPIES * _STORED if self.has_ledgers else 0.0
        writing = 0.0 if self.stages.isdisjoint(WRITING) else (WARM_UPS + self.times) * _WRITTEN_COPIES * _STORED
        parquet = 2 if "to-parquet" in self.stages else 1 if self.has_parquet else 0
        return 1e6 * (max(reading, writing) + parquet)

    def check_disk(self, directory: Path) -> None:
        """Raises `click.ClickException`, with what would make it less, when the disk is too small."""
        usage = shutil.disk_usage(directory)
        kept = max(int(usage.total * _FREE_SHARE), _FREE_BYTES)
        room = usage.free - kept
        if room >= self.disk_bytes:
            return
        fits = int((room - _APART) / self._disk_bytes_of_one) if self._disk_bytes_of_one else 0
        megabytes = f"--megabytes (up to {fits} would do)" if fits > 0 else "--megabytes"
        raise click.ClickException(
            f"{directory}: {_gb(self.disk_bytes)} are needed, besides {_gb(kept)} without which bookies turn read-only,"
            f" and {_gb(max(room, 0))} are free; less with {megabytes}, --times or --only, another disk with --dir"
        )


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
