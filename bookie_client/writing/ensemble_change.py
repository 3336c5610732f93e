"""Replacing failed bookies of an ensemble: new metadata, spare bookies, changes and degraded positions.

A position is degraded while there is no spare for it.

Invariants
- A new segment starts at LAC + 1, so it never covers an acknowledged entry; a segment that starts there
  already is replaced in place, and earlier ones are never touched.
- A replacement is never a failed bookie nor a member of the ensemble.
- A ledger that another client recovers or has closed is never changed back.
- A spare is connected before it is written into the metadata: one that is registered and dead (its session
  lives on for a while) costs a refused connection, not an ensemble change.
- Bookies that could not be reached lately are asked only when the others do not suffice. The search for spares is
  bounded in rounds, and each round in time (`PROBE_SECONDS`).
- Changes are made one at a time. Those behind which not one more entry is confirmed, as when every bookie refuses, are
  made at ever longer intervals, up to `degraded_retry_interval`: they do not flood the metadata service.
- Whatever a change raises ends as a `PodkeeperError`: adds that wait for it must not be left without an end.

Functions over `LedgerMetadata` are pure; everything else belongs to the event loop.

Source: docs/internals/client-protocol.md, sections 7, 8, 16 and 17.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Final

from bookie_client.context import ClientContext
from bookie_client.distribution import Quorums
from bookie_client.placement.policy import ClusterView, Placement, PlacementPolicy, ReplacementRequest
from bookie_client.writing.add_state import AddState
from bookie_protocol.errors import (
    BookieUnavailable,
    CouldNotTell,
    LedgerClosed,
    LedgerFenced,
    MetadataVersionConflict,
    PodkeeperError,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.logs import get_logger
from bookie_protocol.pace import doubled


def replace_bookies(
    ensemble: tuple[str, ...],
    failed: Mapping[int, str],
    quorums: Quorums,
    cluster: ClusterView,
    policy: PlacementPolicy,
    random: Random,
) -> Placement:
    """The ensemble with as many failed members replaced as there are spare bookies; the same one if there are
    none."""
    return policy.replacement(
        ReplacementRequest(ensemble=ensemble, failed=failed, quorums=quorums, cluster=cluster, random=random)
    )


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


MAX_ROUNDS: Final = 4


async def find_spares(
    context: ClientContext,
    quorums: Quorums,
    ensemble: tuple[str, ...],
    failed: Mapping[int, str],
    left_out: Iterable[str] = (),
) -> ClusterView:
    """Return the cluster with only spare bookies writable: reachable ones, at most as many as failed, perhaps
    none; and none that is `left_out`.

    Raises the registry's `MetadataError`.
    """
    cluster = await context.cluster_view()
    cluster = replace(cluster, excluded={**cluster.excluded, **dict.fromkeys(left_out, "it is left out")})
    found: frozenset[str] = frozenset()
    for _ in range(MAX_ROUNDS):
        placement = replace_bookies(ensemble, failed, quorums, cluster, context.placement, context.random)
        chosen = sorted(set(placement.ensemble).difference(ensemble))
        if not chosen:
            break
        reached = await asyncio.gather(*map(context.pool.reachable, chosen))
        unreachable = {bookie for bookie, reachable in zip(chosen, reached, strict=True) if not reachable}
        found = frozenset(chosen) - unreachable
        if not unreachable:
            context.placement_inputs.tell_relaxed(placement)
            break
        excluded = dict(cluster.excluded) | dict.fromkeys(unreachable, "could not be reached just now")
        cluster = replace(cluster, excluded=excluded, unreachable=context.health.failed_lately())
    return replace(cluster, writable=found, quarantined=frozenset(), unreachable=frozenset())


EnsembleChange = Callable[[Mapping[int, str]], Awaitable[tuple[str, ...]]]
"""Replace these failed bookies (position -> bookie) from LAC + 1 on; returns the ensemble that holds from
there on, which is the old one when there is no spare bookie. Raises when the ledger cannot be written any
more."""

IMMEDIATE_CHANGES: Final = 8
"""Ensemble changes in front of the same entry that are made at once; the next ones are slowed down."""
FIRST_CHANGE_PAUSE: Final = 0.01
"""Seconds; doubles with each change."""

_log = get_logger(__name__)


class ChangeRunner:
    """Makes the ensemble changes of one pipeline. `longest_pause`: seconds between changes at most."""

    def __init__(self, state: AddState, change: EnsembleChange, longest_pause: float) -> None:
        self._state = state
        self._change = change
        self._longest_pause = longest_pause
        self._changed_at = state.lac
        self._changes_here = 0

    async def run(self, failed: Mapping[int, str]) -> tuple[str, ...]:
        """Replace `failed`; returns the ensemble that is stored then. Does nothing when the ledger cannot be written
        any more once it is this change's turn. Raises `PodkeeperError`."""
        state = self._state
        _log.info("ensemble change", ledger=state.ledger_id, failed=sorted(failed.values()), after=state.lac)
        await self._pause()
        if state.failure is not None:
            return state.ensemble
        try:
            return await self._changed(failed)
        except PodkeeperError as error:
            _log.warning("ledger cannot be written any more", ledger=state.ledger_id, error=str(error))
            raise

    async def _changed(self, failed: Mapping[int, str]) -> tuple[str, ...]:
        try:
            return await self._change(failed)
        except PodkeeperError:
            raise
        except Exception as error:
            # A placement policy of the application's own, for instance.
            raise CouldNotTell(f"the ensemble change failed: {error!r}") from error

    async def _pause(self) -> None:
        """Wait if many changes have brought nothing."""
        if self._state.lac != self._changed_at:
            self._changed_at, self._changes_here = self._state.lac, 0
        self._changes_here += 1
        excess = self._changes_here - IMMEDIATE_CHANGES
        if excess > 0:
            await asyncio.sleep(doubled(FIRST_CHANGE_PAUSE, self._longest_pause, excess))


async def mend(
    context: ClientContext, state: AddState, retry: Callable[[], None], restored: Callable[[int, str], None]
) -> None:
    """Mend degraded positions until there are none, or nothing can be written any more.

    `retry` starts the change that replaces them; `restored` is called for each bookie that answers again.
    """
    while state.degraded and not state.over:
        await context.bookies.changed(context.options.degraded_retry_interval)
        try:
            writable = await context.bookies.writable()
            spares = await find_spares(context, state.quorums, state.ensemble, dict(state.degraded))
        except PodkeeperError:
            continue  # unknown; the next round asks again
        # Spares are looked for before the change begins, because nothing is acknowledged while one runs.
        if spares.writable and state.may_change:
            retry()
        else:
            await _use_returned(context, state, writable, restored)


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
