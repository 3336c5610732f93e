"""The recovery's read of one entry: found, not found, or an error because the answer is unknown.

`RecoveryParts` is what all steps of one recovery share.

Invariants
- Every request fences its bookie first, so a bookie's "no" holds for ever: an add of the old writer that is still
  under way can no longer make it wrong.
- Every request names the life of the ledger. A bookie that stores another one of the id cannot tell, and fences
  nothing: the entries of a dead ledger are none of the living one's, and a late fence does not end a living writer.
- Replicas are asked one after the other: the next one when one failed, or has not answered for as long as its
  reads take as a rule. An answer that comes later still counts.
- Found: any one undamaged copy. It may have been acknowledged, so it stays.
- Not found: Qw - Qa + 1 positions of the write set said in so many words, behind a fence, that they have not got it.
  Then fewer than Qa copies can exist, now and ever: it was never acknowledged. A time-out, a lost connection, a fault,
  a damaged copy or a ledger in limbo is never such a word.
- Where the recovery `hears_all` (healing's do), the others of the write set have answered too, or failed: a copy on any
  of them wins over those that deny it, who may have lost theirs without a trace. A bookie that is busy, or whose
  connection broke, has not failed yet: it is asked again.
- Unknown: all replicas answered, and neither holds. The recovery fails, and another one may know more.
- The verdict, once it is not `OPEN`, never changes. Once it is reached, no request of the read is under way any more.

`EntryVote` is pure; everything else belongs to the event loop.

Source: docs/internals/client-protocol.md, section 14.5.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import NamedTuple

from bookie_client.connection.request import EntryAnswer
from bookie_client.context import ClientContext
from bookie_client.distribution import Quorums
from bookie_client.patience import heard
from bookie_client.reading.entry_read import read_failure
from bookie_client.reading.lac import is_negative
from bookie_client.reading.speculation import SpeculationPolicy
from bookie_protocol.digest import DigestManager
from bookie_protocol.entry import read_header
from bookie_protocol.errors import LedgerStateUnknown, PodkeeperError, fresh
from bookie_protocol.keys import life_of_copies
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.versioned import Versioned


@dataclass(frozen=True, slots=True)
class RecoveryParts:
    """`stored`: the metadata as they were when the ledger was marked; the recovery reads by them until its end,
    whatever it replaces itself. `master_key` goes with every request that fences."""

    context: ClientContext
    stored: Versioned[LedgerMetadata]
    digest: DigestManager
    master_key: bytes = field(repr=False)
    distrusted: frozenset[str] = frozenset()
    """Bookies that lost entries of the ledger, or may have: what they deny counts as unknown."""
    shunned: frozenset[str] = frozenset()
    """Bookies that nothing is stored on."""
    hears_all: bool = False
    """An entry counts as not found only when its whole write set has answered, or failed, because any copy wins."""
    quorums: Quorums = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "quorums", Quorums.of(self.metadata))

    def weighed(self, bookie: str, error: PodkeeperError) -> PodkeeperError:
        """Return the error to count for a bookie's answer: the "no" of a distrusted bookie is not a promise."""
        if bookie in self.distrusted and is_negative(error):
            return LedgerStateUnknown(
                f"bookie {bookie} may have lost entries of ledger {self.ledger_id}: its no counts for nothing"
            )
        return error

    async def read(self, bookie: str, entry_id: int) -> EntryAnswer:
        """Read an entry of one bookie behind its fence. Raise what the bookie answers."""
        ask = partial(
            self.context.operations.read_entry,
            bookie,
            self.ledger_id,
            entry_id,
            fence_key=self.master_key,
            life=life_of_copies(self.metadata.creation_token),
            high_priority=True,
        )
        return await (heard(ask) if self.hears_all else ask())

    @property
    def metadata(self) -> LedgerMetadata:
        return self.stored.value

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id


class FoundEntry(NamedTuple):
    """An undamaged copy."""

    entry_id: int
    length: int
    """Payload bytes of the ledger up to and including this entry, as its writer counted."""
    payload: bytes


async def read_forward(parts: RecoveryParts, entry_id: int) -> FoundEntry | None:
    """Return the entry; None if it was never acknowledged. Raises the error that counts if the answer is unknown."""
    read = _ForwardRead(parts, entry_id)
    try:
        return await read.run()
    finally:
        await read.close()


