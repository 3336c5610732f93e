"""Whole flows against an API server, controllers and bookies in this process: how clusters come to be, and change."""

from __future__ import annotations

import base64

import pytest

from bookie_operator.api.errors import TooManyRequests
from bookie_operator.api.kinds import (
    BUDGET,
    CLAIM,
    CLUSTER,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    JOB,
    NODE,
    POD,
    PROMETHEUS_RULE,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    TASK,
)
from bookie_operator.crds import names
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, FakeCluster, fake_cluster, settled_cluster


async def test_a_cluster_comes_to_be() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        assert await fake.settle() < 20
        assert fake.pods() == ["demo-bookie-0", "demo-bookie-1", "demo-bookie-2"]
        assert len(fake.bookkeeper.writable) == 3
        made = {
            kind.kind: {obj["metadata"]["name"] for obj in fake.store.list(kind, NAMESPACE)}
            for kind in (SERVICE, BUDGET, DEPLOYMENT, JOB, SECRET, CONFIG_MAP)
        }
        assert made["Service"] == {"demo-bookie", "demo-client"}
        assert made["Deployment"] == {"demo-autorecovery"}
        assert made["Job"] == {"demo-metadata-init"}
        secrets = ("identity", "admin-token", "client-token", "admin-ca", "admin-tls")
        assert made["Secret"] == {f"demo-{each}" for each in secrets}
        assert len(made["ConfigMap"]) == 2
        assert fake.resource["metadata"]["finalizers"] == [names.FINALIZER]
        status = fake.status
        assert status["instanceId"] == fake.resource["metadata"]["uid"]
        assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"], status["writableReplicas"]) == (
            3,
            3,
            3,
            3,
        )
        chosen = fake.store.list(POD, NAMESPACE, status["selector"])  # what an autoscaler looks at
        assert [pod["metadata"]["name"] for pod in chosen] == ["demo-bookie-0", "demo-bookie-1", "demo-bookie-2"]
        assert len(fake.store.list(POD, NAMESPACE)) > 3
        assert {each["state"] for each in status["bookies"]} == {"Writable"}
        assert status["version"] == {"current": "0.1.0", "target": "0.1.0"}
        assert {fake.condition(kind) for kind in ("Ready", "Available", "SpecValid", "LedgersReplicated")} == {"True"}
        assert {fake.condition(kind) for kind in ("Reconciling", "Stalled", "Paused")} == {"False"}
        assert fake.reason("SpareCapacity") == "NoSpareBookie"
        claims = fake.store.list(CLAIM, NAMESPACE)
        assert {each["metadata"]["labels"][names.INSTANCE_ID] for each in claims} == {fake.resource["metadata"]["uid"]}
        assert not any(each["metadata"].get("ownerReferences") for each in claims)
        reasons = {event["reason"] for event in fake.store.list(EVENT, NAMESPACE)}
        assert "StatefulSetCreated" in reasons


async def test_every_decision_is_an_event_with_its_reason() -> None:
    """Also those for which no flow has words of its own."""
    async with settled_cluster(replicas=3) as fake:
        fake.apply(replicas=4)
        await fake.settle()
        fake.ask("look", "Audit")
        await fake.until(lambda: fake.status["history"][0]["type"] == "Audit")
        told = fake.events()
        assert ("ScaleStatefulSet", "demo-bookie gets 1 more bookies", "Normal") in told
        assert ("AuditTrigger", "Audit-2: task look asks for an audit", "Normal") in told
        assert ("TriggerAudit", "an audit was asked for", "Normal") in told
        assert ("AuditDone", "Audit-2: 0 ledgers are under-replicated", "Normal") in told
        fake.ask("again", "Audit")
        await fake.until(lambda: "operation" in fake.status)
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.one_pass()
        assert fake.events("AuditCancelled") == [("AuditCancelled", "Audit-3: the cluster is deleted", "Warning")]


async def test_every_pass_is_measured() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        passes = await fake.settle()
        assert passes > 5
        assert fake.measured("reconcile_seconds_count") == passes
        assert fake.measured("reconcile_seconds_sum") > 0
        at, rests = fake.time, fake.measured("decisions_total", decision="Rest", cluster=NAME)
        await fake.one_pass()
        assert fake.measured("last_pass_timestamp_seconds", namespace=NAMESPACE, cluster=NAME) == at
        assert fake.measured("decisions_total", decision="Rest", cluster=NAME) == rests + 1
        assert fake.measured("decisions_total", decision="Act", reason="CreateStatefulSet", cluster=NAME) == 1
        assert fake.measured("cluster_condition", condition="Ready", status="True") == 1
        assert fake.measured("reconcile_errors_total") == 0
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        while fake.store.find(CLUSTER, NAMESPACE, NAME) is not None:
            await fake.one_pass()
        await fake.one_pass()
        assert fake.measured("last_pass_timestamp_seconds") == 0
        assert fake.measured("reconcile_seconds_count") > passes + 1


