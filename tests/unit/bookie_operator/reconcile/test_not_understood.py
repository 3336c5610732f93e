"""What an operator cannot understand is told, and stops neither safety nor a deletion."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest

from bookie_operator.api.errors import Undeclared
from bookie_operator.api.kinds import CLAIM, CLUSTER, SECRET, SERVICE, STATEFUL_SET
from bookie_operator.crds import names
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, FakeCluster, fake_cluster, settled_cluster
from tests.support.fake_kubernetes.statuses import declared, judge_status, schemas

KEPT = {"journal": {"size": "10Gi"}, "ledger": {"size": "100Gi"}}
STRANGE: dict[str, dict[str, Any]] = {
    "limits-are-text": {"pod": {"resources": {"limits": "4Gi"}}},
    "limits-are-a-list": {"pod": {"resources": {"limits": [{"memory": "4Gi"}]}}},
    "affinity-is-a-list": {"pod": {"affinity": {"podAntiAffinity": [{"a": 1}]}}},
    "terms-are-a-number": {
        "pod": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": 5}}}
    },
    "env-name-is-a-list": {"pod": {"env": [{"name": ["a"], "value": "b"}]}},
    "auto-recovery": {"autorecovery": {"resources": {"limits": "1Gi"}}},
    "a-newer-strategy": {"update": {"strategy": "BlueGreen"}},
    "replicas-are-words": {"replicas": "many"},
}


async def deleted(fake: FakeCluster) -> None:
    fake.store.delete(CLUSTER, NAMESPACE, NAME)
    await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None, limit=60)


def written(fake: FakeCluster, status: dict[str, Any]) -> None:
    """By a newer operator, with its definition."""
    fake.store.admission[:] = [each for each in fake.store.admission if each is not judge_status]
    fake.store.patch(CLUSTER, NAMESPACE, NAME, {"status": status}, "status")


@pytest.mark.parametrize("spec", STRANGE.values(), ids=STRANGE.keys())
async def test_a_strange_shape_is_told_and_safety_goes_on(spec: dict[str, Any]) -> None:
    async with settled_cluster(replicas=3) as fake:
        fake.apply(**spec)
        await fake.until(lambda: fake.condition("SpecValid") == "False", limit=5)
        assert fake.condition("Stalled") == "True"
        assert next(iter(spec)) in fake.message("SpecValid")
        fake.store.patch(STATEFUL_SET, NAMESPACE, "demo-bookie", {"spec": {"replicas": 1}})
        fake.run_controllers()
        await fake.until(lambda: len(fake.pods()) == 3, limit=20)
        await deleted(fake)
        assert len(fake.store.list(CLAIM, NAMESPACE)) == 6


async def test_without_an_identity_too() -> None:
    async with settled_cluster(replicas=3) as fake:
        uri = fake.status["metadataServiceUri"]
        fake.store.delete(SECRET, NAMESPACE, "demo-identity")
        fake.apply(replicas="many")
        await fake.until(lambda: fake.condition("SpecValid") == "False", limit=5)
        assert fake.status["metadataServiceUri"] == uri
        await deleted(fake)
        assert len(fake.store.list(CLAIM, NAMESPACE)) == 6


async def test_data_go_only_where_the_spec_that_there_is_says_so_too() -> None:
    async with settled_cluster(storage={**KEPT, "retention": {"whenDeleted": "Delete"}}) as fake:
        fake.apply(replicas="many", storage={**KEPT, "retention": {"whenDeleted": "Retain"}})
        fake.annotate(names.CONFIRM_DELETE, NAME)
        await deleted(fake)
        assert len(fake.store.list(CLAIM, NAMESPACE)) == 6


async def test_a_field_of_a_newer_definition_is_left_out() -> None:
    async with settled_cluster(replicas=3, pools=[], placement={"zones": [], "spread": "Even"}) as fake:
        assert fake.condition("SpecValid") == "True"
        assert "spec.pools" in fake.message("SpecValid")
        assert "spec.placement.spread" in fake.message("SpecValid")
        fake.apply(replicas=4, pools=[])
        await fake.until(lambda: len(fake.pods()) == 4)


async def test_a_definition_of_an_earlier_release_holds_nothing_up_and_is_told() -> None:
    older = copy.deepcopy(schemas())
    fields = older["BookieCluster"]["properties"]
    del fields["revision"], fields["bookies"]["items"]["properties"]["templateHash"]
    async with fake_cluster() as fake:
        fake.store.statuses = partial(declared, older)
        fake.apply(replicas=3)
        await fake.settle()
        assert (fake.condition("Ready"), fake.status["readyReplicas"]) == ("True", 3)
        assert "revision" not in fake.status
        assert not any("templateHash" in each for each in fake.status["bookies"])
        told = {note for _, note, _ in fake.events("OlderDefinition")}
        assert any("status.bookies.templateHash, status.revision: apply crds/*.yaml" in each for each in told), told
        fake.apply(replicas=4)
        await fake.until(lambda: len(fake.pods()) == 4)
        fake.store.statuses = partial(declared, schemas())
        await fake.settle()
        assert fake.status["revision"]
        await deleted(fake)


async def test_no_embedded_service_loses_its_token_to_a_definition_of_an_earlier_release() -> None:
    """While it is new it waits for the definition: later nobody could tell that it has one."""
    older = copy.deepcopy(schemas())
    del older["BookieCluster"]["properties"]["metadataProtected"]
    async with fake_cluster() as fake:
        fake.store.statuses = partial(declared, older)
        fake.apply(replicas=3)
        await fake.until(lambda: bool(fake.status.get("instanceId")))  # of an external service nothing depends on it
    async with fake_cluster() as fake:
        fake.store.statuses = partial(declared, older)
        fake.apply(replicas=3, metadataService={"type": "Embedded"})
        with pytest.raises(Undeclared):
            await fake.settle()
        with pytest.raises(Undeclared):
            await fake.settle()
        assert "instanceId" not in fake.status or not fake.status["instanceId"]
        assert any("status.metadataProtected: apply" in note for _, note, _ in fake.events("OlderDefinition"))
        fake.store.statuses = partial(declared, schemas())
        await fake.settle()
        assert fake.status["metadataProtected"]


@pytest.mark.parametrize(
    "status",
    [
        {"history": [{"id": "Rebalance-3", "type": "Rebalance"}]},
        {"bookies": [{"name": "demo-bookie-0", "ordinal": 0, "state": "Rebalancing"}]},
        {"ledgers": {"underReplicated": "some"}},
        {"pools": [{"name": "a"}]},
    ],
)
async def test_what_a_newer_operator_told_people_stops_nothing(status: dict[str, Any]) -> None:
    async with settled_cluster(replicas=3) as fake:
        written(fake, status)
        fake.apply(replicas=4)
        await fake.until(lambda: len(fake.pods()) == 4)
        await deleted(fake)


async def test_an_operation_of_a_newer_operator_is_waited_for_and_told() -> None:
    async with settled_cluster(replicas=3) as fake:
        written(fake, {"operation": {"id": "Rebalance-4", "type": "Rebalance", "step": "Move"}})
        fake.apply(replicas=4)
        for _ in range(3):
            await fake.one_pass()
        assert (fake.condition("Ready"), fake.reason("Stalled")) == ("False", "UnreadableStatus")
        assert "status.operation.type" in fake.message("Stalled")
        assert len(fake.events("UnreadableStatus")) == 1
        assert fake.status["operation"]["id"] == "Rebalance-4"
        assert len(fake.pods()) == 3
        assert "use that version, or mend the field" in fake.message("Stalled")
        operation = fake.status["operation"]
        written(fake, {"operation": None})
        await fake.until(lambda: len(fake.pods()) == 4)
        written(fake, {"operation": operation})
        await deleted(fake)
        assert fake.store.find(SERVICE, NAMESPACE, "demo-client") is None
