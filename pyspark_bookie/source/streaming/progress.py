"""The questions of a streaming reader to its selection, which is streams, or ledgers by themselves.

Source: docs/internals/spark.md, sections 1 (items 7 to 9) and 3.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from pyspark_bookie.common.errors import DATA_LOSS, PodkeeperSparkError
from pyspark_bookie.source.options import StreamingOptions
from pyspark_bookie.source.planning import LedgerSnapshot, Range
from pyspark_bookie.source.starting_times import begins_at_end
from pyspark_bookie.source.streaming.admission import Lane, Limit
from pyspark_bookie.source.streaming.offsets import Document, Offset, Start

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TriggerLimit:
    """The limits of one batch. `ledgers`: how many it begins of those without a stream. `least`: there is no batch
    before so many entries can be read. All None: everything there is."""

    amount: Limit = field(default_factory=Limit)
    ledgers: int | None = None
    least: int = 0

    def waits(self, lanes: Iterable[Lane]) -> bool:
        """Return True if the entries that can be read are too few."""
        return sum(segment.entries for lane in lanes for segment in lane) < self.least


class Progress(Protocol):
    """Used by one thread, on the driver."""

    def latest(self, start: Offset, limit: TriggerLimit) -> Document | None:
        """The end offset of a batch that begins at `start`; None when there is nothing to be read, or too little."""

    def tail(self, start: Offset | None) -> Document | None:
        """Return the offset behind everything that can be read now; None if that is unknown."""

    def stop_here(self) -> None:
        """Read nothing from now on that is not there now."""

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        """Return the ranges between two offsets, the same at every call; of a stream in its order."""

    def passed(self, offset: Offset) -> None:
        """Note that everything before this offset has been processed."""


def pins(start: Offset) -> bool:
    """Return True if the start of the query must be written down before anything is read."""
    return isinstance(start, Start) and begins_at_end(start.position)


def pass_over(options: StreamingOptions, error: PodkeeperSparkError) -> None:
    """Go on without what is lost, and warn, if `failOnDataLoss=false`. Raises the error otherwise, and any other."""
    if error.code != DATA_LOSS or options.fail_on_data_loss:
        raise error
    _log.warning("%s", error)


def ranges_of(
    wanted: Iterable[tuple[int, int, int]], snapshots: Mapping[int, LedgerSnapshot], options: StreamingOptions
) -> list[Range]:
    """Ledger ids with first and last entry, as ranges. A ledger without a snapshot is gone, and so is one of which the
    archive has less than there was: see `pass_over`. An open ledger was confirmed up to what an offset says, even if
    bookies tell less now."""
    found = []
    for ledger_id, first, last in wanted:
        snapshot = snapshots.get(ledger_id)
        if snapshot is None or (snapshot.archive is not None and snapshot.last_entry_id < last):
            text = f"ledger {ledger_id} was deleted before its entries {first} to {last} were read"
            error = PodkeeperSparkError(DATA_LOSS, f"{text}; failOnDataLoss=false goes on with what is left")
            pass_over(options, error)
            continue
        if not snapshot.is_closed and snapshot.last_entry_id < last:
            snapshot = replace(snapshot, last_entry_id=last)
        found.append(Range(snapshot, first, last))
    return found
