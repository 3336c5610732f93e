"""The plan of a read: how a range of entries is cut into pieces, and how many of them may be under way.

A piece is fetched by one batch read, or by one read per entry. A batch may answer with fewer entries than the
piece has; the rest becomes a piece of its own.

Invariants
- Pieces follow each other without gap or overlap from the next entry to be delivered up to what was cut.
- Bytes asked for, or here and not yet consumed, stay below `max_bytes`: a batch counts with the size that it
  may have, single reads with the average of what was seen. The size of one batch is kept free for the piece
  that is next to be delivered, so a range never waits for itself. Only entries larger than a batch (or single
  ones larger than the average) exceed the bound.
- Single reads under way, or here and not yet consumed, are at most `max_entries`, and one more if the piece
  that is next to be delivered waits.

Pure; one range uses it.

Source: docs/internals/client-protocol.md, sections 11.2, 11.5 and 18.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bookie_client.reading.entry import LedgerEntry
from bookie_protocol.errors import PodkeeperError

ENTRY_COST: Final = 160
"""Bytes that an entry here costs beyond its payload, about."""
FRAME_COST: Final = 36
"""Bytes that an entry has in a batch read's answer beyond its payload, at least: length word and header."""
FIRST_SINGLES: Final = 16
"""Single reads under way before any size is known."""
SINGLES_PIECES_PER_WINDOW: Final = 4
BATCHES_PER_WINDOW: Final = 8
LARGEST_SINGLES_PIECE: Final = 256


