"""Another operator takes over that makes pods in its own way, against an API server in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookie_operator.api.kinds import CERTIFICATE, CONFIG_MAP, DEPLOYMENT, EVENT, POD, SECRET, STATEFUL_SET
from bookie_operator.builders import config, naming, settings
from bookie_operator.crds import names
from bookie_operator.observe.workloads import config_maps
from tests.support.fake_kubernetes.cluster import NAMESPACE, FakeCluster, fake_cluster, settled_cluster

SET = "demo-bookie"


def upgrade(fake: FakeCluster) -> None:
    """From now on images come from another registry, which alone makes another template."""
    fake.operators[0].settings = replace(fake.operators[0].settings, image_repository="newer/podkeeper")


def stateful_set(fake: FakeCluster) -> dict[str, Any]:
    return fake.store.get(STATEFUL_SET, NAMESPACE, SET)


def forget_record(fake: FakeCluster) -> None:
    """As a release leaves it that writes none."""
    fake.store.patch(STATEFUL_SET, NAMESPACE, SET, {"metadata": {"annotations": {names.TEMPLATE_INPUTS: None}}})


def images(fake: FakeCluster) -> set[str]:
    pods = fake.store.list(POD, NAMESPACE, f"{names.COMPONENT}=bookie")
    return {pod["spec"]["containers"][0]["image"] for pod in (*pods, stateful_set(fake)["spec"]["template"])}


def uids(fake: FakeCluster) -> dict[str, str]:
    return {name: uid for name, uid in fake.uids().items() if name in fake.pods()}


async def passes(fake: FakeCluster, number: int = 25) -> None:
    for _ in range(number):
        await fake.one_pass()


async def test_no_bookie_restarts_until_spec_changes_and_status_says_so() -> None:
    async with settled_cluster(replicas=4) as fake:
        before = uids(fake)
        upgrade(fake)
        await passes(fake)
        assert uids(fake) == before
        assert images(fake) == {"podkeeper:0.1.0"}
        assert (fake.condition("Ready"), fake.condition("Upgrading")) == ("True", "False")
        assert fake.reason("Upgrading") == "NewerTemplateWaits"
        assert SET in fake.message("Upgrading")
        assert fake.status["updatedReplicas"] == 4
        written = len(fake.server.writes())
        await passes(fake, 10)
        assert len(fake.server.writes()) == written

        fake.apply(replicas=4, version="0.1.1")
        await fake.settle()
        assert images(fake) == {"newer/podkeeper:0.1.1"}
        assert not set(uids(fake).values()) & set(before.values())
        assert fake.reason("Upgrading") == "NotUnderWay"
        assert fake.status["version"] == {"current": "0.1.1", "target": "0.1.1"}


async def test_another_configuration_of_the_release_waits_too_and_nobody_compares_the_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with settled_cluster(replicas=3) as fake:
        before, template = uids(fake), stateful_set(fake)["spec"]["template"]
        (has,) = [name for name in config_maps(template["spec"]) if name.startswith("demo-config-")]
        of_this_release = config.default_keys
        monkeypatch.setattr(config, "default_keys", lambda of: {**of_this_release(of), "journalMaxSizeMB": "512"})
        another_process(fake)
        await passes(fake, 5)
        fake.server.requests.clear()
        await passes(fake)
        assert (uids(fake), stateful_set(fake)["spec"]["template"]) == (before, template)
        assert fake.reason("Upgrading") == "NewerTemplateWaits"
        assert fake.store.find(CONFIG_MAP, NAMESPACE, has) is not None
        assert not [each for each in fake.server.requests if has in each]
        fake.ask("again", "Restart")
        await fake.until(lambda: fake.store.find(CONFIG_MAP, NAMESPACE, has) is None)
        assert not set(uids(fake).values()) & set(before.values())


def autorecovery(fake: FakeCluster) -> dict[str, Any]:
    return fake.store.get(DEPLOYMENT, NAMESPACE, "demo-autorecovery")


def another_process(fake: FakeCluster) -> None:
    """Another release of the operator has built nothing yet."""
    for operator in fake.operators:
        operator.builds.forget(NAMESPACE, "demo")


def config_of(obj: dict[str, Any]) -> str:
    (found,) = [name for name in config_maps(obj["spec"]["template"]["spec"]) if name.startswith("demo-config-")]
    return found


def newer_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the configuration has a key that the bookies' image may not know."""
    of_this_release = config.default_keys
    monkeypatch.setattr(config, "default_keys", lambda of: {**of_this_release(of), "journalMaxSizeMB": "512"})


