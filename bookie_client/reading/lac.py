"""The last add confirmed of an open ledger: requests to its bookies, and the vote on their answers.

`LacVote` decides, without I/O, whether the answers are enough: it is fed with that of each position, in any order.

Two ways. `read_last_confirmed` asks every bookie of the current ensemble and is done once the answers cover it, or
for healing once all have answered: then every entry that was acknowledged early enough for its LAC to have travelled is
known. `try_read_last_confirmed` takes the first answer that is news. Both, and the fencing of a recovery, ask with a
`Ballot`: requests to several bookies at once, their answers one by one as they come.

Invariants
- Nothing is fenced: a writer notices nothing.
- What is returned is a lower bound of the ledger's LAC; entries up to it are acknowledged.
- Only bytes whose digest was verified count.
- A segment begins behind the LAC of its writer, so the entries in front of the last segment are confirmed,
  whatever its bookies know.
- Every request that was not answered when its ballot is left is given up, and has ended when leaving returns. An error
  that is not of the taxonomy is a defect and is raised, never taken for an answer.
- Covered means: in every write set that the ensemble can have, fewer than Qa positions are unknown. So every
  entry that was acknowledged is known to a position that answered; and where the answers were given behind a
  fence, no writer can ever again collect Qa acknowledgements.
- Known is a position that served its last entry, or said in so many words that it has none. A time-out, a fault
  or a ledger in limbo is unknown, never "has none".
- The outcome, once it is not `OPEN`, never changes: later answers are dropped.

Event loop only.

Source: docs/internals/client-protocol.md, sections 12, 14.2 and 14.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

from bookie_client.connection.request import EntryAnswer, LacAnswer
from bookie_client.context import ClientContext
from bookie_client.distribution import Quorums
from bookie_client.patience import heard
from bookie_protocol.digest import DigestManager
from bookie_protocol.entry import LAST_ENTRY, NO_LAC, read_header
from bookie_protocol.errors import (
    BookieUnavailable,
    CouldNotTell,
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    PodkeeperError,
    Unauthorized,
    fresh,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata

T = TypeVar("T")
Answer = LacAnswer | EntryAnswer


def is_negative(error: PodkeeperError) -> bool:
    """Return True if a bookie promised that it does not have the entry. "Not found" of a metadata service is not a
    bookie's word."""
    return isinstance(error, (NoSuchEntry, NoSuchLedger))


def is_covered(quorums: Quorums, known: Collection[int]) -> bool:
    """Return True if fewer than Qa positions of every possible write set are missing from `known`."""
    unknown = {position for position in range(quorums.ensemble) if position not in known}
    return all(len(unknown.intersection(quorums.write_set(start))) < quorums.ack for start in range(quorums.ensemble))


class LastEntry(NamedTuple):
    """The content of an undamaged last entry."""

    entry_id: int
    lac: int
    length: int
    """Payload bytes of the ledger up to and including this entry."""
    payload_size: int

    @classmethod
    def of(cls, digest: DigestManager, ledger_id: int, entry: bytes) -> LastEntry:
        """Verify an entry that was read as the last one. Raises `DigestMismatch`."""
        payload = digest.verify(entry, ledger_id, None)
        header = read_header(entry)
        return cls(header.entry_id, header.lac, header.length, len(payload))


class VoteOutcome(Enum):
    """OPEN: more answers are needed. COVERED: `lac` may be relied on. FAILED: see `error`."""

    OPEN = "open"
    COVERED = "covered"
    FAILED = "failed"


