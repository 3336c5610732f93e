"""`kubectl bookie migrate --in-place`: the StatefulSet of another chart becomes the cluster's, pod by pod, and back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bookie_operator.api.kinds import BUDGET, CLAIM, CLUSTER, CONFIG_MAP, JOB, POD, SERVICE, STATEFUL_SET, Resource
from bookie_operator.crds import names
from bookie_operator.plugin import in_place
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE
from tests.support.kubectl_rig import KubectlRig, kubectl_rig
from tests.support.until import until

SET = f"{NAME}-bookie"
PODS = [f"{SET}-{ordinal}" for ordinal in range(3)]
LAYOUT = {
    "journal": {"claim": f"{SET}-journal", "mountPath": "/pulsar/data/journal"},
    "ledger": {"claim": f"{SET}-ledgers", "mountPath": "/pulsar/data/ledgers"},
}
STORAGE = {"journal": {"size": "10Gi"}, "ledger": {"size": "10Gi"}}
BOOTSTRAP = {"mode": "Adopt", "instanceId": "of-the-chart", "inPlace": LAYOUT}


class Waits:
    """Stands for the `asyncio` of a command, which only sleeps: each sleep lasts until `done` has had its turn."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.turns: asyncio.Queue[concurrent.futures.Future[None]] | None = None
        """None: nobody takes turns."""

    async def sleep(self, _seconds: float) -> None:
        if self.turns is None:
            await asyncio.sleep(0.05)
            return
        over = concurrent.futures.Future[None]()
        self.loop.call_soon_threadsafe(self.turns.put_nowait, over)
        await asyncio.wrap_future(over)


@pytest.fixture(autouse=True)
async def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    made = Waits()
    monkeypatch.setattr(in_place, "asyncio", made)
    monkeypatch.setattr(in_place, "_FAILURES", 0)
    return made


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubectlRig]:
    """Three bookies of a chart, and a cluster that is to take them over."""
    async with kubectl_rig(tmp_path) as made:
        made.beside(monkeypatch, in_place)
        made.fake.with_chart()
        made.fake.apply(bootstrap=BOOTSTRAP, storage=STORAGE, update={"soakSeconds": 0})
        yield made


class Watch:
    """What is never so: a bookie less than all but one, a claim of another UID, a ledger that moved."""

    def __init__(self, rig: KubectlRig) -> None:
        self._fake = rig.fake
        self._claims = self._uids(CLAIM)
        self._ledgers = {ledger: set(on) for ledger, on in rig.fake.bookkeeper.ledgers.items()}

    def _uids(self, kind: Any) -> dict[str, str]:
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in self._fake.store.list(kind, NAMESPACE)}

    def look(self) -> None:
        keeper = self._fake.bookkeeper
        assert len(keeper.writable) >= 2, "one at a time"
        assert self._uids(CLAIM) == self._claims
        assert keeper.ledgers == self._ledgers
        assert keeper.cookies == {self._fake.bookie_id(pod) for pod in PODS}
        assert not keeper.drains
        selector = self._fake.store.get(SERVICE, NAMESPACE, SET)["spec"].get("selector") or {}
        for pod in PODS if selector else ():
            found = self._fake.store.find(POD, NAMESPACE, pod)
            assert found is None or selector.items() <= found["metadata"]["labels"].items(), "its name is known"


def ours(rig: KubectlRig) -> list[str]:
    """Pods that the operator's StatefulSet made."""
    pods = rig.fake.store.list(POD, NAMESPACE)
    named = (each["metadata"] for each in pods if each["metadata"]["name"] in PODS)
    return [each["name"] for each in named if names.TEMPLATE_HASH in (each.get("annotations") or {})]


