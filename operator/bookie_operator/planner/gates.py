"""The questions that flows ask before a bookie is stopped, taken out or started again.

Invariants
- A gate that cannot tell does not open: unknown, unreachable and never asked are obstacles with a reason of their own.
- Every obstacle says in one line what is wrong and what to do about it.
- Ordinals are compared as integers.

Threads: pure functions, any thread.

Source: docs/internals/auto-recovery.md, section 13.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from bookie_operator.crds.quantity import readable
from bookie_operator.planner import view
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.view import remedy, stuck_on_node
from bookie_operator.world.facts import BookieFacts, SafetyFacts
from bookie_operator.world.model import PodFault, StatefulSetView, World

METADATA_UNREACHABLE: Final = "MetadataUnreachable"
SILENT_S: Final = 60.0
"""An auditor of this release tells within seconds of its election that it looks at returned bookies."""
ROOM_SECONDS: Final = 60.0
"""Kubernetes may need as much to find a node for a pod."""
_QUOTA: Final = "exceeded quota"
"""Words of Kubernetes for a pod that is not made because of a quota."""
_LISTED: Final = 5
_LISTING_SECONDS: Final = 60.0
"""Seconds between two listings of every ledger for what only people change."""


@dataclass(frozen=True)
class Obstacle:
    """An obstacle: a condition's reason, and one line for people."""

    reason: str
    message: str
    needs_person: bool = False
    """It does not go away by itself."""
    seconds: float = 5.0
    """Seconds until it is looked at again."""


def first(*answers: Obstacle | None) -> Obstacle | None:
    """Return the first obstacle; None: there is none."""
    return next((one for one in answers if one is not None), None)


def told(world: World) -> Obstacle | None:
    """Return an obstacle unless it is known what the metadata service says."""
    if world.facts is not None:
        return None
    why = f": {world.facts_error}" if world.facts_error else ""
    return Obstacle(METADATA_UNREACHABLE, f"no bookie and no auto-recovery pod can tell the state of the cluster{why}")


# --- bookies ----------------------------------------------------------------------------------------------------------


def others_serve(world: World, desired: Desired, but: Collection[str], *, writable: bool = True) -> Obstacle | None:
    """Every other bookie is ready and registered; `writable`: takes new data too, if it stays. `but`: pod names."""
    missing = told(world)
    if missing is not None:
        return missing
    for name in view.expected_pods(world):
        if name not in but and (why := _why_not_serving(world, desired, name, writable)):
            return Obstacle("BookieUnavailable", f"waits until every other bookie serves: {name} {why}")
    return None


def members_serve(world: World, desired: Desired, but: Collection[str], *, writable: bool = True) -> Obstacle | None:
    """Return what `others_serve` returns, for all bookies that ever served: nothing is on the others, so no step waits
    for them."""
    return others_serve(world, desired, {*but, *newcomers(world, desired)}, writable=writable)


def _why_not_serving(world: World, desired: Desired, name: str, writable: bool) -> str:
    pod, facts = view.pod(world, name), world.facts
    if pod is None:
        return "has no pod"
    if pod.deleting:
        return f"is being stopped{stuck_on_node(world, pod)}"
    if not pod.ready:
        return f"is not ready: {remedy(pod)}" if pod.fault else "is not ready"
    bookie_id = desired.bookie_id(name)
    if facts is None or bookie_id not in facts.registered:
        return "is not registered in the metadata service"
    if writable and bookie_id not in facts.writable and not _given_up(desired, name):
        bookie = world.bookies.get(name)
        return f"is read-only{f' ({bookie.used_percent:.0f}% of a disk is used)' if bookie is not None else ''}"
    return ""


def _given_up(desired: Desired, name: str) -> bool:
    """Return whether `spec` does not ask for it any more: then it need not take new data."""
    wanted = {one.name: one.replicas for one in desired.stateful_sets}
    return bool(wanted) and view.ordinal_of(name) >= wanted.get(view.set_of(name), 0)


def is_writable(world: World, desired: Desired, name: str) -> bool:
    return world.facts is not None and desired.bookie_id(name) in world.facts.writable


def is_read_only(world: World, desired: Desired, name: str) -> bool:
    """Return whether it is registered, and takes no new data. False if unknown: ask `told` first."""
    return world.facts is not None and desired.bookie_id(name) in world.facts.read_only


def is_registered(world: World, desired: Desired, name: str) -> bool:
    """Return whether it is registered. False if unknown: ask `told` first."""
    return world.facts is not None and desired.bookie_id(name) in world.facts.registered


