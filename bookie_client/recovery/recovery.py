"""Recovery: it stores the end of a ledger that was not closed, whether its writer is dead, or alive and unaware.

Mark the metadata IN_RECOVERY, so that the writer cannot change the ensemble any more; find the end (`find_end`: fence,
read forward, store again what is found, stop at the first entry that was never acknowledged); store it with one
compare-and-set. Any number of clients may do this at once, and any of them may die anywhere: the first compare-and-set
that makes the ledger CLOSED decides, and all others adopt what it stored.

Invariants
- No bookie is fenced with a password that differs from the one the ledger recorded.
- An attempt that fails leaves the ledger IN_RECOVERY, and any client may try again.
- The end found is at or above every entry that a writer saw acknowledged, and every entry up to it has its ack
  quorum.
- Reading ahead never decides anything: entries are taken in order, and what was read behind the end is dropped.
- Entries read ahead or on their way to the ack quorum are bounded in number and bytes.
- Once the ledger is fenced the old writer can never again collect Qa acknowledgements in any write set: the vote was
  covered, by bookies that made their fence durable before they answered. The LAC that comes out was confirmed by the
  writer, or by a recovery before this one: it is a start, not the end.
- A bookie that cannot read its last entry is asked once more, for an entry that no ledger has: its "no such entry"
  proves the fence.
- Entries that are stored again keep id, payload and length. They carry the LAC that fencing found, not how far the
  recovery is: until the ledger is closed its writer, or another recovery, may still close it at a lower end, and a
  reader must never hear of a LAC above the end.
- A failed bookie is replaced for this recovery alone: nothing is written into the metadata before the end is
  (`segments`). Without a spare bookie the ack quorum has to do.
- When it returns or raises, nothing is under way any more.

Event loop only.

Source: docs/internals/client-protocol.md, section 14.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from bookie_client.access import LedgerAccess
from bookie_client.context import ClientContext
from bookie_client.metadata_update import read_same, update_metadata
from bookie_client.reading.lac import Ballot, LacVote, LastEntry, VoteOutcome, least_lac, vote_failure
from bookie_client.recovery.forward_read import FoundEntry, RecoveryParts, read_forward
from bookie_client.writing.add_state import AddState
from bookie_client.writing.ensemble_change import Refusals, find_spares, replace_bookies, with_new_ensemble
from bookie_client.writing.pipeline import AddPipeline
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import (
    CouldNotTell,
    DigestMismatch,
    LedgerDeleted,
    MetadataError,
    MetadataNotFound,
    MetadataReplaced,
    MetadataVersionConflict,
    NotThere,
    PodkeeperError,
    RecoveryFailed,
    StorageFault,
    Unauthorized,
    fresh,
)
from bookie_protocol.ledger_metadata.model import Ensemble, LedgerMetadata, LedgerState
from bookie_protocol.logs import get_logger
from bookie_protocol.metadata_service.interface import LedgerLife, Versioned

NO_ENTRY: Final = 1 << 56
"""An entry id that no ledger reaches. It is small enough for its place in an index file to be a valid offset."""
FIRST_WINDOW: Final = 4
"""Entries under way at first; as many more as were found, because most ledgers have very few to recover."""
_log = get_logger(__name__)
Stored = Versioned[LedgerMetadata]


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """The end of a ledger, as it is stored in the metadata."""

    last_entry_id: int
    length: int
    """Payload bytes of all entries."""
    segments: Mapping[int, Ensemble]
    """Ensembles that recovered entries were stored on, by first entry; in addition to the stored ones."""
    recovered: int
    """Number of entries that were stored again."""


async def find_end(parts: RecoveryParts) -> LedgerEnd:
    """Find the end of the ledger. Raises `Unauthorized`, and the errors of bookies if the end is unknown; a later
    call may find it."""
    fencing = Fencing(parts)
    try:
        start = await fencing.run()
        forward = _Forward(parts, start)
        try:
            last = await forward.run()
        finally:
            await forward.close()
        if last is None:
            return LedgerEnd(start, await _length_at(parts, start, fencing), {}, 0)
        return LedgerEnd(last.entry_id, last.length, forward.segments(last.entry_id), last.entry_id - start)
    finally:
        await fencing.close()


async def _length_at(parts: RecoveryParts, entry_id: int, fencing: Fencing) -> int:
    length = fencing.exact_length(entry_id)
    if length is not None:
        return length
    reason = "its bookies do not have it"
    try:
        # It is confirmed: a bookie that denies it has lost it, and any copy tells.
        found = await read_forward(replace(parts, hears_all=True), entry_id)
        if found is not None:
            return found.length
    except PodkeeperError as error:
        reason = str(error)
    # That entry is confirmed and needs no recovery: not being able to read it must not keep the ledger open.
    length = fencing.length_heard
    _log.warning("length is not exact", ledger=parts.ledger_id, entry=entry_id, length=length, error=reason)
    return length


class _Forward:
    """Reads ahead and stores again, from the entry behind `start` on."""

    def __init__(self, parts: RecoveryParts, start: int) -> None:
        options = parts.context.options
        self._parts = parts
        self._rewriter = Rewriter(parts, start)
        self._reads: deque[asyncio.Task[FoundEntry | None]] = deque()
        self._start = start
        self._next = start + 1
        self._largest = 0
        self._max_entries = options.recovery_window_entries
        self._max_bytes = options.recovery_window_bytes

    async def run(self) -> FoundEntry | None:
        """Return the last entry, once all are stored again; None when there was none behind the start."""
        last: FoundEntry | None = None
        while True:
            self._read_ahead()
            if not self._reads:
                await self._rewriter.progress()
                continue
            found = await self._reads[0]
            self._reads.popleft()
            if found is None:
                await self._rewriter.drain()
                return last
            self._largest = max(self._largest, len(found.payload))
            self._rewriter.store(found)
            last = found

    def segments(self, last_entry_id: int) -> dict[int, Ensemble]:
        """Return the new ensembles; one that was reached behind the last entry holds nothing."""
        return {first: ensemble for first, ensemble in self._rewriter.segments.items() if first <= last_entry_id}

    async def close(self) -> None:
        """End what is under way."""
        reads, self._reads = self._reads, deque()
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        await self._rewriter.close()

    def _read_ahead(self) -> None:
        while self._next <= self._rewriter.lac + self._window():
            self._reads.append(asyncio.get_running_loop().create_task(read_forward(self._parts, self._next)))
            self._next += 1

    def _window(self) -> int:
        if not self._largest:
            return min(FIRST_WINDOW, self._max_entries)
        found = self._rewriter.lac - self._start
        return max(1, min(FIRST_WINDOW + found, self._max_entries, self._max_bytes // self._largest))


class _LastEntryUnreadable(CouldNotTell):
    """A bookie is fenced, and cannot read its last entry from its disk."""


class Fencing:
    """One round; `close` it when the recovery ends, because bookies that answer late are fenced all the same."""

    def __init__(self, parts: RecoveryParts) -> None:
        self._parts = parts
        self._vote = LacVote(parts.quorums, hears_all=parts.hears_all)
        self._ballot = Ballot(
            {position: self._fence(bookie) for position, bookie in enumerate(parts.metadata.last_ensemble)}
        )

    async def run(self) -> int:
        """Fence; returns the highest LAC that is known then.

        Raises `Unauthorized` at once; else, when too few bookies could be fenced, the last error.
        """
        async for position, answer in self._ballot:
            self._count(position, answer)
            if self._vote.outcome is not VoteOutcome.OPEN:
                break
        if self._vote.outcome is not VoteOutcome.COVERED:
            raise vote_failure(self._parts.metadata, self._vote, "it cannot be fenced")
        return max(self._vote.lac, least_lac(self._parts.metadata))

    def exact_length(self, lac: int) -> int | None:
        """Return the payload bytes of entries 0 to `lac`, if one of the last entries contains them."""
        return self._vote.exact_length(lac)

    @property
    def length_heard(self) -> int:
        """Return the length that the reference would use, if no exact one is known."""
        return self._vote.length_heard

    async def close(self) -> None:
        """Give up what is not answered."""
        await self._ballot.close()

    def _count(self, position: int, answer: LastEntry | PodkeeperError) -> None:
        if isinstance(answer, (DigestMismatch, _LastEntryUnreadable)):
            self._vote.damaged(position, answer)
        elif isinstance(answer, PodkeeperError):
            self._vote.failed(position, answer)
        else:
            self._vote.served(position, answer)

    async def _fence(self, bookie: str) -> LastEntry:
        """Return the bookie's last entry. `_LastEntryUnreadable`: the bookie is fenced, and cannot read that entry."""
        try:
            answer = await self._parts.read(bookie, LAST_ENTRY)
        except StorageFault as error:
            # One answer stands for two facts: the fence, and the entry read behind it. An entry that no ledger has is
            # denied from the index alone, so this second answer tells of the fence whatever the disk says of the entry.
            with suppress(NotThere):
                await self._parts.read(bookie, NO_ENTRY)
            raise _LastEntryUnreadable(str(error)) from error
        return LastEntry.of(self._parts.digest, self._parts.ledger_id, answer.entry)


