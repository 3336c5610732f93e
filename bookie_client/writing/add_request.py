"""The request of one replica of one add."""

from __future__ import annotations

from typing import Protocol

from bookie_client.connection.request import Request
from bookie_client.writing.pending_add import PendingAdd
from bookie_protocol.errors import PodkeeperError


class AddAnswers(Protocol):
    """Who is told: the pipeline that sent the add."""

    ledger_id: int

    def add_acknowledged(self, add: PendingAdd, bookie: str) -> None: ...

    def add_refused(self, add: PendingAdd, bookie: str, error: PodkeeperError) -> None: ...


class AddRequest(Request):
    """Remembers the bookie: it may have been exchanged when the answer comes."""

    __slots__ = ("_add", "_answers", "_bookie")

    def __init__(self, answers: AddAnswers, add: PendingAdd, bookie: str) -> None:
        self._answers = answers
        self._add = add
        self._bookie = bookie

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        self._answers.add_acknowledged(self._add, self._bookie)

    def failed(self, error: PodkeeperError) -> None:
        self._answers.add_refused(self._add, self._bookie, error)

    def describe(self) -> str:
        return f"the add of entry {self._add.entry_id} of ledger {self._answers.ledger_id}"
