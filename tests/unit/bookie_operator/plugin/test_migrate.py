"""`kubectl bookie migrate`: bookies of another chart leave the metadata root that the cluster has joined."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from bookie_operator.api.kinds import CLUSTER, POD, SECRET
from bookie_operator.builders.naming import bookie_id_suffix
from bookie_operator.builders.secrets import secret_texts
from bookie_operator.plugin import migrate
from bookie_operator.plugin.strangers import differences
from tests.support.fake_kubernetes.bookkeeper import Drain
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, STRANGERS
from tests.support.kubectl_rig import KubectlRig
from tests.support.until import until

_SCALE = re.compile(r"--replicas=(\d)`")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "_EVERY_S", 0.01)
    monkeypatch.setattr(migrate, "_TELL_S", 0.0)


@pytest.fixture
async def strangers(rig: KubectlRig) -> list[str]:
    """Three, with six ledgers."""
    return rig.fake.with_strangers()


class Screen:
    """What commands print, and all of it that was printed so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def read(self) -> str:
        shown = self._capsys.readouterr()
        self.out += shown.out
        self.err += shown.err
        return self.out


async def _run_to_the_end(rig: KubectlRig, screen: Screen, *options: str) -> int:
    """As its user does: the StatefulSet is scaled when the command says so."""
    running = asyncio.create_task(rig.run("migrate", "run", NAME, *options))
    scaled = 0
    while not running.done():
        found = _SCALE.findall(screen.read())
        for replicas in found[scaled:]:
            rig.fake.scale_strangers(int(replicas))
        scaled = len(found)
        await asyncio.sleep(0.005)
    screen.read()
    return running.result()