def claims_stay(world: World, desired: Desired, names: Collection[str]) -> Obstacle | None:
    """None of these pods is all that keeps a volume from being deleted."""
    for name in sorted(names):
        claim = view.going_claim(world, name)
        if claim is None:
            continue
        return Obstacle(
            "ClaimBeingDeleted",
            f"claim {claim.name} was deleted, and is there only until {name} ends, so nothing stops that."
            f" Replace it with a BookieTask of type Replace that names {name}: others get copies of all that it stored"
            " first",
            needs_person=True,
        )
    return None


def claims_own(world: World, name: str) -> Obstacle | None:
    """Every claim that its pod mounts has the labels of this cluster; those that are being deleted do not count."""
    foreign = sorted(
        one.name for one in view.claims_of(world, name) if one.foreign and one.mounted and not one.deleting
    )
    if not foreign:
        return None
    return Obstacle(
        "AdoptRequired",
        f"claim {foreign[0]} has the name of a claim of {name}, but not the labels of this cluster: if its volume is"
        f" this bookie's, run `kubectl bookie adopt {world.cluster.name} {foreign[0]}`; otherwise delete the claim",
        needs_person=True,
    )


# --- copies -----------------------------------------------------------------------------------------------------------


def copies_can_be_made(world: World) -> Obstacle | None:
    """Auto-recovery is enabled and has an auditor: nothing is proven without."""
    facts = world.facts
    if facts is None:
        return told(world)
    if not facts.autorecovery_enabled:
        return Obstacle(
            "AutoRecoveryDisabled",
            "auto-recovery is disabled in the metadata service: enable it with `bookie cluster autorecovery enable`",
            needs_person=True,
        )
    if facts.auditor is None:
        remedy = (
            "see why no pod of the auto-recovery runs"
            if world.cluster.spec.autorecovery.enabled
            else "set spec.autorecovery.enabled, or run `bookie autorecovery`"
        )
        return Obstacle("NoAuditor", f"no auditor is elected, so nothing looks for missing copies: {remedy}", True)
    return None


def replicated(world: World) -> Obstacle | None:
    """Return an obstacle unless no ledger is known to lack a copy, and an auditor would know."""
    obstacle = copies_can_be_made(world)
    if obstacle is not None:
        return obstacle
    assert world.facts is not None
    count = world.facts.under_replicated
    if count:
        noun = "ledger is" if count == 1 else "ledgers are"
        return Obstacle(
            "WaitingForReplication",
            f"{count} {noun} under-replicated: auto-recovery makes the copies;"
            " `bookie cluster list-under-replicated` shows which. One that cannot be repaired, because its loss was"
            " accepted, keeps its mark until it is deleted: `bookie ledger delete`",
        )
    return None


def returned_checked(world: World, but: Collection[str] = ()) -> Obstacle | None:
    """The auditor has looked which entries every bookie that was away lacks. `but`: bookie ids that may lack some.

    An auditor that does not tell whether it looks holds nothing up here: see `auditor_tells`.
    """
    facts = world.facts
    if facts is None:
        return told(world)
    waiting = sorted(facts.unchecked.difference(but)) if facts.unchecked is not None else None
    if not waiting:
        return None
    who = ", ".join(waiting[:_LISTED]) + (f" and {len(waiting) - _LISTED} more" if len(waiting) > _LISTED else "")
    if facts.autorecovery_enabled:
        return Obstacle("CopiesUnchecked", f"{facts.auditor} looks which entries {who} lacks since it was away")
    disabled = copies_can_be_made(world)
    assert disabled is not None
    return replace(disabled, message=f"which entries {who} lacks since it was away is unknown: {disabled.message}")


def auditor_tells(world: World) -> Obstacle | None:
    """A new auditor lists the bookies that it looks at. One of Java's, or of an earlier release, never does: it holds
    nothing up for longer than `SILENT_S`."""
    facts = world.facts
    if facts is None or facts.auditor is None or facts.unchecked is not None:
        return None
    if facts.silent_since is not None and world.now - facts.silent_since >= SILENT_S:
        return None
    return Obstacle("CopiesUnchecked", f"{facts.auditor} does not list yet the bookies that it looks at")


def looked_at(world: World, but: Collection[str] = ()) -> Obstacle | None:
    """The auditor lists the bookies that it looks at, and every one that was away was looked at."""
    return first(returned_checked(world, but), auditor_tells(world))


def copies_whole(world: World, but: Collection[str] = ()) -> Obstacle | None:
    """Return what keeps a bookie that serves from being stopped: a ledger that lacks a copy, marked or not."""
    return first(replicated(world), looked_at(world, but))


def audited_after(world: World, moment: float) -> bool:
    """A complete audit of the bookies began after this (seconds since 1970)."""
    return world.facts is not None and view.audited(world.facts, moment)


# --- what stopping would do -------------------------------------------------------------------------------------------


