"""Spares for failed bookies: reachable ones, however many that are registered and dead have to be passed over."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import ClusterView
from bookie_client.placement.random_choice import RandomPlacement
from bookie_client.writing.ensemble_change import MAX_ROUNDS, find_spares

ABC = ("A", "B", "C")
FAILED = {1: "B"}


class FakeContext:
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

    async def cluster_view(self) -> ClusterView:
        return self.cluster

    def avoided_bookies(self) -> frozenset[str]:
        return frozenset(self.avoided)

    async def _reachable(self, bookie: str) -> bool:
        self.tried.append(bookie)
        if bookie in self.dead:
            self.avoided.add(bookie)
        return bookie not in self.dead


async def found(context: FakeContext) -> set[str]:
    view = await find_spares(context, Quorums(3, 3, 2), ABC, FAILED)  # type: ignore[arg-type]
    return set(view.writable)


@pytest.mark.parametrize("seed", range(10))
async def test_dead_ones_are_passed_over_and_none_is_tried_twice(seed):
    context = FakeContext(*"DEFG", dead="DEF", seed=seed)
    assert await found(context) == {"G"}
    assert len(context.tried) == len(set(context.tried))


async def test_the_search_ends_where_all_are_dead():
    context = FakeContext(*"DEFGHI", dead="DEFGHI")
    assert await found(context) == set()
    assert len(context.tried) == MAX_ROUNDS


@pytest.mark.parametrize("seed", range(10))
async def test_who_was_excluded_before_stays_so(seed):
    context = FakeContext(*"DEF", dead="D", seed=seed, excluded={"E": "it is drained"})
    assert await found(context) == {"F"}
    assert "E" not in context.tried


@pytest.mark.parametrize("seed", range(10))
async def test_who_failed_elsewhere_meanwhile_is_asked_last(seed):
    """Another ledger of this client may have found out while this one tried."""
    context = FakeContext(*"DEF", dead="D", seed=seed, quarantined=frozenset("EF"))
    reachable = context.pool.reachable

    async def and_another_fails(bookie: str) -> bool:
        context.avoided.add("E")
        return await reachable(bookie)

    context.pool.reachable = and_another_fails
    assert await found(context) == {"F"}


async def test_nobody_to_try():
    context = FakeContext()
    assert (await found(context), context.tried) == (set(), [])
