"""A request whose answer is awaited, for everything that is not a stream of adds or reads.

Invariants
- Whoever awaits gets one result or one error. If it is cancelled the request is given up: it is not sent any
  more if it still waits for a connection, and an answer that comes later is dropped.
- An answer of another kind than the request's is a `ProtocolViolation`, never an empty result.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from bookie_client.connection.request import Answer, Request
from bookie_protocol.errors import PodkeeperError, ProtocolViolation

T = TypeVar("T")


class OneShot(Request, Generic[T]):
    """`convert` makes the result of a successful answer; it raises `ProtocolViolation` when it cannot."""

    __slots__ = ("_convert", "_what", "result")

    def __init__(self, what: str, convert: Callable[[Answer], T]) -> None:
        self._what = what
        self._convert = convert
        self.result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    @property
    def is_wanted(self) -> bool:
        return not self.result.done()

    def take(self, answer: Answer) -> None:
        if self.result.done():
            return
        try:
            self.result.set_result(self._convert(answer))
        except PodkeeperError as error:
            self.result.set_exception(error)

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        self.take(Answer(b"", None, entry, max_lac))

    def failed(self, error: PodkeeperError) -> None:
        if not self.result.done():
            self.result.set_exception(error)

    def describe(self) -> str:
        return self._what


def detail_of(kind: type[T]) -> Callable[[Answer], T]:
    """A conversion: the answer's detail, which must be a `kind`."""

    def convert(answer: Answer) -> T:
        if not isinstance(answer.detail, kind):
            raise ProtocolViolation(f"the bookie's answer holds no {kind.__name__}")
        return answer.detail

    return convert


def nothing(answer: Answer) -> None:
    """A conversion: success says it all."""