def stoppable(world: World, bookie_ids: frozenset[str], *, last_copies: bool = True) -> Obstacle | None:
    """Return an obstacle unless, with these bookies stopped for a while, no ledger falls below its ack quorum that need
    not.

    Of a ledger whose ack quorum is as large as its write quorum no bookie could ever be stopped: then it is enough
    that all other copies stay. With a write quorum of one nothing can be asked for; but for `last_copies`, of a bookie
    that need not be stopped.
    """
    safety = world.safety.get(bookie_ids)
    who = ", ".join(sorted(bookie_ids))
    if safety is None:
        return Obstacle("SafetyUnknown", f"it is not known yet which ledgers need {who} at this moment")
    if safety.unknown:
        return Obstacle("SafetyUnknown", f"of {safety.unknown} ledgers it is unknown what they need{_shown(safety)}")
    if safety.without_copy and (world.cluster.spec.durability.write_quorum > 1 or not last_copies):
        return Obstacle(
            "LastCopy", f"{safety.without_copy} ledgers could not be read without {who}{_shown(safety)}", True
        )
    if safety.below_ack_quorum:
        return Obstacle(
            "BelowAckQuorum",
            f"{safety.below_ack_quorum} ledgers would have fewer copies than their ack quorum without {who}"
            f"{_shown(safety)}",
            needs_person=True,
        )
    return None


def _shown(safety: SafetyFacts) -> str:
    if not safety.examples:
        return ""
    more = "; ..." if len(safety.examples) > _LISTED else ""
    return f" ({'; '.join(safety.examples[:_LISTED])}{more})"


# --- taking out -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Victim:
    """The bookie that goes next."""

    stateful_set: StatefulSetView
    ordinal: int

    @property
    def name(self) -> str:
        return view.pod_name(self.stateful_set.name, self.ordinal)

    @property
    def zone(self) -> str:
        return self.stateful_set.zone


def surplus(world: World, desired: Desired) -> dict[str, int]:
    """Return the number of surplus bookies by StatefulSet; one that is not wanted any more has all of them too many."""
    if not desired.stateful_sets:
        return {}
    wanted = {one.name: one.replicas for one in desired.stateful_sets}
    return {
        one.name: one.replicas - wanted.get(one.name, 0)
        for one in world.stateful_sets
        if one.replicas > wanted.get(one.name, 0)
    }


def next_victim(world: World, desired: Desired) -> Victim | None:
    """The highest ordinal of the most-filled zone that has bookies to spare; None: there is no surplus."""
    spare = surplus(world, desired)
    candidates = [one for one in world.stateful_sets if one.name in spare and not one.deleting]
    if not candidates:
        return None
    fullest = min(candidates, key=lambda one: (-one.replicas, one.name))
    return Victim(fullest, fullest.replicas - 1)


def without_room(world: World, desired: Desired, but: str) -> list[str]:
    """Bookies beside this one that served, and that no node, or no quota, has let in for a while: one that goes makes
    room."""
    facts = world.facts
    if facts is None:
        return []
    return [
        name
        for name in view.expected_pods(world)
        if name != but
        and _finds_no_room(world, name)
        and (bookie_id := desired.bookie_id(name)) in facts.cookies
        and bookie_id not in facts.registered
    ]


def _finds_no_room(world: World, name: str) -> bool:
    pod = view.pod(world, name)
    if pod is None:
        return _QUOTA in world.refused.get(f"StatefulSet/{view.set_of(name)}", "")
    return pod.fault is PodFault.UNSCHEDULABLE and world.now - pod.created_at >= ROOM_SECONDS


def is_down(world: World, desired: Desired, name: str) -> bool:
    """Return whether it does not serve, and something keeps it from coming up. False if unknown."""
    pod = view.pod(world, name)
    if world.facts is None or is_registered(world, desired, name):
        return False
    if pod is None:
        return _finds_no_room(world, name)
    return not pod.deleting and not pod.ready and bool(pod.fault)


def never_served(world: World, desired: Desired, name: str) -> bool:
    """Return whether it is a new bookie that has not come up: without a cookie it has never taken an entry. False if
    unknown."""
    facts, pod = world.facts, view.pod(world, name)
    if facts is None or (pod is not None and pod.ready):
        return False
    return desired.bookie_id(name) not in facts.cookies | facts.registered


def withdrawn(world: World, desired: Desired, name: str) -> bool:
    """It never served, and `spec` does not ask for it any more: it goes once those with higher ordinals have gone."""
    return never_served(world, desired, name) and _given_up(desired, name)