async def test_nothing_is_written_at_rest() -> None:
    async with settled_cluster(replicas=3) as fake:
        await fake.one_pass()
        before = len(fake.server.writes())
        version = fake.resource["metadata"]["resourceVersion"]
        for _ in range(40):
            assert await fake.one_pass() == 30.0
        assert fake.server.writes()[before:] == []
        assert fake.resource["metadata"]["resourceVersion"] == version


async def test_more_bookies() -> None:
    async with settled_cluster(replicas=3) as fake:
        before = fake.uids()
        fake.apply(replicas=12)
        await fake.settle()
        assert len(fake.bookkeeper.writable) == 12
        assert fake.status["replicas"] == 12
        assert fake.status["history"][0]["type"] == "ScaleUp"
        assert before.items() <= fake.uids().items()


async def test_fewer_bookies_after_their_ledgers_are_elsewhere() -> None:
    """With twelve bookies: the last one has the highest number, not the last name."""
    async with settled_cluster(replicas=12) as fake:
        fake.fill(24, 12)
        fake.apply(replicas=11)
        while fake.condition("ScalingDown") != "True":
            await fake.one_pass()
        await fake.until(lambda: fake.condition("ScalingDown") == "False")
        await fake.settle()
        assert fake.bookkeeper.deleted_cookies == [fake.bookie_id("demo-bookie-11")]
        assert len(fake.pods()) == 11
        assert fake.whole()
        left = {each["metadata"]["name"] for each in fake.store.list(CLAIM, NAMESPACE)}
        assert "ledger-0-demo-bookie-11" not in left
        assert "ledger-0-demo-bookie-10" in left
        assert fake.status["history"][0]["outcome"] == "Done"


async def test_a_new_version_is_rolled_one_after_the_other() -> None:
    async with settled_cluster(replicas=4) as fake:
        fake.fill(8, 4)
        before = fake.uids()
        fake.apply(replicas=4, version="0.1.1")
        while fake.condition("Ready") == "True":
            await fake.one_pass()
        for _ in range(300):
            if fake.condition("Ready") == "True":
                break
            await fake.one_pass()
            assert len(fake.bookkeeper.writable) >= 3
        assert fake.status["version"] == {"current": "0.1.1", "target": "0.1.1"}
        after = fake.uids()
        assert all(after[pod] != before[pod] for pod in fake.pods())
        assert fake.bookkeeper.delay == 300
        assert fake.bookkeeper.returned == [fake.bookie_id(f"demo-bookie-{each}") for each in (3, 2, 1, 0)]
        assert fake.bookkeeper.checks == [], "every bookie was looked at"
        images = {
            pod["spec"]["containers"][0]["image"]
            for pod in fake.store.list(POD, NAMESPACE, f"{names.COMPONENT}=bookie")
        }
        assert images == {"podkeeper:0.1.1"}


async def test_a_roll_says_which_keys_changed_and_never_their_values() -> None:
    async with settled_cluster(replicas=4, config={"journalMaxSizeMB": "511"}) as fake:
        (before,) = files(fake)
        fake.server.requests.clear()
        await fake.one_pass()
        assert not [each for each in fake.server.requests if before in each]
        fake.apply(replicas=4, config={"journalMaxSizeMB": "513", "logFormat": "console"})
        why = "the configuration changed: journalMaxSizeMB, logFormat"
        await fake.until(lambda: "operation" in fake.status, limit=5)
        assert fake.status["operation"]["message"] == why
        assert fake.message("Reconciling") == why
        await fake.settle()
        assert fake.events("RolloutBegun") == [("RolloutBegun", why, "Normal")]
        assert fake.status["history"][0]["message"] == f"4 bookies were restarted: {why}"
        assert "console" not in f"{fake.status} {fake.events()}"


async def test_a_roll_whose_old_configuration_is_gone_begins_all_the_same() -> None:
    async with settled_cluster(replicas=4) as fake:
        (before,) = files(fake)
        fake.apply(replicas=4, config={"journalMaxSizeMB": "513"})
        fake.store.delete(CONFIG_MAP, NAMESPACE, before)
        await fake.settle()
        assert [note for _, note, _ in fake.events("RolloutBegun")] == [
            "the configuration or the template of the pods changed"
        ]


