"""Gateways beside bookies, against an API server, controllers and bookies in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookie_operator.api.admin import Admin
from bookie_operator.api.kinds import BUDGET, DEPLOYMENT, NETWORK_POLICY, POD, SERVICE
from bookie_operator.builders import config
from bookie_operator.observe.observing import Observed, observe
from bookie_operator.observe.others import cluster_view
from bookie_operator.observe.sources import Sources
from bookie_operator.observe.workloads import config_maps
from bookie_operator.planner.desired import Desired, DesiredDeployment
from tests.support.fake_kubernetes.cluster import NAMESPACE, FakeCluster, fake_cluster, settled_cluster

NAME = "demo-gateway"
ON = {"enabled": True}
PARTS = (DEPLOYMENT, SERVICE, NETWORK_POLICY, BUDGET)


def there(fake: FakeCluster) -> set[str]:
    return {kind.kind for kind in PARTS if fake.store.find(kind, NAMESPACE, NAME) is not None}


def config_of(obj: dict[str, Any]) -> str:
    (found,) = [name for name in config_maps(obj["spec"]["template"]["spec"]) if name.startswith("demo-config-")]
    return found


async def look(fake: FakeCluster) -> Observed:
    context = fake.operators[0]
    admin = Admin(context.session, trust=fake.trust(), now=context.now, timeout_s=1.0)
    sources = Sources(context.kubernetes, admin, admin_port=context.settings.admin_port)
    wanted = Desired(
        (),
        {"Secret/demo-admin-token": "h"},
        "Job/demo-metadata-init",
        "",
        "",
        gateway=DesiredDeployment(f"Deployment/{NAME}"),
    )
    return await observe(sources, cluster_view(fake.resource), wanted, identity="demo-identity", now=fake.time)


async def test_it_comes_and_goes_and_no_bookie_is_restarted() -> None:
    async with settled_cluster(replicas=3) as fake:
        before = {name: uid for name, uid in fake.uids().items() if name in fake.pods()}
        assert there(fake) == set()
        fake.apply(replicas=3, gateway={**ON, "replicas": 3})
        await fake.settle()
        assert there(fake) == {kind.kind for kind in PARTS}
        assert len(fake.pods("gateway")) == 3
        fake.apply(replicas=3, gateway={"enabled": False})
        await fake.until(lambda: not there(fake) and not fake.pods("gateway"))
        await fake.settle()
        assert {name: uid for name, uid in fake.uids().items() if name in fake.pods()} == before
        assert fake.store.find(SERVICE, NAMESPACE, "demo-bookie") is not None


async def test_its_pods_are_counted_apart_and_asked_nothing() -> None:
    async with settled_cluster(replicas=3, gateway=ON) as fake:
        fake.admin.requests.clear()
        observed = await look(fake)
        found = observed.world.gateway
        assert (found.ready, found.replicas, found.pods) == (2, 2, 2)
        assert found.inputs
        assert [pod.name for pod in observed.world.pods] == fake.pods()
        pods = {pod["metadata"]["name"] for pod in fake.store.list(POD, NAMESPACE)}
        assert pods >= {*fake.pods("gateway"), *fake.pods("autorecovery"), *fake.pods()}
        assert observed.endpoints.keys() == {*fake.pods("autorecovery"), *fake.pods()}
        assert {at.pod for at in observed.tellers} == observed.endpoints.keys()
        assert (fake.status["replicas"], fake.status["writableReplicas"]) == (3, 3)


async def test_it_speaks_for_no_cluster_whose_bookies_are_silent() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3, gateway=ON, autorecovery={"enabled": False})
        await fake.until(lambda: len(fake.pods("gateway")) == 2)
        fake.admin.silent = {fake.bookie_id(f"demo-bookie-{each}") for each in range(3)}
        observed = await look(fake)
        assert observed.world.facts is None
        assert "demo-bookie-0" in observed.world.facts_error


@pytest.mark.parametrize(
    ("change", "template_stays"),
    [({"replicas": 3}, True), ({"resources": {"limits": {"cpu": "1"}}}, False)],
    ids=["pods", "resources"],
)
async def test_it_waits_with_the_bookies_for_a_newer_operators_template(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], template_stays: bool
) -> None:
    async with settled_cluster(replicas=4, gateway=ON) as fake:
        before = fake.store.get(DEPLOYMENT, NAMESPACE, NAME)
        _upgrade(fake, monkeypatch)
        for _ in range(25):
            await fake.one_pass()
        assert fake.store.get(DEPLOYMENT, NAMESPACE, NAME)["spec"] == before["spec"]
        assert (fake.condition("Ready"), fake.reason("Upgrading")) == ("True", "NewerTemplateWaits")

        fake.apply(replicas=4, gateway={**ON, **change})
        await fake.settle()
        after = fake.store.get(DEPLOYMENT, NAMESPACE, NAME)
        assert (after["spec"]["template"] == before["spec"]["template"]) is template_stays
        assert config_of(after) == config_of(before)

        fake.apply(replicas=4, gateway={**ON, **change}, version="0.1.1")
        await fake.settle()
        newest = fake.store.get(DEPLOYMENT, NAMESPACE, NAME)
        assert config_of(newest) != config_of(before)
        assert newest["spec"]["template"]["spec"]["containers"][0]["image"] == "newer/podkeeper:0.1.1"


async def test_it_waits_for_bookies_that_people_have_not_restarted_yet_and_more_of_it_are_as_those_are() -> None:
    by_hand = {"update": {"strategy": "Manual"}}
    async with settled_cluster(replicas=3, gateway=ON, **by_hand) as fake:
        before = fake.store.get(DEPLOYMENT, NAMESPACE, NAME)
        fake.apply(replicas=3, gateway=ON, config={"journalMaxSizeMB": "512"}, **by_hand)
        await fake.until(lambda: "ManualUpdate" in str(fake.status))
        assert fake.store.get(DEPLOYMENT, NAMESPACE, NAME)["spec"] == before["spec"]
        fake.apply(replicas=3, gateway={**ON, "replicas": 3}, config={"journalMaxSizeMB": "512"}, **by_hand)
        await fake.until(lambda: len(fake.pods("gateway")) == 3)
        for _ in range(5):
            await fake.one_pass()
        written = len(fake.server.writes())
        for _ in range(5):
            await fake.one_pass()
        assert len(fake.server.writes()) == written
        assert fake.store.get(DEPLOYMENT, NAMESPACE, NAME)["spec"]["template"] == before["spec"]["template"]
        for name, uid in [(name, fake.uids()[name]) for name in fake.pods()]:
            fake.store.delete(POD, NAMESPACE, name)
            await fake.until(lambda name=name, uid=uid: fake.uids().get(name, uid) != uid)
        await fake.settle()
        after = fake.store.get(DEPLOYMENT, NAMESPACE, NAME)
        assert config_of(after) != config_of(before)
        assert after["spec"]["replicas"] == 3


async def test_what_is_switched_on_meanwhile_gets_the_configuration_that_the_bookies_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with settled_cluster(replicas=4) as fake:
        bookies = config_of(fake.store.get(DEPLOYMENT, NAMESPACE, "demo-autorecovery"))
        _upgrade(fake, monkeypatch)
        for _ in range(5):
            await fake.one_pass()
        fake.apply(replicas=4, gateway=ON)
        await fake.settle()
        assert config_of(fake.store.get(DEPLOYMENT, NAMESPACE, NAME)) == bookies
        assert fake.reason("Upgrading") == "NewerTemplateWaits"


async def test_a_configuration_without_gateways_is_refused_in_words() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3, gateway=ON, config={"gatewayEnabled": "false"})
        await fake.until(lambda: fake.condition("SpecValid") == "False")
        assert "spec.gateway.enabled: with gatewayEnabled off" in fake.message("SpecValid")
        assert there(fake) == set()


def _upgrade(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """To an operator that writes a key which the bookies' image may not know, and takes another image."""
    of_this_release = config.default_keys
    monkeypatch.setattr(config, "default_keys", lambda of: {**of_this_release(of), "journalMaxSizeMB": "512"})
    fake.operators[0].settings = replace(fake.operators[0].settings, image_repository="newer/podkeeper")