class LacVote:
    """One question to all positions of an ensemble. Each position answers once, by one of the four methods.

    `hears_all`: it is decided when all have answered, or failed, and no earlier; a refusal decides it at once.
    """

    def __init__(self, quorums: Quorums, *, hears_all: bool = False) -> None:
        self._quorums = quorums
        self._hears_all = hears_all
        self._known: set[int] = set()
        self._missing = set(range(quorums.ensemble))
        self._valid = False
        self._lengths: dict[int, int] = {-1: 0}
        self.outcome = VoteOutcome.OPEN
        self.lac = NO_LAC
        """The highest LAC heard; a lower bound of the ledger's."""
        self.length_heard = 0
        """The length in the header that carried this LAC: that of an entry behind it, so rather too large."""
        self.errors: dict[int, PodkeeperError] = {}
        """Reasons why positions are unknown, or damaged, in the order of their answers."""

    def served(self, position: int, last: LastEntry | None, explicit_lac: int = NO_LAC) -> None:
        """Count the answer of a position: its last entry (None: it has none), and an explicit LAC if it has one."""
        if not self._count(position):
            return
        self._heard(last, explicit_lac)
        self._known.add(position)
        self._valid = True
        self._decide()

    def hinted(self, position: int, explicit_lac: int, error: PodkeeperError) -> None:
        """The position has an explicit LAC, and could not tell its last entry: a hint, and an unknown
        position."""
        if not self._count(position):
            return
        self._heard(None, explicit_lac)
        self.errors[position] = error
        self._decide()

    def damaged(self, position: int, error: PodkeeperError) -> None:
        """The position answered, and its last entry is damaged. It counts as known where that is a matter of
        fencing alone, but it alone never completes the vote."""
        if not self._count(position):
            return
        self.errors[position] = error
        self._known.add(position)
        self._decide()

    def failed(self, position: int, error: PodkeeperError) -> None:
        """The position refused, failed, or did not answer."""
        if is_negative(error):
            self.served(position, None)
            return
        if not self._count(position):
            return
        self.errors[position] = error
        if isinstance(error, Unauthorized):
            self.outcome = VoteOutcome.FAILED
        else:
            self._decide()

    def exact_length(self, lac: int) -> int | None:
        """Payload bytes of entries 0 to `lac`, if a last entry was close enough to tell."""
        return self._lengths.get(lac)

    @property
    def error(self) -> PodkeeperError | None:
        """The error that ended the vote: a refusal, else the last one heard."""
        refusals = [error for error in self.errors.values() if isinstance(error, Unauthorized)]
        return next(iter(refusals), None) or next(reversed(self.errors.values()), None)

    def _count(self, position: int) -> bool:
        if self.outcome is not VoteOutcome.OPEN or position not in self._missing:
            return False
        self._missing.discard(position)
        return True

    def _heard(self, last: LastEntry | None, explicit_lac: int) -> None:
        self.lac = max(self.lac, explicit_lac)
        if last is not None:
            if last.lac >= self.lac:
                self.lac, self.length_heard = last.lac, last.length
            self._lengths[last.entry_id] = last.length
            self._lengths.setdefault(last.entry_id - 1, last.length - last.payload_size)

    def _decide(self) -> None:
        if self._hears_all and self._missing:
            return
        if self._valid and is_covered(self._quorums, self._known):
            self.outcome = VoteOutcome.COVERED
        elif not self._missing:
            self.outcome = VoteOutcome.FAILED


