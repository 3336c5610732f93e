"""Passes while requests fail, operators die, or two of them work at once: nothing is lost, done twice or done wrong."""

from __future__ import annotations

import asyncio
import random

import pytest

from bookie_operator.api.errors import Forbidden, KubernetesError
from bookie_operator.api.kinds import CLAIM, DEPLOYMENT, EVENT, POD, SERVICE, STATEFUL_SET
from bookie_operator.planner import gates
from bookie_operator.planner.actions import ApplyObjects, DeleteClaim
from bookie_operator.reconcile import carrying_out
from bookie_operator.reconcile.carrying_out import NotLeading, while_leading
from bookie_operator.reconcile.passing import run_pass
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, FakeCluster, fake_cluster, settled_cluster
from tests.support.fake_kubernetes.faults import Fault


async def stubborn_pass(fake: FakeCluster, operator: int = 0) -> None:
    """A pass that may fail, as after a crash: the next one begins anew."""
    try:
        await fake.one_pass(operator)
    except KubernetesError:
        fake.time += 1.0
        fake.run_controllers()


async def shrink(fake: FakeCluster, limit: int = 400) -> None:
    """From four bookies to three, whatever happens to single requests."""
    fake.apply(replicas=3)
    for _ in range(limit):
        await stubborn_pass(fake)
        if fake.condition("Ready") == "True" and len(fake.pods()) == 3 and fake.status["replicas"] == 3:
            break
    assert fake.bookkeeper.deleted_cookies == [fake.bookie_id("demo-bookie-3")]
    assert fake.whole()
    assert len(fake.store.list(CLAIM, NAMESPACE)) == 6


@pytest.mark.parametrize(("status", "done"), [(500, False), (500, True), (409, False), (429, False)])
async def test_every_write_fails_once(status: int, done: bool) -> None:
    """Refused, or carried out and never answered."""
    async with settled_cluster(replicas=4) as fake:
        fake.fill(8, 4)
        failed: set[str] = set()

        class OnceEach(Fault):
            def strikes(self, request: str) -> bool:
                fresh = not request.startswith("GET") and request not in failed
                failed.add(request)
                return fresh

        fake.server.faults.append(OnceEach("", status, done=done))
        await shrink(fake)
        assert len(failed) > 5


async def test_reads_and_writes_fail_at_random() -> None:
    async with settled_cluster(replicas=4) as fake:
        fake.fill(8, 4)
        draw = random.Random(7)

        class Now(Fault):
            def strikes(self, request: str) -> bool:
                return draw.random() < 0.02

        fake.server.faults.append(Now("", 503))
        await shrink(fake)


async def test_two_operators_at_once_do_what_one_does() -> None:
    async with fake_cluster(operators=2) as fake:
        fake.apply(replicas=4)
        for turn in range(40):
            await stubborn_pass(fake, turn % 2)
        assert fake.condition("Ready") == "True"
        assert len(fake.store.list(POD, NAMESPACE, "app.kubernetes.io/component=bookie")) == 4
        fake.fill(8, 4)
        fake.apply(replicas=3)
        for turn in range(300):
            await stubborn_pass(fake, turn % 2)
            if fake.condition("Ready") == "True" and len(fake.pods()) == 3:
                break
        assert fake.bookkeeper.deleted_cookies == [fake.bookie_id("demo-bookie-3")]
        assert fake.whole()
        finished = [each["id"] for each in fake.status["history"]]
        assert len(finished) == len(set(finished))


async def test_an_operator_that_reads_while_another_writes_writes_nothing() -> None:
    """Of two passes over the same resource version one ends with a conflict, and looks again soon."""
    async with settled_cluster(operators=2, replicas=3) as fake:
        fake.server.faults.append(Fault("PATCH .*/status", 409, times=1))
        fake.apply(replicas=4)
        assert await fake.one_pass() == 0.5


async def test_without_leadership_nothing_is_written() -> None:
    async with settled_cluster(replicas=3) as fake:
        fake.apply(replicas=4)
        fake.operators[0].leading = lambda: False
        before = len(fake.server.writes())
        for _ in range(3):
            with pytest.raises(NotLeading):
                await run_pass(fake.operators[0], NAME, NAMESPACE)
        assert len(fake.server.writes()) == before


