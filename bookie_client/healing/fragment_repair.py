"""Restoring the copies of one fragment: which bookies are filled again, and which are replaced.

- A bookie that is there, and says that its copies are gone (it came back with an empty disk), is filled again in place:
  that needs no spare. If it cannot be filled it is replaced.
- A bookie whose copies are damaged is replaced, because its disk is in doubt; without a spare it is filled in place.
- A segment that may still grow keeps its bookies. Those that lack confirmed entries, as one that was away while its
  ledger was written, or that damaged them, are filled in place; its writer notices nothing.
- With fewer spares than lost copies as many are restored as there are spares.

Event loop only.

Source: docs/internals/auto-recovery.md, sections 6.2, step 3, and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from bookie_client.replication.check import ReplicaVerdict
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.replicator import FragmentReplicator, ProgressListener, ReplicationResult
from bookie_protocol.errors import (
    BookieReadOnly,
    EntriesUnreadable,
    LedgerDeleted,
    MetadataUnavailable,
    NotEnoughBookies,
    PodkeeperError,
)
from bookie_protocol.logs import get_logger

_log = get_logger(__name__)


class Restored(NamedTuple):
    """`receivers`: bookies that got copies; `left`: positions that keep their bookie for want of a spare, and why."""

    receivers: frozenset[str]
    left: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentRepair:
    """Restores fragments of one ledger, whose lock is held.

    `session_id`: the lock's; `written`: hears of each copying that succeeded, `progress` of what is under way;
    `leaving`: bookies that are neither filled nor chosen, and why.
    """

    replicator: FragmentReplicator
    session_id: int
    written: Callable[[ReplicationResult], None]
    progress: ProgressListener | None = None
    leaving: Mapping[str, str] | None = None

    async def restore(
        self, fragment: Fragment, lost: Mapping[int, ReplicaVerdict], writable: Collection[str]
    ) -> Restored:
        """Make new copies for these positions. `writable`: bookies that can be filled in place.

        Raises what `FragmentReplicator.replicate` raises, but for the want of spares, which the result tells;
        `BookieReadOnly` if bookies of a segment that may still grow cannot be filled.
        """
        bad = {position: fragment.ensemble[position] for position in lost}
        here = {at for at, bookie in bad.items() if bookie in writable and bookie not in (self.leaving or ())}
        empty = {position for position in here if lost[position] is ReplicaVerdict.MISSING}
        if not fragment.is_closed:
            if here:
                await self.copy(fragment, _only(bad, here), here, by_lists=here == empty)
            if here != bad.keys():
                names = ", ".join(sorted(bad[position] for position in bad.keys() - here))
                raise BookieReadOnly(f"no writes are taken by bookies of a segment that may still grow: {names}")
            return Restored(frozenset(bad.values()), {})
        try:
            filled, done = empty, await self.copy(fragment, bad, empty, by_lists=True)
        except (EntriesUnreadable, LedgerDeleted, MetadataUnavailable):
            raise
        except NotEnoughBookies as error:
            filled, done = set(), ReplicationResult(fragment.ensemble, 0, 0, dict.fromkeys(bad, str(error)))
        except PodkeeperError as error:
            if not empty:
                raise
            _log.warning("bookie cannot be filled again, it is replaced", ledger=fragment.ledger_id, reason=str(error))
            filled, done = set(), await self.copy(fragment, bad)
        now, again = replace(fragment, ensemble=done.ensemble), done.unfilled.keys() & here
        if again:
            await self.copy(now, _only(bad, again), again)
        receivers = {now.ensemble[at] for at in bad if at in filled | again or now.ensemble[at] != bad[at]}
        return Restored(frozenset(receivers), {at: why for at, why in done.unfilled.items() if at not in again})

    async def copy(
        self, fragment: Fragment, bad: Mapping[int, str], in_place: Collection[int] = (), *, by_lists: bool = False
    ) -> ReplicationResult:
        """Copy as `FragmentReplicator.replicate` does."""
        done = await self.replicator.replicate(
            fragment,
            bad,
            in_place=in_place,
            by_lists=by_lists,
            excluded=self.leaving,
            session_id=self.session_id,
            progress=self.progress,
        )
        self.written(done)
        return done


def _only(bad: Mapping[int, str], positions: Collection[int]) -> dict[int, str]:
    return {position: bookie for position, bookie in bad.items() if position in positions}