def renamed(world: World, desired: Desired, name: str) -> Obstacle | None:
    """Return an obstacle if its volumes may belong to another bookie.

    The id that its pod has is unknown in the cluster, and some bookie that has no pod is away: ledgers may need from
    that one what is on these volumes, and no proof about this id says so.
    """
    facts, pod, bookie_id = world.facts, view.pod(world, name), desired.bookie_id(name)
    if facts is None:
        return told(world)
    if (pod is not None and pod.ready) or bookie_id in facts.cookies | facts.registered:
        return None
    if not any(claim.bound and not claim.lost for claim in view.claims_of(world, name)):
        return None
    others = facts.cookies - facts.registered - {desired.bookie_id(one) for one in view.expected_pods(world)}
    if not others:
        return None
    other = min(others)
    return Obstacle(
        "CookieMismatch",
        f"there is no cookie of {bookie_id}, and there is one of {other}, which is away: if {name} was renamed to that,"
        f" its volumes hold what ledgers need of {other}. Take that back with `bookie cluster rename-bookie {other}"
        f" {bookie_id}` and `bookie disk rename-bookie {other} {bookie_id}`; else bring {other} back, or take it out"
        f" with `bookie cluster decommission {other}`",
        needs_person=True,
    )


def newcomers(world: World, desired: Desired) -> frozenset[str]:
    """Return the bookies that there are to be, and that never served. Empty if unknown."""
    return frozenset(name for name in view.expected_pods(world) if never_served(world, desired, name))


def enough_without(world: World, desired: Desired, victim: Victim) -> Obstacle | None:
    """Ensembles can be made, and copies spread over zones, without one bookie of this zone: of bookies that serve, or
    did and come back."""
    spec, new = world.cluster.spec, newcomers(world, desired)
    left = Counter(
        one.zone
        for one in world.stateful_sets
        for name in (view.pod_name(one.name, ordinal) for ordinal in range(one.replicas))
        if name != victim.name and name not in new
    )
    if left.total() < spec.durability.ensemble_size:
        return Obstacle(
            "DecommissionBlocked",
            f"without {victim.name} there would be {left.total()} bookies, and durability.ensembleSize is"
            f" {spec.durability.ensemble_size}: raise spec.replicas again",
            needs_person=True,
        )
    if not any(one.zone for one in world.stateful_sets):
        return None
    filled = sum(bool(zone) for zone in left)
    if filled < spec.placement.min_zones_per_write_quorum:
        return Obstacle(
            "DecommissionBlocked",
            f"without {victim.name} bookies would be left in {filled} zones, and"
            f" placement.minZonesPerWriteQuorum is {spec.placement.min_zones_per_write_quorum}",
            needs_person=True,
        )
    return None


def room_for(world: World, victim: str) -> Obstacle | None:
    """Return an obstacle unless its data fit on the others, with headroom.

    A file system that several bookies share has its free space once; where a bookie does not report what it stores,
    everything that is used counts.
    """
    stored = world.bookies.get(victim)
    if stored is None:
        return Obstacle("DecommissionBlocked", f"{victim} does not tell how much it stores: is its admin API up?", True)
    headroom = world.cluster.spec.decommission.headroom_percent
    others = [
        other
        for name in view.expected_pods(world)
        if name != victim and (other := world.bookies.get(name)) is not None and not other.read_only
    ]
    free, sharing = _free_bytes(others)
    usable = free * (100 - headroom) // 100
    if stored.stored_bytes > usable:
        shared = ", counting a shared file system once" if sharing else ""
        return Obstacle(
            "NotEnoughSpace",
            f"{victim} stores {readable(stored.stored_bytes)}, and the other bookies have room for {readable(usable)}"
            f" ({readable(free)} free{shared}, of which decommission.headroomPercent={headroom} is left alone):"
            " grow spec.storage.ledger.size, or delete ledgers",
            needs_person=True,
        )
    return None


def _free_bytes(bookies: list[BookieFacts]) -> tuple[int, bool]:
    """Return what is free on their file systems, and whether some of them share one. Of bookies that have one in common
    only the one with the most free space counts."""
    counted: set[str] = set()
    free, sharing = 0, False
    for one in sorted(bookies, key=lambda each: -each.free_bytes):
        if one.file_systems & counted:
            sharing = True
        else:
            counted |= one.file_systems
            free += one.free_bytes
    return free, sharing


def elsewhere(world: World, bookie_id: str) -> Obstacle | None:
    """Return an obstacle unless a bookie's data have somewhere to go, by its ledgers, whatever `spec` says now.

    So a request that a drain would refuse is refused before anything is done to the bookie.
    """
    outlook = world.outlooks.get(bookie_id)
    if outlook is None:
        return Obstacle(
            "SafetyUnknown", f"it is not known yet whether what {bookie_id} stores has another bookie to go to"
        )
    if not outlook.ledgers or not outlook.refusals:
        return None
    return Obstacle(
        "NoSpareBookie",
        f"what {bookie_id} stores has nowhere to go: {'; '.join(outlook.refusals)}. Raise spec.replicas, or delete"
        " these ledgers if they are not needed",
        needs_person=True,
        seconds=_LISTING_SECONDS,
    )
