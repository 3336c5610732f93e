"""One of several operators works, and stops by its own clock.

Two operators with one namespace: the second one stays out, until the first one is gone for good.
"""

from __future__ import annotations

import asyncio
import time
from unittest.mock import Mock

import pytest

from bookie_operator.api.kinds import CLUSTER, LEASE, KubernetesObject, Resource
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.lease import SCOPE_DURATION_S, LeaderElection, Scopes
from tests.support.fake_kubernetes.cluster import NAMESPACE, fake_cluster
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


def scopes(kubernetes: Kubernetes, installation: str, clock: Clock) -> Scopes:
    return Scopes(kubernetes, installation, monotonic=clock)


async def test_the_second_one_stays_out_and_takes_over_when_the_first_one_is_gone() -> None:
    async with kubernetes_alone() as (kubernetes, _):
        clock = Clock()
        one, two = scopes(kubernetes, "ops", clock), scopes(kubernetes, "team", clock)
        for _ in range(40):
            assert await one.other("storage") == ""
            assert await two.other("storage") == "ops"
            clock.time += 30.0
        assert two.kept_by_others == {"storage": "ops"}
        assert await two.other("elsewhere") == ""
        assert await one.other("elsewhere") == "team"
        gone_at = clock.time
        while await two.other("storage"):
            clock.time += 10.0
        assert SCOPE_DURATION_S - 60 <= clock.time - gone_at <= SCOPE_DURATION_S + 60
        assert await one.other("storage") == "team"
        assert two.kept_by_others == {}


async def test_processes_of_one_operator_share_what_it_keeps() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        clock = Clock()
        assert await scopes(kubernetes, "ops", clock).other("storage") == ""
        clock.time += 5.0
        assert await scopes(kubernetes, "ops", clock).other("storage") == ""
        assert server.store.get(LEASE, "storage", "podkeeper-operator-clusters")["spec"]["leaseTransitions"] == 0


async def test_who_cannot_tell_for_long_stays_out() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        clock = Clock()
        one = scopes(kubernetes, "ops", clock)
        assert await one.other("storage") == ""
        server.faults.append(Fault("leases", 500, times=100))
        clock.time += 200.0
        assert await one.other("storage") == ""
        clock.time += 60.0
        assert await one.other("storage") != ""


async def test_without_the_right_to_leases_work_goes_on() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        server.forbidden.add("leases")
        assert await scopes(kubernetes, "ops", Clock()).other("storage") == ""
        assert await scopes(kubernetes, "", Clock()).other("storage") == ""


async def test_a_namespace_whose_lease_is_slow_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kubernetes_alone() as (kubernetes, _):
        find, answered = kubernetes.find, asyncio.Event()

        async def slowly(resource: Resource, namespace: str, name: str) -> KubernetesObject | None:
            if namespace == "slow":
                await answered.wait()
            return await find(resource, namespace, name)

        monkeypatch.setattr(kubernetes, "find", slowly)
        one = scopes(kubernetes, "ops", Clock())
        slow = asyncio.create_task(one.other("slow"))
        async with asyncio.timeout(10.0):
            await asyncio.sleep(0)
            assert await one.other("storage") == ""
        answered.set()
        assert await slow == ""


async def test_a_right_that_is_refused_for_a_moment_takes_nothing_from_another() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        clock = Clock()
        assert await scopes(kubernetes, "ops", clock).other("storage") == ""
        two = scopes(kubernetes, "team", clock)
        assert await two.other("storage") == "ops"
        server.forbidden.add("leases")
        clock.time += 15.0
        assert await two.other("storage") == "ops"


async def test_a_namespace_that_has_nothing_to_keep_any_more_makes_nobody_unready() -> None:
    async with kubernetes_alone() as (kubernetes, _):
        clock = Clock()
        two = scopes(kubernetes, "team", clock)
        await scopes(kubernetes, "ops", clock).other("storage")
        assert await two.other("storage") == "ops"
        clock.time += 60.0
        assert two.kept_by_others == {"storage": "ops"}
        clock.time += 150.0
        assert two.kept_by_others == {}


async def test_a_cluster_of_another_operator_is_left_alone_and_people_are_told() -> None:
    async with fake_cluster(operators=2) as fake:
        clock = Clock()
        for context, name in zip(fake.operators, ("ops", "team"), strict=True):
            context.other_operator = scopes(context.kubernetes, name, clock).other
        fake.apply(replicas=3)
        await fake.settle()
        before = fake.store.get(CLUSTER, NAMESPACE, "demo")
        fake.apply(replicas=4)
        for _ in range(5):
            assert await fake.one_pass(1) == 15.0
        after = fake.store.get(CLUSTER, NAMESPACE, "demo")
        assert after.get("status") == before.get("status")
        assert len(fake.pods()) == 3
        ((_, note, kind),) = fake.events("AnotherOperator")
        assert "namespace ops" in note
        assert kind == "Warning"
        await fake.settle()
        assert len(fake.pods()) == 4