async def test_the_plan_says_who_goes_first_and_changes_nothing(
    rig: KubectlRig, strangers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = rig.fake.store.version
    assert await rig.run("migrate", "plan", NAME) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[1:4]] == strangers[::-1], "the highest number first"
    assert f"{STRANGERS}/{STRANGERS}-bookie-2" in shown
    assert "to copy: 17.6 KiB; your bookies have room for 2.0 GiB" in shown
    assert "bookies: 3 of yours are writable; the largest ensemble of a ledger is 3" in shown
    assert shown.splitlines()[-1] == f"`kubectl bookie migrate run {NAME}` begins with {strangers[2]}"
    assert rig.fake.store.version == before
    assert rig.fake.bookkeeper.drains == {}
    assert await rig.run("migrate", "plan", NAME, "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["stage"] for each in told["bookies"]] == ["to drain"] * 3
    assert told["by_bookie"][strangers[0]]["ledgers"] == 6


async def test_where_nobody_else_is_there_is_nothing_to_do(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    assert await rig.run("migrate", "plan", NAME) == 0
    assert await rig.run("migrate", "run", NAME) == 0
    assert await rig.run("migrate", "undo", NAME) == 0
    assert await rig.run("migrate", "status", NAME) == 0
    assert capsys.readouterr().out.splitlines() == [
        "nothing to do: all bookies of this metadata root are of demo",
        "no bookie of somebody else is left in the metadata root of demo",
        "nothing is under way",
        "all bookies of this metadata root are of demo",
    ]


async def test_what_speaks_against_it_is_refused_with_what_to_do(
    rig: KubectlRig, strangers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    keeper = rig.fake.bookkeeper
    keeper.ledgers[1] = {*strangers, rig.fake.bookie_id("demo-bookie-0")}
    keeper.config[strangers[0]] = {"nettyMaxFrameSizeBytes": "9000000", "tlsProviderFactoryClass": "x"}
    for pod in rig.fake.pods():
        rig.fake.admin.used[rig.fake.bookie_id(pod)] = 10**9
    assert await rig.run("migrate", "plan", NAME) == 10
    refused = [line for line in capsys.readouterr().out.splitlines() if line.startswith("refused: ")]
    for words in (
        "your bookies have room for 0 bytes: grow spec.storage.ledger.size, or raise spec.replicas",
        "there are ledgers on 4 bookies, and 3 of yours are writable: raise spec.replicas to 5",
        "spec.durability.ensembleSize is 3: raise it",
        'takes frames of 9000000 bytes and yours of 5253120: set spec.config.nettyMaxFrameSizeBytes to "9000000"',
        f"{strangers[0]} serves TLS and yours do not: set spec.tls",
    ):
        assert sum(words in line for line in refused) == 1, (words, refused)
    assert len(refused) == 5
    assert await rig.run("migrate", "run", NAME) == 10
    assert keeper.drains == {}


async def test_what_is_advised_makes_it_possible(
    rig: KubectlRig, strangers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    keeper = rig.fake.bookkeeper
    keeper.ledgers[1] = {*strangers, rig.fake.bookie_id("demo-bookie-0")}
    theirs = {"nettyMaxFrameSizeBytes": "9000000", "tlsProviderFactoryClass": "x"}
    keeper.config[strangers[0]] = dict(theirs)
    assert await rig.run("migrate", "plan", NAME) == 10
    rig.fake.apply(
        replicas=5,
        durability={"ensembleSize": 4, "writeQuorum": 3, "ackQuorum": 2},
        config={"nettyMaxFrameSizeBytes": theirs["nettyMaxFrameSizeBytes"]},
    )
    await rig.fake.settle()
    for pod in rig.fake.pods():
        keeper.config[rig.fake.bookie_id(pod)] = dict(theirs)  # as they run with it
    assert await rig.run("migrate", "plan", NAME) == 0, capsys.readouterr().out


async def test_bookies_of_another_resource_are_left_to_it(
    rig: KubectlRig, strangers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bookies = [{"name": "x-bookie-0", "ordinal": 0, "bookieId": strangers[1]}]
    other = {"metadata": {"name": "x"}, "spec": rig.fake.resource["spec"]}
    rig.fake.store.create(CLUSTER, "elsewhere", other)
    rig.fake.store.patch(CLUSTER, "elsewhere", "x", {"status": {"bookies": bookies}}, "status")
    assert await rig.run("migrate", "run", NAME) == 10
    assert (
        f"{strangers[1]} is a bookie of BookieCluster elsewhere/x: lower the spec.replicas" in capsys.readouterr().err
    )
    rig.fake.store.patch(CLUSTER, "elsewhere", "x", {"status": {"bookies": []}}, "status")
    assert await rig.run("migrate", "plan", NAME) == 0


async def test_a_run_leaves_those_of_another_resource_alone_that_come_while_it_goes_on(
    rig: KubectlRig, strangers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    keeper, screen = rig.fake.bookkeeper, Screen(capsys)
    running = asyncio.create_task(rig.run("migrate", "run", NAME, "--at-once", "4"))
    await until(lambda: f"{strangers[2]}: begun" in screen.read())
    rig.fake.store.create(CLUSTER, "elsewhere", {"metadata": {"name": "x"}, "spec": rig.fake.resource["spec"]})
    newcomer = f"x-bookie-0{bookie_id_suffix('x', 'elsewhere')}"  # its status does not tell yet
    keeper.start(newcomer)
    assert await running == 10
    screen.read()
    assert f"{newcomer} is a bookie of BookieCluster elsewhere/x: lower the spec.replicas" in screen.err
    assert newcomer not in keeper.drains
    assert newcomer in keeper.writable


@pytest.mark.parametrize("at_once", [1, 3])
async def test_one_after_the_other_is_drained_and_removed_by_its_owner(
    rig: KubectlRig, strangers: list[str], capsys: pytest.CaptureFixture[str], at_once: int
) -> None:
    secret = rig.fake.store.get(SECRET, NAMESPACE, f"{NAME}-admin-token")
    rig.fake.admin.token = (secret_texts(secret) or {})["token"]
    keeper, screen = rig.fake.bookkeeper, Screen(capsys)
    assert await _run_to_the_end(rig, screen, "--at-once", str(at_once)) == 0, screen.err
    assert _SCALE.findall(screen.out) == ["2", "1", "0"]
    assert screen.out.splitlines()[-1] == f"no bookie of somebody else is left in the metadata root of {NAME}"
    ours = {rig.fake.bookie_id(pod) for pod in rig.fake.pods()}
    assert all(named <= ours and len(named) == 3 for named in keeper.ledgers.values())
    assert keeper.cookies == ours
    begun = [line.partition(":3181")[0] for line in screen.out.splitlines() if line.endswith(": begun")]
    assert [f"{each}:3181" for each in begun] == strangers[::-1]
    gone = [screen.out.index(f"{each}: gone") for each in strangers[::-1]]
    assert gone == sorted(gone)
    if at_once == 1:
        assert screen.out.index(f"{strangers[2]}: gone") < screen.out.index(f"{strangers[1]}: begun")
    assert rig.fake.admin.shown_to_strangers == {None}, "nobody else hears the token"
    assert await rig.run("migrate", "run", NAME, "--bookie", strangers[0]) == 0, "it was taken out"


async def test_one_alone_and_only_in_its_turn(
    rig: KubectlRig, strangers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await rig.run("migrate", "run", NAME, "--bookie", strangers[0]) == 10
    assert "has to go before" in capsys.readouterr().err
    assert await rig.run("migrate", "run", NAME, "--bookie", "nobody:3181") == 11
    assert (
        f"there is no bookie nobody:3181 beside those of the cluster; there are: {strangers[0]}"
        in capsys.readouterr().err
    )
    screen = Screen(capsys)
    assert await _run_to_the_end(rig, screen, "--bookie", strangers[2]) == 0
    assert rig.fake.bookkeeper.cookies & set(strangers) == set(strangers[:2])
    assert await rig.run("migrate", "status", NAME) == 0
    assert screen.read().count("to drain") == 2


async def test_a_run_goes_on_with_what_nobody_works_on(
    rig: KubectlRig, strangers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    keeper, screen = rig.fake.bookkeeper, Screen(capsys)
    keeper.begin_drain(strangers[2], delete_cookie=True)
    keeper.drains[strangers[2]].is_worked = False
    assert await rig.run("migrate", "status", NAME) == 0
    assert "interrupted" in screen.read()
    assert await _run_to_the_end(rig, screen) == 0
    assert f"{strangers[2]}: goes on, since no process worked on it" in screen.out
    assert keeper.cookies.isdisjoint(strangers)


async def test_undo_takes_back_what_is_not_taken_out_and_ends_a_run(
    rig: KubectlRig, strangers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    keeper, screen = rig.fake.bookkeeper, Screen(capsys)
    keeper.drains[strangers[2]] = Drain("done")
    keeper.cookies.discard(strangers[2])
    keeper.set_read_only(strangers[2], True)
    keeper.ledgers = {each: named - {strangers[2]} for each, named in keeper.ledgers.items()}
    keeper.work = lambda: None  # type: ignore[method-assign]  # nothing moves
    running = asyncio.create_task(rig.run("migrate", "run", NAME, "--at-once", "3"))
    await until(lambda: keeper.drains.keys() == set(strangers))
    assert await rig.run("migrate", "undo", NAME) == 0
    assert await running == 10
    screen.read()
    assert "back: this run ends" in screen.err
    assert f"{strangers[2]}: is taken out already, and has no cookie any more" in screen.out
    assert screen.out.count("taken back, it takes new data again") == 2
    assert keeper.writable >= set(strangers[:2])
    assert strangers[2] in keeper.read_only


async def test_one_that_comes_back_is_not_drained_for_ever(
    rig: KubectlRig, strangers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As a chart without volumes starts it again."""
    keeper, screen = rig.fake.bookkeeper, Screen(capsys)
    running = asyncio.create_task(rig.run("migrate", "run", NAME))
    await until(lambda: "taken out" in screen.read())
    keeper.cookies.add(strangers[2])
    keeper.set_read_only(strangers[2], False)
    assert await running == 10
    screen.read()
    assert f"{strangers[2]} has come back since it was taken out: remove its pod for good" in screen.err
    rig.fake.scale_strangers(2)
    assert await _run_to_the_end(rig, Screen(capsys)) == 0
    assert keeper.cookies.isdisjoint(strangers)


async def test_bookies_without_a_statefulset_leave_too(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    keeper, screen = rig.fake.bookkeeper, Screen(capsys)
    address = "127.9.9.9"
    rig.fake.store.create(POD, NAMESPACE, {"metadata": {"name": "alone"}, "status": {"podIP": address}, "spec": {}})
    for bookie in (f"{address}:3182", "10.9.9.9:3181"):
        keeper.start(bookie)
    running = asyncio.create_task(rig.run("migrate", "run", NAME, "--at-once", "2"))
    for bookie, words in (
        ("10.9.9.9:3181", "Now stop 10.9.9.9:3181 for good, and remove its volumes"),
        (f"{address}:3182", f"Now delete pod alone in namespace {NAMESPACE} for good, and its volumes"),
    ):
        await until(lambda words=words: words in screen.read())  # type: ignore[misc]
        keeper.stop(bookie)
    assert await running == 0


async def test_who_has_not_joined_is_told_how(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.fake.store.patch(CLUSTER, NAMESPACE, NAME, {"status": {"instanceId": ""}}, "status")
    assert await rig.run("migrate", "plan", NAME) == 10
    assert "demo has not joined a metadata root yet: to join that of other bookies set" in capsys.readouterr().err


async def test_the_next_one_waits_for_the_operator_and_for_the_clusters_own(
    rig: KubectlRig, strangers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    keeper, screen = rig.fake.bookkeeper, Screen(capsys)
    own = rig.fake.bookie_id("demo-bookie-1")
    keeper.ledgers = {each: {strangers[0], strangers[2]} for each in keeper.ledgers}  # two bookies are enough
    keeper.work = lambda: None  # type: ignore[method-assign]  # nothing moves
    keeper.set_read_only(own, True)
    running = asyncio.create_task(rig.run("migrate", "run", NAME))
    await until(lambda: "waits: demo-bookie-1 of demo is not writable" in screen.read())
    assert keeper.drains == {}
    keeper.set_read_only(own, False)
    await until(lambda: strangers[2] in keeper.drains)
    assert await rig.run("migrate", "undo", NAME) == 0
    assert await running == 10


async def test_the_cluster_has_to_be_in_that_root(rig: KubectlRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.fake.bookkeeper.instance_id = "another"
    assert await rig.run("migrate", "plan", NAME) == 10
    assert "its bookies find another: see InstanceMismatch" in capsys.readouterr().err


def test_settings_that_go_together_are_not_mentioned() -> None:
    both = {"nettyMaxFrameSizeBytes": "6000000", "tlsProviderFactoryClass": "x", "reppDnsResolverClass": "r"}
    assert differences("a:1", both, both) == ([], [])
    assert differences("a:1", {}, {}) == ([], [])
    refusals, notes = differences("a:1", {"bookieAuthProviderFactoryClass": "k", "reppDnsResolverClass": "r"}, both)
    assert refusals == []
    assert [note.partition(":")[0] for note in notes] == ["yours serve TLS and a", "a"]


async def test_one_that_was_drained_by_hand_and_kept_its_cookie_is_taken_out_too(
    rig: KubectlRig, strangers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    keeper, screen = rig.fake.bookkeeper, Screen(capsys)
    keeper.begin_drain(strangers[2])
    assert await _run_to_the_end(rig, screen) == 0, screen.err
    assert keeper.cookies.isdisjoint(strangers)
