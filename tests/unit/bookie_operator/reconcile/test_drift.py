"""Changes by hand, and webhooks that change what is applied: put back or told, and nothing else waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from bookie_operator.api.kinds import BUDGET, CONFIG_MAP, NETWORK_POLICY, POD, SERVICE, STATEFUL_SET, Resource
from bookie_operator.crds import names
from tests.support.fake_kubernetes.cluster import NAMESPACE, FakeCluster, fake_cluster

BY_HAND: tuple[tuple[Resource, str, dict[str, Any]], ...] = (
    (SERVICE, "demo-bookie", {"selector": {"app": "nobody"}}),
    (BUDGET, "demo-bookie", {"maxUnavailable": 4}),
    (NETWORK_POLICY, "demo-bookie", {"ingress": [{}]}),
)


async def settled(fake: FakeCluster) -> None:
    fake.apply(replicas=3)
    await fake.settle()


async def passes(fake: FakeCluster, seconds: float) -> int:
    """How many there are in so long."""
    end, count = fake.time + seconds, 0
    while fake.time < end:
        await fake.one_pass()
        count += 1
    return count


@pytest.mark.parametrize(("resource", "name", "spec"), BY_HAND, ids=[each[0].kind for each in BY_HAND])
async def test_what_is_changed_by_hand_is_put_back_and_told(
    resource: Resource, name: str, spec: dict[str, Any]
) -> None:
    async with fake_cluster() as fake:
        await settled(fake)
        before = fake.store.get(resource, NAMESPACE, name)["spec"]
        fake.store.patch(resource, NAMESPACE, name, {"spec": spec})
        await passes(fake, 10)
        assert fake.store.get(resource, NAMESPACE, name)["spec"] == {**before, **_extra(spec, before)}
        ((_, note, kind),) = fake.events("ChangedByHand")
        assert f"{resource.kind}/{name}" in note
        assert "somebody" in note
        assert kind == "Warning"
        assert fake.condition("Ready") == "True"


def _extra(spec: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in spec.items() if key not in before}


async def test_a_setting_that_is_changed_by_hand_is_put_back() -> None:
    async with fake_cluster() as fake:
        await settled(fake)
        before = fake.store.get(CONFIG_MAP, NAMESPACE, "demo-bookie-settings")["data"]
        key = next(iter(before))
        fake.store.patch(CONFIG_MAP, NAMESPACE, "demo-bookie-settings", {"data": {key: "1"}})
        await fake.one_pass()
        assert fake.store.get(CONFIG_MAP, NAMESPACE, "demo-bookie-settings")["data"] == before


async def test_an_image_that_is_set_by_hand_goes_and_so_does_what_was_made_of_it() -> None:
    async with fake_cluster() as fake:
        await settled(fake)
        template = fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["spec"]["template"]
        changed = [{**each, "image": "podkeeper:9.9.9"} for each in template["spec"]["containers"]]
        fake.store.patch(
            STATEFUL_SET, NAMESPACE, "demo-bookie", {"spec": {"template": {"spec": {"containers": changed}}}}
        )
        before = fake.uids()
        fake.store.delete(POD, NAMESPACE, "demo-bookie-2")
        fake.run_controllers()
        assert fake.store.get(POD, NAMESPACE, "demo-bookie-2")["spec"]["containers"][0]["image"] == "podkeeper:9.9.9"
        await fake.one_pass()
        assert fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["spec"]["template"] == template
        await fake.one_pass()
        assert fake.status["updatedReplicas"] == 2
        await fake.settle()
        image = template["spec"]["containers"][0]["image"]
        assert {fake.store.get(POD, NAMESPACE, name)["spec"]["containers"][0]["image"] for name in fake.pods()} == {
            image
        }
        after = fake.uids()
        assert all(after[name] == before[name] for name in ("demo-bookie-0", "demo-bookie-1"))


def strip(resource: Resource, obj: dict[str, Any], before: dict[str, Any] | None) -> None:
    """A webhook that takes the operator's annotation off Services."""
    if resource == SERVICE:
        obj["metadata"].get("annotations", {}).pop(names.OBJECT_HASH, None)


async def test_a_webhook_that_strips_an_annotation_holds_nothing_up() -> None:
    async with fake_cluster() as fake:
        fake.store.admission.append(strip)
        fake.apply(replicas=3)
        await fake.until(lambda: len(fake.pods()) == 3)
        await passes(fake, 60)
        fake.server.requests.clear()
        await passes(fake, 300)
        applied = [each for each in fake.server.writes() if "/services/" in each]
        assert len(applied) < 20  # of three Services
        assert fake.condition("Stalled") == "True"
        assert fake.reason("Stalled") == "DoesNotStay"
        assert "Service/demo-client" in fake.message("Stalled")
        fake.apply(replicas=4)
        await fake.until(lambda: len(fake.pods()) == 4)
        fake.apply(replicas=3)
        await fake.until(lambda: len(fake.pods()) == 3 and fake.status.get("operation") is None)
        fake.store.admission.remove(strip)
        await passes(fake, 520)
        assert fake.condition("Ready") == "True"


async def test_a_rollout_and_restarts_of_people_are_no_drift() -> None:
    """`kubectl rollout restart` adds to a template: nothing of ours is changed by that, and no pod is restarted."""
    async with fake_cluster() as fake:
        await settled(fake)
        before = fake.uids()
        patch = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}
        fake.store.patch(STATEFUL_SET, NAMESPACE, "demo-bookie", {"spec": {"template": patch}})
        fake.run_controllers()
        await passes(fake, 120)
        assert fake.uids() == before
        assert fake.events("ChangedByHand") == []
        fake.apply(replicas=3, version="0.2.0")
        await fake.settle()
        assert fake.events("ChangedByHand") == []


async def test_what_kubernetes_fills_in_of_resources_is_no_other_template() -> None:
    """A pod is made with requests where only limits were given, and with those of a LimitRange; its template is not."""

    def fill_in(resource: Resource, obj: dict[str, Any], before: dict[str, Any] | None) -> None:
        if resource == POD and before is None:
            for each in obj["spec"]["containers"]:
                given = each.setdefault("resources", {})
                given["requests"] = {"cpu": "100m", **given.get("limits", {}), **given.get("requests", {})}

    async with fake_cluster() as fake:
        fake.store.admission.append(fill_in)
        fake.apply(replicas=3, pod={"resources": {"limits": {"memory": "2Gi"}}})
        await fake.settle()
        before = fake.uids()
        patch = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}
        fake.store.patch(STATEFUL_SET, NAMESPACE, "demo-bookie", {"spec": {"template": patch}})
        fake.run_controllers()
        await passes(fake, 120)
        assert fake.uids() == before
