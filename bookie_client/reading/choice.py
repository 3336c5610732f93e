"""Which replica of an entry is asked first, and what came of asking: each answer is also used to choose the next ones.

Invariants
- Every replica that gave damaged bytes is counted, per bookie, and logged; so is each that its bookie could not read
  from its disk. So often that it is seen and never once per entry of a rotten disk.
- A sticky choice only moves when the chosen bookie failed.
- In the order of asking every replica comes exactly once: the order is a permutation of the write set.
- The sort is stable, so replicas of the same rank keep the order of the striping and the load stays spread.
- Nothing is ever left out: a bookie that looks dead is asked last, for the others may be worse.

Event loop only.

Source: docs/internals/client-protocol.md, sections 11.2 to 11.5 and 17.3.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from bookie_client.context import ClientContext
from bookie_client.placement.topology import UNKNOWN_TOPOLOGY, Location, Topology
from bookie_client.reading.origins import Origins
from bookie_protocol.errors import DigestMismatch, PodkeeperError, StorageFault
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.logs import get_logger

LATEST_PLACE_OF_A_REMOTE_REPLICA = 2
"""Index; so that a dead region of this client costs at most two tries."""
LOGGED_ONE_BY_ONE: Final = 10
"""Bad replicas of one bookie that are logged each; after them the 16th, 32nd, 64th and so on."""
_log = get_logger(__name__)


class Standing(IntEnum):
    """The reason for a replica's place in the order; smaller is asked earlier."""

    LOCAL = 1
    """Located in this client's region (or no regions are known), without problems."""
    LOCAL_TROUBLED = 2
    """Located in this client's region, quarantined: it failed often recently."""
    REMOTE = 3
    """Located in another region."""
    REMOTE_TROUBLED = 4
    """Located in another region, quarantined."""
    READ_ONLY = 5
    """It takes no writes, which often means a full or failing disk."""
    SLOW = 6
    """It failed a read lately, or answers far slower than its peers."""
    UNREACHABLE = 7
    """A bookie that was not connected recently, or is not registered."""


class Rank(NamedTuple):
    """The sort key of a replica."""

    standing: Standing
    distance: int
    """Parts of this client's network location that the bookie does not share; 0: the same, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A snapshot of what is known about bookies."""

    unreachable: frozenset[str] = frozenset()
    troubled: frozenset[str] = frozenset()
    slow: frozenset[str] = frozenset()
    writable: frozenset[str] | None = None
    """Registered writable bookies. None: the registry has reported nothing yet, so no bookie counts as not
    registered."""
    read_only: frozenset[str] = frozenset()
    topology: Topology = UNKNOWN_TOPOLOGY

    def registered(self, bookie: str) -> bool:
        return self.writable is None or bookie in self.writable or bookie in self.read_only


NOTHING_KNOWN = ReplicaView()


def rank(bookie: str, view: ReplicaView) -> Rank:
    """Return the rank of one replica."""
    local, location = view.topology.local, view.topology.location(bookie)
    return Rank(_standing(bookie, view, _is_remote(local, location)), _distance(local, location))


def replica_order(replicas: Sequence[str], view: ReplicaView = NOTHING_KNOWN) -> list[str]:
    """`replicas` (in the order of the striping, or of a sticky choice), best first."""
    ranks = {bookie: rank(bookie, view) for bookie in replicas}
    order = sorted(replicas, key=ranks.__getitem__)
    remote = next((i for i, bookie in enumerate(order) if ranks[bookie].standing is Standing.REMOTE), 0)
    if remote > LATEST_PLACE_OF_A_REMOTE_REPLICA:
        order.insert(LATEST_PLACE_OF_A_REMOTE_REPLICA, order.pop(remote))
    return order


def least_busy_first(replicas: Sequence[str], outstanding: Callable[[str], int], threshold: int) -> list[str]:
    """The replica with the fewest waiting requests to the front, if the first one has at least `threshold` more;
    0: never."""
    order = list(replicas)
    if threshold > 0:
        least = min(order, key=outstanding)
        if outstanding(order[0]) - outstanding(least) >= threshold:
            order.remove(least)
            order.insert(0, least)
    return order


def _standing(bookie: str, view: ReplicaView, is_remote: bool) -> Standing:
    if bookie in view.unreachable or not view.registered(bookie):
        return Standing.UNREACHABLE
    if bookie in view.slow:
        return Standing.SLOW
    if bookie in view.read_only:
        return Standing.READ_ONLY
    if bookie in view.troubled:
        return Standing.REMOTE_TROUBLED if is_remote else Standing.LOCAL_TROUBLED
    return Standing.REMOTE if is_remote else Standing.LOCAL


def _is_remote(local: Location | None, location: Location | None) -> bool:
    """Return True if the bookie is in another region. A location of one part is a rack: there are no regions then."""
    if local is None or len(local) < 2:
        return False
    return location is None or location[0] != local[0]


def _distance(local: Location | None, location: Location | None) -> int:
    if local is None:
        return 0
    shared = 0
    for mine, other in zip(local, location or (), strict=False):
        if mine != other:
            break
        shared += 1
    return len(local) - shared


