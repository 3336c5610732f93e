"""Nodes and storage classes are read once for all clusters, and no more of them is kept than counts."""

from __future__ import annotations

import asyncio

import pytest

from bookie_operator.api.errors import Unreachable
from bookie_operator.api.kinds import NODE
from bookie_operator.observe.surroundings import AT_REST_S, Surroundings
from tests.support.fake_kubernetes.faults import Fault
from tests.support.fake_kubernetes.serving import kubernetes_alone
from tests.support.fake_kubernetes.store import Store


def node(store: Store, name: str) -> None:
    status = {
        "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
        "images": [{"names": ["x"]}],
    }
    spec = {"unschedulable": True, "taints": [{"key": "k"}], "podCIDR": "10.0.0.0/24"}
    store.create(NODE, "", {"metadata": {"name": name, "labels": {"a": "b"}}, "spec": spec, "status": status})


async def test_all_passes_share_one_reading() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        for number in range(120):
            node(server.store, f"n-{number}")
        now = 100.0
        around = Surroundings(kubernetes, lambda: now)
        found = await asyncio.gather(*(around.nodes(AT_REST_S) for _ in range(20)))
        assert [len(each or ()) for each in found] == [120] * 20
        assert len(server.requests) == 3  # pages of 50
        now += AT_REST_S
        await around.nodes(AT_REST_S)
        assert len(server.requests) == 3
        await around.nodes(1.0)
        assert len(server.requests) == 6
        now += AT_REST_S + 1
        await around.nodes(AT_REST_S)
        assert len(server.requests) == 9


async def test_what_counts_is_kept() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        node(server.store, "n-1")
        assert await Surroundings(kubernetes).nodes(1.0) == [
            {
                "metadata": {"name": "n-1", "labels": {"a": "b"}},
                "spec": {"unschedulable": True, "taints": [{"key": "k"}]},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }
        ]


async def test_what_may_not_be_read_is_none_and_a_fault_is_none_of_both() -> None:
    async with kubernetes_alone() as (kubernetes, server):
        server.forbidden.add("storageclasses")
        around = Surroundings(kubernetes)
        assert await around.storage_classes() is None
        server.faults.append(Fault("GET .*/nodes", 500))
        with pytest.raises(Unreachable):
            await around.nodes(60.0)
        server.faults.clear()
        assert await around.nodes(60.0) == []
