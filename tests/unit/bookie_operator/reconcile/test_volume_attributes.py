"""VolumeAttributesClasses of volumes in use, against an API server in this process that judges claims as Kubernetes."""

from __future__ import annotations

from typing import Any

from bookie_operator.api.kinds import CLAIM, STATEFUL_SET, VOLUME_ATTRIBUTES_CLASS
from tests.support.fake_kubernetes.cluster import NAMESPACE, FakeCluster, fake_cluster, settled_cluster

FIELD = "volumeAttributesClassName"


def offer(fake: FakeCluster, *names: str) -> None:
    for name in names:
        fake.store.create(VOLUME_ATTRIBUTES_CLASS, "", {"metadata": {"name": name}, "driverName": "disks.example"})


def named(name: str | None) -> dict[str, Any]:
    """None: the field is taken out."""
    return {"journal": {"size": "10Gi"}, "ledger": {"size": "100Gi", FIELD: name}}


def bookies(fake: FakeCluster) -> set[str]:
    """UIDs of their pods."""
    uids = fake.uids()
    return {uids[name] for name in fake.pods()}


def claims(fake: FakeCluster, volume: str = "ledger") -> list[dict[str, Any]]:
    return [one for one in fake.store.list(CLAIM, NAMESPACE) if one["metadata"]["name"].startswith(f"{volume}-")]


def current(fake: FakeCluster, volume: str = "ledger") -> list[str]:
    return [one["status"].get("currentVolumeAttributesClassName", "") for one in claims(fake, volume)]


def requested(fake: FakeCluster) -> list[str]:
    return [one["spec"].get(FIELD, "") for one in claims(fake)]


def in_templates(fake: FakeCluster) -> dict[str, str]:
    templates = fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["spec"]["volumeClaimTemplates"]
    return {one["metadata"]["name"]: one["spec"].get(FIELD, "") for one in templates}


def changes_of_claims(fake: FakeCluster) -> int:
    return sum("/persistentvolumeclaims/" in one for one in fake.server.writes())


async def test_a_class_is_applied_online_to_all_claims_and_to_those_that_come_later() -> None:
    async with fake_cluster() as fake:
        offer(fake, "gold", "silver")
        fake.apply(replicas=3)
        await fake.settle()
        pods = bookies(fake)
        for name in ("gold", "silver"):
            fake.apply(replicas=3, storage=named(name))
            await fake.settle()
            assert current(fake) == [name] * 3
            assert current(fake, "journal") == [""] * 3
            assert in_templates(fake) == {"journal-0": "", "ledger-0": name}
        assert bookies(fake) == pods
        fake.apply(replicas=4, storage=named("silver"))
        await fake.settle()
        assert current(fake) == ["silver"] * 4


async def test_a_cluster_may_begin_with_a_class() -> None:
    async with fake_cluster() as fake:
        offer(fake, "gold")
        fake.apply(replicas=3, storage=named("gold"))
        await fake.settle()
        assert current(fake) == ["gold"] * 3
        assert changes_of_claims(fake) == 0


async def test_a_class_that_is_missing_is_told_until_it_is_there() -> None:
    async with settled_cluster(replicas=3) as fake:
        fake.apply(replicas=3, storage=named("gold"))
        await fake.until(lambda: fake.reason("Stalled") == "VolumeAttributesClassMissing")
        assert "gold: create it" in fake.message("Stalled")
        assert (fake.condition("Ready"), fake.condition("SpecValid")) == ("False", "True")
        offer(fake, "gold")
        await fake.settle()
        assert current(fake) == ["gold"] * 3


async def test_a_class_that_the_driver_refuses_keeps_nothing_up_and_can_be_taken_out() -> None:
    async with fake_cluster() as fake:
        offer(fake, "gold", "silver")
        fake.controllers.driver.refused["gold"] = "iops of 90000 are too many"
        fake.apply(replicas=3, storage=named("silver"))
        await fake.settle()
        fake.apply(replicas=3, storage=named("gold"))
        await fake.until(lambda: fake.reason("Stalled") == "VolumeAttributesRefused")
        assert "ledger-0-demo-bookie-0 (iops of 90000 are too many)" in fake.message("Stalled")
        assert "spec.storage.ledger.volumeAttributesClassName" in fake.message("Stalled")
        written = len(fake.server.writes())
        until = fake.time + 900
        await fake.until(lambda: fake.time > until)
        assert len(fake.server.writes()) == written, "nothing is tried again and again"
        before = bookies(fake)
        fake.apply(replicas=3, storage=named("gold"), version="0.1.1")
        await fake.until(lambda: not bookies(fake) & before)
        fake.apply(replicas=3, storage=named(None), version="0.1.1")
        await fake.settle()
        assert requested(fake) == current(fake) == ["silver"] * 3
        assert in_templates(fake)["ledger-0"] == ""


async def test_a_driver_that_changes_no_volumes_is_told() -> None:
    async with fake_cluster() as fake:
        offer(fake, "gold")
        fake.controllers.driver.modifies = False
        fake.apply(replicas=3)
        await fake.settle()
        fake.apply(replicas=3, storage=named("gold"))
        await fake.until(lambda: fake.reason("Stalled") == "VolumeAttributesIgnored")
        assert "CSI ModifyVolume" in fake.message("Stalled")
        fake.apply(replicas=3, storage=named(None))
        await fake.settle()
        assert requested(fake) == [""] * 3


async def test_claims_that_get_no_volume_say_why_their_bookies_wait() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3, storage=named("gold"))
        await fake.until(lambda: fake.reason("Stalled") == "VolumeAttributesClassMissing")
        assert "kubectl describe pvc ledger-0-demo-bookie-0" in fake.message("Stalled")
        offer(fake, "gold")
        await fake.settle()
        assert current(fake) == ["gold"] * 3


async def test_a_kubernetes_that_has_no_such_classes_goes_on_without() -> None:
    async with fake_cluster() as fake:
        fake.server.unknown.add(VOLUME_ATTRIBUTES_CLASS.plural)
        fake.apply(replicas=3, storage=named("gold"))
        await fake.settle()
        assert (fake.condition("SpecValid"), fake.reason("SpecValid")) == ("True", "PartlyApplied")
        assert fake.message("SpecValid") == (
            "spec.storage.ledger.volumeAttributesClassName: this Kubernetes has no VolumeAttributesClass; upgrade to"
            " 1.34, or remove this"
        )
        assert requested(fake) == [""] * 3
        fake.server.unknown.clear()
        offer(fake, "gold")
        fake.time += 3_600
        await fake.until(lambda: current(fake) == ["gold"] * 3)
        await fake.settle()


async def test_a_kubernetes_that_drops_the_field_is_asked_rarely_and_told() -> None:
    async with fake_cluster() as fake:
        offer(fake, "gold")
        fake.claim_rules.drops_classes = True
        fake.apply(replicas=3)
        await fake.settle()
        fake.apply(replicas=3, storage=named("gold"))
        await fake.until(lambda: fake.reason("Stalled") == "ExpandFailed")
        assert "enable the feature VolumeAttributesClass of Kubernetes" in fake.message("Stalled")
        assert changes_of_claims(fake) == 1
        before = bookies(fake)
        fake.apply(replicas=3, storage=named("gold"), version="0.1.1")
        await fake.until(lambda: not bookies(fake) & before)
        until = fake.time + 1_000
        await fake.until(lambda: fake.time > until, limit=1_000)
        assert changes_of_claims(fake) <= 6
        fake.claim_rules.drops_classes = False
        await fake.until(lambda: current(fake) == ["gold"] * 3)
        await fake.settle()