def files(fake: FakeCluster) -> list[str]:
    """ConfigMaps with the configuration of bookies."""
    found = [each["metadata"]["name"] for each in fake.store.list(CONFIG_MAP, NAMESPACE)]
    return [name for name in found if name.startswith("demo-config-")]


async def test_an_image_that_is_not_there_stops_the_roll_at_one_bookie() -> None:
    async with settled_cluster(replicas=4) as fake:
        fake.controllers.broken_images.add("podkeeper:9.9.9")
        fake.apply(replicas=4, version="9.9.9", update={"progressDeadlineSeconds": 60})
        await fake.until(lambda: fake.condition("Stalled") == "True")
        assert "no such image" in fake.message("Stalled")
        assert len(fake.bookkeeper.writable) == 3
        fake.apply(replicas=4, version="0.1.0")
        await fake.settle()
        assert len(fake.bookkeeper.writable) == 4


async def test_volumes_grow_and_no_bookie_stops() -> None:
    async with settled_cluster(replicas=3) as fake:
        before = {name: uid for name, uid in fake.uids().items() if "-bookie-" in name}
        fake.apply(replicas=3, storage={"journal": {"size": "10Gi"}, "ledger": {"size": "200Gi"}})
        await fake.settle()
        sizes = {
            each["metadata"]["name"]: each["status"]["capacity"]["storage"]
            for each in fake.store.list(CLAIM, NAMESPACE)
        }
        assert sizes["ledger-0-demo-bookie-2"] == "200Gi"
        assert sizes["journal-0-demo-bookie-2"] == "10Gi"
        assert {name: uid for name, uid in fake.uids().items() if "-bookie-" in name} == before
        (template, _) = sorted(
            each["spec"]["resources"]["requests"]["storage"]
            for each in fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["spec"]["volumeClaimTemplates"]
        )[::-1]
        assert template == "200Gi"


async def test_the_token_that_pods_mount_is_the_one_that_is_shown() -> None:
    async with settled_cluster(replicas=3) as fake:
        secret = fake.store.get(SECRET, NAMESPACE, "demo-admin-token")
        fake.admin.token = base64.b64decode(secret["data"]["token"]).decode()
        assert len(fake.admin.token) > 40
        await fake.one_pass()
        assert fake.condition("Available") == "True"
        rotated = base64.b64encode(b"# of spring\nnew admin ops\nold\n").decode()
        fake.store.patch(SECRET, NAMESPACE, "demo-admin-token", {"data": {"token": rotated}})
        await fake.one_pass()
        assert fake.condition("Available") == "Unknown"
        fake.admin.token = "new"
        await fake.one_pass()
        assert fake.condition("Available") == "True"


async def test_the_nodes_of_one_zone_are_drained_together() -> None:
    """`kubectl drain` of them all: the first bookie goes as any other, then the budget lets go of its zone alone."""
    async with settled_cluster(replicas=6, placement={"zones": [{"name": zone} for zone in "abc"]}) as fake:
        for ledger in range(4):
            fake.bookkeeper.ledgers[ledger] = {fake.bookie_id(f"demo-bookie-{zone}-{ledger % 2}") for zone in "abc"}
        for number in range(2):
            node = {"metadata": {"name": f"node-b-{number}"}, "spec": {"unschedulable": True}}
            fake.store.create(NODE, "", node)
        kubernetes = fake.operators[0].kubernetes
        await kubernetes.evict(NAMESPACE, "demo-bookie-b-0", fake.uids()["demo-bookie-b-0"])
        fake.run_controllers()
        with pytest.raises(TooManyRequests):
            await kubernetes.evict(NAMESPACE, "demo-bookie-b-1", fake.uids()["demo-bookie-b-1"])
        await fake.one_pass()
        assert any("zone b is drained" in note for _, note, _ in fake.events("ApplyObjects"))
        for kept in ("demo-bookie-a-0", "demo-bookie-c-1"):
            with pytest.raises(TooManyRequests):
                await kubernetes.evict(NAMESPACE, kept, fake.uids()[kept])
        await kubernetes.evict(NAMESPACE, "demo-bookie-b-1", fake.uids()["demo-bookie-b-1"])
        fake.run_controllers()
        await fake.one_pass()
        assert len(fake.bookkeeper.writable) == 4
        budget = fake.store.get(BUDGET, NAMESPACE, f"{NAME}-bookie")
        assert budget["spec"]["maxUnavailable"] == 0
        assert "matchExpressions" not in budget["spec"]["selector"]
        for number in range(2):
            fake.store.patch(NODE, "", f"node-b-{number}", {"spec": {"unschedulable": False}})
        fake.run_controllers()
        await fake.settle()
        assert len(fake.bookkeeper.writable) == 6
        await fake.one_pass()
        assert fake.store.get(BUDGET, NAMESPACE, f"{NAME}-bookie")["spec"]["maxUnavailable"] == 1


