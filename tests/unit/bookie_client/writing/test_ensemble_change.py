"""Failed bookies of an ensemble: segments, spare bookies, the run of changes, and positions that are mended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from bookie_client.distribution import Quorums
from bookie_client.options import ClientOptions
from bookie_client.placement.policy import ClusterView
from bookie_client.placement.rack_aware import RackAwarePlacement
from bookie_client.placement.random_choice import RandomPlacement
from bookie_client.placement.region_aware import RegionAwarePlacement
from bookie_client.placement.search import MAX_EFFORT, Effort
from bookie_client.placement.topology import Topology
from bookie_client.placement.zone_aware import ZoneAwarePlacement
from bookie_client.writing.add_state import AddState
from bookie_client.writing.ensemble_change import (
    FIRST_CHANGE_PAUSE,
    IMMEDIATE_CHANGES,
    LONGEST_CHANGE_PAUSE,
    ChangeRunner,
    Refusal,
    Refusals,
    change_needed,
    close_needed,
    find_spares,
    mend,
    replace_bookies,
    with_new_ensemble,
)
from bookie_client.writing.fault_domains import SpreadAddState
from bookie_protocol.errors import (
    BookieUnavailable,
    CouldNotTell,
    LedgerClosed,
    LedgerFenced,
    LedgerStateUnknown,
    MetadataUnavailable,
    MetadataVersionConflict,
    NoSuchLedger,
    PodkeeperError,
    TooManyRequests,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.support.simulation.clock import VirtualLoop

ABC = ("A", "B", "C")
OPEN = LedgerMetadata(7, 3, 2, 2, {0: ("A", "B", "C")})


def replace(failed, writable, ensemble=("A", "B", "C"), may_acknowledge=lambda ensemble: True):
    cluster = ClusterView(writable=frozenset(writable))
    return replace_bookies(
        ensemble, failed, Quorums(3, 2, 2), cluster, RandomPlacement(), Random(1), may_acknowledge
    ).ensemble


def test_a_failed_bookie_is_replaced_at_its_position():
    assert replace({2: "C"}, {"A", "B", "C", "D"}) == ("A", "B", "D")


def test_a_replacement_is_neither_a_member_nor_a_failed_bookie():
    assert replace({0: "A", 2: "C"}, {"A", "B", "C", "D"}) == ("D", "B", "C")
    assert replace({2: "C"}, {"A", "B", "C"}) == ("A", "B", "C")
    assert set(replace({0: "A", 2: "C"}, {"D", "E"})) == {"D", "B", "E"}


def test_a_position_that_was_exchanged_already_is_left():
    assert replace({2: "old"}, {"D"}) == ("A", "B", "C")


@pytest.mark.parametrize(("needed", "members"), [("A", "ADE"), ("B", "BDE"), ("AB", "ABD"), ("ABC", "ABC")])
def test_failed_bookies_without_which_nothing_could_be_acknowledged_stay(needed, members):
    spares = {"D"} if needed == "AB" else {"D", "E"}
    found = replace(dict(enumerate(ABC)), spares, may_acknowledge=lambda each: set(needed) <= set(each))
    assert "".join(sorted(found)) == members
    assert all(found[position] == bookie for position, bookie in enumerate(ABC) if bookie in members)


def test_an_ensemble_in_which_nothing_can_be_acknowledged_is_replaced_as_far_as_there_are_spares():
    tried: list[tuple[str, ...]] = []
    assert set(replace(dict(enumerate(ABC)), {"D", "E", "F"}, may_acknowledge=tried.append)) == set("DEF")
    assert len(tried) == 2


def test_segments_of_the_reference_example():
    changed = with_new_ensemble(OPEN, 9, ("A", "B", "D"))
    assert dict(changed.ensembles) == {0: ("A", "B", "C"), 10: ("A", "B", "D")}
    again = with_new_ensemble(changed, 9, ("A", "B", "E"))
    assert dict(again.ensembles) == {0: ("A", "B", "C"), 10: ("A", "B", "E")}
    assert dict(with_new_ensemble(OPEN, -1, ("A", "B", "D")).ensembles) == {0: ("A", "B", "D")}
    with pytest.raises(MetadataVersionConflict, match="entry 10, above"):
        with_new_ensemble(changed, 8, ("A", "B", "D"))


def test_a_change_is_needed_while_a_failed_bookie_is_in_the_last_ensemble():
    assert change_needed(OPEN, {2: "C"})
    assert not change_needed(OPEN.with_ensemble(4, ("A", "B", "D")), {2: "C"})


def test_a_ledger_that_others_took_is_not_changed():
    with pytest.raises(LedgerFenced):
        change_needed(OPEN.in_recovery(), {2: "C"})
    with pytest.raises(LedgerClosed, match="at entry 5"):
        change_needed(OPEN.closed(5, 10), {2: "C"})


def test_closing_is_idempotent_and_never_moves_an_end():
    assert close_needed(OPEN, 5, 10)
    assert close_needed(OPEN.in_recovery(), 5, 10)
    assert not close_needed(OPEN.closed(5, 10), 5, 10)
    for other in (OPEN.closed(4, 10), OPEN.closed(5, 9)):
        with pytest.raises(MetadataVersionConflict, match="closed"):
            close_needed(other, 5, 10)


FAILED = {1: "B"}
ONCE, AGAIN, LASTING = Refusal


class SpareBookies:
    """As much of `ClientContext` as the search uses; notes whom it tried to reach."""

    def __init__(self, *spares: str, dead: str = "", seed: int = 0, **view: Any) -> None:
        self.cluster = ClusterView(writable=frozenset({*ABC, *spares}), **view)
        self.placement = RandomPlacement()
        self.random = Random(seed)
        self.dead = frozenset(dead)
        self.avoided: set[str] = set()
        self.tried: list[str] = []
        self.pool = SimpleNamespace(reachable=self._reachable)
        self.placement_inputs = SimpleNamespace(tell_relaxed=lambda placement: None)
        self.health = SimpleNamespace(failed_lately=lambda: frozenset(self.avoided))

    async def cluster_view(self) -> ClusterView:
        return self.cluster

    async def _reachable(self, bookie: str) -> bool:
        self.tried.append(bookie)
        if bookie in self.dead:
            self.avoided.add(bookie)
        return bookie not in self.dead


async def found(
    context: SpareBookies,
    refusals: Refusals = MappingProxyType({}),
    may_acknowledge: Callable[[tuple[str, ...]], bool] = lambda ensemble: True,
    failed: Mapping[int, str] = MappingProxyType(FAILED),
) -> set[str]:
    view = await find_spares(context, Quorums(3, 3, 2), ABC, failed, refusals, may_acknowledge)  # type: ignore[arg-type]
    return set(view.writable)


@pytest.mark.parametrize("seed", range(10))
async def test_dead_ones_are_passed_over_and_none_is_tried_twice(seed):
    context = SpareBookies(*"DEFG", dead="DEF", seed=seed)
    assert await found(context) == {"G"}
    assert len(context.tried) == len(set(context.tried))


async def test_the_search_ends_where_all_are_dead_and_each_was_asked_once():
    context = SpareBookies(*"DEFGHI", dead="DEFGHI")
    assert await found(context) == set()
    assert sorted(context.tried) == sorted("DEFGHI")


async def rounds_of(context: SpareBookies, refusals: Refusals = MappingProxyType({})) -> int:
    """Return how often a search in vain waits for connections."""
    waits: set[float] = set()
    loop = asyncio.get_running_loop()

    async def in_vain(bookie: str) -> bool:
        await asyncio.sleep(1)
        waits.add(loop.time())
        return False

    context.pool.reachable = in_vain
    assert await found(context, refusals) == set()
    return len(waits)


@pytest.mark.parametrize("marked", ["", "B", "BDE"])
@pytest.mark.parametrize("refusal", [None, *Refusal])
def test_a_search_in_vain_has_four_rounds_at_most(clock, marked, refusal):
    others = [f"s{number}" for number in range(100)]
    context = SpareBookies(*"DEFGHI", *others, unreachable=frozenset(marked))
    refusals = dict.fromkeys(others, refusal) if refusal else {}
    assert clock.run_until_complete(rounds_of(context, refusals)) <= 4


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("dead", [5, 30, 200])
async def test_a_well_one_is_found_behind_any_number_of_dead_ones(seed, dead):
    spares = [f"s{number}" for number in range(dead)]
    context = SpareBookies(*spares, "W", seed=seed)
    context.dead = frozenset(spares)
    assert await found(context) == {"W"}
    assert len(context.tried) == len(set(context.tried))


@pytest.mark.parametrize("seed", range(10))
async def test_two_well_ones_of_different_standing_are_found_together(seed):
    context = SpareBookies(*"DEFGXY", dead="DEFG", seed=seed)
    assert await found(context, {"Y": AGAIN}, failed={0: "A", 1: "B"}) == {"X", "Y"}


@pytest.mark.parametrize("seed", range(10))
async def test_who_was_excluded_before_stays_so(seed):
    context = SpareBookies(*"DEF", dead="D", seed=seed, excluded={"E": "it is drained"})
    assert await found(context) == {"F"}
    assert "E" not in context.tried


@pytest.mark.parametrize("seed", range(10))
async def test_who_failed_elsewhere_meanwhile_is_asked_last(seed):
    """Another ledger of this client may have found out while this one tried."""
    context = SpareBookies(*"DEF", dead="D", seed=seed, unreachable=frozenset("EF"))
    reachable = context.pool.reachable

    async def and_another_fails(bookie: str) -> bool:
        context.avoided.add("E")
        return await reachable(bookie)

    context.pool.reachable = and_another_fails
    assert await found(context) == {"F"}


@pytest.mark.parametrize("seed", range(10))
async def test_who_refused_the_ledger_just_now_is_tried_last(seed):
    context = SpareBookies(*"DEF", seed=seed)
    for kind in Refusal:
        assert await found(context, {"D": kind, "E": kind}) == {"F"}
    assert await found(context, {"D": LASTING, "E": LASTING, "F": AGAIN}) == {"F"}
    assert await found(context, {"D": AGAIN, "E": ONCE, "F": AGAIN}) == {"E"}
    assert await found(context, dict.fromkeys("DEF", LASTING)) == set()


@pytest.mark.parametrize("seed", range(10))
async def test_of_those_who_refused_again_the_one_that_has_not_for_longest_is_tried_first(seed):
    context = SpareBookies(*"DEF", seed=seed)
    assert await found(context, dict.fromkeys("FDE", AGAIN)) == {"F"}
    assert await found(context, dict.fromkeys("EDF", AGAIN), failed={0: "A", 1: "B"}) == {"E", "D"}


@pytest.mark.parametrize("seed", range(10))
async def test_who_refused_again_is_tried_if_the_others_do_not_suffice(seed):
    context = SpareBookies(*"DEF", dead="F", seed=seed)
    assert await found(context, {"D": AGAIN}, failed={0: "A", 1: "B"}) == {"D", "E"}
    assert await found(context, {"D": LASTING}, failed={0: "A", 1: "B"}) == {"E"}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("refusal", [ONCE, AGAIN])
async def test_who_refused_but_answers_is_found_behind_any_number_of_dead_ones(seed, refusal):
    context = SpareBookies(*"DEFGHI", dead="DEFGH", seed=seed)
    assert await found(context, {"I": refusal}) == {"I"}


async def test_of_very_many_who_refused_again_a_few_sets_are_tried():
    spares = [str(number) for number in range(100)]
    context = SpareBookies(*spares, dead="D")
    searches = 0

    def may_acknowledge(ensemble: tuple[str, ...]) -> bool:
        nonlocal searches
        searches += 1
        return "99" in ensemble or ensemble == ABC

    assert await found(context, dict.fromkeys(spares, AGAIN), may_acknowledge) <= {"99"}
    assert searches < 50


@pytest.mark.parametrize("seed", range(10))
async def test_who_was_down_a_moment_ago_is_asked_before_a_rule_makes_the_search_end(seed):
    places = {"A": ("a",), "B": ("b",), "C": ("a",), "D": ("b",), "E": ("a",)}
    context = SpareBookies("D", "E", seed=seed, topology=Topology(places), unreachable=frozenset("D"))
    context.placement = RackAwarePlacement()
    assert await found(context, may_acknowledge=lambda ensemble: "B" in ensemble or "D" in ensemble) == {"D"}


@pytest.mark.parametrize("seed", range(10))
async def test_an_ensemble_that_can_acknowledge_nothing_is_none(seed):
    context = SpareBookies(*"DE", seed=seed)
    assert await found(context, may_acknowledge=lambda ensemble: "B" in ensemble) == set()
    both = {1: "B", 2: "C"}
    assert len(await found(context, may_acknowledge=lambda ensemble: "B" in ensemble, failed=both)) == 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("policy", "a", "b"),
    [
        (RackAwarePlacement(), ("a",), ("b",)),
        (RegionAwarePlacement(), ("a", "1"), ("b", "1")),
        (ZoneAwarePlacement(enforce=False), ("a", "1"), ("b", "1")),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
async def test_one_refusal_costs_no_fault_domain(policy, a, b, seed):
    """A and C are in one fault domain; B was alone in the other."""
    places = {"A": a, "B": b, "C": (*a[:-1], "2") if len(a) > 1 else a, "D": b, "E": a}
    context = SpareBookies("D", "E", seed=seed, topology=Topology(places))
    context.placement = policy
    assert await found(context, {"B": ONCE, "D": ONCE}) == {"D"}
    assert await found(context, {"B": ONCE, "D": AGAIN}) == {"E"}
    assert await found(context, {"B": ONCE, "D": LASTING}) == {"E"}
    assert await found(context, {"D": AGAIN, "E": AGAIN}, lambda ensemble: "D" in ensemble) == {"D"}


async def test_nobody_to_try():
    context = SpareBookies()
    assert (await found(context), context.tried) == (set(), [])


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("spares", [3, 5])
def test_the_positions_of_failed_bookies_do_not_decide_whether_any_is_replaced(offset, spares):
    """Rack b has failed with five of rack a; entries need a bookie of rack b, and the spares are of rack a."""
    quorums, policy, random = Quorums(12, 4, 3), RackAwarePlacement(), Random(offset)
    ensemble = tuple(("b" if position % 4 == offset else "a") + str(position) for position in range(12))
    of_a = [position for position in range(12) if position % 4 != offset]
    new = [f"a{number}" for number in range(50, 50 + spares)]
    topology = Topology({bookie: (bookie[0],) for bookie in (*ensemble, *new)})
    state = SpreadAddState(
        7, quorums, ensemble, suffices=lambda some: policy.acknowledgements_suffice(some, quorums, topology)
    )
    for _ in range(20):
        gone = [p for p in range(12) if p not in of_a] + random.sample(of_a, 5)
        failed = {position: ensemble[position] for position in gone}
        cluster = ClusterView(writable=frozenset(new), topology=topology)
        chosen = replace_bookies(ensemble, failed, quorums, cluster, policy, random, state.may_acknowledge).ensemble
        assert len(set(chosen) - set(ensemble)) == spares


async def test_a_search_asks_the_policy_a_few_times(monkeypatch):
    """Place c is gone, which entries need."""
    steps: list[int] = []
    spend = Effort.spend

    def counted(self: Effort, some: int) -> None:
        steps.append(some)
        spend(self, some)

    monkeypatch.setattr(Effort, "spend", counted)
    members = [f"{place}{number}" for number in range(8) for place in "abc"]
    others = [f"{place}{number}" for number in range(8, 30) for place in "ab"]
    policy = RegionAwarePlacement(regions_to_write="abc", min_regions_for_durability=3)
    topology = Topology({bookie: (bookie[0], bookie[-1]) for bookie in (*members, *others)})
    context = SpareBookies(*others, topology=topology)
    context.placement = policy
    quorums, ensemble = Quorums(24, 4, 3), tuple(members)
    state = SpreadAddState(
        7, quorums, ensemble, suffices=lambda some: policy.acknowledgements_suffice(some, quorums, topology)
    )
    failed = {position: ensemble[position] for position in range(10)}
    await find_spares(context, quorums, ensemble, failed, dict.fromkeys(others, AGAIN), state.may_acknowledge)  # type: ignore[arg-type]
    assert len(steps) < 50
    assert sum(steps) < MAX_EFFORT


@pytest.fixture
def state():
    return AddState(7, Quorums(3, 2, 2), ABC)


@pytest.fixture
def clock():
    loop = VirtualLoop()
    yield loop
    loop.close()


class Changes:
    """A writer of three bookies, the change of whose first one stores another spare each time. `pauses`: seconds that
    each round took."""

    def __init__(self, loop: VirtualLoop, ack: int, interval: float = 1.0) -> None:
        self.loop = loop
        self.state = AddState(7, Quorums(3, 3, ack), ABC)
        self.options = ClientOptions(degraded_retry_interval=interval)
        self.runner = ChangeRunner(self.state, self._change, self.options)
        self.stored = ABC
        self.refusals: list[Refusals] = []
        self.spares = [f"b{i}" for i in range(200)]

    async def _change(self, failed: Mapping[int, str], refusals: Refusals) -> tuple[str, ...]:
        self.refusals.append(refusals)
        spare = next(each for each in self.spares if each not in self.stored)
        self.stored = (spare, *self.stored[1:])
        return self.stored

    def fails(self, bookie: str, error: PodkeeperError | None = None) -> None:
        self.state._ensemble.note(bookie, error or BookieUnavailable("it is down"))

    async def run(self, rounds: int) -> list[float]:
        """The pauses."""
        pauses = []
        for _ in range(rounds):
            begun = self.loop.time()
            await self.runner.run({0: self.stored[0]})
            pauses.append(round(self.loop.time() - begun, 6))
            self.state.lac += 1
        return pauses


def test_changes_that_adds_wait_for_are_slowed_down_whatever_is_confirmed(clock):
    async def work() -> None:
        changes = Changes(clock, ack=3, interval=4 * FIRST_CHANGE_PAUSE)
        assert await changes.run(IMMEDIATE_CHANGES) == [0.0] * IMMEDIATE_CHANGES
        assert await changes.run(3) == [2 * FIRST_CHANGE_PAUSE, 4 * FIRST_CHANGE_PAUSE, 4 * FIRST_CHANGE_PAUSE]
        await asyncio.sleep(len(changes.refusals) * LONGEST_CHANGE_PAUSE)
        assert await changes.run(IMMEDIATE_CHANGES) == [0.0] * IMMEDIATE_CHANGES

    clock.run_until_complete(work())


def test_changes_that_writing_can_do_without_are_not_made_too_early(clock):
    async def work() -> None:
        changes = Changes(clock, ack=2)
        assert await changes.run(3 * IMMEDIATE_CHANGES) == [0.0] * 3 * IMMEDIATE_CHANGES
        assert len(changes.refusals) == IMMEDIATE_CHANGES
        assert not changes.runner.may_try({0: changes.stored[0]})
        assert await changes.runner.run({0: changes.stored[0]}) == changes.stored
        for _ in range(3600):
            await asyncio.sleep(1.0)
            await changes.run(1)
        assert len(changes.refusals) < IMMEDIATE_CHANGES + 80

    clock.run_until_complete(work())


def test_failures_are_told_for_a_while_and_who_holds_another_ledger_is_barred_as_long(clock):
    async def work() -> None:
        changes = Changes(clock, ack=3)
        for _ in range(2):
            changes.fails("D", TooManyRequests("it cannot ask"))
            changes.fails("E", LedgerStateUnknown("it holds another"))
            changes.fails("F", NoSuchLedger("it is gone"))
            changes.fails("E", TooManyRequests("it cannot ask"))
            assert changes.runner.refusals() == {"D": ONCE, "E": LASTING, "F": LASTING}
        await asyncio.sleep(LONGEST_CHANGE_PAUSE - 1)
        changes.fails("D")
        await asyncio.sleep(1)
        assert changes.runner.refusals() == {"D": ONCE, "E": AGAIN, "F": AGAIN}
        changes.fails("E", TooManyRequests("it cannot ask"))
        assert changes.runner.refusals() == {"D": ONCE, "E": AGAIN, "F": AGAIN}
        await asyncio.sleep(LONGEST_CHANGE_PAUSE)
        assert changes.runner.refusals() == {}

    clock.run_until_complete(work())


def test_failures_are_remembered_until_there_was_none_for_a_while(clock):
    """Each spare of many that are slow has its turn before one has a second."""

    async def work() -> None:
        changes = Changes(clock, ack=3)
        spares = [f"s{number}" for number in range(40)]
        for spare in spares:
            changes.fails(spare)
            await changes.run(1)
            await asyncio.sleep(6.0)
        assert list(changes.runner.refusals().items()) == [(spare, AGAIN) for spare in spares]
        await asyncio.sleep(LONGEST_CHANGE_PAUSE)
        changes.fails("A")
        assert changes.runner.refusals().keys() == {"A"}

    clock.run_until_complete(work())


def test_a_failure_counts_from_its_own_time_and_not_from_when_it_is_asked_for(clock):
    async def work() -> None:
        changes = Changes(clock, ack=3)
        changes.fails("B")
        await asyncio.sleep(3600)
        changes.fails("A")
        assert changes.runner.refusals() == {"A": ONCE}

    clock.run_until_complete(work())


def test_a_bookie_that_is_to_be_left_out_is_barred(clock):
    async def work() -> None:
        changes = Changes(clock, ack=2)
        changes.state.leave_out(["B"])
        assert changes.runner.refusals() == {"B": LASTING}

    clock.run_until_complete(work())


def test_an_add_that_was_sent_before_its_bookie_was_chosen_tells_nothing_of_it(state):
    told: list[str] = []
    state.tell_refusals(lambda bookie, error: told.append(bookie))
    old, next_one = state.begin(1), state.begin(1)
    for add in (old, next_one):
        for bookie in "AB":
            state.acknowledged(add, bookie)
    assert len(state.deliver()) == 2  # C has not answered
    for stored in (("A", "B", "D"), ABC):
        state._start_change({2: state.ensemble[2]})
        state.ensemble_changed(stored)
    late = [state.refused(add, "C", BookieUnavailable("too late")) for add in (old, next_one)]
    assert (told, state.late_failures, [each.change for each in late]) == ([], False, [None, None])
    state.refused(state.begin(1), "C", BookieUnavailable("too late"))
    assert told == ["C"]


def test_a_bookie_that_fails_once_it_was_chosen_again_has_failed_again(clock):
    async def work() -> None:
        changes = Changes(clock, ack=3)
        changes.spares = ["D", "E"]
        changes.fails("A")
        await changes.run(1)
        changes.fails("D")
        await changes.run(2)
        assert list(changes.runner.refusals().items()) == [("A", ONCE), ("D", ONCE)]
        changes.fails("D")
        changes.fails("A")
        assert list(changes.runner.refusals().items()) == [("D", AGAIN), ("A", ONCE)]
        await asyncio.sleep(LONGEST_CHANGE_PAUSE)
        assert changes.runner.refusals() == {}
        changes.fails("D")
        assert changes.runner.refusals() == {"D": ONCE}
        await changes.run(1)
        await asyncio.sleep(24 * 3600)
        changes.fails("D")
        assert changes.runner.refusals() == {"D": ONCE}  # though nobody asked meanwhile

    clock.run_until_complete(work())


def test_no_bookie_gets_a_second_chance_once_changes_are_slowed_down(clock):
    async def work() -> None:
        changes = Changes(clock, ack=3)
        await changes.run(IMMEDIATE_CHANGES - 1)
        changes.fails("A")
        assert changes.runner.refusals() == {"A": ONCE}
        await changes.run(1)
        assert changes.runner.refusals() == {"A": AGAIN}

    clock.run_until_complete(work())


def test_a_change_that_adds_wait_for_may_be_tried_before_the_next_one_is_due(clock):
    async def work() -> None:
        changes = Changes(clock, ack=2)
        await changes.run(IMMEDIATE_CHANGES)
        assert not changes.runner.may_try({0: changes.stored[0]})
        assert changes.runner.may_try({0: changes.stored[0], 1: changes.stored[1]})
        await asyncio.sleep(LONGEST_CHANGE_PAUSE)
        assert changes.runner.may_try({0: changes.stored[0]})

    clock.run_until_complete(work())


async def test_a_change_is_not_made_for_a_ledger_that_cannot_be_written_any_more(state):
    async def change(failed, refusals):
        raise AssertionError("nothing may be stored")

    state.abandon(LedgerClosed("over"))
    assert await ChangeRunner(state, change, ClientOptions()).run({0: "A"}) == ABC


@pytest.mark.parametrize(
    ("raised", "kind"), [(MetadataUnavailable("gone"), MetadataUnavailable), (KeyError("x"), CouldNotTell)]
)
async def test_whatever_a_change_raises_ends_as_an_error_of_the_taxonomy(state, raised, kind, caplog):
    async def change(failed, refusals):
        raise raised

    with pytest.raises(kind) as told:
        await ChangeRunner(state, change, ClientOptions()).run({0: "A"})
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("ledger cannot be written any more")
    assert line.endswith(f"error={told.value}")


ROUNDS = 5


class DegradedLedger:
    """As much of `ClientContext` as mending uses. Its rounds are numbered; `happens` changes things in some. The ledger
    ends with the last one."""

    def __init__(self, state: AddState) -> None:
        self.state = state
        self.registered = {"A", "B"}
        self.reachable: set[str] = set()
        self.silent: set[str] = set()
        self.error: BookieUnavailable | MetadataUnavailable | None = None
        self.rounds = 0
        self.is_due = True
        self.happens = {}
        self.options = SimpleNamespace(degraded_retry_interval=0.0)
        self.searches = 0
        self.barred: set[str] = set()
        self.placement = RandomPlacement()
        self.random = Random(1)
        self.bookies = SimpleNamespace(changed=self._changed, writable=self._writable)
        self.pool = SimpleNamespace(reachable=self._is_reachable, channel=self._channel)
        self.placement_inputs = SimpleNamespace(tell_relaxed=lambda placement: None)
        self.operations = SimpleNamespace(answers=self._answers)
        self.health = SimpleNamespace(failed_lately=frozenset)

    async def _answers(self, bookie: str, ledger_id: int, entry_id: int) -> bool:
        return bookie not in self.silent

    async def _changed(self, timeout: float) -> None:
        await asyncio.sleep(0)
        self.rounds += 1
        if self.rounds in self.happens:
            self.happens[self.rounds]()
        if self.rounds == ROUNDS:
            self.state.abandon(BookieUnavailable("the test ends"))

    async def _writable(self) -> frozenset[str]:
        if self.error is not None:
            raise self.error
        return frozenset(self.registered)

    async def cluster_view(self) -> ClusterView:
        self.searches += 1
        return ClusterView(writable=await self._writable())

    async def _is_reachable(self, bookie: str) -> bool:
        return bookie in self.reachable

    def _channel(self, bookie: str, ledger_id: int):
        async def connect() -> None:
            if bookie not in self.reachable:
                raise BookieUnavailable(f"bookie {bookie}: cannot connect")

        return SimpleNamespace(connect=connect)


@pytest.fixture
def degraded():
    made = AddState(7, Quorums(3, 3, 2), ABC)
    made.refused(made.begin(1), "C", BookieUnavailable("down"))
    made.ensemble_changed(ABC)
    assert made.degraded == {2: "C"}
    return made


async def mended(context: DegradedLedger) -> list[int]:
    """The rounds in which a replacement was tried."""
    tried: list[int] = []
    changes = SimpleNamespace(
        refusals=lambda: dict.fromkeys(context.barred, LASTING), may_try=lambda failed: context.is_due
    )
    async with asyncio.timeout(10):
        await mend(context, context.state, changes, lambda: tried.append(context.rounds), context.state.restored)  # type: ignore[arg-type]
    return tried


async def test_a_bookie_that_is_registered_again_gets_entries_once_it_can_be_reached(degraded):
    context = DegradedLedger(degraded)
    context.happens = {2: lambda: context.registered.add("C"), 4: lambda: context.reachable.add("C")}
    assert await mended(context) == []
    assert (context.rounds, degraded.degraded, degraded.failure) == (4, {}, None)


@pytest.mark.parametrize("obstacle", ["silent", "barred"])
async def test_a_bookie_that_takes_connections_gets_entries_once_it_answers_and_is_not_barred(degraded, obstacle):
    context = DegradedLedger(degraded)
    context.registered.add("C")
    context.reachable.add("C")
    kept_by = getattr(context, obstacle)
    kept_by.add("C")
    context.happens = {3: kept_by.clear}
    assert await mended(context) == []
    assert (context.rounds, degraded.degraded, degraded.failure) == (3, {}, None)


async def test_a_bookie_that_is_not_registered_gets_none(degraded):
    context = DegradedLedger(degraded)
    context.reachable.add("C")
    assert await mended(context) == []
    assert (context.rounds, dict(degraded.degraded)) == (ROUNDS, {2: "C"})


async def test_a_spare_is_taken_once_it_can_be_reached_and_goes_before_the_return(degraded):
    context = DegradedLedger(degraded)
    context.registered |= {"C", "D"}
    context.happens = {3: lambda: context.reachable.update("CD")}
    assert await mended(context) == [3, 4, ROUNDS]
    assert degraded.degraded == {2: "C"}, "whoever starts the change mends it"


async def test_a_bookie_that_is_back_gets_entries_while_it_is_too_early_for_a_spare(degraded):
    context = DegradedLedger(degraded)
    context.is_due = False
    context.registered |= {"C", "D"}
    context.reachable.add("D")
    context.happens = {3: lambda: context.reachable.add("C")}
    assert await mended(context) == []
    assert (context.rounds, degraded.degraded, degraded.failure) == (3, {}, None)


async def test_a_search_in_vain_is_not_repeated_at_once_while_nothing_changes(degraded):
    context = DegradedLedger(degraded)
    context.options.degraded_retry_interval = 60.0
    context.registered |= {"D"}
    context.happens = {4: lambda: context.registered.add("E")}
    await mended(context)
    assert (context.rounds, context.searches) == (ROUNDS, 2)


async def test_a_metadata_service_that_cannot_tell_is_asked_again(degraded):
    context = DegradedLedger(degraded)
    context.error = MetadataUnavailable("nobody answers")
    context.registered.add("C")
    context.reachable.add("C")

    def answers() -> None:
        context.error = None

    context.happens = {3: answers}
    await mended(context)
    assert (context.rounds, degraded.degraded) == (3, {})
