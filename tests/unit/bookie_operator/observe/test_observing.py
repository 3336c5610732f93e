"""One snapshot of a cluster that is there: what is asked, of whom, and what cannot be told."""

from __future__ import annotations

import asyncio

import pytest

from bookie_operator.api.admin import Admin, AdminUnreachable, Endpoint
from bookie_operator.api.errors import Unreachable
from bookie_operator.api.kinds import CLAIM, NODE, POD, POD_EVENT, VOLUME
from bookie_operator.observe import pods_facts
from bookie_operator.observe.observing import Observed, observe, with_needs
from bookie_operator.observe.others import cluster_view
from bookie_operator.observe.sources import Sources
from bookie_operator.observe.surroundings import Surroundings
from bookie_operator.planner.decision import Needs
from bookie_operator.planner.desired import Desired, DesiredDeployment
from bookie_operator.world.facts import ClusterFacts, Outlook
from bookie_operator.world.model import DeploymentView, PodFault
from tests.support.fake_kubernetes.cluster import NAMESPACE, FakeCluster, fake_cluster
from tests.support.fake_kubernetes.faults import Fault
from tests.support.fake_kubernetes.objects import Object

DESIRED = Desired(
    (),
    {"Secret/demo-admin-token": "h"},
    "Job/demo-metadata-init",
    "",
    "",
    autorecovery=DesiredDeployment("Deployment/demo-autorecovery"),
    gateway=DesiredDeployment("Deployment/demo-gateway"),
)


def sources(fake: FakeCluster) -> Sources:
    context = fake.operators[0]
    admin = Admin(context.session, trust=fake.trust(), now=context.now, timeout_s=1.0)
    around = Surroundings(context.kubernetes)
    return Sources(context.kubernetes, admin, admin_port=context.settings.admin_port, surroundings=around)


async def look(fake: FakeCluster) -> Observed:
    return await observe(sources(fake), cluster_view(fake.resource), DESIRED, identity="demo-identity", now=fake.time)


async def ready_cluster(fake: FakeCluster) -> None:
    fake.apply(replicas=3)
    await fake.settle()


async def test_everything_is_in_it() -> None:
    async with fake_cluster() as fake:
        await ready_cluster(fake)
        observed = await look(fake)
        world = observed.world
        assert [pod.name for pod in world.pods] == ["demo-bookie-0", "demo-bookie-1", "demo-bookie-2"]
        assert len(world.claims) == 6
        assert world.facts is not None
        assert world.facts.instance_id == world.cluster.uid
        assert all(facts is not None for facts in world.bookies.values())
        assert world.identity is not None
        assert world.identity["instanceId"] == world.cluster.uid
        assert (world.metadata_job, world.metadata_instance_id) == ("Complete", world.cluster.uid)
        found = world.autorecovery
        assert (found.ready, found.replicas, found.pods) == (2, 2, 2)
        assert found.inputs
        assert world.gateway == DeploymentView()
        assert {"ConfigMap", "Service", "Secret", "Deployment", "Job", "StatefulSet", "NetworkPolicy"} <= {
            key.partition("/")[0] for key in world.object_hashes
        }
        assert all(world.object_hashes.values())
        assert world.expandable == {"standard": True}
        assert world.nodes == {}
        assert observed.tellers[0].pod == "demo-bookie-0"


async def test_what_may_not_be_read_is_none() -> None:
    async with fake_cluster() as fake:
        await ready_cluster(fake)
        fake.server.forbidden |= {"nodes", "storageclasses"}
        world = (await look(fake)).world
        assert (world.nodes, world.expandable) == (None, None)


async def test_half_a_snapshot_is_none() -> None:
    async with fake_cluster() as fake:
        await ready_cluster(fake)
        fake.server.faults.append(Fault("GET .*/persistentvolumeclaims", 500))
        with pytest.raises(Unreachable):
            await look(fake)


async def test_others_are_asked_when_a_bookie_does_not_answer() -> None:
    async with fake_cluster() as fake:
        await ready_cluster(fake)
        fake.admin.silent = {fake.bookie_id(f"demo-bookie-{each}") for each in range(3)}
        observed = await look(fake)
        assert observed.world.facts is not None
        assert set(observed.world.bookies.values()) == {None}
        assert "autorecovery" in observed.tellers[0].pod


