"""A request that waits for its answer, what an answer is, and the requests of one connection that have none yet.

Invariants
- Each request ends exactly once: `answered`, or `failed` (refused by the bookie, timed out, connection lost).
  Neither is ever called from inside the call that sent the request, and neither may raise.
- A request waits under a key once. Several may wait under one key, for in version 2 it is the entry: answers end them
  oldest first, time-outs the one that is due first.

Event loop only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from bookie_protocol.errors import (
    BadRequest,
    BadVersion,
    BookieReadOnly,
    LedgerFenced,
    LedgerStateUnknown,
    NoSuchEntry,
    NoSuchLedger,
    PodkeeperError,
    StorageFault,
    TooManyRequests,
    Unauthorized,
    V2Code,
    V3Status,
)

NO_LAC = -1
"""The last add confirmed of a ledger in which nothing is confirmed."""
_BY_CODE: dict[int, type[PodkeeperError]] = {
    number: error
    for error in (
        NoSuchLedger,
        NoSuchEntry,
        BadRequest,
        StorageFault,
        Unauthorized,
        BadVersion,
        LedgerFenced,
        BookieReadOnly,
        TooManyRequests,
        LedgerStateUnknown,
    )
    for number in (error.v2, error.v3)
}


class Answer(NamedTuple):
    """One answer of a bookie. `error` None: it did what was asked."""

    key: bytes
    """Finds the request; made by the dialect that encoded it."""
    error: type[PodkeeperError] | None
    entry: bytes = b""
    """The stored entry of a successful read."""
    max_lac: int | None = None
    """The highest LAC the bookie knows (v3 reads)."""
    detail: object = None
    """The content of a successful answer to anything but an add or a read of one entry, such as an `EntryAnswer`."""


ADDED: Final = Answer(b"", None)


@dataclass(frozen=True, slots=True)
class EntryAnswer:
    """The answer to a read of one entry."""

    entry: bytes
    """The stored entry, header and digest included; not verified."""
    max_lac: int | None
    """The highest LAC that this bookie knows of the ledger. None: it does not say (v2, fencing reads)."""


@dataclass(frozen=True, slots=True)
class LacAnswer:
    """The answer to READ_LAC. At least one of the two is there; neither is verified."""

    explicit: bytes | None
    """The explicit LAC's packet, as its writer sent it."""
    last_entry: bytes | None
    """The entry with the highest id that this bookie stores."""
    complete: bool = True
    """False: there is an explicit LAC, and about its last entry the bookie could not tell, or it has none (the
    reference answers both alike; reference wire protocol, section 8.6). Then the explicit LAC is a lower bound and
    nothing more."""


@dataclass(frozen=True, slots=True)
class LongPollAnswer:
    """The answer to a long poll."""

    max_lac: int
    """The highest LAC that this bookie knows; `NO_LAC` when it knows of none."""
    entry: bytes | None
    """The entry behind the LAC polled for, or the one asked for. None: the time was up, or it is not stored
    here."""


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """Space on the file systems of the ledger directories, each counted once."""

    total_bytes: int
    free_bytes: int


"""The usual answer to an add, as far as anybody asks."""


class BookieRequest(ABC):
    """Base of what waits in connections: one object may wait in those to several bookies, with the same
    time-out. Each of them ends it once. `deadline` and `sent` belong to the connection."""

    __slots__ = ("deadline", "sent")

    deadline: int
    sent: float
    """Time of sending, in seconds of the event loop's clock; set for requests whose duration is measured."""

    @property
    def is_wanted(self) -> bool:
        """Return False if the caller has given up: a request that was not sent yet is then dropped."""
        return True

    def acknowledged(self, bookie: str) -> None:
        """The bookie did what was asked, and its answer is the usual one to an add."""
        self.accepted(bookie, ADDED)

    def acknowledged_run(self, run: Sequence[BookieRequest], at: int, bookie: str) -> int:
        """Acknowledge this request, which is `run[at]`, and those behind it that it can speak for.

        All of `run` was acknowledged, in this order. Returns the index of the first request that was not handled."""
        self.acknowledged(bookie)
        return at + 1

    @abstractmethod
    def accepted(self, bookie: str, answer: Answer) -> None:
        """The bookie did what was asked."""

    @abstractmethod
    def refused(self, bookie: str, error: PodkeeperError) -> None:
        """Take an error: the bookie refused, or the outcome is unknown."""

    @abstractmethod
    def describe(self) -> str:
        """Describe the request for messages, like "add of entry 7 of ledger 3"."""