async def test_leadership_that_is_lost_during_a_pass_stops_it_before_its_action() -> None:
    async with settled_cluster(replicas=3) as fake:
        fake.store.patch(STATEFUL_SET, NAMESPACE, "demo-bookie", {"spec": {"replicas": 2}})
        fake.run_controllers()
        context = fake.operators[0]
        context.leading = lambda: not any("bookie/info" in each for each in fake.admin.requests)
        fake.admin.requests.clear()
        before = len(fake.server.writes())
        with pytest.raises(NotLeading):
            await run_pass(context, NAME, NAMESPACE)
        assert len(fake.server.writes()) == before


async def test_what_is_under_way_when_leadership_is_lost_is_given_up() -> None:
    """Whoever leads next may want the contrary, and a pod that is reached late obeys whom it hears last."""
    reached, leads, sent = asyncio.Event(), True, []

    async def ask() -> None:
        await reached.wait()
        sent.append("asked")

    asking = asyncio.create_task(while_leading(lambda: leads, ask()))
    assert not (await asyncio.wait([asking], timeout=0.6))[0], "it goes on for as long as this process leads"
    leads = False
    with pytest.raises(NotLeading):
        await asking
    reached.set()
    await asyncio.sleep(0)
    assert not sent
    leads = True
    await while_leading(lambda: leads, ask())
    assert sent == ["asked"]


async def test_a_pass_asks_for_nothing_any_more_when_it_leads_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, given_up = asyncio.Event(), asyncio.Event()

    async def never_ends(*_: object) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    monkeypatch.setattr(carrying_out, "carry_out", never_ends)
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        context = fake.operators[0]
        context.leading = lambda: not entered.is_set()
        with pytest.raises(NotLeading):
            await run_pass(context, NAME, NAMESPACE)
        assert given_up.is_set()
        assert fake.resource["metadata"]["finalizers"], "what came before was written"


async def test_an_action_that_fails_is_spaced_shown_and_tried_again() -> None:
    async with settled_cluster(replicas=3) as fake:
        fake.server.faults.append(Fault("PATCH .*/services/", 422, times=3))
        fake.store.delete(SERVICE, NAMESPACE, "demo-client")
        assert await fake.one_pass() == 0.2, "there may be something else to do"
        seconds = await fake.one_pass()
        assert seconds is not None
        assert 0.8 <= seconds <= 1.2
        assert fake.condition("Stalled") == "True"
        assert "fault 422" in fake.message("Stalled")
        assert fake.measured("reconcile_errors_total", namespace=NAMESPACE, cluster=NAME, reason="Invalid") == 1
        writes = len(fake.server.writes())
        fake.time -= 0.7  # woken before the back-off is over: nothing is tried, nothing is written
        await run_pass(fake.operators[0], NAME, NAMESPACE)
        assert len(fake.server.writes()) == writes
        assert fake.measured("reconcile_errors_total") == 1
        fake.time += 0.9
        assert await fake.one_pass() == 0.2
        again = await fake.one_pass()
        assert again is not None
        assert 1.8 <= again <= 2.4
        await fake.until(lambda: fake.condition("Ready") == "True", limit=20)
        assert "ActionFailed" in {event["reason"] for event in fake.store.list(EVENT, NAMESPACE)}
        assert fake.measured("reconcile_errors_total", reason="Invalid") == 3


async def test_what_a_quota_refuses_holds_up_nothing_that_comes_behind_it() -> None:
    async with settled_cluster(replicas=3) as fake:
        fake.store.delete(DEPLOYMENT, NAMESPACE, "demo-autorecovery")
        refused = Fault("PATCH .*/deployments/demo-autorecovery", 403, times=10_000)
        fake.server.faults.append(refused)
        fake.apply(replicas=3, gateway={"enabled": True}, config={"gcWaitTime": "7000"})
        await fake.until(lambda: {each.get("gcWaitTime") for each in fake.bookkeeper.config.values()} == {"7000"}, 60)
        assert len(fake.pods("gateway")) == 2
        assert (fake.condition("Ready"), fake.reason("Stalled")) == ("False", "ActionFailed")
        assert "auto-recovery is not as desired" in fake.message("Stalled")
        tried, began = 10_000 - refused.times, fake.time
        while fake.time < began + 600:
            await fake.one_pass()
        assert 5 <= 10_000 - refused.times - tried <= 16, "once a minute in the end"
        fake.server.faults.clear()
        await fake.settle()
        assert len(fake.pods("autorecovery")) > 0


