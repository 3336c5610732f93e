"""Streams of ledgers, for a streaming query: their manifests, the confirmed ends of open ledgers, and the progress.

An idle query asks some 80 times a second. So what was seen counts for `metadata_refresh` seconds, and the handles of
open ledgers are kept, as are the parts of long lists that never change.

Invariants
- Nothing is fenced.
- At most `MAX_CONCURRENT` streams are asked about at the same time; handles are kept of the open ledgers alone.
- A batch is the entries between two ordinals of each stream: the same entries whenever it is made again.
- A query that begins at `latest` writes down where that was by an empty first batch, before anything was read; what
  comes after it is never left out, whatever crashes.
- Nothing that was lost is passed over unless `failOnDataLoss=false`.

The methods that end in `_now` run on the client's event loop; the others are for the one thread of the reader, on the
driver.

Source: docs/internals/spark.md, sections 1 (items 7 to 9) and 3.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bookie_client.streams.managed_ledgers import managed_ledger, stored_name
from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import StreamLedger, StreamPosition
from bookie_client.streams.streams import Streams
from bookie_protocol.errors import CouldNotTell, NoSuchLedger, NoSuchStream, StreamPositionGone
from bookie_protocol.together import bounded
from pyspark_bookie.common.errors import DATA_LOSS, PodkeeperSparkError, told
from pyspark_bookie.source.options import OpenLedgers, StreamingOptions
from pyspark_bookie.source.planning import LedgerSnapshot, Range
from pyspark_bookie.source.positions import EARLIEST, Positions, check_named
from pyspark_bookie.source.selection import matching_streams
from pyspark_bookie.source.starting_times import StartingTimes, start_of
from pyspark_bookie.source.streaming.admission import Segment, admit, taken
from pyspark_bookie.source.streaming.offsets import (
    Document,
    Offset,
    Place,
    Start,
    StreamsOffset,
    other_selection,
    stream_ranges,
    turn_of,
)
from pyspark_bookie.source.streaming.open_tails import OpenTails
from pyspark_bookie.source.streaming.progress import TriggerLimit, pass_over, pins, ranges_of
from pyspark_bookie.source.streaming.stream_view import Listed, StreamView
from pyspark_bookie.source.time_search import positions_in_streams

if TYPE_CHECKING:
    from bookie_client.client import Client

MAX_CONCURRENT: Final = 32
_log = logging.getLogger(__name__)
_BEGINNING: Final = Positions(EARLIEST)
Snapshots = Callable[[Mapping[int, Listed]], Mapping[int, LedgerSnapshot]]
"""Ledger ids with how their streams list them, to what reading them takes."""


class StreamTails:
    """The streams that the options select."""

    def __init__(self, options: StreamingOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._names: tuple[str, ...] = ()
        self._names_at = float("-inf")
        self._views: dict[str, StreamView] = {}
        self._views_at = float("-inf")
        self._open = OpenTails(options)
        self._topic = Topic()
        self._client: Client | None = None
        self._streams: Streams | None = None

    def views(self, *, fresh: bool = False) -> dict[str, StreamView]:
        """The views by name, sorted. `fresh`: as of now. Raises `PodkeeperSparkError`."""
        now = self._clock()
        if fresh or now - self._views_at >= self._options.metadata_refresh:
            with told():
                self._views = self._options.client().run(self._all_now)
            self._views_at = self._clock()
        return self._views

    def view(self, name: str) -> StreamView:
        """One stream as of now, whether it is selected or not. Raises `PodkeeperSparkError`."""
        with told(f"stream {name}"):
            return self._options.client().run(lambda client: self._view_now(client, name))

    def positions(self, times: StartingTimes, views: Mapping[str, StreamView]) -> Positions:
        """Return the places of these times. Raises `PodkeeperSparkError`."""
        manifests = [view.manifest for view in views.values()]
        with told():
            return self._options.client().run(
                lambda client: positions_in_streams(client, manifests, times, self._options)
            )

    def move_cursor(self, name: str, place: Place) -> int:
        """Tell a stream how far the query is, and return the ordinal at which its cursor is then. Raises what
        `Streams.move_cursor` does."""
        cursor = self._options.cursor
        assert cursor is not None
        position = StreamPosition(*place.position)
        return self._options.client().run(lambda client: Streams(client).move_cursor(name, cursor, position)).ordinal

    # --- the client's event loop ----------------------------------------------------------------------------------

    async def _all_now(self, client: Client) -> dict[str, StreamView]:
        names = await self._names_now(client)
        seen = await bounded(names, lambda name: self._view_if_there(client, name), MAX_CONCURRENT)
        found = {name: view for name, view in zip(names, seen, strict=True) if view is not None}
        opened = (view.manifest.open_ledger for view in found.values())
        await self._open.keep({each.ledger_id for each in opened if each is not None})
        return found

    async def _view_if_there(self, client: Client, name: str) -> StreamView | None:
        """None: a pattern found the name of a stream that is deleted, or half deleted, by now."""
        try:
            return await self._view_now(client, name)
        except NoSuchStream:
            if self._options.stream_pattern is None:
                raise
            return None

    async def _names_now(self, client: Client) -> tuple[str, ...]:
        options = self._options
        if options.managed_ledger is not None:
            return (stored_name(options.managed_ledger),)
        if options.stream_pattern is None:
            return tuple(sorted({*(options.streams or ()), *([options.stream] if options.stream else [])}))
        if self._clock() - self._names_at >= options.discovery_interval:
            self._names = tuple(await matching_streams(self._streams_of(client), options.stream_pattern))
            self._names_at = self._clock()
        return self._names

    async def _view_now(self, client: Client, name: str) -> StreamView:
        while True:
            listed = await self._listed_now(client, name)
            opened = listed.manifest.open_ledger
            if opened is None or self._options.open_ledgers is OpenLedgers.SKIP:
                return listed
            try:
                return replace(listed, tail=await self._open.tail(client, opened.ledger_id))
            except NoSuchLedger:
                if (await self._listed_now(client, name)).manifest.identity == listed.manifest.identity:
                    raise

    async def _listed_now(self, client: Client, name: str) -> StreamView:
        """Return the view by the list, without the open ledger's entries."""
        if self._options.managed_ledger is None:
            return StreamView(await self._streams_of(client).manifest(name))
        found = await managed_ledger(client, name)
        unreadable = frozenset(each.ledger_id for each in found.offloaded.values() if each.is_deleted)
        left = self._topic.left_by(found.manifest)
        return StreamView(found.manifest, unreadable=unreadable, is_counted=False, left=left)

    def _streams_of(self, client: Client) -> Streams:
        """The same as long as the client is: it keeps the segments of lists that were read."""
        if self._streams is None or self._client is not client:
            self._client, self._streams = client, Streams(client)
        return self._streams


