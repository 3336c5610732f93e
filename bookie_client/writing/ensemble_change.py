"""Replacing failed bookies of an ensemble: new metadata, spare bookies, changes and degraded positions.

A position is degraded while there is no spare for it.

Invariants
- A new segment starts at LAC + 1, so it never covers an acknowledged entry; a segment that starts there
  already is replaced in place, and earlier ones are never touched.
- A replacement is never a failed bookie nor a member of the ensemble.
- A ledger that another client recovers or has closed is never changed back.
- A spare is connected before it is written into the metadata: one that is registered and dead (its session
  lives on for a while) costs a refused connection, not an ensemble change.
- A bookie that failed an add is, for a while, a spare only if none in a fault domain as good is left: one failure costs
  no rack. If it fails again once it was chosen again, it is a spare only if the others do not suffice: a rack whose
  bookies all fail does not keep entries waiting. One that holds, or may hold, another ledger of the id is no spare for
  `LONGEST_CHANGE_PAUSE`, as it may collect that ledger.
- An ensemble with which no entry could ever be acknowledged, because its bookies lie in too few fault domains, is never
  stored: the failed bookie may come back.
- Bookies that could not be reached lately are chosen only when the others do not suffice. The search for spares is
  bounded in rounds (`ASKED_BESIDE`), each round in time (`PROBE_SECONDS`), and all of it in `Effort`; in the last round
  every bookie that may be a spare has been asked once.
- Changes are made one at a time. If a ledger has stored many of them lately, as when every spare refuses, it makes the
  next ones at ever longer intervals, however many entries are confirmed between them: they do not flood the metadata
  service, nor fill the metadata with segments. If adds wait for the change, an interval is at most
  `degraded_retry_interval`. Otherwise it is up to `LONGEST_CHANGE_PAUSE`, and the positions are degraded meanwhile.
- Whatever a change raises ends as a `PodkeeperError`: adds that wait for it must not be left without an end.

Functions over `LedgerMetadata` are pure; everything else belongs to the event loop.

Source: docs/internals/client-protocol.md, sections 7, 8, 16 and 17.1.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from random import Random
from typing import Final

from bookie_client.context import ClientContext
from bookie_client.distribution import Quorums
from bookie_client.options import ClientOptions
from bookie_client.placement.policy import ClusterView, Placement, PlacementPolicy, ReplacementRequest
from bookie_client.placement.search import Effort
from bookie_client.writing.add_state import AddState
from bookie_protocol.errors import (
    BookieUnavailable,
    CouldNotTell,
    LedgerClosed,
    LedgerFenced,
    LedgerStateUnknown,
    MetadataVersionConflict,
    NoSuchLedger,
    PodkeeperError,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.logs import get_logger
from bookie_protocol.pace import doubled

IMMEDIATE_CHANGES: Final = 8
"""Ensemble changes that are made at once; the next ones are slowed down."""
FIRST_CHANGE_PAUSE: Final = 0.01
"""Seconds; doubles with each change."""
LONGEST_CHANGE_PAUSE: Final = 60.0
"""Seconds between changes that writing can do without; after as many seconds, one change counts no more."""
_MOST_COUNTED: Final = 2 * IMMEDIATE_CHANGES
ASKED_BESIDE: Final = (0, 8, 64, None)
"""The rounds of a search for spares: how many others each one asks beside the bookies that it chose, in case that these
cannot be reached; None: all."""
_log = get_logger(__name__)

MayAcknowledge = Callable[[tuple[str, ...]], bool]
"""Return True if entries can be acknowledged in this ensemble while all its bookies are well."""


def replace_bookies(
    ensemble: tuple[str, ...],
    failed: Mapping[int, str],
    quorums: Quorums,
    cluster: ClusterView,
    policy: PlacementPolicy,
    random: Random,
    may_acknowledge: MayAcknowledge,
    effort: Effort | None = None,
) -> Placement:
    """Return the ensemble with as many failed members replaced as there are spare bookies with which entries may be
    acknowledged; the same one if there are none. `effort`: what the whole search may cost."""
    effort = effort or Effort()

    def placed() -> Placement:
        return policy.replacement(
            ReplacementRequest(
                ensemble=ensemble, failed=left, quorums=quorums, cluster=cluster, random=random, effort=effort
            )
        )

    left = dict(failed)
    placement = placed()
    if may_acknowledge(placement.ensemble) or not may_acknowledge(ensemble):  # a replacement does not make it worse
        return placement
    if cluster.unreachable:  # a rule may have been relaxed for a bookie that is up again
        cluster = replace(cluster, unreachable=frozenset())
        placement = placed()
    while not may_acknowledge(placement.ensemble):
        needed = _needed(ensemble, placement.ensemble, may_acknowledge)
        left = {position: bookie for position, bookie in left.items() if position not in needed}
        if not left or not needed:
            return replace(placement, ensemble=ensemble, relaxed=())
        placement = placed()
    return placement


def _needed(before: tuple[str, ...], after: tuple[str, ...], may_acknowledge: MayAcknowledge) -> Container[int]:
    """Return positions whose members have to stay, so that the other changes leave an ensemble that may
    acknowledge."""
    members, needed = list(before), []
    for position, bookie in enumerate(after):
        members[position] = bookie
        if bookie != before[position] and not may_acknowledge(tuple(members)):
            members[position] = before[position]
            needed.append(position)
    return needed


def check_open(metadata: LedgerMetadata) -> None:
    """Raise `LedgerClosed` or `LedgerFenced` if another client has recovered the ledger or is doing so."""
    if metadata.state is LedgerState.CLOSED:
        raise LedgerClosed(
            f"ledger {metadata.ledger_id} was closed by another client at entry {metadata.last_entry_id}"
        )
    if metadata.state is LedgerState.IN_RECOVERY:
        raise LedgerFenced(f"ledger {metadata.ledger_id} is being recovered by another client")


def change_needed(metadata: LedgerMetadata, failed: Mapping[int, str]) -> bool:
    """Return True if a failed bookie is still in the last ensemble. Raises as `check_open`."""
    check_open(metadata)
    return any(metadata.last_ensemble[position] == bookie for position, bookie in failed.items())


def with_new_ensemble(metadata: LedgerMetadata, lac: int, ensemble: tuple[str, ...]) -> LedgerMetadata:
    """The metadata with `ensemble` from entry LAC + 1 on."""
    last = metadata.first_entry_ids[-1]
    if last > lac + 1:
        raise MetadataVersionConflict(
            f"ledger {metadata.ledger_id}: its last segment starts at entry {last}, above the next entry {lac + 1} of"
            " this writer; another client changed it"
        )
    return metadata.with_ensemble(lac + 1, ensemble)


def close_needed(metadata: LedgerMetadata, last_entry: int, length: int) -> bool:
    """Return True if CLOSED is still to be written.

    Raises `MetadataVersionConflict` when the ledger was closed at another end.
    """
    if metadata.state is not LedgerState.CLOSED:
        return True
    if (metadata.last_entry_id, metadata.length) == (last_entry, length):
        return False
    raise MetadataVersionConflict(
        f"ledger {metadata.ledger_id} was closed by another client at entry {metadata.last_entry_id}"
        f" ({metadata.length} bytes), this writer's end is entry {last_entry} ({length} bytes)"
    )


class Refusal(Enum):
    """The failures of one bookie in adds of a ledger, lately."""

    ONCE = auto()
    """It may take the next one: others go first among those in fault domains that are as good."""
    AGAIN = auto()
    """It failed, was chosen again, and failed again: others go first, even if a placement rule is relaxed for it."""
    LASTING = auto()
    """It said so lately that it holds, or may hold, another ledger of the id, or is to be sent nothing: it is not
    chosen."""


Refusals = Mapping[str, Refusal]
"""Bookie id -> its failures in adds of the ledger; those whose last failure is older go first."""


async def find_spares(
    context: ClientContext,
    quorums: Quorums,
    ensemble: tuple[str, ...],
    failed: Mapping[int, str],
    refusals: Refusals,
    may_acknowledge: MayAcknowledge,
) -> ClusterView:
    """Return the cluster with only spare bookies writable: reachable ones, at most as many as failed, perhaps none.

    Raises the registry's `MetadataError`.
    """
    cluster = await context.cluster_view()
    cluster = _without(cluster, [bookie for bookie, refusal in refusals.items() if refusal is Refusal.LASTING])
    cluster = replace(cluster, quarantined=cluster.quarantined | refusals.keys())
    again = [b for b, refusal in refusals.items() if refusal is Refusal.AGAIN and b in cluster.writable]
    wanted = sum(ensemble[position] == bookie for position, bookie in failed.items())
    if not wanted:
        return replace(cluster, writable=frozenset())
    unasked = sorted(cluster.writable.difference(ensemble, failed.values(), context.placement.refusals(cluster)))
    context.random.shuffle(unasked)
    unasked.sort(key=lambda bookie: refusals[bookie].value if bookie in refusals else 0)
    reached: set[str] = set()
    effort = Effort()

    async def choose(among: ClusterView) -> tuple[Placement, set[str]]:
        best: tuple[Placement, set[str]] | None = None
        for left_out in _fewer_and_fewer(again):
            await asyncio.sleep(0)  # others have their turn
            placement = replace_bookies(
                ensemble,
                failed,
                quorums,
                _without(among, left_out),
                context.placement,
                context.random,
                may_acknowledge,
                effort,
            )
            chosen = set(placement.ensemble).difference(ensemble)
            if best is None or len(chosen) > len(best[1]):
                best = placement, chosen
            if len(chosen) == wanted:
                break
        assert best is not None
        return best

    for others in ASKED_BESIDE:
        placement, chosen = await choose(cluster)
        if chosen <= reached:
            break
        asked = sorted(chosen - reached)
        asked += [bookie for bookie in unasked if bookie not in chosen][:others]
        unasked = [bookie for bookie in unasked if bookie not in asked]
        answers = await asyncio.gather(*map(context.pool.reachable, asked))
        reached.update(bookie for bookie, is_reached in zip(asked, answers, strict=True) if is_reached)
        cluster = replace(
            _without(cluster, set(asked) - reached),
            quarantined=cluster.quarantined.union(unasked),
            unreachable=context.health.failed_lately(),
        )
        if chosen <= reached:
            break
    else:
        placement, chosen = await choose(replace(cluster, writable=cluster.writable & reached))
    if chosen:
        context.placement_inputs.tell_relaxed(placement)
    return replace(cluster, writable=frozenset(chosen), quarantined=frozenset(), unreachable=frozenset())


def _fewer_and_fewer(bookies: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield all bookies, then without the first one, the first two, four and so on, and none."""
    count = 0
    while count < len(bookies):
        yield bookies[count:]
        count = max(1, 2 * count)
    yield ()


