"""One of several operators works, and stops by its own clock."""

from __future__ import annotations

import asyncio
import time
from unittest.mock import Mock

import pytest

from bookie_operator.api.kinds import LEASE
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.lease import LeaderElection
from tests.support.fake_kubernetes.faults import Fault
from tests.support.fake_kubernetes.serving import kubernetes_alone
from tests.support.until import until


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def candidate(kubernetes: Kubernetes, name: str, clock: Clock) -> LeaderElection:
    return LeaderElection(kubernetes, "here", "operator", name, monotonic=clock)


async def test_the_first_one_leads_and_the_second_waits() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        clock = Clock()
        one, two = candidate(kubernetes, "one", clock), candidate(kubernetes, "two", clock)
        assert not one.leading
        for _ in range(20):
            await one.turn()
            await two.turn()
            assert (one.leading, two.leading) == (True, False)
            clock.time += 2.0
        assert server.store.get(LEASE, "here", "operator")["spec"]["leaseTransitions"] == 0


async def test_who_cannot_renew_stops_before_another_one_begins() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        clock = Clock()
        one, two = candidate(kubernetes, "one", clock), candidate(kubernetes, "two", clock)
        await one.turn()
        stopped = began = 0.0
        for _ in range(40):
            clock.time += 1.0
            server.faults.append(Fault("leases", 500))
            await one.turn()
            server.faults.clear()
            await two.turn()
            assert not (one.leading and two.leading)
            stopped = stopped or (0.0 if one.leading else clock.time)
            began = began or (clock.time if two.leading else 0.0)
        assert 1000.0 < stopped <= 1010.0
        assert 1015.0 < began <= 1020.0
        assert server.store.get(LEASE, "here", "operator")["spec"]["leaseTransitions"] == 1


async def test_what_nobody_expects_costs_a_turn_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kubernetes_alone() as (kubernetes, _):
        clock = Clock()
        one = candidate(kubernetes, "one", clock)
        with monkeypatch.context() as broken:
            broken.setattr(kubernetes, "find", Mock(side_effect=ValueError("the token cannot be read")))
            await one.turn()
        assert not one.leading
        await one.turn()
        assert one.leading


async def test_a_process_that_hangs_does_not_lead_when_it_goes_on() -> None:
    async with kubernetes_alone() as (kubernetes, _):
        clock = Clock()
        one = candidate(kubernetes, "one", clock)
        await one.turn()
        assert one.leading
        clock.time += 10.0
        assert not one.leading


async def test_who_sees_another_one_in_the_lease_stops_at_once() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        clock = Clock()
        one = candidate(kubernetes, "one", clock)
        await one.turn()
        server.store.patch(LEASE, "here", "operator", {"spec": {"holderIdentity": "two"}})
        await one.turn()
        assert not one.leading


async def test_of_two_that_take_a_stale_lease_one_gets_it() -> None:
    async with kubernetes_alone() as (kubernetes, _):
        clock = Clock()
        await candidate(kubernetes, "gone", clock).turn()
        two, three = candidate(kubernetes, "two", clock), candidate(kubernetes, "three", clock)
        await asyncio.gather(two.turn(), three.turn())
        clock.time += 20.0
        await asyncio.gather(two.turn(), three.turn())
        assert two.leading is not three.leading


async def test_a_lease_that_is_given_back_is_free_at_once() -> None:
    async with kubernetes_alone() as (kubernetes, _):
        clock = Clock()
        one, two = candidate(kubernetes, "one", clock), candidate(kubernetes, "two", clock)
        running = asyncio.create_task(one.run())
        await until(lambda: one.leading)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not one.leading
        await two.turn()
        assert two.leading


def test_a_machine_that_was_suspended_leads_no_more(monkeypatch):
    """`time.monotonic` stands still meanwhile."""
    clock = {time.CLOCK_BOOTTIME: 100.0}
    monkeypatch.setattr(time, "clock_gettime", clock.__getitem__)
    election = LeaderElection(None, "here", "operator", "me")
    election._renewed_at = 100.0
    assert election.leading
    clock[time.CLOCK_BOOTTIME] += 3600.0
    assert not election.leading
