"""Reads of exactly one bookie's copies: what it has, what it denies, and what it cannot tell.

Invariants
- At most `max_reads` reads are under way, and all pass the throttle.
- "Too many requests" is answered by waiting, a bounded number of times, and is neither a copy nor its absence then.

Event loop only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bookie_client.access import LedgerAccess
from bookie_client.context import ClientContext
from bookie_client.patience import Patience
from bookie_client.reading.lac import LastEntry
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.lists import Lists
from bookie_client.replication.source_reads import FAULTY_ANSWERS, Outcome, SourceReads
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_client.writing.window import Window
from bookie_protocol.entry import LAST_ENTRY, NO_LAC, read_header
from bookie_protocol.errors import NotThere, PodkeeperError, TooManyRequests
from bookie_protocol.wire.availability import Availability

CHUNK_SINGLES: Final = 64
"""Entries that are asked for at a time, by a request each."""
CHUNK_BYTES: Final = 1024 * 1024
GUESSED_BYTES: Final = 1024
"""Assumed bytes of an entry if the metadata do not contain its size."""
BUSY_TRIES: Final = 4
BUSY_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a fragment. `average`: bytes of an entry, about."""

    fragment: Fragment
    access: LedgerAccess
    reads: SourceReads
    average: int

    @classmethod
    def at(cls, context: ClientContext, fragment: Fragment, access: LedgerAccess, average: int = GUESSED_BYTES) -> Look:
        """Begin a look."""
        return cls(fragment, access, SourceReads(context, fragment, access, (), batch_reads=True), average)

    def appended(self, entry: bytes) -> tuple[int, bytes]:
        """Return the payload that its writer appended, and the length behind it. The rest of the header differs if
        a recovery stored the entry again."""
        return read_header(entry).length, entry[self.access.digest.overhead :]


class ReplicaReads:
    """Reads of any number of looks at the same time, within one bound."""

    def __init__(self, context: ClientContext, lists: Lists, throttle: ReplicationThrottle, max_reads: int) -> None:
        self.context = context
        self._lists = lists
        self._throttle = throttle
        self._most = max_reads
        # Its unit is the read: a chunk of entries takes as much as it has reads.
        self._window = Window(max_reads, max_reads, 0)

    async def listed(self, bookie: str, ledger_id: int) -> Availability | None:
        """Return the entries that the bookie lists of a ledger; None if it does not answer, or gives no list."""
        try:
            return await self._lists.of(bookie, ledger_id)
        except NotThere:
            return Availability([])
        except PodkeeperError:
            return None

    async def last_entry(self, bookie: str, ledger_id: int, access: LedgerAccess) -> int:
        """Return the last entry that the bookie has of a ledger; `NO_LAC` if it has none. Raises what it answers
        otherwise."""
        patience = Patience(BUSY_TRIES, BUSY_SECONDS)
        while True:
            await self._window.acquire(1)
            try:
                await self._throttle.read(0)
                answer = await self.context.operations.read_entry(bookie, ledger_id, LAST_ENTRY)
                return LastEntry.of(access.digest, ledger_id, answer.entry).entry_id
            except NotThere:
                return NO_LAC
            except TooManyRequests as error:
                busy = error
            finally:
                self._window.release(1, 1)
            if not await patience.again():
                raise busy

    async def read(
        self, look: Look, bookie: str, ids: Sequence[int]
    ) -> tuple[Mapping[int, bytes], Mapping[int, PodkeeperError]]:
        """Return the entries that are good, and what went wrong with the others, in order."""
        reads, average, throttle = look.reads, look.average, self._throttle
        patience = Patience(BUSY_TRIES, BUSY_SECONDS)
        while True:
            requests = reads.requests(ids, bookie)
            at_once = min(requests, self._most)
            await self._window.acquire(at_once)
            try:
                await throttle.read(average * len(ids), requests)
                outcome = Outcome()
                await reads.read_from(bookie, ids, CHUNK_BYTES, outcome, at_once=at_once)
            finally:
                self._window.release(1, at_once)
            throttle.correct_read(outcome.nbytes - average * len(ids), outcome.requests - requests)
            errors = outcome.errors
            said = {entry_id: errors[entry_id][bookie] for entry_id in ids if entry_id in errors}
            busy = any(isinstance(error, TooManyRequests) for error in said.values())
            faulty = any(isinstance(error, FAULTY_ANSWERS) for error in said.values())
            if faulty or not (busy and await patience.again()):
                return outcome.found, said