class Topic:
    """Which ledger left Pulsar's list last, as far as this run saw it: only then it is known how long that was."""

    def __init__(self) -> None:
        self._listed: tuple[StreamLedger, ...] = ()
        self._left: StreamPosition | None = None

    def left_by(self, manifest: Manifest) -> StreamPosition | None:
        """Return the end of that ledger; None if it was not seen."""
        gone = [ledger for ledger in self._listed if ledger.ledger_id not in manifest]
        self._listed = manifest.ledgers
        if gone:
            last = gone[-1]
            self._left = None if last.entries is None else StreamPosition(last.ledger_id, last.entries)
        return self._left


class StreamsProgress:
    """`Progress` over streams."""

    def __init__(self, options: StreamingOptions, tails: StreamTails, snapshots: Snapshots) -> None:
        self._options = options
        self._tails = tails
        self._snapshots = snapshots
        self._target: dict[str, Place] | None = None
        self._published: dict[str, int] = {}

    # --- Progress -----------------------------------------------------------------------------------------------

    def latest(self, start: Offset, limit: TriggerLimit) -> Document | None:
        views = self._views(start)
        places, begin = self._from(start, views)
        for name in begin:
            self._protect(name, begin[name])
        names = list(places)
        lanes = [self._readable(views[name], places[name].ordinal, self._end(name, views[name])) for name in names]
        waits = limit.waits(lanes)
        admitted = [0] * len(lanes) if waits else admit(lanes, limit.amount, turn_of(start))
        moved = dict(places)
        for name, lane, entries in zip(names, lanes, admitted, strict=True):
            if entries:
                moved[name] = _behind(views[name], taken(lane, entries)[-1])
        if not any(admitted) and not pins(start):
            return None
        return StreamsOffset(moved, begin).document()

    def tail(self, start: Offset | None) -> Document | None:
        if start is None:
            return None
        views = self._views(start)
        places, begin = self._from(start, views)
        ends = {name: views[name].place(max(places[name].ordinal, self._end(name, views[name]))) for name in places}
        return StreamsOffset(ends, begin).document()

    def stop_here(self) -> None:
        views = self._tails.views(fresh=True)
        self._target = {name: view.place(view.end_ordinal) for name, view in views.items()}

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        if not isinstance(end, StreamsOffset):
            raise other_selection(end, "streams")
        if not isinstance(start, (Start, StreamsOffset)):
            raise other_selection(start, "streams")
        found: list[Segment] = []
        listed: dict[int, Listed] = {}
        for name, first, behind in stream_ranges(start, end):
            view = self._tails.view(name).anchored(behind).reaching(behind)
            # Ordinals alone would name the entries of a stream that was made again.
            if self._kept(view, behind) is not None:
                segments = self._readable(view, first.ordinal, behind.ordinal)
                found += segments
                listed |= {each.ledger_id: (name, view.listed(each.ledger_id)) for each in segments}
        snapshots = self._snapshots(listed)
        return ranges_of(((each.ledger_id, each.first, each.last) for each in found), snapshots, self._options)

    def passed(self, offset: Offset) -> None:
        if isinstance(offset, StreamsOffset):
            for name, place in offset.places.items():
                self._publish(name, place)

    # --- inside -------------------------------------------------------------------------------------------------

    def _views(self, start: Offset) -> Mapping[str, StreamView]:
        """The views that a run which ends by itself began with, or all; with ordinals that go on from the start."""
        views = self._tails.views()
        if self._target is not None:
            views = {name: view for name, view in views.items() if name in self._target}
        places = start.places if isinstance(start, StreamsOffset) else {}
        return {name: view.anchored(places[name]) if name in places else view for name, view in views.items()}

    def _end(self, name: str, view: StreamView) -> int:
        return view.end_ordinal if self._target is None else min(view.end_ordinal, view.ordinal_of(self._target[name]))

    def _from(self, start: Offset, views: Mapping[str, StreamView]) -> tuple[dict[str, Place], dict[str, Place]]:
        """Return where the next batch begins in each stream; and, of these, the places that `start` does not hold."""
        if isinstance(start, Start):
            chosen = start_of(start.position)
            if isinstance(chosen, StartingTimes):
                chosen = self._tails.positions(chosen, views)
            there = {ledger.ledger_id for view in views.values() for ledger in view.manifest.ledgers}
            check_named(chosen, there, "startingPosition", "any selected stream")
            begin = {name: view.begin(chosen) for name, view in views.items()}
            return dict(begin), begin
        if not isinstance(start, StreamsOffset):
            raise other_selection(start, "streams")
        for name in start.places:
            if name not in views:
                pass_over(
                    self._options, PodkeeperSparkError(DATA_LOSS, f"stream {name} was deleted or is no longer selected")
                )
        places, begin = {}, {}
        for name, view in views.items():
            found = self._kept(view, start.places.get(name))
            if found is None:
                found = begin[name] = view.begin(_BEGINNING)
            places[name] = found
        return places, begin

    def _kept(self, view: StreamView, place: Place | None) -> Place | None:
        if place is None:
            return None
        try:
            return view.checked(place)
        except PodkeeperSparkError as error:
            pass_over(self._options, error)
            return None

    def _readable(self, view: StreamView, first: int, behind: int) -> list[Segment]:
        behind = max(first, behind)
        try:
            return view.segments(first, behind)
        except PodkeeperSparkError as error:
            pass_over(self._options, error)
            return view.what_is_left(first, behind)

    def _protect(self, name: str, place: Place) -> None:
        """Move the cursor to the start of the query before anything is read from there; fail the query if that
        fails."""
        if self._options.cursor is None or self._published.get(name) == place.ordinal:
            return
        with told(f"stream {name}"):
            at = self._tails.move_cursor(name, place)
        self._published[name] = place.ordinal
        if at > place.ordinal:
            _log.warning(
                "cursor %s of stream %s is %d entries farther than where the query begins, and cursors only go"
                " forwards: nothing keeps those entries from retention; delete the cursor, or choose another one",
                self._options.cursor,
                name,
                at - place.ordinal,
            )

    def _publish(self, name: str, place: Place) -> None:
        """Publish the cursor; one that cannot be moved now is moved with the next batch."""
        if self._options.cursor is None or self._published.get(name) == place.ordinal:
            return
        with told(f"stream {name}"):
            self._move(name, place)

    def _move(self, name: str, place: Place) -> None:
        try:
            self._tails.move_cursor(name, place)
        except (CouldNotTell, StreamPositionGone) as error:
            _log.warning("cursor %s of stream %s stays behind: %s", self._options.cursor, name, error)
            if isinstance(error, CouldNotTell):
                return  # again with the next trigger
        self._published[name] = place.ordinal


def _behind(view: StreamView, segment: Segment) -> Place:
    ledgers = view.manifest.ledgers
    first = next(ledger.first_ordinal for ledger in ledgers if ledger.ledger_id == segment.ledger_id)
    return view.place(first + segment.last + 1)
