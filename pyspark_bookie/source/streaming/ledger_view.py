"""Ledgers without a stream (`ledgers`, `ledgerPattern`, `scope`) as a streaming query sees them.

Closed ledgers are one lane, in the order of their ids, of which a batch begins only so many; each open one is a lane of
its own, so that a busy one does not hold up the others.

The watermark of an offset passes a ledger when it was read to its end, or is named by the offset, and only when the
ledger is *settled*: two clients may create ledgers in another order than they got ids, and a ledger that appears
below the watermark would never be read. So an offset names the ledgers that are being read, those that this batch
finished, and those created lately.

Invariants
- An offset that follows another one never takes a ledger back, and loses none that is not finished.
- Every ledger of which a batch reads anything is named by its end offset (`offsets.ledger_ranges`).

Pure; any process.

Source: docs/internals/spark.md, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from bookie_protocol.errors import NoSuchLedger
from bookie_protocol.versioned import LedgerLife
from pyspark_bookie.common.errors import DATA_LOSS, PodkeeperSparkError, code_of
from pyspark_bookie.source.positions import LATEST, Positions, check_named
from pyspark_bookie.source.streaming.admission import Segment
from pyspark_bookie.source.streaming.offsets import LedgersOffset


@dataclass(frozen=True, slots=True)
class Extent:
    """The readable part of a ledger: entries up to its end, or up to the last add confirmed, and their payload
    bytes.

    `is_settled`: it was created so long ago that no ledger with a lower id can appear any more.
    """

    ledger_id: int
    entries: int
    nbytes: int
    is_closed: bool
    is_settled: bool = True
    life: LedgerLife | None = None
    """None: it is in the archive alone."""
    created_ms: int | None = None
    """Milliseconds since 1970; None: unknown."""


@dataclass(frozen=True)
class LedgersView:
    """The selected ledgers, ascending by id. Offsets that are given have been `checked`, but those of `begin`."""

    extents: Sequence[Extent]
    missing: frozenset[int] = frozenset()
    """Ledgers that were named one by one and do not exist: a query cannot begin with them. One that goes on may have
    read them to their end."""
    restored: frozenset[int] = frozenset()
    """Ledgers that have the content of the one of their number that a query has read, though they were made later."""

    @cached_property
    def by_id(self) -> Mapping[int, Extent]:
        return {extent.ledger_id: extent for extent in self.extents}

    # --- where a query begins -----------------------------------------------------------------------------------

    def begin(self, positions: Positions) -> LedgersOffset:
        """Return the start of a new query. `latest` leaves out existing entries; ledgers that appear later are
        read from their beginning. Raises `PodkeeperSparkError`."""
        if self.missing:
            raise PodkeeperSparkError(code_of(NoSuchLedger()), f"ledger {min(self.missing)} does not exist")
        check_named(positions, self.by_id, "startingPosition", "the selected ledgers")
        if not positions.ledgers and positions.everywhere != LATEST:
            return LedgersOffset(0, {})
        found: dict[int, int] = {}
        for extent in self.extents:
            first = positions.begin(extent.ledger_id, extent.entries, is_open=not extent.is_closed)
            if first or not extent.is_closed:
                found[extent.ledger_id] = first
        return self._moved(LedgersOffset(0, found), {})

    # --- what can be read -----------------------------------------------------------------------------------------

    def checked(self, offset: LedgersOffset) -> LedgersOffset:
        """Return an offset of a checkpoint, if it can be right, without ledgers that are gone before anything was
        read of them, or after everything was.

        Raises `PodkeeperSparkError` (DATA_LOSS) if a ledger that was being read is gone: it may have had more entries.
        """
        for ledger_id, next_entry in offset.next_entries.items():
            extent = self.by_id.get(ledger_id)
            if extent is None and next_entry and ledger_id not in offset.finished:
                raise _lost(f"ledger {ledger_id} was deleted; it was read up to entry {next_entry - 1}")
            if extent is not None and next_entry and ledger_id in self.others(offset):
                raise _lost(
                    f"ledger {ledger_id} was deleted, and another ledger has its number; of the former it was read up"
                    f" to entry {next_entry - 1}"
                )
            if extent is not None and extent.is_closed and next_entry > extent.entries:
                raise _lost(f"ledger {ledger_id} has {extent.entries} entries, but {next_entry} were read of it")
        return self.what_is_left(offset)

    def what_is_left(self, offset: LedgersOffset) -> LedgersOffset:
        """The offset without the ledgers that are gone. A ledger with the number of one of which nothing was read is
        still named: the watermark may have passed it, and it is read from its beginning."""
        others = self.others(offset)
        there = self.by_id.keys() - {ledger_id for ledger_id in others if offset.next_entries[ledger_id]}
        left = {ledger_id: entry for ledger_id, entry in offset.next_entries.items() if ledger_id in there}
        lives = {ledger_id: life for ledger_id, life in offset.lives.items() if ledger_id in there - others}
        return LedgersOffset(offset.watermark, left, finished=offset.finished & left.keys(), lives=lives)

    def others(self, offset: LedgersOffset) -> frozenset[int]:
        """Return the ledgers that an offset names, and that are others of their number by now."""
        return frozenset(
            ledger_id
            for ledger_id, life in offset.lives.items()
            if ledger_id not in self.restored
            and (extent := self.by_id.get(ledger_id)) is not None
            and extent.life not in (None, life)
        )

    def lanes(self, offset: LedgersOffset, most_new: int | None = None) -> list[list[Segment]]:
        """Return what can be read behind an offset; at most `most_new` ledgers that were not begun."""
        closed: list[Segment] = []
        lanes = [closed]
        for extent in self.extents:
            next_entry = offset.next_entry(extent.ledger_id)
            if next_entry is None or next_entry >= extent.entries:
                continue
            if extent.ledger_id not in offset.next_entries:
                if most_new == 0:
                    continue
                most_new = None if most_new is None else most_new - 1
            (closed if extent.is_closed else _new_lane(lanes)).append(_segment(extent, next_entry))
        return lanes

    def advanced(self, offset: LedgersOffset, segments: Sequence[Segment]) -> LedgersOffset:
        """Return the offset behind these segments, which begin at the given one."""
        return self._moved(offset, {segment.ledger_id: segment.last + 1 for segment in segments})

    def latest(self, offset: LedgersOffset) -> LedgersOffset:
        """Return the offset behind everything that can be read."""
        return self.advanced(offset, [segment for lane in self.lanes(offset) for segment in lane])

    # --- inside ---------------------------------------------------------------------------------------------------

    def _moved(self, offset: LedgersOffset, moved: Mapping[int, int]) -> LedgersOffset:
        named = {**offset.next_entries, **moved}
        watermark = offset.watermark
        for extent in self.extents:
            if extent.ledger_id < watermark:
                continue
            if not extent.is_settled:
                break
            if extent.ledger_id not in named and not self._is_done(offset, extent):
                if extent.entries:
                    break
                named[extent.ledger_id] = 0  # open and empty so far: it must not hold the watermark up
            watermark = extent.ledger_id + 1
        for ledger_id in offset.next_entries:
            if ledger_id < watermark and ledger_id not in moved and self._is_done(offset, self.by_id[ledger_id]):
                del named[ledger_id]
        lives = {each: life for each in sorted(named) if (life := self._life(offset, each)) is not None}
        finished = frozenset(filter(partial(self._is_read, named), named))
        return LedgersOffset(watermark, named, finished=finished, lives=lives)

    def _life(self, offset: LedgersOffset, ledger_id: int) -> LedgerLife | None:
        return self.by_id[ledger_id].life or offset.lives.get(ledger_id)

    def _is_read(self, next_entries: Mapping[int, int], ledger_id: int) -> bool:
        extent = self.by_id[ledger_id]
        return extent.is_closed and next_entries[ledger_id] >= extent.entries

    def _is_done(self, offset: LedgersOffset, extent: Extent) -> bool:
        next_entry = offset.next_entry(extent.ledger_id)
        return extent.is_closed and (next_entry is None or next_entry >= extent.entries)


def _new_lane(lanes: list[list[Segment]]) -> list[Segment]:
    lanes.append([])
    return lanes[-1]


def _segment(extent: Extent, first: int) -> Segment:
    entries = extent.entries - first
    return Segment(extent.ledger_id, first, extent.entries - 1, extent.nbytes * entries // max(1, extent.entries))


def _lost(what: str) -> PodkeeperSparkError:
    return PodkeeperSparkError(DATA_LOSS, f"{what}; failOnDataLoss=false goes on with what is left")
