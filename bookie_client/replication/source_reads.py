"""Reading the entries of one fragment for copies: from good replicas, by batch where possible, with fall-over.

Invariants
- What is handed out is the stored entry as it is, of a replica whose digest (where the ledger recorded one) and ids
  were verified.
- An entry is given up only when every bookie of its write set was asked. Good replicas come first, those in trouble
  after them, replicas that are to be replaced last.
- Consecutive pieces begin with different good replicas, so that all of them work.
- "Too many requests" is answered by waiting, a bounded number of times.
- Every request that was sent is counted, so that throttles learn what a piece really took.

Nothing here is a task per entry: a piece is one batch read, or one future for all its single reads. Event loop only.

Source: docs/internals/auto-recovery.md, section 7; docs/internals/client-protocol.md, sections 11.2 and 11.5.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

from bookie_client.access import LedgerAccess
from bookie_client.connection.request import Request
from bookie_client.context import ClientContext
from bookie_client.distribution import columns_of
from bookie_client.patience import Patience
from bookie_client.replication.fragments import Fragment
from bookie_protocol.entry import ENTRY_HEADER_SIZE, ENTRY_IDS
from bookie_protocol.errors import (
    BookieUnavailable,
    DigestMismatch,
    NotThere,
    PodkeeperError,
    StorageFault,
    TooManyRequests,
    fresh,
)

MAX_SINGLES: Final = 256
"""Single reads of one piece that are under way at once."""
FAULTY_ANSWERS: Final = (NotThere, DigestMismatch, StorageFault)
"""Errors by which a bookie says, or shows, that a copy is missing or unreadable. Any other error leaves that open."""
_TOLD: Final = 3
"""Entries of which a message says what each bookie answered."""
BUSY_TRIES: Final = 9
BUSY_SECONDS: Final = 0.05


def _no_errors() -> dict[int, dict[str, PodkeeperError]]:
    return defaultdict(dict)


@dataclass(slots=True)
class Outcome:
    """The outcome of reads.

    `found`: entries as they are stored. `errors`: by entry, the error of each bookie. `requests`: how many were sent.
    """

    found: dict[int, bytes] = field(default_factory=dict)
    errors: dict[int, dict[str, PodkeeperError]] = field(default_factory=_no_errors)
    requests: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the entries that were found."""
        return sum(map(len, self.found.values()))