class _ForwardRead:
    def __init__(self, parts: RecoveryParts, entry_id: int) -> None:
        self._parts = parts
        self._entry_id = entry_id
        bookies = parts.metadata.bookies_for(entry_id)
        unreachable = parts.context.health.failed_lately()
        self._order = sorted(bookies, key=unreachable.__contains__)
        self._vote = EntryVote(parts.quorums, bookies, hears_all=parts.hears_all)
        self._policy = SpeculationPolicy.of(parts.context.options)
        self._asked: dict[asyncio.Task[FoundEntry], str] = {}

    async def run(self) -> FoundEntry | None:
        loop = asyncio.get_running_loop()
        delay: float | None = None
        while True:
            if self._order:
                bookie = self._order.pop(0)
                self._asked[loop.create_task(self._ask(bookie))] = bookie
                delay = self._delay(bookie, delay)
            done, _ = await asyncio.wait(
                self._asked, timeout=delay if self._order else None, return_when=asyncio.FIRST_COMPLETED
            )
            found = self._count(done)
            if self._vote.verdict is Verdict.FOUND:
                return found
            if self._vote.verdict is Verdict.NOT_FOUND:
                return None
            if self._vote.verdict is Verdict.UNKNOWN:
                raise read_failure(self._parts.ledger_id, self._entry_id, self._vote.errors)

    async def close(self) -> None:
        tasks, self._asked = list(self._asked), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _delay(self, bookie: str, delay: float | None) -> float | None:
        """Return the seconds that the replica has before the next one is asked too; None: until it fails."""
        if self._policy.is_off:
            return None
        if delay is None:
            return self._policy.first_delay(self._parts.context.health.expected_read_seconds(bookie))
        return self._policy.next_delay(delay)

    def _count(self, done: set[asyncio.Task[FoundEntry]]) -> FoundEntry | None:
        found = None
        # Of answers that came together a copy counts before those who have none.
        for task in sorted(done, key=lambda task: task.exception() is not None):
            bookie = self._asked.pop(task)
            error = task.exception()
            if isinstance(error, PodkeeperError):
                self._vote.failed(bookie, self._parts.weighed(bookie, fresh(error)))
            else:
                found = task.result()
                self._vote.found(bookie)
        return found

    async def _ask(self, bookie: str) -> FoundEntry:
        parts = self._parts
        answer = await parts.read(bookie, self._entry_id)
        payload = parts.digest.verify(answer.entry, parts.ledger_id, self._entry_id)
        return FoundEntry(self._entry_id, read_header(answer.entry).length, payload)


class Verdict(Enum):
    """OPEN: more answers are needed."""

    OPEN = "open"
    FOUND = "found"
    NOT_FOUND = "not found"
    UNKNOWN = "unknown"


class EntryVote:
    """`bookies`: the entry's write set. `hears_all`: it is not found only when all of them have answered, or failed."""

    def __init__(self, quorums: Quorums, bookies: tuple[str, ...], *, hears_all: bool = False) -> None:
        self._hears_all = hears_all
        self._missing = set(bookies)
        self._negatives_needed = quorums.write - quorums.ack + 1
        self._negatives = 0
        self.verdict = Verdict.OPEN
        self.errors: dict[str, PodkeeperError] = {}
        """Errors of the bookies that have not served the entry, in the order of the answers."""

    def found(self, bookie: str) -> None:
        """The bookie served the entry, undamaged."""
        if self._count(bookie):
            self.verdict = Verdict.FOUND

    def failed(self, bookie: str, error: PodkeeperError) -> None:
        """The bookie has not served the entry."""
        if not self._count(bookie):
            return
        self.errors[bookie] = error
        if is_negative(error):
            self._negatives += 1
        if self._hears_all and self._missing:
            return
        if self._negatives >= self._negatives_needed:
            self.verdict = Verdict.NOT_FOUND
        elif not self._missing:
            self.verdict = Verdict.UNKNOWN

    def _count(self, bookie: str) -> bool:
        if self.verdict is not Verdict.OPEN or bookie not in self._missing:
            return False
        self._missing.discard(bookie)
        return True