async def test_all_others_are_asked_at_once_where_the_first_cannot_tell() -> None:
    """Each may take its time to say so: one after the other they would take minutes."""
    asked: list[str] = []
    everybody = asyncio.Event()

    class Silent:
        async def cluster_facts(self, at: Endpoint) -> ClusterFacts:
            asked.append(at.pod)
            if len(asked) == 4:
                everybody.set()
            if len(asked) > 1:
                await everybody.wait()
            raise AdminUnreachable("nobody can tell")

    pods = [Endpoint(f"pod-{number}", "127.0.0.1") for number in range(4)]
    async with asyncio.timeout(10):
        facts, teller, problem = await pods_facts.cluster_facts(Silent(), pods)  # type: ignore[arg-type]
    assert (facts, teller) == (None, None)
    assert "pod-0" in problem


async def test_a_metadata_service_that_does_not_answer_is_told() -> None:
    async with fake_cluster() as fake:
        await ready_cluster(fake)
        fake.bookkeeper.reachable = False
        world = (await look(fake)).world
        assert world.facts is None
        assert "the metadata service does not answer" in world.facts_error
        assert all(facts is not None for facts in world.bookies.values())


async def test_needs_are_asked_of_who_told_the_facts() -> None:
    async with fake_cluster() as fake:
        await ready_cluster(fake)
        bookie = fake.bookie_id("demo-bookie-0")
        one = frozenset({bookie})
        needs = Needs(proofs=one, drains=one, outlooks=one, safety=frozenset({one}))
        observed = await with_needs(sources(fake), await look(fake), needs)
        proof, drain = observed.world.proofs[bookie], observed.world.drains[bookie]
        assert proof is not None
        assert proof.registered
        assert drain is not None
        safety = observed.world.safety[frozenset({bookie})]
        assert safety is not None
        assert safety.safe
        assert observed.world.outlooks == {bookie: Outlook(bookie, 0)}
        fake.bookkeeper.reachable = False
        unknown = await with_needs(sources(fake), await look(fake), needs)
        assert unknown.world.proofs == {bookie: None}
        assert unknown.world.drains == {bookie: None}
        assert unknown.world.outlooks == {bookie: None}
        assert unknown.world.safety == {frozenset({bookie}): None}


async def test_a_pod_that_does_not_begin_is_explained_by_its_events() -> None:
    async with fake_cluster() as fake:
        await ready_cluster(fake)
        fake.controllers.stuck["demo-bookie-3"] = {"waiting": {"reason": "ContainerCreating"}}
        fake.apply(replicas=4)
        await fake.until(lambda: len(fake.pods()) == 4)
        fake.time += 60
        uid = fake.uids()["demo-bookie-3"]
        event = {"involvedObject": {"uid": uid}, "reason": "FailedMount", "message": 'secret "x" not found'}
        fake.store.create(POD_EVENT, NAMESPACE, {"metadata": {"name": "e"}, **event})
        world = (await look(fake)).world
        assert {pod.name: pod.fault for pod in world.pods}["demo-bookie-3"] is PodFault.CONFIG
        fake.server.forbidden.add("events")
        world = (await look(fake)).world
        assert {pod.name: pod.fault for pod in world.pods}["demo-bookie-3"] is PodFault.NONE


_CORDONED = "0/2 nodes are available: 1 node(s) were unschedulable, 1 node(s) had volume node affinity conflict."


def _on(node: str) -> Object:
    """Node affinity of a volume that is a disk of this node."""
    host = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}}


def _finds_no_node(fake: FakeCluster, message: str) -> None:
    """The scheduler says so of one pod."""
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pending = {"phase": "Pending", "conditions": [waiting], "containerStatuses": []}
    fake.store.patch(POD, NAMESPACE, "demo-bookie-1", {"status": pending}, "status")