class SourceReads:
    """The sources of one fragment. `replaced`: positions whose bookies are asked last."""

    def __init__(
        self,
        context: ClientContext,
        fragment: Fragment,
        access: LedgerAccess,
        replaced: Collection[int],
        *,
        batch_reads: bool,
    ) -> None:
        self._context = context
        self._fragment = fragment
        self._digest = access.digest
        self._replaced = frozenset(replaced)
        self._loop = asyncio.get_running_loop()
        self._trouble: Counter[str] = Counter()
        quorums = fragment.quorums
        self._holds_all = quorums.ensemble == quorums.write
        self._step = 1 if self._holds_all else quorums.ensemble
        self._support = context.batch_support if self._holds_all else context.batch_support.stepped
        self._batch_reads = batch_reads

    @property
    def reads_batches(self) -> bool:
        """Return True if some good replica may be asked for many entries at once."""
        return any(
            self._may_ask(bookie)
            for position, bookie in enumerate(self._fragment.ensemble)
            if position not in self._replaced
        )

    def may_batch(self, bookie: str, *, proven: bool = False) -> bool:
        """Return True if this bookie may be asked for many entries at once. `proven`: only if it has served a
        batch before."""
        return self._may_ask(bookie) and (not proven or self._support.is_proven(bookie))

    def requests(self, ids: Sequence[int], bookie: str | None = None) -> int:
        """Return the number of requests to read these from one bookie, or each from some bookie, as far as is known."""
        if not (self.reads_batches if bookie is None else self._may_ask(bookie)):
            return len(ids)
        return sum(1 if self._is_run(column) else len(column) for column in columns_of(ids, self._step))

    async def read(self, ids: Sequence[int], ordinal: int, max_bytes: int) -> Outcome:
        """The entries that some replica gave, and what all replicas said of the others. `ids` ascend; `ordinal`: the
        place of the piece among the pieces; `max_bytes` limits each batch."""
        outcome = Outcome()
        errors = outcome.errors
        missing = await self._ask_all(ids, ordinal, max_bytes, outcome)
        patience = Patience(BUSY_TRIES, BUSY_SECONDS)

        def of_busy() -> list[int]:
            return [entry for entry in missing if any(isinstance(e, TooManyRequests) for e in errors[entry].values())]

        while (busy := of_busy()) and await patience.again():
            missing = sorted({*missing} - {*busy} | {*await self._ask_all(busy, ordinal, max_bytes, outcome)})
        outcome.errors = {entry: errors[entry] for entry in missing}
        return outcome

    async def read_from(
        self, bookie: str, ids: Sequence[int], max_bytes: int, outcome: Outcome, *, at_once: int = MAX_SINGLES
    ) -> None:
        """Ask one bookie for all of these entries: as few requests as possible, of which so many are under way at the
        most."""
        left: list[int] = []
        columns = iter(columns_of(ids, self._step))
        while some_columns := list(islice(columns, at_once)):
            reads = [self._by_batch(bookie, column, max_bytes, outcome) for column in some_columns]
            left.extend(chain.from_iterable([await reads[0]] if len(reads) == 1 else await asyncio.gather(*reads)))
        left.sort()
        for start in range(0, len(left), at_once):
            some = left[start : start + at_once]
            if not await self._singly(bookie, some, outcome):
                error = outcome.errors[some[-1]][bookie]
                self._unavailable(bookie, left[start + len(some) :], error, outcome)
                return

    # --- order ----------------------------------------------------------------------------------------------

    def _candidates(self, entry_id: int, ordinal: int, shunned: Collection[str]) -> list[str]:
        ensemble = self._fragment.ensemble
        positions = range(len(ensemble)) if self._holds_all else self._fragment.write_set(entry_id)
        good = [ensemble[position] for position in positions if position not in self._replaced]
        if good:
            first = ordinal % len(good)
            good = good[first:] + good[:first]
            good.sort(key=lambda bookie: bookie in shunned or bookie in self._trouble)
        return good + [ensemble[position] for position in positions if position in self._replaced]

    async def _ask_all(self, ids: Sequence[int], ordinal: int, max_bytes: int, outcome: Outcome) -> list[int]:
        """Ask replica after replica; returns what none gave."""
        size = self._fragment.quorums.ensemble
        troubles = self._context.health.troubles(self._fragment.ensemble)
        shunned = troubles.failed_lately | troubles.slow
        places = {0} if self._holds_all else {entry % size for entry in ids}
        orders = {place: self._candidates(place, ordinal, shunned) for place in places}
        missing: list[int] = list(ids)
        for turn in range(self._fragment.quorums.write):
            asked: dict[str, list[int]] = defaultdict(list)
            for entry in missing:
                asked[orders[0 if self._holds_all else entry % size][turn]].append(entry)
            reads = [self.read_from(bookie, some, max_bytes, outcome) for bookie, some in asked.items()]
            if len(reads) == 1:
                await reads[0]
            else:
                await asyncio.gather(*reads)
            missing = [entry for entry in missing if entry not in outcome.found]
            if not missing:
                break
        return missing

    # --- requests -------------------------------------------------------------------------------------------

    async def _by_batch(self, bookie: str, ids: Sequence[int], max_bytes: int, outcome: Outcome) -> Sequence[int]:
        """Returns those that single reads may do better with."""
        done = 0
        while self._is_run(ids, done) and self._may_ask(bookie):
            first = ids[done]
            outcome.requests += 1
            try:
                packed = await self._context.operations.batch_read(
                    bookie, self._fragment.ledger_id, first, len(ids) - done, max_bytes, step=self._step
                )
                entries = packed.split()[: len(ids) - done]
            except BookieUnavailable as error:
                self._unavailable(bookie, ids[done:], fresh(error), outcome)
                return ()
            except TooManyRequests as error:  # and many more requests would not be served either
                for entry_id in ids[done:]:
                    outcome.errors[entry_id][bookie] = fresh(error)
                return ()
            except PodkeeperError as error:
                self._support.judge(bookie, error, self._loop.time())
                break
            self._support.served(bookie)
            self._take(bookie, ids[done:], entries, outcome)
            done += len(entries)
        return ids[done:]

    def _may_ask(self, bookie: str) -> bool:
        return self._batch_reads and self._support.may_ask(bookie, self._loop.time())

    def _is_run(self, ids: Sequence[int], done: int = 0) -> bool:
        """Return True if the ids behind the first `done` can be asked for at once."""
        rest = len(ids) - done
        return rest > 1 and ids[-1] - ids[done] == (rest - 1) * self._step

    async def _singly(self, bookie: str, ids: Sequence[int], outcome: Outcome) -> bool:
        """One request each, all at once; False when the bookie was unreachable in the end."""
        run = _SingleReads(self._loop, ids)
        outcome.requests += len(ids)
        channel = self._context.pool.channel(bookie, self._fragment.ledger_id)
        read, transactions, ledger_id = channel.dialect.read, self._context.transactions, self._fragment.ledger_id
        batch_class = self._context.options.reads_are_batch
        try:
            for entry_id in ids:
                key, frame = read(next(transactions), ledger_id, entry_id, batch_class=batch_class)
                channel.send_read(frame, key, _SingleRead(run, ledger_id, entry_id))
            await run.done
        finally:
            run.is_over = True
        for entry_id, error in run.errors.items():
            outcome.errors[entry_id][bookie] = error
        for entry_id, entry in run.entries.items():
            self._take(bookie, (entry_id,), (entry,), outcome)
        last = run.errors.get(ids[-1])
        if isinstance(last, BookieUnavailable):
            self._trouble[bookie] += 1
            return False
        return True

    def _unavailable(self, bookie: str, ids: Iterable[int], error: PodkeeperError, outcome: Outcome) -> None:
        self._trouble[bookie] += 1
        for entry_id in ids:
            outcome.errors[entry_id][bookie] = error

    def _take(self, bookie: str, ids: Sequence[int], entries: Sequence[bytes], outcome: Outcome) -> None:
        found, errors = outcome.found, outcome.errors
        digest_of, unpack, ledger_id = self._digest.digest, ENTRY_IDS.unpack_from, self._fragment.ledger_id
        payload_at = ENTRY_HEADER_SIZE + self._digest.size
        for entry_id, entry in zip(ids, entries):  # noqa: B905 - of some ids there may be no answer
            if len(entry) >= payload_at:
                digest = digest_of(entry[:ENTRY_HEADER_SIZE], entry[payload_at:])
                if digest == entry[ENTRY_HEADER_SIZE:payload_at] and unpack(entry) == (ledger_id, entry_id):
                    found[entry_id] = entry
                    continue
            errors[entry_id][bookie] = self._mismatch(entry_id, entry)
            self._context.damaged_replicas[bookie] += 1

    def _mismatch(self, entry_id: int, entry: bytes) -> DigestMismatch:
        try:
            self._digest.verify(entry, self._fragment.ledger_id, entry_id)
        except DigestMismatch as error:
            return fresh(error)
        raise AssertionError("the digest manager disagrees with itself")


