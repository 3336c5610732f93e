"""A stream's list of ledgers at one moment: positions in it, truncation, retention and retired ledgers.

A retired ledger has left the list and is not deleted yet.

Invariants
- A ledger leaves the list and becomes retired in one compare-and-set; it is forgotten only when it was deleted. So a
  crash leaves no ledger without an owner.
- The open ledger never leaves but when its writer drops it empty.

Values and pure functions; any thread.

Source: docs/internals/client-protocol.md, section 25.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from bookie_client.streams.model import (
    START,
    RetiredLedgers,
    StreamLedger,
    StreamPosition,
    StreamSettings,
    Transaction,
)
from bookie_protocol.errors import BadRequest, StreamPositionGone
from bookie_protocol.versioned import Identity

LANDMARKS: Final = 32
"""Maximum number of landmarks kept of ledgers that were dropped without entries."""


@dataclass(frozen=True, slots=True)
class LedgerSpan:
    """Entries `first` to `last`, both included, of one ledger of a stream; `last` None: as far as the open ledger
    goes."""

    ledger: StreamLedger
    first: int
    last: int | None


@dataclass(frozen=True, slots=True)
class Landmark:
    """A place in a stream that no listed ledger names."""

    position: StreamPosition
    ordinal: int


@dataclass(frozen=True)
class Manifest:
    """A snapshot of a stream. Made by `Streams.manifest` and `Streams.watch`."""

    name: str
    identity: Identity
    """Identity of the stored head: a change names it, so that it fails against any other change, and against a
    stream that was made again under the name."""
    generation: int
    """Number of times the stream was overwritten as a whole; positions of an earlier generation are gone."""
    ledgers: tuple[StreamLedger, ...]
    settings: StreamSettings
    transactions: Mapping[str, Transaction] = field(default_factory=dict)
    """Last transactions by application id (a Spark query's id)."""
    writer: str | None = None
    """Token of the `StreamWriter` that owns the stream, or owned it last and was not closed."""
    truncated_before: StreamPosition | None = None
    """Entries before it were truncated, though their ledger may still be listed."""
    landmarks: tuple[Landmark, ...] = ()
    """Places in the stream whose ledger left the list: behind the last ledger that was removed, and ledgers that were
    dropped without entries."""
    base_ordinal: int = 0
    """Ordinal of entry 0 of the first listed ledger; of an empty list, of the next entry."""
    created_ms: int = 0
    retired: tuple[RetiredLedgers, ...] = ()
    """Ledgers that were taken out and are not deleted yet, oldest first."""
    is_deleting: bool = False
    """True if the stream is being deleted: nothing may be added any more."""
    epoch: int = 0
    """Grows when nothing but the version is to change, so that compare-and-sets under way fail."""

    @property
    def version(self) -> int:
        """The changes of the stream. Manifests are of one state if their identities are equal."""
        return self.identity.version

    @property
    def is_gone(self) -> bool:
        """The stream was deleted; the head is left so that what was begun before fails."""
        return self.is_deleting and self.generation < 0

    # --- what is in it --------------------------------------------------------------------------------------

    @property
    def open_ledger(self) -> StreamLedger | None:
        """The ledger that a writer appends to, or appended to when it died."""
        return self.ledgers[-1] if self.ledgers and self.ledgers[-1].is_open else None

    @property
    def closed(self) -> tuple[StreamLedger, ...]:
        """All ledgers but the open one."""
        return self.ledgers[:-1] if self.open_ledger else self.ledgers

    @property
    def end_ordinal(self) -> int:
        """Ordinal of the next entry behind all closed ledgers."""
        return self._at(len(self.ledgers), 0)

    @property
    def entries(self) -> int:
        """Entries of all closed ledgers, truncated ones included while their ledger is listed."""
        return sum(ledger.entries or 0 for ledger in self.ledgers)

    @property
    def nbytes(self) -> int:
        """Payload bytes of all closed ledgers."""
        return sum(ledger.nbytes or 0 for ledger in self.ledgers)

    @property
    def retired_ids(self) -> frozenset[int]:
        """Ids of the ledgers that were taken out and are not deleted yet."""
        return frozenset(each for group in self.retired for each in group.ledger_ids)

    @property
    def owned_ids(self) -> frozenset[int]:
        """Ids of the ledgers that are listed, and of those that were taken out and are not deleted yet."""
        return self.retired_ids.union(self._index)

    def __contains__(self, ledger_id: object) -> bool:
        return ledger_id in self._index

    def ledger(self, ledger_id: int) -> StreamLedger | None:
        """Return a ledger as it is listed; None: it is not."""
        index = self._index.get(ledger_id)
        return None if index is None else self.ledgers[index]

    # --- positions ------------------------------------------------------------------------------------------

    @property
    def earliest(self) -> StreamPosition:
        """The first position that can be read."""
        if self.truncated_before is not None:
            return self.truncated_before
        if self.closed:
            return StreamPosition(self.ledgers[0].ledger_id, 0)
        return StreamPosition(START.ledger_id, self.base_ordinal)

    @property
    def closed_end(self) -> StreamPosition:
        """Return the position behind the last entry of the last closed ledger: where an open ledger begins, if
        there is one."""
        if not self.closed:
            return self.earliest
        last = self.closed[-1]
        return StreamPosition(last.ledger_id, last.entries or 0)

    def resolve(self, position: StreamPosition) -> tuple[int, int]:
        """Resolve a position to the index in `ledgers` and the next entry in that ledger. Behind the end of the last
        closed ledger the index is `len(ledgers)` and the entry 0.

        Raises `StreamPositionGone` for a position that left the stream, or never was in it, and `BadRequest` for an
        entry behind the end of a closed ledger.
        """
        found = self._index.get(position.ledger_id)
        if found is None:
            return self._resolve_ordinal(self._noted_ordinal(position), position)
        index, entry = self._next_to_read(found, position.entry_id, position)
        if self._at(index, entry) < self.first_ordinal:
            raise self._gone(position)
        return index, entry

    def ordinal(self, position: StreamPosition) -> int:
        """Return the number of entries that the stream had before this position, since it was created.

        Of two positions the one with the lower ordinal comes first; equal ordinals are the same place. Raises as
        `resolve`.
        """
        return self._at(*self.resolve(position))

    def spans(self, start: StreamPosition, end: StreamPosition | None = None) -> tuple[LedgerSpan, ...]:
        """Return the spans to read from `start` up to, not including, `end` (None: all that is listed). Spans without
        an entry are left out, but not that of the open ledger when `end` is None. Raises as `resolve`, and
        `BadRequest` when `end` comes before `start`."""
        index, entry = self.resolve(start)
        last_index, limit = (len(self.ledgers), 0) if end is None else self.resolve(end)
        if (last_index, limit) < (index, entry):
            raise BadRequest(f"stream {self.name}: position {end} comes before {start}")
        spans = []
        for at in range(index, min(last_index + 1, len(self.ledgers))):
            ledger = self.ledgers[at]
            first = entry if at == index else 0
            behind = limit if at == last_index else ledger.entries
            if behind is None or behind > first:
                spans.append(LedgerSpan(ledger, first, None if behind is None else behind - 1))
        return tuple(spans)

    def position_at(self, ordinal: int) -> StreamPosition:
        """The position with this ordinal. Raises `StreamPositionGone` before the earliest one. Behind the end of the
        closed ledgers it is in the open one, whether that has so many entries or not; without one: `BadRequest`."""
        index, entry = self._resolve_ordinal(ordinal, StreamPosition(START.ledger_id, ordinal))
        if ordinal == self.end_ordinal:
            return self.closed_end
        return StreamPosition(self.ledgers[index].ledger_id, entry)

    @cached_property
    def first_ordinal(self) -> int:
        """Ordinal of the first entry that can be read."""
        before = self.truncated_before
        if before is None or before.ledger_id not in self._index:
            return self.base_ordinal
        return self.ledgers[self._index[before.ledger_id]].first_ordinal + before.entry_id

    # --- inside ---------------------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> dict[int, int]:
        return {ledger.ledger_id: index for index, ledger in enumerate(self.ledgers)}

    def _noted_ordinal(self, position: StreamPosition) -> int:
        """Return the ordinal of a position whose ledger is not listed."""
        if position.ledger_id == START.ledger_id:
            return position.entry_id
        for landmark in self.landmarks:
            if landmark.position == position:
                return landmark.ordinal
        raise self._gone(position)

    def _resolve_ordinal(self, ordinal: int, position: StreamPosition) -> tuple[int, int]:
        if ordinal < self.first_ordinal:
            raise self._gone(position)
        index = bisect_right(self.ledgers, ordinal, key=lambda ledger: ledger.first_ordinal) - 1
        if index < 0:
            entry = ordinal - self.base_ordinal
        else:
            entry = ordinal - self.ledgers[index].first_ordinal
            index, entry = self._next_to_read(index, entry, position)
        if (index < 0 or index == len(self.ledgers)) and entry > 0:
            raise self._behind(position)
        return max(index, 0), entry

    def _next_to_read(self, index: int, entry: int, position: StreamPosition) -> tuple[int, int]:
        entries = self.ledgers[index].entries
        if entries is not None and entry > entries:
            raise self._behind(position)
        return (index + 1, 0) if entry == entries else (index, entry)

    def _at(self, index: int, entry: int) -> int:
        if index < len(self.ledgers):
            return self.ledgers[index].first_ordinal + entry
        last = self.ledgers[-1] if self.ledgers else None
        return self.base_ordinal if last is None else last.first_ordinal + (last.entries or 0)

    def _behind(self, position: StreamPosition) -> BadRequest:
        return BadRequest(f"position {position} of stream {self.name} is behind the end of a closed ledger")

    def _gone(self, position: StreamPosition) -> StreamPositionGone:
        return StreamPositionGone(
            f"position {position} is not part of stream {self.name} any more, or never was: the earliest one is"
            f" {self.earliest}"
        )


def truncated(manifest: Manifest, before: StreamPosition, now_ms: int) -> Manifest | None:
    """The stream without what comes before a position; None when there is nothing of it. Raises `BadRequest`."""
    try:
        index, entry = manifest.resolve(before)
    except StreamPositionGone:
        return None
    if entry > 0 and manifest.ledgers[index].is_open:
        raise BadRequest(
            f"stream {manifest.name}: ledger {before.ledger_id} is open; it can be truncated up to its beginning,"
            f" {before.ledger_id}:0"
        )
    cut = without_first(manifest, index, now_ms)
    if entry > 0:
        cut = replace(cut, truncated_before=StreamPosition(manifest.ledgers[index].ledger_id, entry))
    return None if cut == manifest else cut


def retained(manifest: Manifest, passed: int | None, now_ms: int) -> Manifest | None:
    """The stream without the ledgers that its settings no longer keep; None when all stay. `passed`: the ordinal that
    every cursor has passed; None: there is no cursor."""
    settings = manifest.settings
    left = manifest.nbytes
    count = 0
    for ledger in manifest.closed:
        end = ledger.first_ordinal + (ledger.entries or 0)
        if passed is not None and passed < end:
            break
        left -= ledger.nbytes or 0
        too_old = (
            settings.retention_seconds is not None
            and (ledger.closed_ms or 0) + settings.retention_seconds * 1000 <= now_ms
        )
        if not too_old and (settings.retention_bytes is None or left < settings.retention_bytes):
            break
        count += 1
    return without_first(manifest, count, now_ms) if count else None


def without_first(manifest: Manifest, count: int, now_ms: int) -> Manifest:
    """Return the stream without its first ledgers, which may be deleted at once. Closed ones only."""
    if count == 0:
        return manifest
    gone, kept = manifest.ledgers[:count], manifest.ledgers[count:]
    before = manifest.truncated_before
    base = kept[0].first_ordinal if kept else manifest.end_ordinal
    return replace(
        manifest,
        ledgers=kept,
        base_ordinal=base,
        landmarks=with_landmark(manifest, StreamPosition(gone[-1].ledger_id, gone[-1].entries or 0), base, base),
        truncated_before=before if before and any(each.ledger_id == before.ledger_id for each in kept) else None,
        retired=with_retired(manifest.retired, now_ms, gone),
    )


def with_landmark(
    manifest: Manifest, position: StreamPosition, ordinal: int, base_ordinal: int
) -> tuple[Landmark, ...]:
    """Return the landmarks with this one, the newest, added; only those that are still places in the stream.

    There is at most one behind entries that were removed, as the next removal moves it before the start of the stream:
    it stays, because it is the position of consumers that have read everything. No consumer stays for long at the
    beginning of a ledger that was dropped empty, and short-lived writers make many of them: of these the newest stay.
    """
    known = [each for each in manifest.landmarks if each.ordinal >= base_ordinal]
    known.append(Landmark(position, ordinal))
    forgotten = [each for each in known if each.position.entry_id == 0][:-LANDMARKS]
    return tuple(each for each in known if each not in forgotten)


def with_retired(
    retired: tuple[RetiredLedgers, ...], due_ms: int, ledgers: Sequence[StreamLedger]
) -> tuple[RetiredLedgers, ...]:
    """Return the retired ledgers and these."""
    if not ledgers:
        return retired
    return (*retired, RetiredLedgers(due_ms, tuple(ledger.ledger_id for ledger in ledgers)))


def due(manifest: Manifest, now_ms: int) -> tuple[int, ...]:
    """Retired ledgers that are to be deleted now."""
    return tuple(each for group in manifest.retired if group.due_ms <= now_ms for each in group.ledger_ids)


def forgotten(manifest: Manifest, deleted: Iterable[int]) -> Manifest | None:
    """Return the stream when these retired ledgers were deleted; None when it knows of none of them."""
    gone = frozenset(deleted)
    left = tuple(
        RetiredLedgers(group.due_ms, ids)
        for group in manifest.retired
        if (ids := tuple(each for each in group.ledger_ids if each not in gone))
    )
    return None if left == manifest.retired else replace(manifest, retired=left)
