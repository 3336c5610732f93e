"""The check of replicas: ask every bookie of a closed ledger what it stores, and compare with what striping demands.

Invariants
- A bookie that does not answer is unknown, not empty; its copies are neither counted as missing nor marked.
- A bookie that answered `LISTS_TO_GIVE_UP` ledgers in a row with silence is not asked again in this pass: Java's with
  DbLedgerStorage never answer.
- Whoever is missed twice is marked, if marking is asked for; ledgers that are marked already are left to the workers.
- Numbers are those of the whole pass (the reference's are those of its last range).
- "Missing" is said only of bookies that answered, or that are lost. Where nobody can tell, a copy counts as neither
  there nor missing, so that an entry is called short of copies only when it is for certain.
- Work is done in pieces of `PIECE` entries: memory does not grow with the ledger.

Event loop only; counting a large ledger yields to the loop between pieces.

Sources: reference client protocol, section 4; reference auto-recovery, section 4.3.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import structlog

from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor.marking import Known, Marked, Marker
from bookie_pod.autorecovery.auditor.sweep import Look, Suspect
from bookie_protocol.errors import BookieTimeout, MetadataDamaged, MetadataNotFound, NotThere, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.wire.availability import Availability

PIECE: Final = 1 << 18

Stored = Availability | None
"""What a bookie says it stores; None: nobody can tell."""
NOTHING: Final = Availability([])

_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Segment:
    """Entries `first` to `last` of one ensemble."""

    first: int
    last: int
    ensemble: Sequence[str]


@dataclass(slots=True)
class Copies:
    """What was found in one segment, or several: the worst entry, and who misses what."""

    fewest: int
    """Copies of the entry that has the fewest, with all that could not be told taken as there."""
    missing: dict[str, int]
    """Entries that each bookie should hold and does not."""
    first_missing: dict[str, int]
    """The first of them."""


def count_copies(segment: Segment, write_quorum: int, stored: Mapping[str, Stored]) -> Iterator[Copies]:
    """One `Copies` for each piece of the segment; `stored` has every bookie of the ensemble."""
    for first in range(segment.first, segment.last + 1, PIECE):
        yield _piece(segment, range(first, min(first + PIECE, segment.last + 1)), write_quorum, stored)


def _piece(segment: Segment, entries: range, write_quorum: int, stored: Mapping[str, Stored]) -> Copies:
    size = len(segment.ensemble)
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


_log = structlog.get_logger(__name__)

LISTS_TO_GIVE_UP: Final = 3
NO_COPY, OF_ACK_QUORUM, OF_WRITE_QUORUM = SHORT = ("short_no_copy", "short_of_ack_quorum", "short_of_write_quorum")
"""Counts of ledgers with an entry that has no copy, fewer than the ack quorum, fewer than the write quorum."""

AskStored = Callable[[str, int], Awaitable[Availability]]
"""`BookieOperations.entries_of_ledger`."""


class ReplicasCheck:
    """One pass; see `sweep`. `marks`: mark what is missing. `metadata_pace` and `pace`: reads of metadata, requests."""

    def __init__(
        self,
        service: MetadataService,
        ask: AskStored,
        marker: Marker,
        known: Known,
        *,
        metadata_pace: ReplicationThrottle,
        pace: ReplicationThrottle,
        marks: bool,
    ) -> None:
        self._service = service
        self._ask = ask
        self._marker = marker
        self._known = known
        self._metadata_pace = metadata_pace
        self._pace = pace
        self._marks = marks
        self._silences: Counter[str] = Counter()

    async def look(self, ledger_id: int) -> Look:
        metadata = await self._metadata(ledger_id)
        if isinstance(metadata, Look):
            return metadata
        look = await self._compare(metadata)
        return Look({name: count for name, count in look.counts.items() if name not in SHORT}, look.suspects)

    async def look_again(self, ledger_id: int, suspects: frozenset[Suspect]) -> Look:
        """What is missing twice counts and is marked; the counts of the ledger come from here."""
        metadata = await self._metadata(ledger_id)
        if isinstance(metadata, Look):
            return Look({name: count for name, count in metadata.counts.items() if name != "ledgers"})
        found = await self._compare(metadata)
        confirmed = suspects & found.suspects
        counts = {name: count for name, count in found.counts.items() if name in SHORT}
        if not confirmed:
            return Look({"withdrawn": 1})
        if not self._marks:
            return Look(counts)
        bookies = sorted({bookie for _, bookie in confirmed})
        outcome = await self._marker.mark(ledger_id, bookies)
        if outcome is Marked.LOCKED:
            return Look(counts, later=True)
        if outcome is Marked.NEW:
            counts["marked"] = 1
            _log.warning("a ledger lacks copies", ledger=ledger_id, bookies=bookies)
        return Look(counts)

    async def finish(self) -> Mapping[str, int]:
        return {}

    async def _metadata(self, ledger_id: int) -> LedgerMetadata | Look:
        await self._metadata_pace.read(0)
        try:
            metadata = (await self._service.ledgers.read(ledger_id)).value
            if not metadata.is_closed:
                return Look({"open": 1})
            if await self._service.under_replication.read(ledger_id) is not None:
                return Look({"marked_before": 1})
        except MetadataNotFound:
            return Look({"deleted": 1})
        except MetadataDamaged:
            return Look({"ledgers": 1, "could_not_tell": 1})
        return metadata

    async def _compare(self, metadata: LedgerMetadata) -> Look:
        stored = await self._stored(metadata)
        suspects: set[Suspect] = set()
        fewest = metadata.write_quorum_size
        for segment in _segments(metadata):
            for piece in count_copies(segment, metadata.write_quorum_size, stored):
                fewest = min(fewest, piece.fewest)
                suspects.update((segment.first, bookie) for bookie in piece.missing)
                await asyncio.sleep(0)
        counts = {"ledgers": 1}
        if None in stored.values():
            counts["could_not_tell"] = 1
        if suspects:
            counts["suspicious"] = 1
            counts |= _shortage(fewest, metadata)
        return Look(counts, frozenset(suspects))

    async def _stored(self, metadata: LedgerMetadata) -> dict[str, Stored]:
        """What each bookie says; a lost one holds nothing, one within its delay is unknown."""
        bookies = sorted({bookie for segment in _segments(metadata) for bookie in segment.ensemble})
        found = await asyncio.gather(*(self._list(bookie, metadata.ledger_id) for bookie in bookies))
        return dict(zip(bookies, found, strict=True))

    async def _list(self, bookie: str, ledger_id: int) -> Stored:
        if not self._known.is_available(bookie):
            return NOTHING if self._known.is_lost(bookie) else None
        if self._silences[bookie] >= LISTS_TO_GIVE_UP:
            return None
        await self._pace.read(0)
        try:
            found = await self._ask(bookie, ledger_id)
        except NotThere:
            found = NOTHING
        except BookieTimeout:
            self._silences[bookie] += 1
            if self._silences[bookie] == LISTS_TO_GIVE_UP:
                _log.warning("a bookie does not list its entries; its copies are not checked", bookie=bookie)
            return None
        except PodkeeperError:
            return None
        self._silences[bookie] = 0
        return found


def _segments(metadata: LedgerMetadata) -> list[Segment]:
    """Segments of a closed ledger that store something."""
    starts = metadata.first_entry_ids
    ends = [*(first - 1 for first in starts[1:]), metadata.last_entry_id]
    return [
        Segment(first, min(last, metadata.last_entry_id), metadata.ensembles[first])
        for first, last in zip(starts, ends, strict=True)
        if first <= min(last, metadata.last_entry_id)
    ]


def _shortage(fewest: int, metadata: LedgerMetadata) -> dict[str, int]:
    """The ledger counts in each that applies."""
    limits = zip(SHORT, (1, metadata.ack_quorum_size, metadata.write_quorum_size), strict=True)
    return {name: 1 for name, limit in limits if fewest < limit}
