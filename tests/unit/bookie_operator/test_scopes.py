"""Two operators with one namespace: the second one stays out, until the first one is gone for good."""

from __future__ import annotations

import asyncio

import pytest

from bookie_operator.api.kinds import CLUSTER, LEASE, KubernetesObject, Resource
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.scopes import DURATION_S, Scopes
from tests.support.fake_kubernetes.cluster import NAMESPACE, fake_cluster
from tests.support.fake_kubernetes.faults import Fault
from tests.support.fake_kubernetes.serving import kubernetes_alone


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


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
        assert DURATION_S - 60 <= clock.time - gone_at <= DURATION_S + 60
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
