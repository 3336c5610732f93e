"""`JournalBatch`: the unit of work of a journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

OnDone: TypeAlias = Callable[[BaseException | None], None]
Deliver: TypeAlias = Callable[[Sequence["JournalBatch"], BaseException | None], None]
"""Gets the acknowledged batches of one sync (or one write), in order, on a thread of the journal."""


class JournalBatch:
    """Records that are written together and acknowledged together.

    `pieces`   length prefix, body, length prefix, body, …: written as they are (see `journal.format`). No
               piece: a force marker, acknowledged once everything queued before it is synced.
    `entries`  how many records that is (1 for a force marker)
    `nbytes`   sum of the lengths of `pieces`
    `sync`     True: acknowledge after the sync of the file; False: after the write (deferred sync)
    `on_done`  for the receiver of `deliver` to call, with None or the error; the journal never calls it
               itself
    `queued_at` monotonic seconds, set by `Journal.append`
    """

    __slots__ = ("entries", "nbytes", "on_done", "pieces", "queued_at", "sync")

    def __init__(self, pieces: list[bytes], entries: int, nbytes: int, sync: bool, on_done: OnDone | None) -> None:
        self.pieces = pieces
        self.entries = entries
        self.nbytes = nbytes
        self.sync = sync
        self.on_done = on_done
        self.queued_at = 0.0

    @classmethod
    def of(cls, *records: list[bytes], sync: bool = True, on_done: OnDone | None = None) -> JournalBatch:
        """A batch of some records of `journal.format`; for everything that is not the hot path."""
        pieces = [piece for record in records for piece in record]
        return cls(pieces, len(records) or 1, sum(map(len, pieces)), sync, on_done)
