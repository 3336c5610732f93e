"""Ledgers without a stream, for a streaming query: their extents, and the query's progress through them.

The end of a closed ledger never changes, so each is looked at once. New ledgers are looked for every
`discovery_interval`, open ones every `metadata_refresh`.

Invariants
- Nothing is fenced.
- What is kept of a ledger is a few numbers; handles are kept of open ledgers alone.
- A ledger that leaves the cluster for the archive stays what it was: closed, with as many entries.
- What a batch reads follows from its two offsets alone: for each ledger, from which entry to which.
- A query that begins at `latest` writes down where that was by an empty first batch, before anything was read.
- Nothing that was lost is passed over unless `failOnDataLoss=false`.

The methods that end in `_now` run on the client's event loop; the others are for the one thread of the reader, on the
driver.

Source: docs/internals/spark.md, sections 1 (items 7 to 9) and 3.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bookie_client.access import access_to
from bookie_protocol.archive import ArchivedLedger
from bookie_protocol.errors import BookieUnavailable, NoSuchLedger, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import LedgerLife, Versioned
from bookie_protocol.metadata_service.records import archived_ledger
from bookie_protocol.together import bounded
from pyspark_bookie.common.errors import DATA_LOSS, PodkeeperSparkError, spark_error, told
from pyspark_bookie.source.archived import all_archived, recorded
from pyspark_bookie.source.options import OpenLedgers, StreamingOptions
from pyspark_bookie.source.planning import LedgerSnapshot, Range
from pyspark_bookie.source.positions import Positions
from pyspark_bookie.source.selection import (
    DamagedLedger,
    ids_of,
    matching,
    of_archived,
    stored_metadata,
    stored_or_damaged,
)
from pyspark_bookie.source.snapshots import listed_snapshot, moved_snapshot
from pyspark_bookie.source.starting_times import StartingTimes, start_of
from pyspark_bookie.source.streaming.admission import admit, taken
from pyspark_bookie.source.streaming.ledger_view import Extent, LedgersView
from pyspark_bookie.source.streaming.offsets import (
    Document,
    LedgersOffset,
    Offset,
    Start,
    ledger_ranges,
    other_selection,
    turn_of,
)
from pyspark_bookie.source.streaming.open_tails import OpenTails
from pyspark_bookie.source.streaming.progress import TriggerLimit, pass_over, pins, ranges_of
from pyspark_bookie.source.streaming.stream_view import Listed
from pyspark_bookie.source.time_search import DatedLedger, positions_in_ledgers

if TYPE_CHECKING:
    from bookie_client.client import Client

MAX_CONCURRENT: Final = 32


_log = logging.getLogger(__name__)


class SelectedLedgers:
    """The ledgers that the options select. `wall_clock` in seconds since 1970."""

    def __init__(
        self,
        options: StreamingOptions,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._clock = clock
        self._wall_clock = wall_clock
        self._matches = None if options.ledger_pattern is None else matching(options.ledger_pattern)
        self._closed: dict[int, Extent] = {}
        self._open: dict[int, Versioned[LedgerMetadata]] = {}
        self._others: set[int] = set()
        """Ledgers that are not selected."""
        self._seen: dict[int, Extent] = {}
        """Extents of open ledgers at their last look."""
        self._silent: set[int] = set()
        """Open ledgers whose bookies do not answer, and for which a warning was logged."""
        self._damaged: set[int] = set()
        """Ledgers with damaged metadata that were reported."""
        self._moved: set[int] = set()
        """Closed ledgers that are in the archive alone."""
        self._young: dict[int, float] = {}
        """Times at which closed ledgers will be settled, in seconds since 1970."""
        self._tails = OpenTails(options)
        self._missing: frozenset[int] = frozenset()
        self._view = LedgersView([])
        self._seen_at = self._looked_at = float("-inf")

    # --- what they have now -------------------------------------------------------------------------------------

    def view(self, *, fresh: bool = False) -> LedgersView:
        """All that are selected; `fresh`: as of now. Raises `PodkeeperSparkError`."""
        if fresh or self._clock() - self._looked_at >= self._options.metadata_refresh:
            discover = fresh or self._clock() - self._seen_at >= self._options.discovery_interval
            with told():
                self._view = self._options.client().run(lambda client: self._view_now(client, discover))
            self._looked_at = self._clock()
        return self._view

    def snapshots(self, ledger_ids: Sequence[int]) -> Mapping[int, LedgerSnapshot]:
        """Return the snapshots for reading these; those that do not exist are left out. Raises
        `PodkeeperSparkError`."""
        return snapshots(self._options, dict.fromkeys(ledger_ids, (None, None)))

    def positions(self, times: StartingTimes, view: LedgersView) -> Positions:
        """Return the places of these times. Raises `PodkeeperSparkError`."""
        ledgers = [
            DatedLedger(each.ledger_id, each.created_ms, each.entries if each.is_closed else None)
            for each in view.extents
        ]
        with told():
            return self._options.client().run(
                lambda client: positions_in_ledgers(client, ledgers, times, self._options)
            )

    def archived(self, ledger_ids: Collection[int]) -> Mapping[int, LedgerSnapshot]:
        """Return those of these that are in the archive, as they can be read there. Raises `PodkeeperSparkError`."""

        async def every(client: Client) -> list[LedgerSnapshot | None]:
            return await bounded(ledger_ids, lambda each: moved_snapshot(client, each, self._options), MAX_CONCURRENT)

        with told():
            found = self._options.client().run(every)
        return {snapshot.ledger_id: snapshot for snapshot in found if snapshot is not None}

    # --- the client's event loop ----------------------------------------------------------------------------------

    async def _view_now(self, client: Client, discover: bool) -> LedgersView:
        if discover:
            await self._discover_now(client)
            self._seen_at = self._clock()
        found = await bounded(list(self._open), lambda ledger_id: self._extent_now(client, ledger_id), MAX_CONCURRENT)
        await self._tails.keep(self._open)
        self._settle()
        self._seen = {ledger_id: each for ledger_id, each in self._seen.items() if ledger_id in self._open}
        self._silent &= self._open.keys()
        extents = [*self._closed.values(), *(extent for extent in found if extent is not None)]
        return LedgersView(sorted(extents, key=lambda extent: extent.ledger_id), self._missing)

    async def _discover_now(self, client: Client) -> None:
        ids = await ids_of(client, self._options.ledgers)
        existing = {*ids, *await self._moved_now(client, frozenset(ids))}
        named = self._options.ledgers.singles() if self._options.ledgers is not None else ()
        self._missing = frozenset(named) - existing
        self._closed = {ledger_id: each for ledger_id, each in self._closed.items() if ledger_id in existing}
        self._open = {ledger_id: each for ledger_id, each in self._open.items() if ledger_id in existing}
        self._others &= existing
        new = [each for each in ids if not (each in self._closed or each in self._open or each in self._others)]
        for stored in await bounded(new, lambda ledger_id: stored_or_damaged(client, ledger_id)):
            if isinstance(stored, DamagedLedger):
                self._pass_over(stored)
            elif stored is not None:
                self._take(stored)

    def _pass_over(self, damaged: DamagedLedger) -> None:
        """Leave out an unreadable ledger, as far as `failOnDataLoss` allows; each look tries it again."""
        if damaged.ledger_id not in self._damaged:
            pass_over(
                self._options,
                PodkeeperSparkError(DATA_LOSS, f"{damaged.why}; failOnDataLoss=false goes on without the ledger"),
            )
            self._damaged.add(damaged.ledger_id)

    async def _moved_now(self, client: Client, ids: frozenset[int]) -> frozenset[int]:
        """Update what is known of ledgers that do not exist; return those that the archive has."""
        if not self._options.reads_archive:
            return frozenset()
        gone = await recorded(client, self._options.ledgers) - ids
        self._moved &= gone
        left = gone & self._others
        begun = (gone & (self._closed.keys() | self._open.keys())) - self._moved
        new = gone - self._moved - left - begun
        found = await all_archived(client, begun | new)
        chosen = await of_archived([each for each in found.values() if each.ledger_id in new], self._matches)
        for each in [*chosen, *(each for each in found.values() if each.ledger_id in begun)]:
            self._move(each)
        others = found.keys() - self._moved
        self._others |= others
        return frozenset(self._moved | left | others)

    async def _move_now(self, client: Client, ledger_id: int) -> None:
        """An open ledger is gone: it was closed meanwhile if the archive has it."""
        found = (
            await archived_ledger(client.metadata_service.records, ledger_id) if self._options.reads_archive else None
        )
        if found is None:
            del self._open[ledger_id]
        else:
            self._move(found)

    def _move(self, ledger: ArchivedLedger) -> None:
        self._open.pop(ledger.ledger_id, None)
        self._moved.add(ledger.ledger_id)
        entries, nbytes = ledger.counts.entries, ledger.counts.nbytes
        self._close(ledger.ledger_id, ledger.created_ms, entries, nbytes, None)

    def _take(self, stored: Versioned[LedgerMetadata]) -> None:
        metadata = stored.value
        if self._matches is not None and not self._matches(metadata.custom_metadata):
            self._others.add(metadata.ledger_id)
            return
        try:
            access_to(metadata, self._options.password.read(), self._options.digest_type)
        except PodkeeperError as error:
            raise spark_error(error, f"ledger {metadata.ledger_id}") from None
        if metadata.is_closed:
            entries, nbytes = metadata.last_entry_id + 1, metadata.length
            self._close(metadata.ledger_id, metadata.ctime, entries, nbytes, LedgerLife.of(stored))
        else:
            self._open[metadata.ledger_id] = stored

    async def _extent_now(self, client: Client, ledger_id: int) -> Extent | None:
        """None: it was deleted meanwhile, or is among the closed ones now."""
        if self._options.open_ledgers is OpenLedgers.SKIP:
            return await self._skipped_now(client, ledger_id)
        try:
            tail = await self._tails.tail(client, ledger_id)
        except NoSuchLedger:
            await self._move_now(client, ledger_id)
            return None
        except PodkeeperError as error:
            return self._as_last_seen(ledger_id, error)
        known = self._open[ledger_id]
        ctime, life = known.value.ctime, LedgerLife.of(known)
        if tail.is_closed:
            del self._open[ledger_id]
            self._close(ledger_id, ctime, tail.entries, tail.nbytes, life)
            return None
        seen = Extent(ledger_id, tail.entries, tail.nbytes, False, self._is_settled(ctime), life, ctime)
        self._seen[ledger_id] = seen
        self._silent.discard(ledger_id)
        return seen

    def _as_last_seen(self, ledger_id: int, error: PodkeeperError) -> Extent:
        """Return the last extent of an open ledger whose bookies do not answer, so that the others continue.
        Raises `PodkeeperSparkError` for one that was never seen: the start of a query in it is unknown."""
        seen = self._seen.get(ledger_id)
        if seen is None or not isinstance(error, BookieUnavailable):
            raise spark_error(error, f"ledger {ledger_id}") from None
        if ledger_id not in self._silent:
            self._silent.add(ledger_id)
            _log.warning("ledger %d is read no farther until its bookies answer: %s", ledger_id, error)
        return seen

    async def _skipped_now(self, client: Client, ledger_id: int) -> Extent | None:
        """An open ledger that is left out until it is closed counts as one without entries."""
        stored = await stored_metadata(client, ledger_id)
        if stored is None:
            await self._move_now(client, ledger_id)
            return None
        if stored.value.is_closed:
            del self._open[ledger_id]
            self._take(stored)
            return None
        ctime = stored.value.ctime
        return Extent(ledger_id, 0, 0, False, self._is_settled(ctime), LedgerLife.of(stored), ctime)

    def _close(self, ledger_id: int, ctime: int | None, entries: int, nbytes: int, life: LedgerLife | None) -> None:
        is_settled = self._is_settled(ctime)
        self._closed[ledger_id] = Extent(ledger_id, entries, nbytes, True, is_settled, life, ctime)
        if not is_settled:
            self._young[ledger_id] = self._settles_at(ctime)

    def _settle(self) -> None:
        now = self._wall_clock()
        for ledger_id in [ledger_id for ledger_id, at in self._young.items() if at <= now]:
            del self._young[ledger_id]
            if ledger_id in self._closed:
                self._closed[ledger_id] = replace(self._closed[ledger_id], is_settled=True)

    def _is_settled(self, ctime: int | None) -> bool:
        return self._settles_at(ctime) <= self._wall_clock()

    def _settles_at(self, ctime: int | None) -> float:
        """Seconds since 1970; `ctime` in ms."""
        return 0.0 if ctime is None else ctime / 1000 + self._options.settling_time


def snapshots(options: StreamingOptions, wanted: Mapping[int, Listed]) -> Mapping[int, LedgerSnapshot]:
    """Return the snapshots for reading ledgers, by id, without those that exist neither in the cluster nor in an
    archive as listed. Raises `PodkeeperSparkError`."""
    options = replace(
        options, open_ledgers=OpenLedgers.LAC
    )  # a batch that was planned once is read, whatever is said now

    async def one(client: Client, ledger_id: int) -> LedgerSnapshot | None:
        try:
            return await listed_snapshot(client, ledger_id, options, *wanted[ledger_id])
        except PodkeeperError as error:
            raise spark_error(error, f"ledger {ledger_id}") from None

    async def every(client: Client) -> list[LedgerSnapshot | None]:
        return await bounded(list(wanted), lambda ledger_id: one(client, ledger_id), MAX_CONCURRENT)

    with told():
        found = options.client().run(every)
    return {snapshot.ledger_id: snapshot for snapshot in found if snapshot is not None}


class LedgersProgress:
    """`Progress` over ledgers."""

    def __init__(self, options: StreamingOptions, tails: SelectedLedgers) -> None:
        self._options = options
        self._tails = tails
        self._target: Mapping[int, int] | None = None

    # --- Progress -----------------------------------------------------------------------------------------------

    def latest(self, start: Offset, limit: TriggerLimit) -> Document | None:
        view = self._view()
        known = self._from(start, view)
        lanes = view.lanes(known, limit.ledgers)
        admitted = admit(lanes, limit.amount, turn_of(start))
        if not any(admitted) or (limit.least and limit.waits(view.lanes(known))):
            return self._offset(start, known, known).document() if pins(start) else None
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
        begin, behind = start if isinstance(start, Start) else self._mine(start), self._mine(end)
        found = ledger_ranges(begin, behind)
        snapshots = dict(self._tails.snapshots([ledger_id for ledger_id, _, _ in found]))
        others = [each for each, life in behind.lives.items() if _is_other(snapshots.get(each), life)]
        for each in others:
            del snapshots[each]
        if others:
            snapshots |= self._tails.archived(others)
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
            chosen = start_of(start.position)
            return view.begin(self._tails.positions(chosen, view) if isinstance(chosen, StartingTimes) else chosen)
        offset = self._mine(start)
        if others := view.others(offset):
            view = replace(view, restored=self._restored(view, others))
        try:
            return view.checked(offset)
        except PodkeeperSparkError as error:
            pass_over(self._options, error)
            return view.what_is_left(offset)

    def _restored(self, view: LedgersView, others: Collection[int]) -> frozenset[int]:
        """Return those of other lives that equal the archive's copy of their number: `restore --keep-ids` made them."""
        extents = view.by_id
        return frozenset(
            each.ledger_id
            for each in self._tails.archived(others).values()
            if extents[each.ledger_id].is_closed
            and (each.entries, each.length) == (extents[each.ledger_id].entries, extents[each.ledger_id].nbytes)
        )

    def _mine(self, offset: Offset) -> LedgersOffset:
        """Return an offset of the checkpoint. Raises `PodkeeperSparkError` (OFFSET) for one of another selection:
        its watermark would skip ledgers that were never read."""
        if not isinstance(offset, LedgersOffset):
            raise other_selection(offset, "ledgers")
        if offset.selection not in (None, self._options.fingerprint):
            raise other_selection(offset, f"the selection {self._options.fingerprint}")
        return offset

    def _offset(self, start: Offset, known: LedgersOffset, end: LedgersOffset) -> LedgersOffset:
        end = replace(end, selection=self._options.fingerprint)
        return replace(end, begin=known) if isinstance(start, Start) else end


def _is_other(snapshot: LedgerSnapshot | None, life: LedgerLife) -> bool:
    return snapshot is not None and snapshot.life not in (None, life)


def _up_to(extent: Extent, entries: int) -> Extent:
    """Return the extent without the entries behind these, as if it might get more."""
    return extent if extent.entries <= entries else replace(extent, entries=entries, is_closed=False)
