"""In which order the replicas of an entry are asked, and why.

Invariants
- Every replica comes exactly once: the order is a permutation of the write set.
- The sort is stable, so replicas of the same rank keep the order of the striping and the load stays spread.
- Nothing is ever left out: a bookie that looks dead is asked last, for the others may be worse.

Pure; any thread.

Source: reference client protocol, section 17.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from bookie_client.placement.topology import UNKNOWN_TOPOLOGY, Location, Topology

LATEST_PLACE_OF_A_REMOTE_REPLICA = 2
"""Index; so that a dead region of this client costs at most two tries."""


class Standing(IntEnum):
    """Why a replica has its place; smaller is asked earlier."""

    LOCAL = 1
    """In this client's region (or no regions are known), nothing against it."""
    LOCAL_TROUBLED = 2
    """In this client's region, quarantined: it failed often lately."""
    REMOTE = 3
    """In another region."""
    REMOTE_TROUBLED = 4
    """In another region, quarantined."""
    READ_ONLY = 5
    """It takes no writes, which often means a full or failing disk."""
    SLOW = 6
    """It failed a read lately, or answers far slower than its peers."""
    UNREACHABLE = 7
    """No connection lately, or not registered."""


class Rank(NamedTuple):
    """What the order is made of."""

    standing: Standing
    distance: int
    """Parts of this client's network location that the bookie does not share; 0: the same, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """What is known about bookies at one moment."""

    unreachable: frozenset[str] = frozenset()
    troubled: frozenset[str] = frozenset()
    slow: frozenset[str] = frozenset()
    writable: frozenset[str] | None = None
    """None: the registry has told nothing yet, so nobody counts as not registered."""
    read_only: frozenset[str] = frozenset()
    topology: Topology = UNKNOWN_TOPOLOGY

    def registered(self, bookie: str) -> bool:
        return self.writable is None or bookie in self.writable or bookie in self.read_only


NOTHING_KNOWN = ReplicaView()


def rank(bookie: str, view: ReplicaView) -> Rank:
    """The rank of one replica."""
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
    """Whether the bookie is in another region. One part alone is a rack: there are no regions then."""
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
