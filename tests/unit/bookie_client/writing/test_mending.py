"""Degraded positions: replaced when there is a spare, used again when their bookie can be reached, and not before."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace

import pytest

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import ClusterView
from bookie_client.placement.random_choice import RandomPlacement
from bookie_client.writing.add_state import AddState
from bookie_client.writing.ensemble_change import mend
from bookie_protocol.errors import BookieUnavailable, MetadataUnavailable

ABC = ("A", "B", "C")
ROUNDS = 5


class FakeContext:
    """As much of `ClientContext` as mending uses. Its rounds are numbered; `happens` changes things in some. The ledger
    ends with the last one."""

    def __init__(self, state: AddState) -> None:
        self.state = state
        self.registered = {"A", "B"}
        self.reachable: set[str] = set()
        self.error: BookieUnavailable | MetadataUnavailable | None = None
        self.rounds = 0
        self.happens = {}
        self.options = SimpleNamespace(degraded_retry_interval=60.0)
        self.placement = RandomPlacement()
        self.random = Random(1)
        self.bookies = SimpleNamespace(changed=self._changed, writable=self._writable)
        self.pool = SimpleNamespace(reachable=self._is_reachable, channel=self._channel)
        self.placement_inputs = SimpleNamespace(tell_relaxed=lambda placement: None)

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
        return ClusterView(writable=await self._writable())

    def avoided_bookies(self) -> frozenset[str]:
        return frozenset()

    async def _is_reachable(self, bookie: str) -> bool:
        return bookie in self.reachable

    def _channel(self, bookie: str, ledger_id: int):
        async def connect() -> None:
            if bookie not in self.reachable:
                raise BookieUnavailable(f"bookie {bookie}: cannot connect")

        return SimpleNamespace(connect=connect)


@pytest.fixture
def state():
    made = AddState(7, Quorums(3, 3, 2), ABC)
    made.refused(made.begin(1), "C", BookieUnavailable("down"))
    made.ensemble_changed(ABC)
    assert made.degraded == {2: "C"}
    return made


async def mended(context: FakeContext) -> list[int]:
    """The rounds in which a replacement was tried."""
    tried: list[int] = []
    async with asyncio.timeout(10):
        await mend(context, context.state, lambda: tried.append(context.rounds), context.state.restored)  # type: ignore[arg-type]
    return tried


async def test_a_bookie_that_is_registered_again_gets_entries_once_it_can_be_reached(state):
    context = FakeContext(state)
    context.happens = {2: lambda: context.registered.add("C"), 4: lambda: context.reachable.add("C")}
    assert await mended(context) == []
    assert (context.rounds, state.degraded, state.failure) == (4, {}, None)


async def test_a_bookie_that_is_not_registered_gets_none(state):
    context = FakeContext(state)
    context.reachable.add("C")
    assert await mended(context) == []
    assert (context.rounds, dict(state.degraded)) == (ROUNDS, {2: "C"})


async def test_a_spare_is_taken_once_it_can_be_reached_and_goes_before_the_return(state):
    context = FakeContext(state)
    context.registered |= {"C", "D"}
    context.happens = {3: lambda: context.reachable.update("CD")}
    assert await mended(context) == [3, 4, ROUNDS]
    assert state.degraded == {2: "C"}, "whoever starts the change mends it"


async def test_a_metadata_service_that_cannot_tell_is_asked_again(state):
    context = FakeContext(state)
    context.error = MetadataUnavailable("nobody answers")
    context.registered.add("C")
    context.reachable.add("C")

    def answers() -> None:
        context.error = None

    context.happens = {3: answers}
    await mended(context)
    assert (context.rounds, state.degraded) == (3, {})
