"""How a streaming query goes through ledgers that are no stream.

Invariants
- What a batch reads follows from its two offsets alone: for each ledger, from which entry to which.
- A query that begins at `latest` writes down where that was by an empty first batch, before anything was read.
- Nothing that was lost is passed over unless `failOnDataLoss=false`.

One thread, on the driver.

Source: reference Spark notes, sections 1 (items 7 to 9) and 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.source.planning import LedgerSnapshot, Range
from pyspark_bookie.source.positions import positions
from pyspark_bookie.source.streaming.admission import admit, taken
from pyspark_bookie.source.streaming.ledger_view import Extent, LedgersView
from pyspark_bookie.source.streaming.offsets import (
    Document,
    LedgersOffset,
    Offset,
    Start,
    StreamsOffset,
    ledger_ranges,
    other_selection,
    turn_of,
)
from pyspark_bookie.source.streaming.options import StreamingOptions
from pyspark_bookie.source.streaming.progress import TriggerLimit, pass_over, pins, ranges_of

_SELECTED: Final = "ledgers"


class LedgerTails(Protocol):
    """What ledgers have now. Both raise `PodkeeperSparkError`."""

    def view(self, *, fresh: bool = False) -> LedgersView:
        """All that are selected; `fresh`: as of now."""

    def snapshots(self, ledger_ids: Sequence[int]) -> Mapping[int, LedgerSnapshot]:
        """What reading these takes; those that do not exist are left out."""


class LedgersProgress:
    """`Progress` over ledgers."""

    def __init__(self, options: StreamingOptions, tails: LedgerTails) -> None:
        self._options = options
        self._tails = tails
        self._target: Mapping[int, int] | None = None

    # --- Progress -----------------------------------------------------------------------------------------------

    def latest(self, start: Offset, limit: TriggerLimit) -> Document | None:
        view = self._view()
        known = self._from(start, view)
        lanes = view.lanes(known, limit.ledgers)
        admitted = admit(lanes, limit.amount, turn_of(start))
        if not any(admitted):
            return replace(known, begin=known).document() if pins(start) else None
        segments = [each for lane, entries in zip(lanes, admitted, strict=True) for each in taken(lane, entries)]
        return self._offset(start, known, view.advanced(known, segments)).document()

    def tail(self, start: Offset | None) -> Document | None:
        if start is None:
            return None
        view = self._view()
        known = self._from(start, view)
        return self._offset(start, known, view.latest(known)).document()

    def stop_here(self) -> None:
        self._target = {each.ledger_id: each.entries for each in self._tails.view(fresh=True).extents}

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        if not isinstance(end, LedgersOffset) or isinstance(start, StreamsOffset):
            raise other_selection(end, _SELECTED)
        found = ledger_ranges(start, end)
        snapshots = self._tails.snapshots([ledger_id for ledger_id, _, _ in found])
        return ranges_of(found, snapshots, self._options)

    def passed(self, offset: Offset) -> None:
        """Ledgers have no place for a cursor."""

    # --- inside -------------------------------------------------------------------------------------------------

    def _view(self) -> LedgersView:
        view = self._tails.view()
        target = self._target
        if target is None:
            return view
        extents = [_up_to(each, target[each.ledger_id]) for each in view.extents if each.ledger_id in target]
        return LedgersView(extents, view.missing)

    def _from(self, start: Offset, view: LedgersView) -> LedgersOffset:
        if isinstance(start, Start):
            return view.begin(positions(start.position))
        if not isinstance(start, LedgersOffset):
            raise other_selection(start, _SELECTED)
        try:
            return view.checked(start)
        except PodkeeperSparkError as error:
            pass_over(self._options, error)
            return view.what_is_left(start)

    def _offset(self, start: Offset, known: LedgersOffset, end: LedgersOffset) -> LedgersOffset:
        return replace(end, begin=known) if isinstance(start, Start) else end


def _up_to(extent: Extent, entries: int) -> Extent:
    """As if it had no entries behind these, and might get more."""
    return extent if extent.entries <= entries else replace(extent, entries=entries, is_closed=False)
