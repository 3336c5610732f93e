"""A batch read of one bookie under way.

Invariants
- `done` is called once, with the entries or with the error that counts, unless the request was given up before; then
  never.
- A bookie that hangs up on the first batch read it is asked for does not know them (those before 4.17 do): that is
  `BadVersion`. From one that has served a batch before it is a lost connection like any other.
- Of one that answers as if there were no step nothing is taken: that is `BadVersion` too.

Event loop only.

Source: reference wire protocol, sections 3.6 and 11.
"""

from __future__ import annotations

from collections.abc import Callable

from bookie_client.connection.request import Answer, Request
from bookie_protocol.errors import BadVersion, ConnectionLost, PodkeeperError, ProtocolViolation
from bookie_protocol.wire.packed_entries import PackedEntries

BatchDone = Callable[[str, PackedEntries | PodkeeperError], None]
"""(bookie, entries as they came, at least one; or why there are none)."""


class BatchRequest(Request):
    """Made by `BookieOperations.send_batch_read`. `proven`: bookies that have served a batch; it adds its own.
    `stepped`: it was asked for with a step."""

    __slots__ = ("_bookie", "_done", "_first", "_proven", "_stepped", "ledger_id")

    def __init__(
        self, bookie: str, ledger_id: int, first: int, proven: set[str], done: BatchDone, *, stepped: bool = False
    ) -> None:
        self._bookie = bookie
        self.ledger_id = ledger_id
        self._first = first
        self._proven = proven
        self._stepped = stepped
        self._done: BatchDone | None = done

    def abandon(self) -> None:
        """Give up: it is not sent any more, or its answer is dropped."""
        self._done = None

    @property
    def is_wanted(self) -> bool:
        return self._done is not None

    def take(self, answer: Answer) -> None:
        entries = answer.detail
        if not isinstance(entries, PackedEntries) or entries.is_empty:
            self._end(ProtocolViolation("the bookie's answer to a batch read holds no entry"))
            return
        self._proven.add(self._bookie)
        if self._stepped and not entries.stepped:
            self._end(BadVersion(f"bookie {self._bookie} knows no batch reads with a step"))
            return
        self._end(entries)

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        self.take(Answer(b"", None, entry, max_lac))

    def failed(self, error: PodkeeperError) -> None:
        if isinstance(error, ConnectionLost) and self._bookie not in self._proven:
            what = f"bookie {self._bookie} hung up on a batch read, so it knows none: {error}"
            cause, error = error, BadVersion(what)
            error.__cause__ = cause
        self._end(error)

    def describe(self) -> str:
        return f"the batch read from entry {self._first} of ledger {self.ledger_id}"

    def _end(self, outcome: PackedEntries | PodkeeperError) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self._bookie, outcome)