class _SingleReads:
    """A group of reads of one bookie with one future for all."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ids: Sequence[int]) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self.entries: dict[int, bytes] = {}
        self.errors: dict[int, PodkeeperError] = {}
        self.is_over = False
        self._left = len(ids)

    def ended(self) -> None:
        self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(None)


class _SingleRead(Request):
    __slots__ = ("_entry_id", "_ledger_id", "_run")

    def __init__(self, run: _SingleReads, ledger_id: int, entry_id: int) -> None:
        self._run = run
        self._ledger_id = ledger_id
        self._entry_id = entry_id

    @property
    def is_wanted(self) -> bool:
        return not self._run.is_over

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        self._run.entries[self._entry_id] = entry
        self._run.ended()

    def failed(self, error: PodkeeperError) -> None:
        self._run.errors[self._entry_id] = error
        self._run.ended()

    def describe(self) -> str:
        return f"the read of entry {self._entry_id} of ledger {self._ledger_id}"


def explained(ledger_id: int, errors: Mapping[int, Mapping[str, PodkeeperError]]) -> str:
    """Return the entries, and of the first ones what each bookie said, for messages."""
    parts = []
    for entry_id, said in list(errors.items())[:_TOLD]:
        who = "; ".join(f"{bookie}: {_brief(error)}" for bookie, error in said.items())
        parts.append(f"entry {entry_id} ({who})")
    more = len(errors) - _TOLD
    return f"ledger {ledger_id}: {', '.join(parts)}" + (f" and {more} more" if more > 0 else "")


def _brief(error: PodkeeperError) -> str:
    return f"does not have it ({type(error).__name__})" if isinstance(error, NotThere) else str(error)
