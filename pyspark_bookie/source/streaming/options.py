"""Options that only a streaming read has, in addition to those of the source. docs/spark.md has the table.

Pure; any process.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from pyspark_bookie.common.options import at_least, option, seconds, size
from pyspark_bookie.source.options import OpenLedgers, SourceOptions
from pyspark_bookie.source.positions import EARLIEST, LATEST, Positions, positions

_STREAM_SELECTIONS: Final = frozenset({"stream", "streams", "streamPattern", "managedLedger"})


@dataclass(frozen=True, kw_only=True)
class EitherOptions(SourceOptions):
    """What may be said of a read before it is known whether it is a batch or a stream: Spark asks for the schema
    first."""

    max_entries_per_trigger: int | None = option(None, read=at_least(1))
    max_bytes_per_trigger: int | None = option(None, read=size)
    max_ledgers_per_trigger: int = option(1_000, read=at_least(1))
    """Ledgers without a stream that one batch begins."""
    cursor: str | None = option(None)
    """Name under which the query tells the streams how far it is, so that retention waits for it."""
    metadata_refresh: float = option(0.2, read=seconds)
    """Seconds for which an idle query goes by what it knows."""
    discovery_interval: float = option(5.0, read=seconds)
    """Seconds between looks for new ledgers and streams."""
    settling_time: float = option(60.0, read=seconds)
    """Seconds after its creation in which a ledger with a lower id may still appear."""


@dataclass(frozen=True, kw_only=True)
class StreamingOptions(EitherOptions):
    """`starting_position` counts for a new query only; afterwards its checkpoint does."""

    starting_position: Positions = option(positions("latest"), read=positions)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.table is not None:
            raise ValueError(f"table={self.table.value} is for batch reads: a stream reads entries")
        if self.ending_position != positions("latest"):
            raise ValueError("endingPosition is for batch reads; trigger(availableNow=True) ends at what is there now")
        if self.open_ledgers is OpenLedgers.RECOVER:
            raise ValueError(
                "openLedgers=recover is for batch reads: a query that follows ledgers must not lock writers out"
            )
        if self.cursor is not None and (self.managed_ledger is not None or not self.reads_streams):
            raise ValueError("cursor needs stream, streams or streamPattern: other ledgers have no place for it")

    @property
    def reads_streams(self) -> bool:
        """Whether ledgers come as ordered lists, and not each by itself."""
        return bool(_STREAM_SELECTIONS & set(self.selections()))

    @property
    def start_text(self) -> str:
        """The starting position as the first offset tells it; `positions` reads it."""
        chosen = self.starting_position
        if chosen.everywhere is not None:
            return {EARLIEST: "earliest", LATEST: "latest"}[chosen.everywhere]
        return json.dumps({str(ledger_id): chosen.ledgers[ledger_id] for ledger_id in sorted(chosen.ledgers)})