@pytest.mark.parametrize(
    ("there", "taint", "readable", "fault"),
    [
        (("node-a", "node-b"), "", True, PodFault.UNSCHEDULABLE),  # a drain: its node is cordoned
        (("node-a", "node-b"), "node.kubernetes.io/out-of-service", True, PodFault.VOLUME),  # off for good, they say
        (("node-a", "node-c"), "", True, PodFault.VOLUME),  # its node is gone; the cordoned one is another
        (("node-a", "node-c"), "", False, PodFault.UNSCHEDULABLE),  # nobody can tell
    ],
)
async def test_a_volume_is_lost_when_no_node_is_left_for_it(
    there: tuple[str, ...], taint: str, readable: bool, fault: PodFault
) -> None:
    async with fake_cluster() as fake:
        await ready_cluster(fake)
        for name in there:
            spec = {"taints": [{"key": taint}]} if taint and name == "node-b" else {}
            labels = {"kubernetes.io/hostname": name}
            fake.store.create(NODE, "", {"metadata": {"name": name, "labels": labels}, "spec": spec})
        fake.store.create(VOLUME, "", {"metadata": {"name": "disk"}, "spec": {"nodeAffinity": _on("node-b")}})
        fake.store.patch(CLAIM, NAMESPACE, "ledger-0-demo-bookie-1", {"spec": {"volumeName": "disk"}})
        _finds_no_node(fake, _CORDONED)
        if not readable:
            fake.server.forbidden.add("persistentvolumes")
        world = (await look(fake)).world
        assert {pod.name: pod.fault for pod in world.pods}["demo-bookie-1"] is fault


@pytest.mark.parametrize(
    ("key", "fault"),
    [("topology.kubernetes.io/zone", PodFault.UNSCHEDULABLE), ("kubernetes.io/hostname", PodFault.VOLUME)],
)
async def test_a_volume_of_a_zone_without_nodes_is_not_lost(key: str, fault: PodFault) -> None:
    """An autoscaler may bring nodes back; the disk of a node that is gone does not come back."""
    async with fake_cluster() as fake:
        await ready_cluster(fake)
        fake.store.create(NODE, "", {"metadata": {"name": "node-a", "labels": {key: "another"}}, "spec": {}})
        term = {"matchExpressions": [{"key": key, "operator": "In", "values": ["this"]}]}
        affinity = {"required": {"nodeSelectorTerms": [term]}}
        fake.store.create(VOLUME, "", {"metadata": {"name": "disk"}, "spec": {"nodeAffinity": affinity}})
        for each in fake.store.list(CLAIM, NAMESPACE):
            if each["metadata"]["name"].endswith("-demo-bookie-1"):
                fake.store.patch(CLAIM, NAMESPACE, each["metadata"]["name"], {"spec": {"volumeName": "disk"}})
        message = "0/1 nodes are available: 1 node(s) had volume node affinity conflict."
        _finds_no_node(fake, message)
        world = (await look(fake)).world
        assert {pod.name: pod.fault for pod in world.pods}["demo-bookie-1"] is fault


@pytest.mark.parametrize(
    ("cordoned", "disk_on", "readable", "kept"),
    [
        (True, "node-b", True, True),
        (False, "node-b", True, False),
        (True, "node-a", True, False),  # that one is full, and less to ask for may help
        (True, "node-b", False, False),
    ],
)
async def test_a_bookie_whose_node_is_drained_is_kept_by_that_whatever_other_nodes_lack(
    cordoned: bool, disk_on: str, readable: bool, kept: bool
) -> None:
    message = (
        "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {control-plane: }, "
        "1 node(s) were unschedulable."
    )
    async with fake_cluster() as fake:
        await ready_cluster(fake)
        for name in ("node-a", "node-b", "node-c"):
            about = {"name": name, "labels": {"kubernetes.io/hostname": name}}
            fake.store.create(NODE, "", {"metadata": about, "spec": {"unschedulable": cordoned and name == "node-b"}})
        fake.store.create(VOLUME, "", {"metadata": {"name": "disk"}, "spec": {"nodeAffinity": _on(disk_on)}})
        for each in fake.store.list(CLAIM, NAMESPACE):
            if each["metadata"]["name"].endswith("-demo-bookie-1"):
                fake.store.patch(CLAIM, NAMESPACE, each["metadata"]["name"], {"spec": {"volumeName": "disk"}})
        _finds_no_node(fake, message)
        if not readable:
            fake.server.forbidden.add("persistentvolumes")
        world = (await look(fake)).world
        assert {pod.name: pod.kept_by_cordon for pod in world.pods}["demo-bookie-1"] is kept
