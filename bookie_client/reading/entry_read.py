"""The read of one entry, one replica after the other until one serves undamaged bytes; and groups of such reads.

If all replicas fail, this module also chooses the error that is raised.

Invariants
- `done` is called exactly once, when the entry, or every one of a group, was served or failed; unless it was abandoned
  before, then never.
- The next replica is asked when none is outstanding, or by `speculate`. The first undamaged copy wins; what the others
  answer later is dropped.
- Nothing is asked after the end, nor after `abandon`.
- Each entry of a group is looked after for speculation by itself: one slow entry causes no requests for its neighbours.
  The delay is the group's: it grows whenever a replica was asked for one of its entries.
- "No such entry" is the outcome only when every replica says so, and none failed in any other way: a fault, a time-out
  or a bad digest leaves open whether the entry exists.

Event loop only.

Source: docs/internals/client-protocol.md, sections 11.2 and 11.3.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from bookie_client.connection.channel import Channel
from bookie_client.connection.request import Request
from bookie_client.reading.choice import ReplicaChoice
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.origins import Origins
from bookie_client.reading.speculation import SpeculationPolicy
from bookie_protocol.digest import DigestManager
from bookie_protocol.entry import ENTRY_HEADER
from bookie_protocol.errors import BookieUnavailable, DigestMismatch, NotThere, PodkeeperError, TooManyRequests, fresh

_PASSING: Final = (BookieUnavailable, TooManyRequests)
"""Errors that every replica of an entry may return at one moment and none at the next."""
Question = tuple[int, Sequence[str], tuple[bytes, bytes]]
"""(entry id, order of replicas, key and frame)."""


def outcome_of(errors: Mapping[str, PodkeeperError]) -> PodkeeperError:
    """Return the error that stands for all of them, in the order in which they came."""
    chosen: PodkeeperError | None = None
    for error in errors.values():
        if (
            chosen is None
            or isinstance(chosen, NotThere)
            or (isinstance(chosen, BookieUnavailable) and not isinstance(error, NotThere))
        ):
            chosen = error
    if chosen is None:
        raise ValueError("no replica was asked")
    return chosen


def read_failure(ledger_id: int, entry_id: int, errors: Mapping[str, PodkeeperError]) -> PodkeeperError:
    """Return the error for the application: of the type that counts, naming every replica and what it said."""
    chosen = outcome_of(errors)
    said = "; ".join(f"{bookie}: {error}" for bookie, error in errors.items())
    failure = type(chosen)(f"entry {entry_id} of ledger {ledger_id}: no replica could serve it ({said})")
    failure.__cause__ = chosen if len(errors) == 1 else ExceptionGroup("what the replicas said", list(errors.values()))
    return failure


def may_pass(failure: PodkeeperError) -> bool:
    """Return True if waiting may help: some replica could not be reached or was too busy."""
    if isinstance(failure, _PASSING):
        return True
    cause = failure.__cause__
    return isinstance(cause, ExceptionGroup) and any(isinstance(error, _PASSING) for error in cause.exceptions)


Done = Callable[[int, bytes | None, bytes, PodkeeperError | None], None]
"""(entry id, payload or None, whole entry, error)."""


@dataclass(frozen=True, slots=True)
class ReadPath:
    """The parts that all reads of one handle share."""

    channels: Mapping[str, Channel]
    digest: DigestManager
    observer: ReplicaChoice
    fan_out: int = 1
    """Number of replicas that are asked at once."""


class EntryRead(Request):
    """Asks `order` in turn. `known`: replicas that failed before, for the final error."""

    __slots__ = ("_asked", "_done", "_errors", "_key_and_frame", "_order", "_outstanding", "_path", "ids", "is_done")

    def __init__(
        self,
        ids: tuple[int, int],
        order: Sequence[str],
        key_and_frame: tuple[bytes, bytes],
        path: ReadPath,
        done: Done,
        known: Mapping[str, PodkeeperError] | None = None,
    ) -> None:
        self.ids = ids
        self.is_done = False
        self._order = order
        self._key_and_frame = key_and_frame
        self._path = path
        self._done = done
        self._asked = 0
        self._outstanding = 0
        self._errors: dict[str, PodkeeperError] | None = dict(known) if known else None

    def send(self) -> None:
        """Ask the first replica, or as many at once as wanted."""
        for _ in range(min(self._path.fan_out, len(self._order))):
            self._ask_next()

    @property
    def may_speculate(self) -> bool:
        """Return True if it has no answer yet and there is another replica to ask."""
        return not self.is_done and self._asked < len(self._order)

    def speculate(self) -> None:
        """Ask the next replica although others may still answer. Only while it `may_speculate`."""
        self._ask_next()

    def abandon(self) -> None:
        """Drop later answers: the caller does not wait any more."""
        self.is_done = True

    @property
    def latest(self) -> str:
        """The replica asked last."""
        return self._order[self._asked - 1]

    @property
    def is_wanted(self) -> bool:
        return not self.is_done

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        self.take_from(self._order[0], entry, max_lac)

    def failed(self, error: PodkeeperError) -> None:
        self.failed_at(self._order[0], error)

    def describe(self) -> str:
        return f"the read of entry {self.ids[1]} of ledger {self.ids[0]}"

    def take_from(self, bookie: str, entry: bytes, max_lac: int | None) -> None:
        """A replica's answer."""
        if self.is_done:
            return
        path = self._path
        ledger_id, entry_id = self.ids
        try:
            payload = path.digest.verify(entry, ledger_id, entry_id)
        except DigestMismatch as error:
            path.observer.damaged(bookie, entry_id, error)
            self.failed_at(bookie, fresh(error))
            return
        self.is_done = True
        observer = path.observer
        observer.served(bookie, entry_id)
        if max_lac is not None:
            observer.heard_lac(max_lac)
        if self._outstanding > 1:
            self._tell_slow(bookie)
        self._done(entry_id, payload, entry, None)

    def failed_at(self, bookie: str, error: PodkeeperError) -> None:
        """A replica did not serve the entry."""
        if self.is_done:
            return
        self._path.observer.failed(bookie, error)
        self._outstanding -= 1
        if self._errors is None:
            self._errors = {}
        self._errors[bookie] = error
        if self._outstanding:
            return
        if self._asked < len(self._order):
            self._ask_next()
        else:
            self.is_done = True
            self._done(self.ids[1], None, b"", read_failure(*self.ids, self._errors))

    def _ask_next(self) -> None:
        bookie = self._order[self._asked]
        # The read itself waits for its first replica; others need to know whose answer they are.
        request = _LaterReplica(self, bookie) if self._asked else self
        self._asked += 1
        self._outstanding += 1
        key, frame = self._key_and_frame
        self._path.channels[bookie].send_read(frame, key, request)

    def _tell_slow(self, winner: str) -> None:
        failed = self._errors or {}
        if self._path.fan_out == 1:
            before = self._order[: self._order.index(winner)]
            self._path.observer.outrun([bookie for bookie in before if bookie not in failed])


