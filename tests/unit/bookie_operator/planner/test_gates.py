"""What stands in the way of stopping a bookie, in the words that a user reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_operator.planner import gates
from bookie_operator.planner.desired import Desired
from bookie_operator.world.facts import BookieFacts, ClusterFacts, Outlook, SafetyFacts
from bookie_operator.world.model import PodFault, StatefulSetView, World
from tests.support.operator_sim import Simulation, resting

VICTIM = "c-bookie-3"


@pytest.fixture
def sim() -> Simulation:
    return resting()


def with_facts(world: World, **changes: object) -> World:
    assert isinstance(world.facts, ClusterFacts)
    return replace(world, facts=replace(world.facts, **changes))  # type: ignore[arg-type]


def with_pod(world: World, name: str, **changes: object) -> World:
    pods = [replace(one, **changes) if one.name == name else one for one in world.pods]  # type: ignore[arg-type]
    return replace(world, pods=tuple(pods))


def message(obstacle: gates.Obstacle | None) -> str:
    assert obstacle is not None
    return obstacle.message


# --- others serve -----------------------------------------------------------------------------------------------------

Change = Callable[[World, Desired], World]

NOT_SERVING: list[tuple[str, Change]] = [
    ("c-bookie-0 has no pod", lambda w, _: replace(w, pods=w.pods[1:])),
    ("c-bookie-0 is being stopped", lambda w, _: with_pod(w, "c-bookie-0", deleting=True)),
    (
        "c-bookie-0 is not ready: it ends again and again (full): see `kubectl logs c-bookie-0 --previous`",
        lambda w, _: with_pod(w, "c-bookie-0", ready=False, fault=PodFault.CRASHING, fault_message="full"),
    ),
    ("c-bookie-0 is not ready", lambda w, _: with_pod(w, "c-bookie-0", ready=False)),
    (
        "c-bookie-0 is not registered in the metadata service",
        lambda w, d: with_facts(w, writable=w.facts.writable - {d.bookie_id("c-bookie-0")}),  # type: ignore[union-attr]
    ),
    (
        "c-bookie-0 is read-only (0% of a disk is used)",
        lambda w, d: with_facts(
            w,
            writable=w.facts.writable - {d.bookie_id("c-bookie-0")},  # type: ignore[union-attr]
            read_only=frozenset({d.bookie_id("c-bookie-0")}),
        ),
    ),
]


@pytest.mark.parametrize(("words", "change"), NOT_SERVING)
def test_every_other_bookie_has_to_serve(sim: Simulation, words: str, change: Change) -> None:
    world, desired = sim.world(), sim.desired()
    assert gates.others_serve(world, desired, {VICTIM}) is None
    obstacle = gates.others_serve(change(world, desired), desired, {VICTIM})
    assert obstacle == gates.Obstacle("BookieUnavailable", f"waits until every other bookie serves: {words}")
    assert gates.others_serve(change(world, desired), desired, {VICTIM, "c-bookie-0"}) is None


def test_a_bookie_that_is_being_stopped_on_a_node_that_does_not_answer_has_a_way_out(sim: Simulation) -> None:
    world, desired = with_pod(sim.world(), "c-bookie-0", deleting=True), sim.desired()
    node = next(pod.node for pod in world.pods if pod.name == "c-bookie-0")
    assert world.nodes is not None
    silent = replace(world, nodes={**world.nodes, node: replace(world.nodes[node], ready=False)})
    assert f"`kubectl taint node {node} " in message(gates.others_serve(silent, desired, {VICTIM}))


def test_a_bookie_is_down_if_something_keeps_it_from_coming_up(sim: Simulation) -> None:
    desired = sim.desired()
    away = with_facts(sim.world(), writable=frozenset(sim.bookkeeper.writable) - {desired.bookie_id(VICTIM)})
    down = with_pod(away, VICTIM, ready=False, fault=PodFault.CRASHING)
    assert gates.is_down(down, desired, VICTIM)
    no_pod = replace(away, pods=tuple(pod for pod in away.pods if pod.name != VICTIM))
    others = [
        replace(down, facts=None),
        with_pod(sim.world(), VICTIM, ready=False, fault=PodFault.CRASHING),
        with_pod(down, VICTIM, deleting=True),
        with_pod(down, VICTIM, ready=True),
        with_pod(away, VICTIM, ready=False),
        no_pod,
    ]
    for world in others:
        assert not gates.is_down(world, desired, VICTIM)
    assert gates.is_down(replace(no_pod, refused={"StatefulSet/c-bookie": "exceeded quota: pods"}), desired, VICTIM)


@pytest.mark.parametrize(("seconds", "found"), [(59.9, []), (60.0, [VICTIM])])
def test_a_pod_that_no_node_takes_for_a_minute_has_no_room(sim: Simulation, seconds: float, found: list[str]) -> None:
    desired = sim.desired()
    world = with_facts(sim.world(), writable=frozenset(sim.bookkeeper.writable) - {desired.bookie_id(VICTIM)})
    since = world.now - seconds
    world = with_pod(world, VICTIM, ready=False, fault=PodFault.UNSCHEDULABLE, created_at=since)
    assert gates.without_room(world, desired, "c-bookie-0") == found
    assert gates.without_room(world, desired, VICTIM) == []
    assert gates.without_room(with_facts(world, cookies=frozenset()), desired, "c-bookie-0") == []
    assert gates.without_room(replace(world, facts=None), desired, "c-bookie-0") == []


def test_a_read_only_bookie_serves_reads(sim: Simulation) -> None:
    desired = sim.desired()
    world = NOT_SERVING[-1][1](sim.world(), desired)
    assert gates.others_serve(world, desired, (), writable=False) is None


def test_who_cannot_be_asked_is_an_obstacle_everywhere(sim: Simulation) -> None:
    world, desired = replace(sim.world(), facts=None, facts_error="connection refused"), sim.desired()
    told = "no bookie and no auto-recovery pod can tell the state of the cluster: connection refused"
    answers = (
        gates.told(world),
        gates.others_serve(world, desired, ()),
        gates.copies_can_be_made(world),
        gates.replicated(world),
    )
    assert answers == (gates.Obstacle("MetadataUnreachable", told),) * 4
    assert not gates.audited_after(world, 0.0)
    assert not gates.is_writable(world, desired, VICTIM)


# --- copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason", "words", "needs_person"),
    [
        ({"autorecovery_enabled": False}, "AutoRecoveryDisabled", "`bookie cluster autorecovery enable`", True),
        (
            {"auditor": None},
            "NoAuditor",
            "no auditor is elected, so nothing looks for missing copies",
            True,
        ),
        ({"under_replicated": 1}, "WaitingForReplication", "1 ledger is under-replicated", False),
        ({"under_replicated": 7}, "WaitingForReplication", "7 ledgers are under-replicated", False),
    ],
)
def test_copies_have_to_be_complete(
    sim: Simulation, changes: dict[str, object], reason: str, words: str, needs_person: bool
) -> None:
    assert gates.replicated(sim.world()) is None
    obstacle = gates.replicated(with_facts(sim.world(), **changes))
    assert obstacle is not None
    assert (obstacle.reason, obstacle.needs_person) == (reason, needs_person)
    assert words in obstacle.message


def test_without_auto_recovery_of_its_own_the_remedy_is_another(sim: Simulation) -> None:
    sim.change(autorecovery={"enabled": False})
    assert "set spec.autorecovery.enabled" in message(gates.replicated(with_facts(sim.world(), auditor=None)))


def test_an_audit_counts_if_it_began_later(sim: Simulation) -> None:
    world = with_facts(sim.world(), last_audit=100.0)
    assert gates.audited_after(world, 99.0)
    assert not gates.audited_after(world, 100.0)
    assert not gates.audited_after(with_facts(world, auditor=None), 99.0)
    assert not gates.audited_after(with_facts(world, last_audit=None), 0.0)


# --- what stopping would do -------------------------------------------------------------------------------------------

BOTH = frozenset({"a", "b"})


@pytest.mark.parametrize(
    ("quorums", "below", "without", "unknown", "reason"),
    [
        ((3, 2), 0, 0, 0, ""),
        ((3, 2), 0, 0, 1, "SafetyUnknown"),
        ((3, 2), 1, 0, 0, "BelowAckQuorum"),
        ((3, 2), 0, 1, 0, "LastCopy"),
        ((2, 2), 5, 0, 0, "BelowAckQuorum"),
        ((2, 2), 5, 1, 0, "LastCopy"),
        ((1, 1), 0, 5, 0, ""),
        ((1, 1), 0, 0, 1, "SafetyUnknown"),
    ],
)
def test_what_a_stop_may_do_to_ledgers_depends_on_the_quorums(
    sim: Simulation, quorums: tuple[int, int], below: int, without: int, unknown: int, reason: str
) -> None:
    sim.change(durability={"writeQuorum": quorums[0], "ackQuorum": quorums[1]})
    safety = SafetyFacts(BOTH, below, without, unknown, ("17: no copy: only on a",))
    obstacle = gates.stoppable(replace(sim.world(), safety={BOTH: safety}), BOTH)
    assert (obstacle.reason if obstacle is not None else "") == reason
    if obstacle is not None:
        assert "(17: no copy: only on a)" in obstacle.message


def test_of_a_bookie_that_need_not_be_stopped_last_copies_count_whatever_the_quorum(sim: Simulation) -> None:
    sim.change(durability={"writeQuorum": 1, "ackQuorum": 1})
    world = replace(sim.world(), safety={BOTH: SafetyFacts(BOTH, 0, 1, 0, ())})
    assert gates.stoppable(world, BOTH) is None
    obstacle = gates.stoppable(world, BOTH, last_copies=False)
    assert obstacle is not None
    assert obstacle.reason == "LastCopy"


def test_nobody_asked_what_a_stop_would_do(sim: Simulation) -> None:
    obstacle = gates.stoppable(sim.world(), BOTH)
    assert obstacle == gates.Obstacle("SafetyUnknown", "it is not known yet which ledgers need a, b at this moment")
    assert gates.stoppable(replace(sim.world(), safety={BOTH: None}), BOTH) == obstacle


def test_only_the_first_ledgers_are_shown(sim: Simulation) -> None:
    safety = SafetyFacts(BOTH, 9, 0, 0, tuple(f"{one}: below" for one in range(9)))
    assert message(gates.stoppable(replace(sim.world(), safety={BOTH: safety}), BOTH)).endswith("4: below; ...)")


# --- who goes next ----------------------------------------------------------------------------------------------------


def sets(*counts: tuple[str, int]) -> tuple[StatefulSetView, ...]:
    return tuple(
        StatefulSetView(f"c-bookie-{zone}" if zone else "c-bookie", zone, "u", "1", count, 1, 1, "t", {})
        for zone, count in counts
    )


@pytest.mark.parametrize(
    ("have", "replicas", "zones", "victim"),
    [
        ((("", 4),), 4, (), None),
        ((("", 5),), 4, (), "c-bookie-4"),
        ((("", 12),), 4, (), "c-bookie-11"),
        ((("", 100),), 99, (), "c-bookie-99"),
        ((("a", 2), ("b", 2), ("c", 2)), 4, ("a", "b", "c"), "c-bookie-b-1"),
        ((("a", 2), ("b", 11), ("c", 10)), 4, ("a", "b", "c"), "c-bookie-b-10"),
        ((("a", 2), ("b", 1), ("", 6)), 4, ("a", "b"), "c-bookie-5"),
    ],
)
def test_the_highest_ordinal_of_the_fullest_zone_goes_next(
    have: tuple[tuple[str, int], ...], replicas: int, zones: tuple[str, ...], victim: str | None
) -> None:
    sim = resting()
    sim.change(replicas=replicas, placement={"zones": [{"name": zone} for zone in zones]})
    found = gates.next_victim(replace(sim.world(), stateful_sets=sets(*have)), sim.desired())
    assert (found.name if found is not None else None) == victim


def test_nobody_goes_when_it_is_not_known_who_is_wanted(sim: Simulation) -> None:
    assert gates.next_victim(sim.world(), replace(sim.desired(), stateful_sets=())) is None


def test_an_ensemble_has_to_be_left(sim: Simulation) -> None:
    three = replace(sim.world(), stateful_sets=sets(("", 3)))
    victim = gates.Victim(three.stateful_sets[0], 2)
    assert message(gates.enough_without(three, sim.desired(), victim)) == (
        "without c-bookie-2 there would be 2 bookies, and durability.ensembleSize is 3: raise spec.replicas again"
    )
    assert gates.enough_without(sim.world(), sim.desired(), gates.Victim(sim.world().stateful_sets[0], 3)) is None


def test_those_that_never_served_are_none_of_an_ensemble(sim: Simulation) -> None:
    five = replace(sim.world(), stateful_sets=sets(("", 5)))
    victim = gates.Victim(five.stateful_sets[0], 3)
    assert gates.enough_without(five, sim.desired(), victim) is None
    sim.change(durability={"ensembleSize": 4})
    obstacle = gates.enough_without(replace(five, cluster=sim.view()), sim.desired(), victim)
    assert message(obstacle).startswith("without c-bookie-3 there would be 3 bookies")


def test_zones_have_to_be_left(sim: Simulation) -> None:
    sim.change(placement={"minZonesPerWriteQuorum": 2})
    world = replace(sim.world(), stateful_sets=sets(("a", 4), ("b", 1)))
    assert world.facts is not None
    names = ("c-bookie-a-0", "c-bookie-a-1", "c-bookie-a-2", "c-bookie-a-3", "c-bookie-b-0")
    world = replace(world, facts=replace(world.facts, cookies=frozenset(map(sim.desired().bookie_id, names))))
    assert gates.enough_without(world, sim.desired(), gates.Victim(world.stateful_sets[0], 3)) is None
    assert message(gates.enough_without(world, sim.desired(), gates.Victim(world.stateful_sets[1], 0))) == (
        "without c-bookie-b-0 bookies would be left in 1 zones, and placement.minZonesPerWriteQuorum is 2"
    )


# --- room -------------------------------------------------------------------------------------------------------------

GIB = 1 << 30


def stores(sim: Simulation, used: int, others_free: int) -> World:
    others = {name: BookieFacts(False, GIB - others_free, GIB, 50.0) for name in ("c-bookie-0", "c-bookie-1")}
    full = {"c-bookie-2": BookieFacts(True, 0, 100 * GIB, 0.0)}
    return replace(sim.world(), bookies={**others, **full, VICTIM: BookieFacts(False, used, GIB, 50.0)})


@pytest.mark.parametrize(("used", "fits"), [(819, True), (820, False)])
def test_what_it_stores_fits_with_headroom(sim: Simulation, used: int, fits: bool) -> None:
    """Two others with 512 MiB free each, of which a fifth is left alone; a read-only one takes nothing."""
    obstacle = gates.room_for(stores(sim, used << 20, 512 << 20), VICTIM)
    assert (obstacle is None) is fits


def test_too_little_room_tells_the_numbers(sim: Simulation) -> None:
    obstacle = gates.room_for(stores(sim, 900 << 20, 512 << 20), VICTIM)
    assert message(obstacle) == (
        "c-bookie-3 stores 900.0 MiB, and the other bookies have room for 819.2 MiB (1.0 GiB free, of which"
        " decommission.headroomPercent=20 is left alone): grow spec.storage.ledger.size, or delete ledgers"
    )


@pytest.mark.parametrize(("stored", "fits"), [(30 << 20, True), (90 * GIB, False)])
def test_on_a_shared_file_system_a_bookies_own_bytes_count_and_the_free_space_once(
    sim: Simulation, stored: int, fits: bool
) -> None:
    """As with volumes that are folders of one disk: other programs use most of it."""
    one = BookieFacts(False, 212 * GIB, 312 * GIB, 68.0, entry_log_bytes=stored, file_systems=frozenset({"a1"}))
    names = [VICTIM, "c-bookie-0", "c-bookie-1", "c-bookie-2"]
    obstacle = gates.room_for(replace(sim.world(), bookies=dict.fromkeys(names, one)), VICTIM)
    assert (obstacle is None) is fits


@pytest.mark.parametrize(("stored", "fits"), [(75, True), (85, False)])
def test_a_file_system_that_bookies_share_in_part_counts_once(sim: Simulation, stored: int, fits: bool) -> None:
    def one(free: int, *file_systems: str) -> BookieFacts:
        return BookieFacts(False, GIB * (200 - free), GIB * 200, 50.0, file_systems=frozenset(file_systems))

    bookies = {
        VICTIM: replace(one(50, "v"), entry_log_bytes=stored * GIB),
        "c-bookie-0": one(100, "a", "b"),
        "c-bookie-1": one(60, "b"),
        "c-bookie-2": one(30, "a"),
    }
    assert (gates.room_for(replace(sim.world(), bookies=bookies), VICTIM) is None) is fits


def test_a_bookie_that_does_not_tell_what_it_stores_stays(sim: Simulation) -> None:
    world = replace(sim.world(), bookies={**sim.world().bookies, VICTIM: None})
    assert "does not tell how much it stores" in message(gates.room_for(world, VICTIM))


def test_what_a_bookie_stores_has_to_have_somewhere_to_go(sim: Simulation) -> None:
    def told(outlook: Outlook | None) -> gates.Obstacle | None:
        return gates.elsewhere(replace(sim.world(), outlooks={VICTIM: outlook}), VICTIM)

    assert told(Outlook(VICTIM, 7)) is None
    assert told(Outlook(VICTIM, 0, ("this bookie is unknown",))) is None
    assert told(Outlook(VICTIM, 7, ("3 ledgers have no other writable bookie to go to",))) == gates.Obstacle(
        "NoSpareBookie",
        f"what {VICTIM} stores has nowhere to go: 3 ledgers have no other writable bookie to go to. Raise"
        " spec.replicas, or delete these ledgers if they are not needed",
        needs_person=True,
        seconds=60.0,  # asking makes the bookie list every ledger
    )
    unknown = told(None)
    assert unknown is not None
    assert (unknown.reason, unknown.needs_person) == ("SafetyUnknown", False)
