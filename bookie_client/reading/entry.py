"""An entry as a reader gets it, with everything verified. Immutable; any thread."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import count, pairwise
from operator import itemgetter
from typing import Final, NamedTuple, overload

from bookie_protocol.wire.v2 import ENTRY_LENGTH

_LAC_AND_LENGTH: Final = struct.Struct(">qq")
_MOST_SLICES: Final = 1024
"""Remembered at a time; larger batches do without."""


class LedgerEntry(NamedTuple):
    """One entry whose digest, ledger id and entry id were verified."""

    ledger_id: int
    entry_id: int
    length: int
    """Payload bytes of the ledger up to and including this entry."""
    payload: bytes
    lac: int = -1
    """The last add confirmed that the writer knew when it sent this entry; -1 if none."""


@lru_cache(maxsize=256)
def _one_entry(lac_at: int, payload_at: int, size: int) -> struct.Struct:
    """LAC, length and payload of an entry that takes `size` bytes."""
    digest_size = payload_at - lac_at - _LAC_AND_LENGTH.size
    return struct.Struct(f">{lac_at}xqq{digest_size}x{size - payload_at}s")


@lru_cache(maxsize=16)
def _all_payloads(size: int, payload_at: int, count: int) -> Callable[[memoryview], tuple[memoryview, ...]]:
    """Takes the payloads of `count` entries, two at least, that take `size` bytes each. Making their slices costs as
    much as taking the payloads, and batches of one size follow each other."""
    return itemgetter(*(slice(start + payload_at, start + size) for start in range(0, size * count, size)))


class EntryBatch(Sequence[LedgerEntry]):
    """The k-th entry, with its length in front, is `body[starts[k]:starts[k + 1]]`; its payload begins `payload_at`
    bytes behind its start. A reader that needs one field of all entries finds it there. `starts` is a `range` where
    all entries have one size: these are taken apart in two thirds of the time."""

    __slots__ = ("_count", "_first", "_ledger_id", "_step", "body", "nbytes", "payload_at", "starts")

    lac_at: Final = ENTRY_LENGTH.size + 16
    """Offset, from the start of an entry, of the last add confirmed that it carries (int64, big-endian)."""

    def __init__(
        self, ledger_id: int, first: int, body: bytes, starts: Sequence[int], payload_at: int, step: int = 1
    ) -> None:
        self._ledger_id = ledger_id
        self._first = first
        self._step = step
        self._count = len(starts) - 1
        self.body = body
        self.starts = starts
        self.payload_at = payload_at
        self.nbytes = starts[-1] - starts[0] - payload_at * self._count
        """Bytes of all payloads."""

    def payloads(self) -> Sequence[memoryview]:
        """Return all of them, in place."""
        view, starts, payload_at = memoryview(self.body), self.starts, self.payload_at
        if isinstance(starts, range) and 1 < self._count <= _MOST_SLICES:
            return _all_payloads(starts.step, payload_at, self._count)(view[starts[0] :])
        return [view[start + payload_at : stop] for start, stop in pairwise(starts)]

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} entries of ledger {self._ledger_id} from {self._first} on, {self.nbytes} bytes>"

    def __iter__(self) -> Iterator[LedgerEntry]:
        ledger_id, made = self._ledger_id, tuple.__new__
        ids = count(self._first, self._step)
        for entry_id, (lac, length, payload) in zip(ids, self._parts()):  # noqa: B905 - the ids have no end
            # The constructor of a named tuple costs three times as much.
            yield made(LedgerEntry, (ledger_id, entry_id, length, payload, lac))

    def _parts(self) -> Iterator[tuple[int, int, bytes]]:
        """LAC, length and payload of each."""
        body, starts, payload_at, lac_at = self.body, self.starts, self.payload_at, self.lac_at
        if isinstance(starts, range):
            entries = memoryview(body)[starts[0] : starts[-1]]
            return _one_entry(lac_at, payload_at, starts.step).iter_unpack(entries)
        unpack = _LAC_AND_LENGTH.unpack_from
        return ((*unpack(body, start + lac_at), body[start + payload_at : stop]) for start, stop in pairwise(starts))

    @overload
    def __getitem__(self, place: int) -> LedgerEntry: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[LedgerEntry]: ...

    def __getitem__(self, place: int | slice) -> LedgerEntry | Sequence[LedgerEntry]:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return self._part(start, stop) if step == 1 and start < stop else list(self)[place]
        at = range(len(self))[place]
        return next(iter(self._part(at, at + 1)))

    def _part(self, start: int, stop: int) -> EntryBatch:
        starts = self.starts[start : stop + 1]
        first = self._first + start * self._step
        return EntryBatch(self._ledger_id, first, self.body, starts, self.payload_at, self._step)


def payload_bytes(entries: Sequence[LedgerEntry]) -> int:
    """Return the bytes of all payloads; of a batch in its answer without looking at each."""
    return entries.nbytes if isinstance(entries, EntryBatch) else sum([len(entry.payload) for entry in entries])


def payloads_of(entries: Sequence[LedgerEntry]) -> Sequence[bytes | memoryview]:
    """The payloads of a batch from `LedgerReader.batches`, as a rule without an object for each entry: views, which
    keep the bookie's answer alive, or bytes. It suits callers that look at payloads once or copy them elsewhere."""
    return entries.payloads() if isinstance(entries, EntryBatch) else [entry.payload for entry in entries]