def _without(cluster: ClusterView, bookies: Iterable[str]) -> ClusterView:
    return replace(cluster, excluded={**cluster.excluded, **dict.fromkeys(bookies, "it cannot take this ledger now")})


EnsembleChange = Callable[[Mapping[int, str], Refusals], Awaitable[tuple[str, ...]]]
"""Replaces the failed bookies (position -> bookie) from LAC + 1 on. Returns the ensemble that holds from there on: the
old one when there is no spare bookie. Raises when the ledger cannot be written any more."""


class ChangePace:
    """Slows down the changes of one ledger: the more of them it stored lately, the longer the pause before the next."""

    def __init__(self) -> None:
        self._count = 0.0
        self._stored_at = -math.inf

    def stored(self, now: float) -> None:
        """Count a change."""
        self._count = min(self._lately(now) + 1, _MOST_COUNTED)
        self._stored_at = now

    def due_at(self, now: float, first: float, longest: float) -> float:
        """Return the time from which the next change may be made, if the pauses double from `first` to `longest`."""
        excess = math.ceil(self._lately(now)) - IMMEDIATE_CHANGES + 1
        return self._stored_at + doubled(first, longest, excess) if excess > 0 else now

    def is_spent(self, now: float) -> bool:
        """Return True if no further change is made at once."""
        return self._lately(now) > IMMEDIATE_CHANGES - 1

    def _lately(self, now: float) -> float:
        return max(0.0, self._count - (now - self._stored_at) / LONGEST_CHANGE_PAUSE)