class _Rewrites(AddState):
    """The adds of a recovery: they continue the ledger behind `start`."""

    def __init__(self, parts: RecoveryParts, start: int) -> None:
        options = parts.context.options
        super().__init__(
            parts.ledger_id,
            parts.quorums,
            parts.metadata.last_ensemble,
            lac=start,
            delay_ensemble_change=options.delay_ensemble_change,
            max_ensemble_changes=options.max_ensemble_changes,
        )
        self._start = start
        if parts.shunned:
            self.leave_out(parts.shunned)

    def piggy_back(self) -> int:
        self.piggy_backed = self._start
        return self._start


class Rewriter:
    """Stores the entries of one recovery again; `close` it. `start`: the LAC that fencing found."""

    def __init__(self, parts: RecoveryParts, start: int) -> None:
        self._parts = parts
        self._state = _Rewrites(parts, start)
        encoder = parts.context.pool.dialect.add_encoder(LedgerLife.of(parts.stored), parts.master_key, recovery=True)
        self._pipeline = AddPipeline(parts.context, self._state, parts.digest, encoder, self._change)
        self._ensemble = parts.metadata.last_ensemble
        self._under_way: deque[asyncio.Future[int]] = deque()
        self.segments: dict[int, Ensemble] = {}
        """Ensembles that this recovery went over to, by the first entry that they hold."""

    @property
    def lac(self) -> int:
        """The last entry that reached its ack quorum, as all before it did."""
        return self._state.lac

    def store(self, entry: FoundEntry) -> None:
        """Send the next entry; the caller bounds how many are under way. Raises what ended the rewriting."""
        self._raise_failure()
        state = self._state
        if entry.entry_id != state.last_pushed + 1:
            raise AssertionError(f"entry {entry.entry_id} does not follow entry {state.last_pushed}")
        state.length = entry.length - len(entry.payload)
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pipeline.intake.submit_overdrawn(entry.payload, waiter)
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft()
        self._under_way.append(waiter)

    async def progress(self) -> None:
        """Wait until one more entry is confirmed. Raises what ended the rewriting."""
        if self._under_way:
            await asyncio.wait([self._under_way.popleft()])
        self._raise_failure()

    async def drain(self) -> None:
        """Wait until all are confirmed. Raises what ended the rewriting."""
        await self._pipeline.idle()
        self._raise_failure()

    async def close(self) -> None:
        """Give up what is under way. Calling it behind `drain` ends the background work alone."""
        self._state.stop()
        if not self._state.idle:
            self._pipeline.abandon(CouldNotTell(f"the recovery of ledger {self._parts.ledger_id} ended"))
        await self._pipeline.close()

    def _raise_failure(self) -> None:
        failure: PodkeeperError | None = self._state.failure
        if failure is not None:
            raise fresh(failure)

    async def _change(self, failed: Mapping[int, str], refusals: Refusals) -> Ensemble:
        context, quorums = self._parts.context, self._parts.quorums
        may_acknowledge = self._state.may_acknowledge
        spares = await find_spares(context, quorums, self._ensemble, failed, refusals, may_acknowledge)
        ensemble = replace_bookies(
            self._ensemble, failed, quorums, spares, context.placement, context.random, may_acknowledge
        ).ensemble
        if ensemble != self._ensemble:
            # Nothing is confirmed while a change runs, also of several rounds, so the key is well defined.
            self.segments[self._state.lac + 1] = self._ensemble = ensemble
        return ensemble