async def test_a_pass_that_fails_is_counted() -> None:
    async with settled_cluster(replicas=3) as fake:
        passes = fake.measured("reconcile_seconds_count")
        fake.server.forbidden.add("statefulsets")
        with pytest.raises(Forbidden):
            await fake.one_pass()
        of_pass = {"namespace": NAMESPACE, "cluster": NAME, "reason": "Forbidden"}
        assert fake.measured("reconcile_errors_total", **of_pass) == 1
        assert fake.measured("reconcile_seconds_count") == passes
        assert not fake.operators[0].peeks, "else the back-off would end as soon as its metadata service is away too"
        fake.server.forbidden.clear()
        await fake.one_pass()
        assert fake.measured("reconcile_errors_total") == 1
        assert fake.measured("reconcile_seconds_count") == passes + 1


async def test_failures_of_a_step_are_counted_in_the_operation() -> None:
    async with settled_cluster(replicas=3) as fake:
        fake.server.faults.append(Fault("PUT .*/scale", 500, times=2))
        fake.apply(replicas=4)
        attempts = set()
        for _ in range(40):
            await fake.one_pass()
            attempts.add((fake.status.get("operation") or {}).get("attempts", 0))
            if fake.condition("Ready") == "True" and len(fake.pods()) == 4:
                break
        assert attempts == {0, 1, 2}
        assert fake.condition("Ready") == "True"


async def test_a_plan_that_breaks_an_invariant_is_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with settled_cluster(replicas=3) as fake:
        fake.apply(replicas=4)
        monkeypatch.setattr(carrying_out, "check", lambda world, desired, plan: ["I1: no proof"])
        before = set(fake.store.kind(STATEFUL_SET)), fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["spec"]
        for _ in range(3):
            await fake.one_pass()
        assert (
            set(fake.store.kind(STATEFUL_SET)),
            fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["spec"],
        ) == before
        assert fake.reason("Stalled") == "InvariantViolated"
        assert "I1: no proof" in fake.message("Stalled")
        assert "InvariantViolated" in {event["reason"] for event in fake.store.list(EVENT, NAMESPACE)}
        assert fake.measured("reconcile_errors_total", cluster=NAME, reason="InvariantViolated") == 3


async def test_bookies_that_nobody_can_ask_are_unknown_and_nothing_is_destroyed() -> None:
    async with settled_cluster(replicas=4) as fake:
        fake.bookkeeper.reachable = False
        fake.apply(replicas=3)
        for _ in range(20):
            await fake.one_pass()
        assert fake.condition("Available") == "Unknown"
        assert fake.condition("LedgersReplicated") == "Unknown"
        assert len(fake.pods()) == 4
        assert fake.status["writableReplicas"] == 4
        fake.bookkeeper.reachable = True
        await fake.settle()
        assert len(fake.pods()) == 3


def test_actions_are_compared_by_value() -> None:
    """The back-off knows an action again that a later pass plans anew."""
    assert ApplyObjects(("a",)) == ApplyObjects(("a",))
    assert DeleteClaim("a", "1", None) != DeleteClaim("a", "2", None)


async def test_at_rest_it_is_asked_whether_the_metadata_service_answers_and_by_nobody_else() -> None:
    async with settled_cluster(replicas=3) as fake:
        await fake.one_pass()
        (peek,) = fake.operators[0].peeks.values()
        requests, asked = len(fake.server.requests), len(fake.admin.requests)
        assert await peek()
        assert fake.admin.requests[asked:] == ["GET /api/v1/autorecovery/status"], "one read, not all facts"
        fake.bookkeeper.reachable = False
        assert not await peek()
        assert len(fake.server.requests) == requests, "it costs the API server nothing"
        await fake.one_pass()
        assert not fake.operators[0].peeks
        assert (fake.condition("Ready"), fake.reason("Ready")) == ("False", "MetadataUnreachable")
        assert fake.condition("Available") == "Unknown"


async def test_an_auditor_that_does_not_list_whom_it_looks_at_is_waited_for_but_not_for_ever() -> None:
    """One of Java's never does. Since when is known without a field of the status: an earlier definition has none."""
    async with settled_cluster(replicas=3) as fake:
        for again in ("the first time", "and of one that has listed them meanwhile"):
            fake.bookkeeper.unchecked = None
            await fake.one_pass()
            assert (fake.condition("LedgersReplicated"), fake.reason("LedgersReplicated")) == (
                "Unknown",
                "CopiesUnchecked",
            ), again
            began = fake.time
            while fake.condition("LedgersReplicated") != "True":
                await fake.one_pass()
                assert fake.time - began < 90
            assert fake.time - began >= gates.SILENT_S
            fake.bookkeeper.unchecked = []
            await fake.one_pass()
            assert not fake.operators[0].silent