@pytest.mark.parametrize("recorded", [True, False], ids=["this release", "one that records nothing"])
async def test_auto_recovery_waits_with_the_bookies(monkeypatch: pytest.MonkeyPatch, recorded: bool) -> None:
    async with settled_cluster(replicas=4) as fake:
        before = autorecovery(fake)["spec"]
        if not recorded:
            forget = {"metadata": {"annotations": {names.TEMPLATE_INPUTS: None}}}
            fake.store.patch(DEPLOYMENT, NAMESPACE, "demo-autorecovery", forget)
        upgrade(fake)
        newer_keys(monkeypatch)
        await passes(fake)
        assert autorecovery(fake)["spec"] == before
        assert (fake.condition("Ready"), fake.reason("Upgrading")) == ("True", "NewerTemplateWaits")
        written = len(fake.server.writes())
        await passes(fake, 10)
        assert len(fake.server.writes()) == written

        fake.apply(replicas=4, version="0.1.1")
        await fake.settle()
        assert config_of(autorecovery(fake)) == config_of(stateful_set(fake)) != config_of({"spec": before})


@pytest.mark.parametrize(
    ("change", "template_stays"), [({"replicas": 3}, True), ({"maxConcurrentLedgers": 4}, False)], ids=["pods", "load"]
)
async def test_what_people_change_of_auto_recovery_comes_with_the_configuration_of_the_bookies(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, int], template_stays: bool
) -> None:
    async with settled_cluster(replicas=4) as fake:
        before = autorecovery(fake)["spec"]
        upgrade(fake)
        newer_keys(monkeypatch)
        await passes(fake, 5)
        fake.apply(replicas=4, autorecovery=change)
        await fake.settle()
        after = autorecovery(fake)["spec"]
        assert after != before
        assert (after["template"] == before["template"]) is template_stays
        assert config_of(autorecovery(fake)) == config_of(stateful_set(fake)) == config_of({"spec": before})
        written = len(fake.server.writes())
        await passes(fake, 10)
        assert len(fake.server.writes()) == written


async def test_auto_recovery_that_is_gone_is_made_again_with_the_configuration_of_the_bookies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with settled_cluster(replicas=4) as fake:
        upgrade(fake)
        newer_keys(monkeypatch)
        await passes(fake, 5)
        fake.store.delete(DEPLOYMENT, NAMESPACE, "demo-autorecovery")
        await fake.until(lambda: fake.store.find(DEPLOYMENT, NAMESPACE, "demo-autorecovery") is not None)
        await fake.settle()
        assert config_of(autorecovery(fake)) == config_of(stateful_set(fake))
        assert fake.reason("Upgrading") == "NewerTemplateWaits"


async def test_a_key_that_only_newer_bookies_know_reaches_no_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that they take while they run; a bookie that meets a key which it does not know refuses it, and to start."""
    async with settled_cluster(replicas=3, config={"gcWaitTime": "1000"}) as fake:
        monkeypatch.setitem(settings.DYNAMIC_DEFAULTS, "keyOfTomorrow", "1")
        await passes(fake)
        fake.store.delete(POD, NAMESPACE, f"{SET}-1")
        await fake.settle()
        assert fake.store.get(CONFIG_MAP, NAMESPACE, "demo-bookie-settings")["data"]["gcWaitTime"] == "1000"
        assert not [each for each in fake.bookkeeper.config.values() if "keyOfTomorrow" in each]


async def test_a_task_brings_the_newer_template() -> None:
    async with settled_cluster(replicas=4) as fake:
        before = uids(fake)
        upgrade(fake)
        await passes(fake)
        fake.ask("again", "Restart")
        await fake.until(
            lambda: fake.reason("Upgrading") == "NotUnderWay" and images(fake) == {"newer/podkeeper:0.1.0"}
        )
        await fake.settle()
        assert not set(uids(fake).values()) & set(before.values())


async def test_a_stateful_set_of_an_earlier_release_is_taken_over_with_the_template_that_it_has() -> None:
    async with settled_cluster(replicas=4) as fake:
        before, made = uids(fake), stateful_set(fake)
        forget_record(fake)
        upgrade(fake)
        await passes(fake)
        assert uids(fake) == before
        found = stateful_set(fake)
        record = names.TEMPLATE_INPUTS
        assert found["metadata"]["annotations"][record] == made["metadata"]["annotations"][record]
        assert found["spec"] == made["spec"]
        assert "RecordInputs" in {event["reason"] for event in fake.store.list(EVENT, NAMESPACE)}


async def test_a_template_that_waits_and_that_somebody_changed_restarts_nobody() -> None:
    """Nobody can tell what of it was the earlier release's: pods that were made of that are as good as others."""
    async with settled_cluster(replicas=4) as fake:
        before = uids(fake)
        upgrade(fake)
        await passes(fake, 3)
        containers = stateful_set(fake)["spec"]["template"]["spec"]["containers"]
        by_hand = [{**each, "image": "somebody/podkeeper:9"} for each in containers]
        fake.store.patch(STATEFUL_SET, NAMESPACE, SET, {"spec": {"template": {"spec": {"containers": by_hand}}}})
        fake.run_controllers()
        await passes(fake)
        assert uids(fake) == before
        assert fake.status["updatedReplicas"] == 4


