"""The request of one replica of one add."""

from __future__ import annotations

from typing import Protocol

from bookie_client.connection.request import Request
from bookie_client.writing.pending_add import PendingAdd
from bookie_protocol.errors import PodkeeperError


class AddAnswers(Protocol):
    """Who is told: the pipeline that sent the add."""

    ledger_id: int

    def add_acknowledged(self, add: PendingAdd, position: int, bookie: str) -> None: ...

    def add_refused(self, add: PendingAdd, position: int, bookie: str, error: PodkeeperError) -> None: ...


class AddRequest(Request):
    """Remembers the bookie as well as the position, since the bookie at a position may be exchanged
    meanwhile."""

    __slots__ = ("_add", "_answers", "_bookie", "_position")

    def __init__(self, answers: AddAnswers, add: PendingAdd, position: int, bookie: str) -> None:
        self._answers = answers
        self._add = add
        self._position = position
        self._bookie = bookie

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        self._answers.add_acknowledged(self._add, self._position, self._bookie)

    def failed(self, error: PodkeeperError) -> None:
        self._answers.add_refused(self._add, self._position, self._bookie, error)

    def describe(self) -> str:
        return f"the add of entry {self._add.entry_id} of ledger {self._answers.ledger_id}"