class ReplicaChoice:
    """The choice of one handle, and what its replicas served.

    `metadata` gives the segments as the handle knows them at that moment; `on_lac` gets the last add confirmed that
    bookies report (v3 reads).
    """

    def __init__(
        self, context: ClientContext, metadata: Callable[[], LedgerMetadata], on_lac: Callable[[int], None] | None
    ) -> None:
        options, value = context.options, metadata()
        self.metadata = metadata
        self.served_by: Counter[str] = Counter()
        self.damaged_at: Counter[str] = Counter()
        self.origins: Origins | None = None
        self.is_striped = value.ensemble_size != value.write_quorum_size
        self.support = context.batch_support.stepped if self.is_striped else context.batch_support
        self._context = context
        self._faults_at: Counter[str] = Counter()
        self._clock = asyncio.get_running_loop().time
        self._on_lac = on_lac
        self._reorders = options.reorder_reads and value.write_quorum_size > 1  # of one replica there is no order
        self._sticky: int | None = None
        if options.sticky_reads and not self.is_striped:
            self._sticky = context.random.randrange(value.ensemble_size)

    # --- which replica --------------------------------------------------------------------------------------

    def batch_order(self, entry_id: int, ordinal: int) -> list[str]:
        """Return the bookies that may be asked for a batch from this entry on. Consecutive pieces (`ordinal`) begin
        with different bookies, so that all of an ensemble work for one scan; a sticky reader stays with
        one. Of a striped ledger those of the write set."""
        if self.is_striped:
            order = self.order(entry_id)
        else:
            ensemble = self.metadata().ensemble_for(entry_id)
            first = (ordinal if self._sticky is None else self._sticky) % len(ensemble)
            order = self._reordered(ensemble[first:] + ensemble[:first], self.view(ensemble))
        now = self._clock()
        return [bookie for bookie in order if self.support.may_ask(bookie, now)]

    def order(self, entry_id: int, view: ReplicaView | None = None) -> list[str]:
        """The bookies of the entry's write set, in the order in which they are asked; `view`: of what is known."""
        replicas = self._write_set(self.metadata(), entry_id)
        return self._reordered(replicas, self.view(replicas) if view is None else view)

    def view(self, bookies: Sequence[str]) -> ReplicaView:
        """Return what is known about these bookies now."""
        context = self._context
        if not self._reorders:
            return NOTHING_KNOWN
        troubles, registered = context.health.troubles(bookies), context.bookies
        writable, read_only = registered.known_writable, registered.known_read_only
        return ReplicaView(
            unreachable=troubles.failed_lately,
            troubled=troubles.quarantined,
            slow=troubles.slow,
            writable=writable if writable or read_only else None,
            read_only=read_only,
            topology=context.topology,
        )

    def _write_set(self, metadata: LedgerMetadata, entry_id: int) -> Sequence[str]:
        if self._sticky is None:
            return metadata.bookies_for(entry_id)
        ensemble = metadata.ensemble_for(entry_id)
        return ensemble[self._sticky :] + ensemble[: self._sticky]

    def _reordered(self, replicas: Sequence[str], view: ReplicaView) -> list[str]:
        if view is NOTHING_KNOWN:
            return list(replicas)
        options, random, health = self._context.options, self._context.random, self._context.health
        if options.random_read_order and self._sticky is None:
            replicas = random.sample(replicas, len(replicas))
        return replica_order(least_busy_first(replicas, health.outstanding, options.read_reorder_threshold), view)

    # --- what came of it -------------------------------------------------------------------------------------

    def served(self, bookie: str, entry_id: int) -> None:
        """A replica served an entry."""
        self.served_by[bookie] += 1
        if self.origins is not None:
            self.origins.served(bookie, entry_id)

    def damaged(self, bookie: str, entry_id: int, error: DigestMismatch) -> None:
        """A replica served bytes that are not the entry."""
        self.damaged_at[bookie] += 1
        self._context.damaged_replicas[bookie] += 1
        self._tell("damaged replica", self.damaged_at[bookie], error, entry=entry_id, bookie=bookie)

    def failed(self, bookie: str, error: PodkeeperError) -> None:
        """A replica did not serve an entry: a sticky reader turns to the next one."""
        if isinstance(error, StorageFault):
            self._faults_at[bookie] += 1
            self._tell("a bookie cannot read its replica", self._faults_at[bookie], error, bookie=bookie)
        if self._sticky is not None:
            metadata = self.metadata()
            if any(ensemble[self._sticky] == bookie for ensemble in metadata.ensembles.values()):
                self._sticky = (self._sticky + 1) % metadata.ensemble_size

    def outrun(self, bookies: Sequence[str]) -> None:
        """Replicas asked before the one that served."""
        for bookie in bookies:
            self._context.health.mark_slow(bookie)

    def heard_lac(self, lac: int) -> None:
        """Pass on a last add confirmed that a bookie reported."""
        if self._on_lac is not None:
            self._on_lac(lac)

    def _tell(self, what: str, so_far: int, error: PodkeeperError, **where: object) -> None:
        if so_far <= LOGGED_ONE_BY_ONE or so_far.bit_count() == 1:
            _log.warning(what, ledger=self.metadata().ledger_id, **where, error=str(error), so_far=so_far)