async def recover_ledger(
    context: ClientContext,
    stored: Stored,
    access: LedgerAccess,
    distrusted: frozenset[str] = frozenset(),
    *,
    shunned: frozenset[str] = frozenset(),
    hears_all: bool = False,
) -> Stored:
    """Close a ledger; returns its final metadata, which may be another client's work.

    `distrusted`: bookies that lost entries of this ledger, or may have. They are fenced like the others, but an entry
    that they deny may exist all the same, so the ledger is not closed below it on their word. `shunned`: bookies on
    which nothing is stored, as if they had failed. `hears_all`: every bookie is heard, or waited for within its
    time-outs, before an entry counts as not there; and the ledger is not fenced if its last segment is not the one in
    `stored`, for which `distrusted` was made. Readers need none of these.

    Raises `RecoveryFailed` when too few bookies answer (the ledger stays IN_RECOVERY; try again once they are
    back), `Unauthorized`, `LedgerDeleted` (deleted meanwhile), `MetadataReplaced` (deleted, and a different ledger now
    has its id), `MetadataUnavailable`,
    `MetadataVersionConflict` (the state or the last ensemble changed meanwhile: no end was stored; try again).
    """
    ledger_id = stored.value.ledger_id
    try:
        marked = await _mark(context, stored, same_segment=hears_all)
        if marked.value.is_closed:
            return marked
        _log.info("recovery", ledger=ledger_id, ensemble=marked.value.last_ensemble)
        parts = RecoveryParts(context, marked, access.digest, access.master_key, distrusted, shunned, hears_all)
        end = await find_end(parts)
        closed = await _close(context, marked, end)
    except MetadataNotFound as error:
        raise LedgerDeleted(f"ledger {ledger_id} was deleted while it was recovered") from error
    except (Unauthorized, MetadataError):
        raise
    except PodkeeperError as error:
        return await _adopt_or_fail(context, LedgerLife.of(stored), error)
    _log.info("recovered", ledger=ledger_id, last_entry=closed.value.last_entry_id, stored_again=end.recovered)
    return closed