class FramedRequest(BookieRequest):
    """A request that carries its own bytes, so that it can be sent again, and many in one go."""

    __slots__ = ("key",)

    key: bytes

    @property
    @abstractmethod
    def frame(self) -> bytes:
        """The whole frame."""


class SplitAdd(FramedRequest):
    """An add whose payload is not copied before it is sent: `head` is its frame up to the payload."""

    __slots__ = ("body", "head")

    entry_id: int
    length: int
    """Payload bytes of the ledger up to and including this entry."""
    head: bytes
    body: bytes


class Request(BookieRequest):
    """Base of requests that wait for one bookie at a time."""

    __slots__ = ()

    def acknowledged(self, bookie: str) -> None:
        self.answered(b"", None)

    def accepted(self, bookie: str, answer: Answer) -> None:
        self.take(answer)

    def refused(self, bookie: str, error: PodkeeperError) -> None:
        self.failed(error)

    def take(self, answer: Answer) -> None:
        """The bookie did what was asked. Adds are answered by `answered` alone; other requests may look at
        the whole answer."""
        self.answered(answer.entry, answer.max_lac)

    @abstractmethod
    def answered(self, entry: bytes, max_lac: int | None) -> None:
        """The bookie did what was asked; the arguments are those of `Answer`."""

    @abstractmethod
    def failed(self, error: PodkeeperError) -> None:
        """Take an error: the bookie refused, or the outcome is unknown."""


assert len(_BY_CODE) == len(V2Code) + len(V3Status) - 2


def error_for(code: int) -> type[PodkeeperError] | None:
    """Return the error of a v2 code or a v3 status; None for EOK (reference wire protocol, section 9.3).

    An undefined number is a fault, never "not there"."""
    return None if code == 0 else _BY_CODE.get(code, StorageFault)


class SameKey(list[BookieRequest]):
    """Two and more requests with one key, oldest first."""


class Outstanding(dict[bytes, BookieRequest | SameKey]):
    """The requests of one connection that have no answer yet."""

    def put(self, key: bytes, request: BookieRequest) -> None:
        """It waits from now on."""
        before = self.setdefault(key, request)
        if before is not request:
            self.put_behind(key, before, request)

    def put_behind(self, key: bytes, before: BookieRequest | SameKey, request: BookieRequest) -> None:
        """Add a request as `put` does, where others were found under its key."""
        if isinstance(before, SameKey):
            before.append(request)
        else:
            self[key] = SameKey((before, request))

    def take(self, key: bytes) -> BookieRequest | None:
        """Return the oldest with this key, which waits no more."""
        found = self.pop(key, None)
        return self.oldest(key, found) if isinstance(found, SameKey) else found

    def oldest(self, key: bytes, popped: SameKey) -> BookieRequest:
        """Return the oldest of those that were popped; the others go on waiting."""
        request = popped[0]
        self._leave(key, popped, request)
        return request

    def due(self, now: int, later: Callable[[BookieRequest], int]) -> list[tuple[bytes, BookieRequest]]:
        """Return the requests to be given up by now, with their keys: one at most of each. `later`: ticks behind its
        deadline that a request has."""
        firsts = ((key, _due_first(waiting)) for key, waiting in self.items())
        return [(key, request) for key, request in firsts if request.deadline + later(request) <= now]

    def drop(self, key: bytes, request: BookieRequest) -> bool:
        """It waits no more; whether it did."""
        waiting = self.get(key)
        if waiting is request:
            del self[key]
        elif isinstance(waiting, SameKey) and request in waiting:
            self._leave(key, waiting, request)
        else:
            return False
        return True

    def requests(self) -> Iterator[BookieRequest]:
        """All of them."""
        for waiting in self.values():
            if isinstance(waiting, SameKey):
                yield from waiting
            else:
                yield waiting

    def _leave(self, key: bytes, waiting: SameKey, request: BookieRequest) -> None:
        waiting.remove(request)
        self[key] = waiting if len(waiting) > 1 else waiting[0]


def _due_first(waiting: BookieRequest | SameKey) -> BookieRequest:
    return min(waiting, key=attrgetter("deadline")) if isinstance(waiting, SameKey) else waiting
