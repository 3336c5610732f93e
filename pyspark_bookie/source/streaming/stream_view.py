"""A stream of ledgers as a streaming query sees it: the entries between two ordinals.

Ordinals, not ledgers, say what is in a batch: they are the same for ever, whatever is truncated, overwritten or
appended meanwhile. Ledger and entry of a place are there for people, and to notice a stream that was deleted and made
again. Pulsar keeps no ordinals: there a place says what those of its ledger are, and the others follow (`anchored`).

Invariants
- The entries between two ordinals are the same whenever they are asked for, or it is an error.
- The place for an ordinal is always the same one: behind the last entry in front of it, if that is listed. So two equal
  offsets have equal texts, and no place is ever in a ledger of which nothing was read.

Pure; any process.

Source: docs/internals/spark.md, section 3.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import StreamLedger, StreamPosition
from bookie_protocol.errors import PodkeeperError
from pyspark_bookie.common.errors import DATA_LOSS, PodkeeperSparkError
from pyspark_bookie.source.positions import LATEST, Positions
from pyspark_bookie.source.streaming.admission import Segment
from pyspark_bookie.source.streaming.offsets import Place
from pyspark_bookie.source.streaming.open_tails import OpenTail

Listed = tuple[str | None, StreamLedger | None]
"""The stream that a ledger was selected by, and how that lists it; None: by none, or by one that does not count."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """`unreadable`: ledgers that are listed and cannot be read from here, because Pulsar has moved them away.
    `is_counted`: whether the list says how many entries were in front of it, as a stream's does and Pulsar's does not.
    `left`: of a list that does not, the end of the ledger that left it last, if that was seen."""

    manifest: Manifest
    tail: OpenTail = field(default_factory=OpenTail)
    unreadable: frozenset[int] = frozenset()
    is_counted: bool = True
    left: StreamPosition | None = None

    @property
    def name(self) -> str:
        return self.manifest.name

    # --- edges --------------------------------------------------------------------------------------------------

    @property
    def first_ordinal(self) -> int:
        return self.manifest.ordinal(self.manifest.earliest)

    @property
    def end_ordinal(self) -> int:
        ledgers = self.manifest.ledgers
        return ledgers[-1].first_ordinal + self._entries(ledgers[-1]) if ledgers else self.manifest.base_ordinal

    def place(self, ordinal: int) -> Place:
        """Return the place in front of the entry with this ordinal, which lies between the edges."""
        ledgers = self.manifest.ledgers
        before = bisect_left(ledgers, ordinal, key=lambda ledger: ledger.first_ordinal) - 1
        if before >= 0:
            return Place(ledgers[before].ledger_id, ordinal - ledgers[before].first_ordinal, ordinal)
        return Place(-1, 0, ordinal)

    def begin(self, positions: Positions) -> Place:
        """Return the start of a new query: the edge, or the one ledger of the stream that the positions name.
        Raises `PodkeeperSparkError`."""
        named = [ledger for ledger in self.manifest.ledgers if ledger.ledger_id in positions.ledgers]
        if len(named) > 1:
            ids = ", ".join(str(ledger.ledger_id) for ledger in named)
            text = f"startingPosition names several ledgers of stream {self.name} ({ids}): a stream has one position"
            raise PodkeeperSparkError("OPTION", text)
        if named:
            entry = positions.begin(named[0].ledger_id, self._entries(named[0]), is_open=named[0].is_open)
            return self.place(max(named[0].first_ordinal + entry, self.first_ordinal))
        return self.place(self.end_ordinal if positions.everywhere == LATEST else self.first_ordinal)

    def listed(self, ledger_id: int) -> StreamLedger | None:
        """A ledger of the list; None where the list is not held against ledgers."""
        return self.manifest.ledger(ledger_id) if self.is_counted else None

    # --- lists without a count ----------------------------------------------------------------------------------

    def anchored(self, place: Place) -> StreamView:
        """The view with the ordinals that a place of the same query has: those of its ledger, and if that left the
        list, those of what comes behind it."""
        if self.is_counted or place.ledger_id < 0:
            return self
        ledgers = self.manifest.ledgers
        listed = [each for each in ledgers if each.ledger_id == place.ledger_id]
        base = place.ordinal - (place.entry_id + listed[0].first_ordinal - self.manifest.base_ordinal if listed else 0)
        shift = base - self.manifest.base_ordinal
        moved = tuple(replace(each, first_ordinal=each.first_ordinal + shift) for each in ledgers)
        return replace(self, manifest=replace(self.manifest, ledgers=moved, base_ordinal=base))

    def ordinal_of(self, place: Place) -> int:
        """Return the ordinal of a place of this list that has other ordinals, or of what is left behind it."""
        if self.is_counted:
            return place.ordinal
        found = [each.first_ordinal for each in self.manifest.ledgers if each.ledger_id == place.ledger_id]
        return found[0] + place.entry_id if found else self.first_ordinal

    # --- what a query has read and can read ---------------------------------------------------------------------

    def reaching(self, place: Place) -> StreamView:
        """The view, with the open ledger at least up to a place in it. The last add confirmed that bookies tell may be
        older than the one that was known when the offset was made."""
        open_ledger = self.manifest.open_ledger
        if open_ledger is None or place.ledger_id != open_ledger.ledger_id or place.entry_id <= self.tail.entries:
            return self
        per_entry = self.tail.nbytes // max(1, self.tail.entries)
        return replace(self, tail=OpenTail(place.entry_id, self.tail.nbytes + per_entry * place.entry_id))

    def checked(self, place: Place) -> Place:
        """A place of a checkpoint, if everything behind it can still be read. Raises `PodkeeperSparkError`
        (DATA_LOSS)."""
        self._check_listed(place)
        first, end = self.first_ordinal, self.reaching(place).end_ordinal
        if place.ordinal < first:
            lost = first - place.ordinal
            self._lost(
                f"{lost} entries behind position {place.ledger_id}:{place.entry_id} were truncated or overwritten"
            )
        try:
            listed = self.manifest.ordinal(StreamPosition(*place.position)) == place.ordinal
        except PodkeeperError:
            listed = place.ordinal == first
        if place.ordinal > end or not listed:
            self._lost(
                f"position {place.ledger_id}:{place.entry_id} (entry number {place.ordinal}) is not part of it, though"
                " it was read up to there: it was deleted and made again"
            )
        return place

    def segments(self, start: int, end: int) -> list[Segment]:
        """The entries with ordinals from `start` up to, not including, `end`. Raises `PodkeeperSparkError` (DATA_LOSS)
        when the stream does not have all of them, or Pulsar has moved some away."""
        found = list(self._between(start, end))
        missing = end - start - sum(segment.entries for segment in found)
        if missing:
            self._lost(f"{missing} of the entries number {start} to {end - 1} are gone")
        for segment in found:
            if segment.ledger_id in self.unreadable:
                self._lost(f"ledger {segment.ledger_id} was offloaded by Pulsar and deleted from the bookies")
        return found

    def what_is_left(self, start: int, end: int) -> list[Segment]:
        """Return the segments as `segments` does, without what is lost."""
        return [segment for segment in self._between(start, end) if segment.ledger_id not in self.unreadable]

    # --- inside -------------------------------------------------------------------------------------------------

    def _check_listed(self, place: Place) -> None:
        """Check a place against a list without a count: nothing can be missing between it and the list."""
        if self.is_counted or place.ledger_id < 0 or place.ledger_id in self.manifest:
            return
        if self.left != StreamPosition(place.ledger_id, place.entry_id):
            self._lost(
                f"ledger {place.ledger_id} is no longer listed by Pulsar; it was read up to position"
                f" {place.ledger_id}:{place.entry_id}, and whether more entries followed is unknown"
            )

    def _between(self, start: int, end: int) -> Iterator[Segment]:
        start = max(start, self.first_ordinal)
        ledgers = self.manifest.ledgers
        index = max(0, bisect_left(ledgers, start + 1, key=lambda ledger: ledger.first_ordinal) - 1)
        for ledger in ledgers[index:]:
            first = max(0, start - ledger.first_ordinal)
            last = min(self._entries(ledger), end - ledger.first_ordinal) - 1
            if ledger.first_ordinal >= end:
                return
            if last >= first:
                yield Segment(ledger.ledger_id, first, last, self._bytes(ledger, last - first + 1))

    def _entries(self, ledger: StreamLedger) -> int:
        return self.tail.entries if ledger.entries is None else ledger.entries

    def _bytes(self, ledger: StreamLedger, entries: int) -> int:
        whole = self.tail.nbytes if ledger.nbytes is None else ledger.nbytes
        return whole * entries // max(1, self._entries(ledger))

    def _lost(self, what: str) -> None:
        raise PodkeeperSparkError(
            DATA_LOSS, f"stream {self.name}: {what}; failOnDataLoss=false goes on with what is left"
        )