class Ballot(Generic[T]):
    """`requests` by position. Iterate over it with `async for`, within `async with`."""

    def __init__(self, requests: Mapping[int, Coroutine[Any, Any, T]]) -> None:
        loop = asyncio.get_running_loop()
        self._positions = {loop.create_task(request): position for position, request in requests.items()}
        self._pending = set(self._positions)
        self._done: list[asyncio.Task[T]] = []

    def __aiter__(self) -> Ballot[T]:
        return self

    async def __anext__(self) -> tuple[int, T | PodkeeperError]:
        """Position and answer, or the error in its place; ends when everybody has answered."""
        if not self._done:
            if not self._pending:
                raise StopAsyncIteration
            done, self._pending = await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
            self._done = sorted(done, key=self._positions.__getitem__, reverse=True)
        task = self._done.pop()
        return self._positions[task], _answer(task)

    async def close(self) -> None:
        """Give up what is not answered. Calling it again is fine."""
        tasks, self._positions = list(self._positions), {}
        self._pending, self._done = set(), []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Ballot[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _answer(task: asyncio.Task[T]) -> T | PodkeeperError:
    error = task.exception()
    return fresh(error) if isinstance(error, PodkeeperError) else task.result()


def least_lac(metadata: LedgerMetadata) -> int:
    """Return the last entry that the metadata alone confirm: the one before the last segment, or the end of a
    closed ledger."""
    return metadata.last_entry_id if metadata.is_closed else metadata.first_entry_ids[-1] - 1


async def read_last_confirmed(
    context: ClientContext, metadata: LedgerMetadata, digest: DigestManager, *, hears_all: bool = False
) -> int:
    """The LAC that the current ensemble knows. `hears_all`: the highest of all bookies that answer; one that is busy
    is asked again.

    Raises `Unauthorized` at once; else, when too few bookies answered, the last error, naming all of them.
    """
    vote = LacVote(Quorums.of(metadata), hears_all=hears_all)
    async with Ballot(_requests(context, metadata, hears_all=hears_all)) as ballot:
        async for position, answer in ballot:
            _count(vote, position, answer, metadata.ledger_id, digest)
            if vote.outcome is not VoteOutcome.OPEN:
                break
    if vote.outcome is VoteOutcome.COVERED:
        return max(vote.lac, least_lac(metadata))
    raise vote_failure(metadata, vote, "its last add confirmed is unknown")


async def try_read_last_confirmed(
    context: ClientContext, metadata: LedgerMetadata, digest: DigestManager, known: int
) -> int:
    """Return the first LAC heard that is above `known`; after all answers the highest one.

    Raises `Unauthorized` at once; else the last error, when no bookie answered.
    """
    vote = LacVote(Quorums.of(metadata))
    best = max(known, least_lac(metadata))
    answered = False
    async with Ballot(_requests(context, metadata)) as ballot:
        async for position, answer in ballot:
            # The vote ends once it is covered, and a later answer may be the one with news.
            best = max(best, _count(vote, position, answer, metadata.ledger_id, digest))
            if isinstance(answer, Unauthorized):
                raise fresh(answer)  # whatever others said: without the password no news means nothing
            answered = answered or position not in vote.errors
            if best > known:
                return best
    if answered:
        return best
    raise vote_failure(metadata, vote, "its last add confirmed is unknown")


async def last_confirmed_of(context: ClientContext, bookie: str, ledger_id: int, digest: DigestManager) -> int:
    """Return the last add confirmed that one bookie knows; -1 if it knows none. Raises its error, and
    `DigestMismatch`."""
    try:
        explicit, last = _verified(await _request(context, bookie, ledger_id), ledger_id, digest)
    except PodkeeperError as error:
        if is_negative(error):
            return NO_LAC
        raise
    return max(explicit, NO_LAC if last is None else last.lac)


def vote_failure(metadata: LedgerMetadata, vote: LacVote, what: str) -> PodkeeperError:
    """Return the error of a vote without result: of the type that ended it, with what each bookie said."""
    cause = vote.error
    said = "; ".join(f"{metadata.last_ensemble[position]}: {error}" for position, error in vote.errors.items())
    kind = BookieUnavailable if cause is None else type(cause)
    failure = kind(f"ledger {metadata.ledger_id}: {what}, too few bookies of its ensemble answered ({said})")
    failure.__cause__ = cause
    return failure


# --- inside ---------------------------------------------------------------------------------------------------


def _requests(
    context: ClientContext, metadata: LedgerMetadata, *, hears_all: bool = False
) -> dict[int, Coroutine[Any, Any, Answer]]:
    asks = [partial(_request, context, bookie, metadata.ledger_id) for bookie in metadata.last_ensemble]
    return {position: heard(ask) if hears_all else ask() for position, ask in enumerate(asks)}


async def _request(context: ClientContext, bookie: str, ledger_id: int) -> Answer:
    if context.options.protocol_version == 2:
        return await context.operations.read_entry(bookie, ledger_id, LAST_ENTRY)
    return await context.operations.read_lac(bookie, ledger_id)


def _count(vote: LacVote, position: int, answer: Answer | PodkeeperError, ledger_id: int, digest: DigestManager) -> int:
    """Feed the vote and return the LAC of this answer; -1 if it has none."""
    if isinstance(answer, PodkeeperError):
        vote.failed(position, answer)
        return NO_LAC
    try:
        explicit, last = _verified(answer, ledger_id, digest)
    except DigestMismatch as error:
        vote.failed(position, error)
        return NO_LAC
    if isinstance(answer, LacAnswer) and not answer.complete:
        vote.hinted(position, explicit, CouldNotTell("it could not tell its last entry"))
        return explicit
    vote.served(position, last, explicit)
    return max(explicit, NO_LAC if last is None else last.lac)


def _verified(answer: Answer, ledger_id: int, digest: DigestManager) -> tuple[int, LastEntry | None]:
    """Explicit LAC (-1 if none) and last entry. Raises `DigestMismatch` when a part that counts is damaged."""
    if isinstance(answer, EntryAnswer):
        return NO_LAC, LastEntry.of(digest, ledger_id, answer.entry)
    last = None if answer.last_entry is None else LastEntry.of(digest, ledger_id, answer.last_entry)
    if answer.explicit is None:
        return NO_LAC, last
    try:
        return digest.verify_lac(answer.explicit, ledger_id), last
    except DigestMismatch:
        if last is None:
            raise
        return NO_LAC, last