async def _mark(context: ClientContext, stored: Stored, *, same_segment: bool) -> Stored:
    def needed(metadata: LedgerMetadata) -> bool:
        if same_segment and not metadata.is_closed:
            _check_same_segment(stored.value, metadata)
        return metadata.state is LedgerState.OPEN

    return await update_metadata(context.ledgers, stored, needed, LedgerMetadata.in_recovery)


async def _close(context: ClientContext, marked: Stored, end: LedgerEnd) -> Stored:
    def needed(metadata: LedgerMetadata) -> bool:
        if metadata.is_closed:
            return False
        if metadata.state is not LedgerState.IN_RECOVERY:
            raise _changed(metadata)
        _check_same_segment(marked.value, metadata)
        return True

    return await update_metadata(context.ledgers, marked, needed, lambda metadata: _with_end(metadata, end))


def _with_end(metadata: LedgerMetadata, end: LedgerEnd) -> LedgerMetadata:
    for first, ensemble in sorted(end.segments.items()):
        metadata = with_new_ensemble(metadata, first - 1, ensemble)
    return metadata.closed(end.last_entry_id, end.length)


def _check_same_segment(before: LedgerMetadata, now: LedgerMetadata) -> None:
    """Raise unless the metadata still have this last ensemble: what its bookies answered counts for no other."""
    if (now.first_entry_ids[-1], now.last_ensemble) != (before.first_entry_ids[-1], before.last_ensemble):
        raise _changed(now)


def _changed(now: LedgerMetadata) -> MetadataVersionConflict:
    return MetadataVersionConflict(
        f"ledger {now.ledger_id}: another client changed its state or last ensemble during the recovery; try again"
    )


async def _adopt_or_fail(context: ClientContext, life: LedgerLife, error: PodkeeperError) -> Stored:
    """Another client may have closed it: then that is the end."""
    try:
        stored = await read_same(context.ledgers, life)
    except MetadataNotFound:
        raise LedgerDeleted(f"ledger {life.ledger_id} was deleted while it was recovered") from error
    except MetadataReplaced:
        raise
    except MetadataError:
        _fail(life.ledger_id, error)
    if not stored.value.is_closed:
        _fail(life.ledger_id, error)
    return stored


def _fail(ledger_id: int, error: PodkeeperError) -> NoReturn:
    raise RecoveryFailed(
        f"ledger {ledger_id} could not be recovered and stays IN_RECOVERY, try again when its bookies are back: {error}"
    ) from error