class _LaterReplica(Request):
    """The request to any replica but the first."""

    __slots__ = ("_bookie", "_read")

    def __init__(self, read: EntryRead, bookie: str) -> None:
        self._read = read
        self._bookie = bookie

    @property
    def is_wanted(self) -> bool:
        return not self._read.is_done

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        self._read.take_from(self._bookie, entry, max_lac)

    def failed(self, error: PodkeeperError) -> None:
        self._read.failed_at(self._bookie, error)

    def describe(self) -> str:
        return self._read.describe()


class EntryGroup:
    """A group of reads of single entries. `known`: replicas that failed before this group, for the error of an entry
    that none serves."""

    def __init__(
        self,
        ledger_id: int,
        path: ReadPath,
        policy: SpeculationPolicy,
        done: Callable[[EntryGroup], None],
        known: Mapping[str, PodkeeperError] | None = None,
        origins: Origins | None = None,
    ) -> None:
        self.due = inf
        self.answers: dict[int, LedgerEntry | PodkeeperError] = {}
        """Answers by entry id, in the order in which they came."""
        self._ledger_id = ledger_id
        self._path = path
        self._policy = policy
        self._done = done
        self._known = known
        self._origins = origins
        self._reads: list[EntryRead] = []
        self._started = 0.0
        self._delay = 0.0

    def send(self, questions: Sequence[Question], now: float, delay: float) -> None:
        """Ask for all of them. `now` is the event loop's time; `delay`: seconds that the first replicas have."""
        self._started, self._delay = now, delay
        self.due = inf if self._policy.is_off else now + delay
        ledger_id, path, took, known = self._ledger_id, self._path, self._took, self._known
        self._reads = [
            EntryRead((ledger_id, entry_id), order, key_and_frame, path, took, known)
            for entry_id, order, key_and_frame in questions
        ]
        for read in self._reads:
            read.send()

    def abandon(self) -> None:
        """Drop later answers: the caller does not wait any more."""
        self.due = inf
        for read in self._reads:
            read.abandon()

    def speculate(self, now: float, alive: frozenset[str]) -> None:
        """See `speculation.Waiting`."""
        is_patient = now < self._started + self._policy.longest
        waits, asked = False, False
        for read in self._reads:
            if not read.may_speculate:
                continue
            if not (is_patient and read.latest in alive):
                asked = True
                read.speculate()
            waits = waits or read.may_speculate
        if asked:
            self._delay = self._policy.next_delay(self._delay)
        self.due = now + self._delay if waits else inf

    def _took(self, entry_id: int, payload: bytes | None, entry: bytes, error: PodkeeperError | None) -> None:
        if error is not None:
            self.answers[entry_id] = error
        else:
            assert payload is not None
            _, _, lac, length = ENTRY_HEADER.unpack_from(entry)
            self.answers[entry_id] = LedgerEntry(self._ledger_id, entry_id, length, payload, lac)
            if self._origins is not None:
                self._origins.took(entry_id, get_running_loop().time() - self._started)
        if len(self.answers) == len(self._reads):
            self.due = inf
            self._done(self)