class ChangeRunner:
    """Makes the ensemble changes of one pipeline.

    Of the options it takes `degraded_retry_interval`: the pauses.
    """

    def __init__(self, state: AddState, change: EnsembleChange, options: ClientOptions) -> None:
        self._state = state
        self._change = change
        self._options = options
        self._pace = ChangePace()
        self._stored = state.ensemble
        self._failed: dict[str, float] = {}
        """Bookie id -> the time of its last failure, the oldest first. The others are subsets."""
        self._chosen_again: set[str] = set()
        self._failed_again: set[str] = set()
        self._unknowing: dict[str, float] = {}
        """Bookie id -> the time at which it last said that it knows of no such ledger, or cannot tell which one of this
        id it holds."""
        state.tell_refusals(self._note)

    async def run(self, failed: Mapping[int, str]) -> tuple[str, ...]:
        """Replace `failed`; returns the ensemble that is stored then.

        Does nothing when the ledger cannot be written any more once it is this change's turn, nor when writing can do
        without and it is too early for another change: then the positions are degraded. Raises `PodkeeperError`."""
        state = self._state
        if self._is_needed(failed):
            await self._pause()
        elif not self._is_due():
            return self._stored
        if state.failure is not None:
            return self._stored
        _log.info("ensemble change", ledger=state.ledger_id, failed=sorted(failed.values()), after=state.lac)
        try:
            return await self._changed(failed)
        except PodkeeperError as error:
            _log.warning("ledger cannot be written any more", ledger=state.ledger_id, error=str(error))
            raise

    def may_try(self, failed: Mapping[int, str]) -> bool:
        """Return True if adds wait for a replacement of `failed`, or writing can do without and a change is due."""
        return self._is_needed(failed) or self._is_due()

    def _is_due(self) -> bool:
        now = asyncio.get_running_loop().time()
        return now >= self._pace.due_at(now, self._options.degraded_retry_interval, LONGEST_CHANGE_PAUSE)

    def refusals(self) -> Refusals:
        """Return the bookies that have failed adds of this ledger lately: they may fail the next one too.

        Failures are remembered until there was none for `LONGEST_CHANGE_PAUSE`, so that each spare has its turn before
        one has a second. Within that time of a bookie's own failure it has failed again if it was chosen meanwhile: the
        failures between two choices are one, as many adds may meet it. Once a ledger has used up the changes that are
        made at once, no bookie gets a second chance before the others got their first."""
        now = asyncio.get_running_loop().time()
        self._forget(now)
        lately, unknowing = (
            {bookie for bookie, at in times.items() if now < at + LONGEST_CHANGE_PAUSE}
            for times in (self._failed, self._unknowing)
        )
        again = self._failed if self._pace.is_spent(now) else (self._failed_again & lately) | self._unknowing.keys()
        return {
            **dict.fromkeys(self._failed, Refusal.ONCE),
            **{bookie: Refusal.AGAIN for bookie in self._failed if bookie in again},
            **dict.fromkeys(unknowing | self._state.left_out, Refusal.LASTING),
        }

    def _note(self, bookie: str, error: PodkeeperError) -> None:
        now = asyncio.get_running_loop().time()
        self._forget(now)
        before = self._failed.pop(bookie, -math.inf)
        self._failed[bookie] = now
        if now >= before + LONGEST_CHANGE_PAUSE:
            self._chosen_again.discard(bookie)
            self._failed_again.discard(bookie)
        elif bookie in self._chosen_again:
            self._failed_again.add(bookie)
        if isinstance(error, (LedgerStateUnknown, NoSuchLedger)):
            self._unknowing[bookie] = now

    def _forget(self, now: float) -> None:
        if self._failed and now >= next(reversed(self._failed.values())) + LONGEST_CHANGE_PAUSE:
            for each in (self._failed, self._chosen_again, self._failed_again, self._unknowing):
                each.clear()

    def _is_needed(self, failed: Mapping[int, str]) -> bool:
        """Return True if adds wait for a replacement of bookies that are stored."""
        stored = self._stored
        missing = {p for p, bookie in {**self._state.degraded, **failed}.items() if stored[p] == bookie}
        return not self._state.can_do_without(missing, stored)

    async def _changed(self, failed: Mapping[int, str]) -> tuple[str, ...]:
        try:
            ensemble = await self._change(failed, self.refusals())
        except PodkeeperError:
            raise
        except Exception as error:
            # A placement policy of the application's own, for instance.
            raise CouldNotTell(f"the ensemble change failed: {error!r}") from error
        if ensemble != self._stored:
            self._chosen_again |= self._failed.keys() & set(ensemble).difference(self._stored)
            self._stored = ensemble
            self._pace.stored(asyncio.get_running_loop().time())
        return ensemble

    async def _pause(self) -> None:
        """Wait for the turn of a change that adds wait for."""
        now = asyncio.get_running_loop().time()
        due_at = self._pace.due_at(now, FIRST_CHANGE_PAUSE, self._options.degraded_retry_interval)
        if due_at > now:
            await asyncio.sleep(due_at - now)