async def test_what_people_changed_while_no_operator_ran_is_not_taken_for_the_releases() -> None:
    async with settled_cluster(replicas=4) as fake:
        forget_record(fake)
        upgrade(fake)
        fake.apply(replicas=4, image="registry.example/repaired:1")
        await fake.settle()
        assert images(fake) == {"registry.example/repaired:1"}


async def test_a_change_that_its_gates_held_back_before_the_upgrade_still_comes() -> None:
    async with settled_cluster(replicas=4) as fake:
        forget_record(fake)
        fake.bookkeeper.reachable = False
        fake.apply(replicas=4, config={"journalMaxSizeMB": "512"})
        await passes(fake, 5)
        assert fake.status["observedGeneration"] == fake.resource["metadata"]["generation"]
        fake.bookkeeper.reachable = True
        before = stateful_set(fake)["spec"]["template"]
        upgrade(fake)
        await fake.settle()
        assert stateful_set(fake)["spec"]["template"] != before
        assert images(fake) == {"newer/podkeeper:0.1.0"}


TLS = {"enabled": True, "issuerRef": {"name": "ca"}}


def issue(fake: FakeCluster, name: str) -> None:
    """As cert-manager does it."""
    metadata = {"name": name, "annotations": {"cert-manager.io/certificate-name": name}}
    fake.store.create(SECRET, NAMESPACE, {"metadata": metadata, "data": {"tls.crt": "eA=="}})


async def with_earlier_name(fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster whose certificate has the name that an earlier release gave it."""
    with monkeypatch.context() as earlier:
        earlier.setattr(naming, "certificate", lambda cluster: f"{cluster}-tls")
        fake.apply(replicas=4, tls=TLS)
        issue(fake, "demo-tls")
        await fake.settle()
    another_process(fake)


async def test_a_certificate_that_has_another_name_now_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookies keep what they mount until they are restarted for another reason, and it is renewed until then."""
    async with fake_cluster() as fake:
        await with_earlier_name(fake, monkeypatch)
        before = uids(fake)
        await passes(fake)
        assert uids(fake) == before
        assert fake.condition("Ready") == "True"  # though cert-manager has not made the new one
        assert fake.store.find(CERTIFICATE, NAMESPACE, "demo-tls") is not None
        assert fake.store.find(CERTIFICATE, NAMESPACE, "demo-bookie-tls") is not None
        fake.apply(replicas=4, tls=TLS, version="0.1.1")
        await passes(fake)
        assert (uids(fake), fake.reason("Ready")) == (before, "CertificatePending")
        assert fake.store.find(CERTIFICATE, NAMESPACE, "demo-tls") is not None
        issue(fake, "demo-bookie-tls")
        await fake.settle()
        assert not set(uids(fake).values()) & set(before.values())
        await fake.until(lambda: fake.store.find(CERTIFICATE, NAMESPACE, "demo-tls") is None, 20)


async def test_a_certificate_is_renewed_as_long_as_bookies_mount_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """People restart them one by one when it suits them."""
    async with fake_cluster() as fake:
        await with_earlier_name(fake, monkeypatch)
        issue(fake, "demo-bookie-tls")
        fake.apply(replicas=4, tls=TLS, version="0.1.1", update={"strategy": "Manual"})
        await passes(fake)
        assert "demo-tls" in {each["metadata"]["name"] for each in fake.store.list(CERTIFICATE, NAMESPACE)}
