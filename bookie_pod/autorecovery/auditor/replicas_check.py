"""The check of replicas: ask every bookie of a ledger what it stores, and compare with what striping demands.

Invariants
- Of an open ledger only confirmed entries are compared. In its last segment only a bookie that is there and denies the
  same entry twice is marked: a worker fills it in again, and its writer notices nothing.
- A bookie that does not answer is unknown, not empty; its copies are neither counted as missing nor marked.
- A bookie that is silent too often in a row is not asked again in this pass (`bookie_client.replication.lists`).
- A ledger that misses a copy twice is marked, if marking is asked for; ledgers that are marked already are left to the
  workers. A look at bookies that were away includes them: a mark may name other bookies, and its worker may have looked
  before.
- Numbers are those of the whole pass (the reference's are those of its last range).
- "Missing" is said only of bookies that answered, or that are lost. Where that is unknown, a copy counts as neither
  there nor missing, so an entry is called short of copies only when that is certain.
- Work is done in pieces of `PIECE` entries: memory does not grow with the ledger.

Event loop only; counting a large ledger yields to the loop between pieces.

Sources: docs/internals/client-protocol.md, section 4; docs/internals/auto-recovery.md, section 4.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import structlog

from bookie_client.replication.fragments import Fragment, fragments
from bookie_client.replication.lists import AskStored, Lists
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor.marking import Known, Marked, Marker
from bookie_pod.autorecovery.auditor.sweep import Look, Suspect
from bookie_protocol.errors import (
    MetadataDamaged,
    MetadataNotFound,
    NotThere,
    PodkeeperError,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.findings import Finding, Reason, joined
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.wire.availability import Availability

PIECE: Final = 1 << 18

Stored = Availability | None
"""The entries that a bookie says it stores; None: unknown."""
NOTHING: Final = Availability([])

_Mask = npt.NDArray[np.bool_]
_log = structlog.get_logger(__name__)
FINDER: Final = "check of replicas"
NO_COPY, OF_ACK_QUORUM, OF_WRITE_QUORUM = SHORT = ("short_no_copy", "short_of_ack_quorum", "short_of_write_quorum")
"""Counts of ledgers with an entry that has no copy, fewer than the ack quorum, fewer than the write quorum."""
AskEnd = Callable[[LedgerMetadata], Awaitable[tuple[int, PodkeeperError | None]]]
"""`known_end`."""


@dataclass(slots=True)
class Copies:
    """The findings in one segment, or several: the worst entry, and the entries that each bookie misses."""

    fewest: int
    """Copies of the entry that has the fewest, with unknown copies counted as there."""
    missing: dict[str, int]
    """Entries that each bookie should hold and does not."""
    first_missing: dict[str, int]
    """The first of them."""


def count_copies(segment: Fragment, stored: Mapping[str, Stored]) -> Iterator[Copies]:
    """Yield `Copies` for each piece of the segment; `stored` has every bookie of the ensemble."""
    for first in range(segment.first_entry, segment.last_entry + 1, PIECE):
        yield _piece(segment, range(first, min(first + PIECE, segment.last_entry + 1)), stored)


def _piece(segment: Fragment, entries: range, stored: Mapping[str, Stored]) -> Copies:
    size, write_quorum = len(segment.ensemble), segment.quorums.write
    turns = np.arange(entries.start, entries.stop, dtype=np.int64) % size
    copies = np.zeros(len(entries), dtype=np.int16)
    found = Copies(write_quorum, {}, {})
    for position, bookie in enumerate(segment.ensemble):
        wanted = (position - turns) % size < write_quorum
        availability = stored[bookie]
        if availability is None:
            copies += wanted
            continue
        there = _mask(availability, entries)
        copies += wanted & there
        gone = np.flatnonzero(wanted & ~there)
        if len(gone):
            found.missing[bookie] = found.missing.get(bookie, 0) + len(gone)
            found.first_missing[bookie] = entries.start + int(gone[0])
    found.fewest = int(copies.min(initial=write_quorum))
    return found


def _mask(availability: Availability, entries: range) -> _Mask:
    mask = np.zeros(len(entries), dtype=np.bool_)
    for run in availability.runs_between(entries.start, entries.stop):
        mask[run.start - entries.start : run.stop - entries.start] = True
    return mask


class ReplicasCheck:
    """One pass; see `sweep`. `marks`: mark what is missing. `metadata_pace` and `pace`: reads of metadata, requests.

    `only`: look at the ledgers that name these bookies, and ask no other bookie; None: look at all.
    """

    def __init__(
        self,
        service: MetadataService,
        ask: AskStored,
        ask_end: AskEnd,
        marker: Marker,
        known: Known,
        *,
        metadata_pace: ReplicationThrottle,
        pace: ReplicationThrottle,
        marks: bool,
        only: frozenset[str] | None = None,
    ) -> None:
        self._service = service
        self._lists = Lists(ask, pace)
        self._ask_end = ask_end
        self._only = only
        self._untold: set[str] = set()
        # Ledgers that others keep locked, with the bookies that lack entries of them.
        self._locked: dict[int, set[str]] = {}
        self._marker = marker
        self._known = known
        self._metadata_pace = metadata_pace
        self._pace = pace
        self._marks = marks

    @property
    def untold(self) -> set[str]:
        """Return the bookies that did not answer for some ledger, or that lack entries without a mark."""
        return self._untold.union(*self._locked.values())

    async def look(self, ledger_id: int) -> Look:
        metadata = await self._metadata(ledger_id)
        if isinstance(metadata, Look):
            return metadata
        look = await self._compare(metadata)
        return Look({name: count for name, count in look.counts.items() if name not in SHORT}, look.suspects)

    async def look_again(self, ledger_id: int, suspects: frozenset[Suspect]) -> Look:
        """Count and mark what is missing twice; the counts of the ledger come from here."""
        self._locked.pop(ledger_id, None)
        metadata = await self._metadata(ledger_id)
        if isinstance(metadata, Look):
            return Look({name: count for name, count in metadata.counts.items() if name != "ledgers"})
        found = await self._compare(metadata)
        growing = None if metadata.is_closed else metadata.first_entry_ids[-1]
        doubted = {(first, each.bookie): each for first, each in suspects}
        confirmed = [
            each
            for first, each in found.suspects
            if (before := doubted.get((first, each.bookie))) is not None
            and (first != growing or each.runs <= before.runs)
        ]
        counts = {name: count for name, count in found.counts.items() if name in SHORT}
        if not confirmed:
            return Look({"withdrawn": 1})
        bookies = {finding.bookie for finding in confirmed}
        confirmed.sort(key=lambda finding: (finding.bookie, finding.runs))
        outcome = await self._marker.mark(ledger_id, joined(confirmed)) if self._marks else None
        if outcome is Marked.LOCKED:
            self._locked[ledger_id] = bookies
        elif outcome is Marked.NEW:
            counts["marked"] = 1
            _log.warning("a ledger lacks copies", ledger=ledger_id, bookies=sorted(bookies))
        elif outcome is not Marked.ALREADY:
            self._untold |= bookies
        return Look(counts, later=outcome is Marked.LOCKED)

    async def finish(self) -> Mapping[str, int]:
        return {}

    async def _metadata(self, ledger_id: int) -> LedgerMetadata | Look:
        await self._metadata_pace.read(0)
        try:
            metadata = (await self._service.ledgers.read(ledger_id)).value
            if self._only is not None:
                return Look() if self._only.isdisjoint(metadata.all_bookies()) else metadata
            if await self._service.under_replication.read(ledger_id) is not None:
                return Look({"marked_before": 1})
        except MetadataNotFound:
            return Look({"deleted": 1})
        except MetadataDamaged:
            return Look({"ledgers": 1, "could_not_tell": 1})
        return metadata

    async def _compare(self, metadata: LedgerMetadata) -> Look:
        segments, told = await self._segments(metadata)
        stored = await self._stored(metadata.ledger_id, segments)
        first_missing: dict[tuple[int, str], int] = {}  # of each bookie in each segment: no more than the metadata name
        fewest = metadata.write_quorum_size
        for segment in segments:
            known = stored
            if not segment.is_closed:
                known = {each: said if self._known.is_available(each) else None for each, said in stored.items()}
            for piece in count_copies(segment, known):
                fewest = min(fewest, piece.fewest)
                for bookie, entry_id in piece.first_missing.items():
                    first_missing.setdefault((segment.first_entry, bookie), entry_id)
                await asyncio.sleep(0)
        suspects = frozenset((first, self._finding(bookie, each)) for (first, bookie), each in first_missing.items())
        counts = {"ledgers": 1} if metadata.is_closed else {"open": 1}
        asked = stored.keys() if self._only is None else stored.keys() & self._only
        untold = {bookie for bookie in asked if stored[bookie] is None}
        self._untold |= untold
        if untold or not told:
            counts["could_not_tell"] = 1
        if suspects:
            counts["suspicious"] = 1
            counts |= _shortage(fewest, metadata)
        return Look(counts, suspects)

    def _finding(self, bookie: str, first_missing: int) -> Finding:
        if not self._known.is_available(bookie):
            return Finding(bookie, Reason.ABSENT, (), FINDER)
        return Finding(bookie, Reason.MISSING, ((first_missing, first_missing),), FINDER)

    async def _segments(self, metadata: LedgerMetadata) -> tuple[list[Fragment], bool]:
        """Return the segments that store something, as far as they are known, and whether that is everything."""
        end, error = -1, None
        if not metadata.is_closed:
            await self._pace.read(0)
            end, error = await self._ask_end(metadata)
            if error is not None and self._only is not None:
                self._untold |= self._only & set(metadata.last_ensemble)
        return [each for each in fragments(metadata.ledger_id, metadata, end) if each.count], error is None

    async def _stored(self, ledger_id: int, segments: Sequence[Fragment]) -> dict[str, Stored]:
        """Return what each bookie says; a lost one holds nothing, one within its delay is unknown."""
        bookies = sorted({bookie for segment in segments for bookie in segment.ensemble})
        found = await asyncio.gather(*(self._list(bookie, ledger_id) for bookie in bookies))
        return dict(zip(bookies, found, strict=True))

    async def _list(self, bookie: str, ledger_id: int) -> Stored:
        if self._only is not None and bookie not in self._only:
            return None
        if not self._known.is_available(bookie):
            return NOTHING if self._known.is_lost(bookie) else None
        try:
            return await self._lists.of(bookie, ledger_id)
        except NotThere:
            return NOTHING
        except PodkeeperError:
            return None


def _shortage(fewest: int, metadata: LedgerMetadata) -> dict[str, int]:
    """The ledger counts in each that applies."""
    limits = zip(SHORT, (1, metadata.ack_quorum_size, metadata.write_quorum_size), strict=True)
    return {name: 1 for name, limit in limits if fewest < limit}