async def mend(
    context: ClientContext,
    state: AddState,
    changes: ChangeRunner,
    retry: Callable[[], None],
    restored: Callable[[int, str], None],
) -> None:
    """Mend degraded positions until there are none, or nothing can be written any more.

    `retry` starts the change that replaces the failed ones; `restored` is called for each bookie that answers again.
    While nothing changes, spares are looked for at ever longer intervals, up to `LONGEST_CHANGE_PAUSE`.
    """
    loop, interval = asyncio.get_running_loop(), context.options.degraded_retry_interval
    situation, searches, due_at = None, 0, -math.inf
    while state.degraded and not state.over:
        await context.bookies.changed(interval)
        spares: frozenset[str] = frozenset()
        try:
            writable = await context.bookies.writable()
            before, degraded, refusals = situation, dict(state.degraded), changes.refusals()
            situation = writable, degraded, refusals
            if situation != before:
                searches, due_at = 0, -math.inf
            if state.may_change and changes.may_try(degraded) and loop.time() >= due_at:
                # Spares are looked for before the change begins, because nothing is acknowledged while one runs.
                found = await find_spares(
                    context, state.quorums, state.ensemble, degraded, refusals, state.may_acknowledge
                )
                spares, searches = found.writable, searches + 1
                due_at = loop.time() + doubled(interval, LONGEST_CHANGE_PAUSE, searches)
        except PodkeeperError:
            continue  # unknown; the next round asks again
        if spares:
            retry()
        else:
            barred = {bookie for bookie, refusal in refusals.items() if refusal is Refusal.LASTING}
            await _use_returned(context, state, writable - barred, restored)


async def _use_returned(
    context: ClientContext, state: AddState, writable: frozenset[str], restored: Callable[[int, str], None]
) -> None:
    """Tell `restored` which degraded positions have a bookie that is writable and answers in time: one that accepts
    connections and takes no requests would only gather what is sent to it."""
    candidates = [(position, bookie) for position, bookie in state.degraded.items() if bookie in writable]
    answers = await asyncio.gather(*(_is_back(context, bookie, state) for _, bookie in candidates))
    for (position, bookie), is_back in zip(candidates, answers, strict=True):
        if is_back:
            restored(position, bookie)


async def _is_back(context: ClientContext, bookie: str, state: AddState) -> bool:
    try:
        await context.pool.channel(bookie, state.ledger_id).connect()
    except BookieUnavailable:
        return False
    # No bookie has this entry, so the answer is short.
    return await context.operations.answers(bookie, state.ledger_id, state.last_pushed + 1)