class Piece:
    """Entries `start` to `stop` - 1. Once `is_done`: `entries` are its first ones, and `error` is what the
    entry behind them met."""

    __slots__ = (
        "by_batch",
        "entries",
        "error",
        "is_asked",
        "is_done",
        "max_bytes",
        "ordinal",
        "reserved",
        "start",
        "stop",
    )

    def __init__(self, start: int, stop: int, ordinal: int) -> None:
        self.start = start
        self.stop = stop
        self.ordinal = ordinal
        """Its place among the pieces: consecutive ones begin with different replicas."""
        self.by_batch = False
        self.max_bytes = 0
        """Maximum bytes of the answer's frame, if it is read by batch."""
        self.is_asked = False
        self.is_done = False
        self.reserved = 0
        self.entries: Sequence[LedgerEntry] = []
        self.error: PodkeeperError | None = None

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Limits of what a range may hold. Bytes are payload bytes plus `ENTRY_COST` per entry."""

    max_entries: int
    """Single reads."""
    max_bytes: int
    batch_entries: int
    """Entries of one batch; 1 or less: no batches. Of all columns together."""
    batch_bytes: int
    columns: int = 1
    """Batch reads of one piece: of a striped ledger each bookie has only some of the entries."""

    @property
    def largest_batch(self) -> int:
        """Bytes that the batches of one piece may take here."""
        return min(self.batch_bytes * self.columns, max(1, self.max_bytes // BATCHES_PER_WINDOW))

    def batch_count(self, average: int | None) -> int:
        """Entries that one batch is asked for, at least 1. A little less than would fit: a batch that is cut short
        costs another request."""
        fits = self.largest_batch * 4 // 5 // ((ENTRY_COST if average is None else average) + ENTRY_COST)
        return max(1, min(self.batch_entries, fits))

    def frame_bytes(self, count: int) -> int:
        """Return the size of the answer to a batch read of so many entries, at most."""
        return max(1, self.largest_batch - count * (ENTRY_COST - FRAME_COST))


class ReadPlan:
    """The pieces of one range. `average`: payload bytes of an entry if known, else None."""

    def __init__(
        self, first: int, last: int, limits: ReadLimits, average: int | None, segment_end: Callable[[int], int]
    ) -> None:
        self.next = first
        self.by_batch = limits.batch_entries > 1
        self.head_only = False
        """If True, fetch only the batch of the piece that is delivered next: it is not known yet whether bookies
        serve batches. Single reads, which all of them serve, do not wait for that."""
        self.bytes_in_use = 0
        self.peak_bytes = 0
        self.singles_in_use = 0
        self.pieces: deque[Piece] = deque()
        """Pieces cut and not yet consumed, in order."""
        self._limits = limits
        self._batch = limits.largest_batch
        self._average = average
        self._segment_end = segment_end
        self._cut = first
        self._end = last + 1
        self._unasked = 0
        # Ranges of one neighbourhood begin with one replica, whose bookie reads ahead; others with other replicas.
        self._ordinal = first // limits.batch_count(average)

    @property
    def is_finished(self) -> bool:
        return self.next >= self._end

    def ask(self) -> Piece | None:
        """Return the next piece to fetch, its room reserved; None while there is no room, or nothing left."""
        if self._cut >= self._end and not self._unasked:
            return None
        start, stop, piece = self._candidate()
        is_head = start == self.next
        if not is_head and self._average is None:
            return None
        # A batch of one, because it is the last entry or entries are large, is a single read and counts as one.
        most, columns = self._limits.batch_count(self._average) if self.by_batch else 1, self._limits.columns
        count = min(stop - start, most)
        by_batch = count > columns and most >= 2 * columns
        if by_batch and self.head_only and not is_head:
            return None
        stop = start + count if by_batch else min(stop, start + self._singles_count(is_head))
        reserved = self._batch if by_batch else self._singles_bytes(stop - start)
        kept_free = self._batch * (2 if piece is None else 1) if self.by_batch else 0
        if stop == start or (not is_head and self.bytes_in_use + reserved > self._limits.max_bytes - kept_free):
            return None
        piece = self._cut_off(start, stop) if piece is None else self._begin(piece, stop)
        self._reserve(piece, by_batch, reserved)
        return piece

    def begin_with(self, stop: int) -> Piece:
        """Return the first piece, up to `stop`, if it was asked for as a batch before there was a plan."""
        piece = self._cut_off(self.next, stop)
        self._reserve(piece, True, self._batch)
        return piece

    def took(
        self, piece: Piece, entries: Sequence[LedgerEntry], nbytes: int, error: PodkeeperError | None = None
    ) -> None:
        """The piece's first entries are here, of `nbytes` payload bytes. With `error` the range ends behind
        them; without it the rest of the piece, if any, becomes another one."""
        piece.entries, piece.error, piece.is_done = entries, error, True
        if entries:
            self._learn(nbytes // len(entries))
        if error is None:
            self._split(piece, piece.start + len(entries))
        self._settle(piece, nbytes + len(entries) * ENTRY_COST)

    def give_back(self, piece: Piece) -> None:
        """It could not be fetched by batch: `ask` offers it again."""
        piece.is_asked = False
        self._unasked += 1
        self._settle(piece, 0)

    def consumed(self) -> None:
        """The application has taken the first piece."""
        piece = self.pieces.popleft()
        self.next = piece.stop
        self._settle(piece, 0)
        if not piece.by_batch:
            self.singles_in_use -= piece.count

    # --- sizes ----------------------------------------------------------------------------------------------

    def _singles_count(self, is_head: bool) -> int:
        limits = self._limits
        if self._average is None:
            return min(FIRST_SINGLES, limits.max_entries)
        affordable = limits.max_bytes // (self._average + ENTRY_COST)
        share = max(1, min(limits.max_entries, affordable) // SINGLES_PIECES_PER_WINDOW)
        room = limits.max_entries - self.singles_in_use
        return max(int(is_head), min(room, share, LARGEST_SINGLES_PIECE))

    def _singles_bytes(self, count: int) -> int:
        return count * ((self._average or 0) + ENTRY_COST)

    def _learn(self, seen: int) -> None:
        self._average = seen if self._average is None else (3 * self._average + seen) // 4

    # --- pieces ---------------------------------------------------------------------------------------------

    def _candidate(self) -> tuple[int, int, Piece | None]:
        """Return the range to fetch next: the rest of a piece, or entries that were not cut yet."""
        if self._unasked:
            piece = next(piece for piece in self.pieces if not piece.is_asked)
            return piece.start, piece.stop, piece
        return self._cut, min(self._end, self._segment_end(self._cut)), None

    def _cut_off(self, start: int, stop: int) -> Piece:
        piece = Piece(start, stop, self._ordinal)
        piece.is_asked = True
        self.pieces.append(piece)
        self._cut = stop
        self._ordinal += 1
        return piece

    def _begin(self, piece: Piece, stop: int) -> Piece:
        piece.is_asked = True
        self._unasked -= 1
        self._split(piece, stop)
        return piece

    def _split(self, piece: Piece, stop: int) -> None:
        if stop >= piece.stop:
            return
        if piece.stop == self._cut:
            # The last piece: the entries behind it are cut again later, by what is known then.
            self._cut = stop
        else:
            self.pieces.insert(self.pieces.index(piece) + 1, Piece(stop, piece.stop, piece.ordinal))
            self._unasked += 1
        piece.stop = stop

    def _reserve(self, piece: Piece, by_batch: bool, nbytes: int) -> None:
        piece.by_batch = by_batch
        if by_batch:
            piece.max_bytes = self._limits.frame_bytes(piece.count)
        else:
            self.singles_in_use += piece.count
        self._settle(piece, nbytes)

    def _settle(self, piece: Piece, nbytes: int) -> None:
        self.bytes_in_use += nbytes - piece.reserved
        self.peak_bytes = max(self.peak_bytes, self.bytes_in_use)
        piece.reserved = nbytes