async def test_alerts_come_and_go_with_spec() -> None:
    async with settled_cluster(replicas=3, monitoring={"prometheusRule": {"enabled": True}}) as fake:
        await fake.until(lambda: bool(fake.store.list(PROMETHEUS_RULE, NAMESPACE)))
        (rule,) = fake.store.list(PROMETHEUS_RULE, NAMESPACE)
        assert rule["metadata"]["name"] == "demo-bookie"
        assert "storage/demo" in rule["spec"]["groups"][0]["rules"][0]["annotations"]["description"]
        await fake.one_pass()
        written = len(fake.server.writes())
        assert await fake.one_pass() == 30.0
        assert len(fake.server.writes()) == written
        fake.apply(monitoring={"prometheusRule": {"enabled": False}})
        await fake.until(lambda: not fake.store.list(PROMETHEUS_RULE, NAMESPACE))


async def test_an_operator_that_may_not_read_alerts_works_as_before() -> None:
    async with fake_cluster() as fake:
        fake.server.forbidden.add("prometheusrules")
        fake.apply(replicas=3)
        await fake.settle()
        assert fake.condition("Ready") == "True"


async def test_some_definitions_of_the_prometheus_operator_may_be_there_without_the_others() -> None:
    async with fake_cluster() as fake:
        fake.server.unknown.add("podmonitors")
        fake.apply(replicas=3)
        await fake.settle()
        assert fake.condition("Ready") == "True"


async def test_a_bookie_that_serves_gets_new_volumes_and_its_old_ones_start_no_pod() -> None:
    async with settled_cluster(replicas=4) as fake:
        bookie, keeper = f"{NAME}-bookie-1", fake.bookkeeper
        bookie_id = fake.bookie_id(bookie)
        keeper.ledgers = {number: {fake.bookie_id(f"{NAME}-bookie-{each}") for each in range(3)} for number in range(3)}
        before = volumes(fake)
        fake.ask("move", "Replace", bookies=[bookie])
        refused = set()

        def done() -> bool:
            pod = fake.store.find(POD, NAMESPACE, bookie)
            state = ((pod or {}).get("status") or {}).get("containerStatuses", [{}])[0].get("state", {})
            if "terminated" in state:
                refused.add(bookie_id in keeper.writable | keeper.read_only)
            return (fake.store.get(TASK, NAMESPACE, "move").get("status") or {}).get("phase") == "Done"

        await fake.until(done)
        await fake.settle()
        assert refused == {False}
        changed = {name for name, uid in volumes(fake).items() if before[name] != uid}
        assert changed == {f"journal-0-{bookie}", f"ledger-0-{bookie}"}
        assert not keeper.naming(bookie_id)
        assert len(keeper.writable) == 4
        assert keeper.deleted_cookies == [], "the coordinator of the drain did it, on its own proof"


def volumes(fake: FakeCluster) -> dict[str, str]:
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in fake.store.list(CLAIM, NAMESPACE)}


@pytest.mark.parametrize(("labels", "told"), [({"topology.kubernetes.io/zone": "eu-1"}, "/eu-1"), ({}, "")])
async def test_a_bookie_learns_the_zone_of_its_node_before_it_starts(labels: dict[str, str], told: str) -> None:
    async with fake_cluster() as fake:
        node = {"metadata": {"name": "node-1", "labels": labels}, "spec": {}}
        fake.store.create(NODE, "", node)
        fake.apply(replicas=3)
        await fake.settle()
        pods = [fake.store.get(POD, NAMESPACE, f"{NAME}-bookie-{number}") for number in range(3)]
        assert [each["metadata"]["annotations"][names.NETWORK_LOCATION] for each in pods] == [told] * 3
        beside = [each for each in fake.store.list(POD, NAMESPACE) if "autorecovery" in each["metadata"]["name"]]
        assert not any(names.NETWORK_LOCATION in (each["metadata"].get("annotations") or {}) for each in beside)