async def done(
    rig: KubectlRig, watch: Watch, *arguments: str, enough: Callable[[], bool] = lambda: False
) -> int | None:
    """The command's exit code; whenever it waits, operator and controllers do all that they can. None: it was enough
    before."""
    waits = in_place.asyncio
    waits.turns = turns = asyncio.Queue()
    running = asyncio.create_task(rig.run("migrate", *arguments, NAME, "--in-place"))
    turn = None
    try:
        for _ in range(500):
            turn = asyncio.create_task(turns.get())
            await asyncio.wait([running, turn], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            version = 0
            while rig.fake.store.version != version and not enough():
                version = rig.fake.store.version
                await rig.fake.one_pass()
                watch.look()
            if enough():
                rig.writes_left = -1
                turn.result().set_result(None)
                await running
                rig.writes_left = None
                return None
            turn.result().set_result(None)
    finally:
        waits.turns = None
        turn.cancel()
    raise AssertionError(f"not done: {rig.fake.status}")


def as_before(rig: KubectlRig) -> dict[str, Any]:
    """What the chart had made, as far as people may have written it."""
    found: dict[str, Any] = {}
    for kind in (STATEFUL_SET, SERVICE, BUDGET, CLAIM, POD):
        for each in rig.fake.store.list(kind, NAMESPACE):
            metadata, name = each["metadata"], each["metadata"]["name"]
            if name == SET or (kind in (CLAIM, POD) and SET in name):
                annotations = metadata.get("annotations") or {}
                found[f"{kind.kind}/{name}"] = (each.get("spec"), metadata.get("labels"), annotations)
    return found


async def test_the_plan_refuses_nothing_and_changes_nothing(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    before = rig.fake.store.version
    assert await rig.run("migrate", "plan", NAME, "--in-place") == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in shown[1:4]] == [[pod, "yes", "as"] for pod in PODS]
    assert shown[-1] == f"`kubectl bookie migrate run {NAME} --in-place` begins"
    assert rig.fake.store.version == before
    assert await rig.run("migrate", "undo", NAME, "--in-place") == 0
    assert capsys.readouterr().out == "nothing is under way\n"
    assert await rig.run("migrate", "status", NAME, "--in-place", "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["bookieId"] for each in told["bookies"]] == [rig.fake.bookie_id(pod) for pod in PODS]
    assert rig.fake.store.version == before


async def test_the_operator_waits_until_it_is_told(rig: KubectlRig) -> None:
    before = as_before(rig)
    for _ in range(5):
        await rig.fake.one_pass()
    assert f"Run `kubectl bookie migrate run {NAME} --in-place`" in rig.fake.message("Stalled")
    assert as_before(rig) == before


async def test_each_bookie_is_restarted_on_its_own_volumes(rig: KubectlRig) -> None:
    watch, seen = Watch(rig), []
    uids = rig.fake.uids()

    def note() -> bool:
        if ours(rig) not in seen:
            seen.append(ours(rig))
        return False

    assert await done(rig, watch, "run", enough=note) == 0
    await rig.fake.settle()
    assert seen == [[], PODS[2:], PODS[1:], PODS], "the highest number first"
    assert all(rig.fake.uids()[pod] != uids[pod] for pod in PODS)
    assert rig.fake.bookkeeper.instance_id == rig.fake.status["instanceId"] == "of-the-chart"
    pod = rig.fake.store.get(POD, NAMESPACE, PODS[0])["spec"]
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert mounts[f"{SET}-journal"] == "/pulsar/data/journal"
    env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert env["BK_advertisedAddress"] == f"$(POD_NAME).{SET}.{NAMESPACE}.svc.cluster.local"
    owner = rig.fake.store.get(STATEFUL_SET, NAMESPACE, SET)
    assert owner["metadata"]["annotations"][names.KEPT_BY_HELM] == "keep"
    assert await rig.run("migrate", "run", NAME, "--in-place") == 0, "there is nothing left"
    rig.fake.apply(bootstrap=BOOTSTRAP, storage=STORAGE, replicas=4)
    await rig.fake.settle()
    assert rig.fake.bookie_id(f"{SET}-3") in rig.fake.bookkeeper.writable


async def test_undo_gives_all_back_and_it_goes_forward_again(rig: KubectlRig) -> None:
    watch, before = Watch(rig), as_before(rig)
    assert await done(rig, watch, "run", enough=lambda: len(ours(rig)) == 1) is None
    assert await done(rig, watch, "undo") == 0
    assert not ours(rig)
    after = as_before(rig)
    assert {key: each[0] for key, each in after.items() if "Pod/" not in key} == {
        key: each[0] for key, each in before.items() if "Pod/" not in key
    }
    assert {key: each[1] for key, each in after.items()} == {key: each[1] for key, each in before.items()}
    assert rig.fake.reason("Ready") == "Paused"
    assert await done(rig, watch, "run", enough=lambda: len(ours(rig)) == 1) is None
    assert ours(rig) == PODS[2:]
    assert await done(rig, watch, "undo") == 0
    assert not ours(rig)
    left = as_before(rig)
    delete, keep = ({**STORAGE, "retention": {"whenDeleted": each}} for each in ("Delete", "Retain"))
    rig.fake.apply(bootstrap=BOOTSTRAP, storage=delete)
    rig.fake.annotate(names.CONFIRM_DELETE, NAME)
    rig.fake.annotate(names.PAUSED, None)
    rig.fake.store.delete(CLUSTER, NAMESPACE, NAME)
    await rig.fake.one_pass()
    assert f"StatefulSet/{SET}" in rig.fake.message("Stalled")
    rig.fake.apply(bootstrap=BOOTSTRAP, storage=keep)
    await rig.fake.until(lambda: rig.fake.store.find(CLUSTER, NAMESPACE, NAME) is None)
    assert as_before(rig) == left, "the bookies stay"
    watch.look()


async def given_back(rig: KubectlRig) -> dict[str, Any]:
    watch = Watch(rig)
    assert await done(rig, watch, "run", enough=lambda: len(ours(rig)) == 1) is None
    assert await done(rig, watch, "undo") == 0
    return as_before(rig)


@pytest.mark.parametrize("away", [False, True])
async def test_bookies_that_were_given_back_are_left_alone_also_while_their_set_is_away(
    rig: KubectlRig, away: bool
) -> None:
    left = await given_back(rig)
    if away:  # its owner makes it again, with another template of claims for example
        rig.fake.store.delete(STATEFUL_SET, NAMESPACE, SET, propagation="Orphan")
        del left[f"StatefulSet/{SET}"]
    rig.fake.annotate(names.PAUSED, None)
    for _ in range(10):
        await rig.fake.one_pass()
    assert as_before(rig) == left
    assert rig.fake.reason("Stalled") == ("AdoptRequired" if away else "NameTaken")


@pytest.mark.parametrize("way_out", ["Retain", "deletion of the claims"])
async def test_claims_that_were_given_back_keep_their_metadata_also_without_set_and_pods(
    rig: KubectlRig, way_out: str
) -> None:
    await given_back(rig)
    rig.fake.store.delete(STATEFUL_SET, NAMESPACE, SET)
    rig.fake.run_controllers()
    left = as_before(rig)
    delete, keep = ({**STORAGE, "retention": {"whenDeleted": each}} for each in ("Delete", "Retain"))
    rig.fake.apply(bootstrap=BOOTSTRAP, storage=delete)
    rig.fake.annotate(names.CONFIRM_DELETE, NAME)
    rig.fake.annotate(names.PAUSED, None)
    rig.fake.store.delete(CLUSTER, NAMESPACE, NAME)
    await rig.fake.until(lambda: rig.fake.reason("Stalled") == "DeletionBlocked", limit=20)
    for _ in range(10):
        await rig.fake.one_pass()
    assert rig.fake.store.find(JOB, NAMESPACE, f"{NAME}-metadata-destroy") is None
    if way_out == "Retain":
        rig.fake.apply(bootstrap=BOOTSTRAP, storage=keep)
    else:
        for _, name in list(rig.fake.store.objects[CLAIM]):
            rig.fake.store.delete(CLAIM, NAMESPACE, name)
    await rig.fake.until(lambda: rig.fake.store.find(CLUSTER, NAMESPACE, NAME) is None, limit=40)
    assert (as_before(rig) == left) is (way_out == "Retain")


async def test_whoever_dies_at_whatever_request_is_followed_by_anybody(
    rig: KubectlRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command is killed between two requests that change something, and each such place comes in its turn."""
    monkeypatch.setattr(in_place, "_HELD_S", -1.0)
    watch, before = Watch(rig), as_before(rig)
    for command, reached in (
        ("run", lambda: ours(rig) == PODS),
        ("undo", lambda: as_before(rig).keys() == before.keys() and not ours(rig)),
    ):
        deaths, code = 0, None
        while code != 0:
            rig.writes_left = 2 + deaths % 2  # its mark, the next thing, and perhaps its mark once more
            code = await done(rig, watch, command)
            rig.writes_left = None
            deaths += code != 0
            await rig.fake.one_pass()  # the operator goes on, however short a command lived
            watch.look()
            assert deaths < 60
        assert deaths > 8
        assert reached()


async def refused(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    code = await rig.run("migrate", "plan", NAME, "--in-place")
    lines = capsys.readouterr().out.splitlines()
    found = [line.removeprefix("refused: ") for line in lines if line.startswith("refused: ")]
    assert code == (10 if found else 0)
    return found


async def test_what_speaks_against_it_is_refused_and_what_is_advised_makes_it_possible(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    store, keeper = rig.fake.store, rig.fake.bookkeeper
    wrong = {
        "journal": {**LAYOUT["journal"], "mountPath": "/elsewhere"},
        "ledger": {**LAYOUT["ledger"], "claim": "data"},
    }
    rig.fake.apply(bootstrap={**BOOTSTRAP, "inPlace": wrong}, storage=STORAGE, replicas=4)
    keeper.config[rig.fake.bookie_id(PODS[1])] |= {
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
        "nettyMaxFrameSizeBytes": "9000000",
        "bookieId": "other",
    }
    owner = [{"kind": "PravegaCluster", "name": "x", "uid": "1", "controller": True, "apiVersion": "v1"}]
    store.patch(SERVICE, NAMESPACE, SET, {"metadata": {"ownerReferences": owner}})
    taken = f"{SET}-settings"
    store.create(CONFIG_MAP, NAMESPACE, {"metadata": {"name": taken}, "data": {}})
    store.patch(STATEFUL_SET, NAMESPACE, SET, {"spec": {"serviceName": "other"}})
    store.patch(SERVICE, NAMESPACE, SET, {"spec": {"clusterIP": "198.19.0.9"}})
    told = await refused(rig, capsys)
    for words in (
        f"ConfigMap/{taken} has another owner, and is not handed over: give it another name",
        f"the Service of StatefulSet {SET} is other, and the host names of yours would be those of {SET}: move these",
        f"Service {SET} has an address of its own, which a Service that names bookies has not",
        f"Service/{SET}: it belongs to PravegaCluster x, which would make it again: stop that operator first",
        f"StatefulSet {SET} has 3 replicas: set spec.replicas to 3",
        f"pod {PODS[0]} has no claim data-{PODS[0]}; it has {SET}-journal-{PODS[0]}, {SET}-ledgers-{PODS[0]}: set"
        " spec.bootstrap.inPlace.ledger.claim",
        f"claim {SET}-journal-{PODS[0]} is mounted at /pulsar/data/journal: set"
        " spec.bootstrap.inPlace.journal.mountPath",
        "and yours /elsewhere: set spec.bootstrap.inPlace.journal.directories to it",
        "set spec.config.ledgerStorageClass to it",
        'set spec.config.nettyMaxFrameSizeBytes to "9000000"',
        f"the id of {PODS[1]} is other, and as yours it would be {rig.fake.bookie_id(PODS[1])}: give it that one first",
    ):
        assert any(words in line for line in told), (words, told)
    before = store.version
    assert await rig.run("migrate", "run", NAME, "--in-place") == 10
    assert store.version == before
    store.patch(SERVICE, NAMESPACE, SET, {"metadata": {"ownerReferences": []}, "spec": {"clusterIP": "None"}})
    store.patch(STATEFUL_SET, NAMESPACE, SET, {"spec": {"serviceName": SET}})
    store.delete(CONFIG_MAP, NAMESPACE, taken)
    keeper.config[rig.fake.bookie_id(PODS[1])].pop("bookieId")
    theirs = {
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
        "nettyMaxFrameSizeBytes": "9000000",
    }
    for pod in PODS:
        keeper.config[rig.fake.bookie_id(pod)] |= theirs
    rig.fake.apply(bootstrap=BOOTSTRAP, storage=STORAGE, config=theirs)
    assert not await refused(rig, capsys)


async def test_pods_and_claims_have_to_be_sound(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    store = rig.fake.store
    claim = f"{SET}-journal-{PODS[1]}"
    volume = {"name": "x", "persistentVolumeClaim": {"claimName": claim}}
    store.create(POD, NAMESPACE, {"metadata": {"name": "backup"}, "spec": {"volumes": [volume], "containers": []}})
    rig.fake.apply(bootstrap=BOOTSTRAP, storage={**STORAGE, "journal": {"size": "20Gi"}})
    told = await refused(rig, capsys)
    assert f"claim {claim} is used by pod backup too: stop that one first" in told
    assert f"claim {claim} has 10Gi: set spec.storage.journal.size to 10Gi, and grow it afterwards" in told
    owner = {"kind": "Backup", "name": "x", "uid": "1", "apiVersion": "v1"}
    store.patch(CLAIM, NAMESPACE, claim, {"metadata": {"ownerReferences": [owner]}})
    assert any(f"claim {claim} belongs to Backup x, and goes with that" in line for line in await refused(rig, capsys))
    store.patch(CLAIM, NAMESPACE, claim, {"metadata": {"ownerReferences": []}})
    store.delete(POD, NAMESPACE, "backup")
    rig.fake.apply(bootstrap=BOOTSTRAP, storage=STORAGE)
    assert not await refused(rig, capsys)
    store.delete(CLAIM, NAMESPACE, claim)
    rig.fake.controllers.stuck[PODS[2]] = {"waiting": {"reason": "CrashLoopBackOff", "message": "no"}}
    store.delete(POD, NAMESPACE, PODS[2])
    rig.fake.run_controllers()
    told = await refused(rig, capsys)
    assert f"pod {PODS[2]} is not ready: bring it up first" in told
    assert f"claim {claim} is not bound, or is being deleted: copy its bookie's data to another one first" in told


async def test_it_has_to_be_asked_for_in_the_right_words(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert await rig.run("migrate", "run", NAME, "--in-place", "--at-once", "2") == 1
    assert await rig.run("migrate", "undo", NAME, "--in-place", "--bookie", "a:1") == 1
    rig.fake.apply(bootstrap=None)
    assert await rig.run("migrate", "run", NAME, "--in-place") == 10
    assert "demo has no spec.bootstrap.inPlace" in capsys.readouterr().err
    rig.fake.apply(bootstrap=BOOTSTRAP, storage=STORAGE)
    rig.fake.store.delete(STATEFUL_SET, NAMESPACE, SET, propagation="Orphan")
    assert [line for line in await refused(rig, capsys) if "is the BookieCluster named after it?" in line]


async def test_what_came_later_is_neither_stopped_nor_taken_for_a_bookies(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bookie, which the old StatefulSet would stop at once, and a restored copy of a claim, which has its labels."""
    assert await done(rig, Watch(rig), "run") == 0
    rig.fake.apply(bootstrap=BOOTSTRAP, storage=STORAGE, replicas=4)
    await rig.fake.settle()
    owner = rig.fake.store.get(STATEFUL_SET, NAMESPACE, SET)["metadata"]["uid"]
    assert await rig.run("migrate", "undo", NAME, "--in-place") == 10
    assert f"{SET}-3 came later" in (told := capsys.readouterr().err)
    assert "set spec.replicas to 3, `kubectl bookie resume demo`" in told
    assert rig.fake.store.get(STATEFUL_SET, NAMESPACE, SET)["metadata"]["uid"] == owner
    copied = rig.fake.store.get(CLAIM, NAMESPACE, f"{SET}-ledgers-{PODS[0]}")
    name = f"restored-{SET}-ledgers-{PODS[0]}"
    body = {"metadata": {"name": name, "labels": copied["metadata"]["labels"]}, "spec": copied["spec"]}
    rig.fake.store.create(CLAIM, NAMESPACE, body)
    rig.fake.apply(bootstrap=BOOTSTRAP, storage={**STORAGE, "retention": {"whenDeleted": "Delete"}}, replicas=4)
    rig.fake.annotate(names.CONFIRM_DELETE, NAME)
    rig.fake.store.delete(CLUSTER, NAMESPACE, NAME)
    await rig.fake.until(lambda: rig.fake.store.find(CLUSTER, NAMESPACE, NAME) is None)
    assert [each["metadata"]["name"] for each in rig.fake.store.list(CLAIM, NAMESPACE)] == [name]


async def test_a_pause_of_before_counts_for_nothing(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.fake.annotate(names.PAUSED, "true")
    await rig.fake.one_pass()
    rig.fake.annotate(names.PAUSED, None)
    running = asyncio.create_task(rig.run("migrate", "run", NAME, "--in-place"))
    await until(lambda: "waits until the operator says that it goes on" in capsys.readouterr().out)
    await rig.fake.one_pass()
    await until(lambda: "the operator is paused" in capsys.readouterr().out)
    rig.writes_left = -1
    await running


async def test_two_commands_at_once_are_refused(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    first = asyncio.create_task(rig.run("migrate", "run", NAME, "--in-place"))
    await until(lambda: "waits until the operator says" in capsys.readouterr().out)
    for command in ("run", "undo"):
        assert await rig.run("migrate", command, NAME, "--in-place") == 10
        assert "another command is at work on demo: end it, or wait" in capsys.readouterr().err
    changed = {"metadata": {"annotations": {"by": "an upgrade of the chart"}}}
    rig.fake.store.patch(STATEFUL_SET, NAMESPACE, SET, changed)  # what is deleted is kept before as it is by then
    record = rig.fake.store.get(CONFIG_MAP, NAMESPACE, f"{NAME}-in-place")
    assert "an upgrade" not in record["data"]["originals"]
    find = rig.fake.store.get
    await until(lambda: "an upgrade" in find(CONFIG_MAP, NAMESPACE, f"{NAME}-in-place")["data"]["originals"])
    rig.writes_left = -1
    assert await first != 0
    rig.writes_left = None
    watch = Watch(rig)
    in_place_record = rig.fake.store.get(CONFIG_MAP, NAMESPACE, f"{NAME}-in-place")
    marks = dict.fromkeys(in_place_record["metadata"]["annotations"])
    rig.fake.store.patch(CONFIG_MAP, NAMESPACE, f"{NAME}-in-place", {"metadata": {"annotations": marks}})
    assert await done(rig, watch, "undo") == 0
    assert rig.fake.store.get(CONFIG_MAP, NAMESPACE, f"{NAME}-in-place")["data"]["phase"] == "GivenBack"


async def test_a_run_ends_when_somebody_gives_back(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    record = {
        "metadata": {"name": f"{NAME}-in-place"},
        "data": {"phase": "GivingBack", "originals": "{}"},
    }
    rig.fake.store.create(CONFIG_MAP, NAMESPACE, record)
    assert await rig.run("migrate", "run", NAME, "--in-place") == 10
    assert f"`kubectl bookie migrate undo {NAME} --in-place` ends that" in capsys.readouterr().err
    assert await rig.run("migrate", "status", NAME, "--in-place") == 0
    assert "it is being given back" in capsys.readouterr().out


async def test_a_record_of_bookies_that_had_the_names_before_tells_nothing(
    rig: KubectlRig, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {
        "metadata": {"name": f"{NAME}-in-place"},
        "data": {"phase": "TakenOver", "instanceId": "of-a-chart-of-before", "originals": "{}"},
    }
    rig.fake.store.create(CONFIG_MAP, NAMESPACE, record)
    assert await rig.run("migrate", "undo", NAME, "--in-place") == 0
    assert "nothing is under way" in capsys.readouterr().out
    watch, before = Watch(rig), as_before(rig)
    assert await done(rig, watch, "run") == 0
    assert ours(rig) == PODS
    data = rig.fake.store.get(CONFIG_MAP, NAMESPACE, f"{NAME}-in-place")["data"]
    assert (data["phase"], data["instanceId"]) == ("TakenOver", "of-the-chart")
    assert await done(rig, watch, "undo") == 0
    assert as_before(rig)[f"StatefulSet/{SET}"] == before[f"StatefulSet/{SET}"]


@pytest.mark.parametrize("kind", [STATEFUL_SET, BUDGET], ids=lambda kind: kind.kind)
async def test_what_is_changed_right_before_it_is_deleted_is_kept_too(rig: KubectlRig, kind: Resource) -> None:
    store, upgrades = rig.fake.store, ["an upgrade of the chart"]
    delete = store.delete

    def late(resource: Any, namespace: str, name: str, *preconditions: str) -> Any:
        if (resource, name) == (kind, SET) and upgrades:
            store.patch(resource, namespace, name, {"metadata": {"annotations": {"by": upgrades.pop()}}})
        return delete(resource, namespace, name, *preconditions)

    store.delete = late
    watch = Watch(rig)
    assert await done(rig, watch, "run") == 0
    assert not upgrades
    assert await done(rig, watch, "undo") == 0
    assert store.get(kind, NAMESPACE, SET)["metadata"]["annotations"]["by"] == "an upgrade of the chart"


async def test_what_is_kept_is_not_what_it_was_while_it_went(rig: KubectlRig) -> None:
    """Kubernetes lets go of the pods of a StatefulSet first, and marks it until then."""
    store, one_pass = rig.fake.store, rig.fake.one_pass
    delete, going = store.delete, []

    def slowly(resource: Any, namespace: str, name: str, *preconditions: str) -> Any:
        if (resource, name) != (STATEFUL_SET, SET) or going:
            return delete(resource, namespace, name, *preconditions)
        uid, propagation, _ = preconditions
        store.patch(resource, namespace, name, {"metadata": {"finalizers": [propagation.lower()]}})
        going.append(delete(resource, namespace, name, uid))
        return going[0]

    async def let_go() -> Any:
        live = store.find(STATEFUL_SET, NAMESPACE, SET)
        if live is not None and "orphan" in live["metadata"].get("finalizers", ()):
            store._gone(STATEFUL_SET, NAMESPACE, live, "Orphan")
        return await one_pass()

    store.delete, rig.fake.one_pass = slowly, let_go  # type: ignore[method-assign]
    watch, before = Watch(rig), as_before(rig)
    assert await done(rig, watch, "run") == 0
    assert going
    kept = json.loads(store.get(CONFIG_MAP, NAMESPACE, f"{NAME}-in-place")["data"]["originals"])
    assert not {"deletionTimestamp", "finalizers"} & kept[f"StatefulSet/{SET}"]["metadata"].keys()
    assert await done(rig, watch, "undo") == 0
    assert as_before(rig)[f"StatefulSet/{SET}"] == before[f"StatefulSet/{SET}"]


async def test_what_is_kept_of_a_service_is_not_what_it_is_in_between(rig: KubectlRig) -> None:
    """Somebody makes the StatefulSet again when the Service has given up its selector."""
    store = rig.fake.store
    old, made = store.get(STATEFUL_SET, NAMESPACE, SET), []

    def make_again(resource: Any, namespace: str, name: str, *arguments: Any) -> Any:
        patched = patch(resource, namespace, name, *arguments)
        if (resource, name) == (SERVICE, SET) and not patched["spec"].get("selector") and not made:
            metadata = {each: old["metadata"][each] for each in ("name", "namespace", "labels")}
            made.append(store.create(STATEFUL_SET, NAMESPACE, {"metadata": metadata, "spec": old["spec"]}))
        return patched

    patch, store.patch = store.patch, make_again  # type: ignore[method-assign]
    watch = Watch(rig)
    selector = store.get(SERVICE, NAMESPACE, SET)["spec"]["selector"]
    assert await done(rig, watch, "run") == 0
    assert made
    kept = json.loads(store.get(CONFIG_MAP, NAMESPACE, f"{NAME}-in-place")["data"]["originals"])
    assert kept[f"Service/{SET}"]["spec"]["selector"] == selector
