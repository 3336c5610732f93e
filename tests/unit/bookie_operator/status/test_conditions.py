"""Conditions and numbers of a status: what they say, and when they change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.crds.cluster_status import (
    BookieClusterStatus,
    BookieState,
    Condition,
    CookieState,
    Operation,
    OperationType,
    RevisionStatus,
    VersionStatus,
)
from bookie_operator.planner.actions import TriggerAudit, UpdateTask
from bookie_operator.planner.decision import Act, Plan, Rest, Wait
from bookie_operator.planner.desired import Desired, DesiredStatefulSet
from bookie_operator.status import conditions, reporting
from bookie_operator.world.facts import BookieFacts, ClusterFacts, DrainFacts, DrainPhase
from bookie_operator.world.model import ClaimView, ClusterView, PodFault, PodView, StatefulSetView, World

SPEC = BookieClusterSpec.model_validate(
    {
        "version": "2",
        "replicas": 4,
        "metadataService": {"uri": "zk://a"},
        "storage": {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}},
    }
)
DESIRED = Desired(
    (DesiredStatefulSet("d-bookie", "", 4, "h2", {}),), {}, "", "", "", bookie_id_suffix=".d-bookie.n.svc:3181"
)


def bookie(number: int) -> str:
    return f"d-bookie-{number}.d-bookie.n.svc:3181"


IDS = frozenset(bookie(number) for number in range(4))
FACTS = ClusterFacts("i", IDS, frozenset(), IDS, 0, "a", 1000.0, True, 300, unchecked=frozenset())


def world(**changes: object) -> World:
    pods = tuple(
        PodView(f"d-bookie-{number}", f"u{number}", "d-bookie", number, ready=True, template_hash="h2")
        for number in range(4)
    )
    cluster = ClusterView("d", "n", "u", 7, SPEC, BookieClusterStatus())
    sets = (StatefulSetView("d-bookie", "", "s", "1", 4, 1, 1, "h2", {}),)
    return replace(World(2000.0, cluster, stateful_sets=sets, pods=pods, facts=FACTS), **changes)  # type: ignore[arg-type]


def found(at: World, plan: Plan, operation: Operation | None = None) -> dict[str, conditions.Finding]:
    return {each.type: each for each in conditions.findings(at, DESIRED, plan, operation)}


def operation(kind: OperationType, **changes: object) -> Operation:
    return Operation.model_validate({"id": f"{kind.value}-1", "type": kind, "step": "Step", **changes})


def test_at_rest() -> None:
    told = found(world(), Plan(Rest()))
    assert {name for name, each in told.items() if each.status == "True"} == {
        "Ready",
        "Available",
        "LedgersReplicated",
        "SpecValid",
        "SpareCapacity",
    }


@pytest.mark.parametrize(
    ("kind", "reason", "condition"),
    [
        (OperationType.ROLLOUT, "Upgrading", "Upgrading"),
        (OperationType.DECOMMISSION, "Scaling", "ScalingDown"),
        (OperationType.EXPAND, "Expanding", "VolumesExpanding"),
        (OperationType.REPLACE, "Repairing", "Repairing"),
    ],
)
def test_an_operation_is_told(kind: OperationType, reason: str, condition: str) -> None:
    words = "waits for the scheduler " * 100
    told = found(world(), Plan(Wait("X", "y")), operation(kind, message=words))
    assert (told["Ready"].status, told["Ready"].reason) == ("False", reason)
    assert (told["Reconciling"].status, told["Reconciling"].reason) == ("True", "Step")
    assert (told[condition].status, told[condition].reason) == ("True", "Step")
    assert [name for name, each in told.items() if each.message == words] == ["Reconciling"]
    assert words.startswith(told["Ready"].message[:200])
    assert len(told["Ready"].message) < 300
    assert told["Stalled"].status == "False"


@pytest.mark.parametrize(
    ("kind", "condition"),
    [(OperationType.ROLLOUT, "Upgrading"), (OperationType.DECOMMISSION, "ScalingDown")],
)
def test_why_an_operation_stalls_stands_in_one_of_its_conditions(kind: OperationType, condition: str) -> None:
    stalls = operation(kind, message="a person is needed").model_copy(update={"stalled": True})
    told = found(world(), Plan(Wait("X", "a person is needed", stalled=True)), stalls)
    assert (told[condition].status, told[condition].reason, told[condition].message) == ("True", "Step", "")
    assert told["Stalled"].message == "a person is needed"


def test_what_stalls_beside_is_told_and_the_work_goes_on() -> None:
    blocked = Wait("DecommissionBlocked", "too few bookies", stalled=True)
    told = found(world(), Plan(Act(TriggerAudit(), "why"), (blocked,)))
    assert (told["Stalled"].status, told["Stalled"].reason) == ("True", "DecommissionBlocked")
    assert told["Ready"].reason == "Blocked"
    assert told["Reconciling"].status == "True"
    resting = found(world(), Plan(blocked))
    assert resting["Reconciling"].status == "False"


@pytest.mark.parametrize("reason", ["NotGivenUp", "MoveBlocked"])
def test_no_cluster_is_judged_by_what_a_task_waits_for_in_vain(reason: str) -> None:
    vain = Wait(reason, "it is not as the task asks for it")
    assert found(world(), Plan(vain)) == found(world(), Plan(Rest()))
    other = Wait("GatewayNotReady", "waits for 1 gateway pods")
    assert found(world(), Plan(vain, (other,))) == found(world(), Plan(other))
    assert found(world(), Plan(other, (vain,))) == found(world(), Plan(other))
    assert found(world(), Plan(replace(vain, stalled=True)))["Stalled"].reason == reason  # not of a task


def test_writing_down_how_a_task_stands_changes_nothing_of_the_cluster() -> None:
    writes = Plan(Act(UpdateTask("t", "u", "Failed", "there is no such bookie"), "task t ends"))
    serving = conditions.dated(conditions.findings(world(), DESIRED, Plan(Rest()), None), [], 7, "now")
    at = world(cluster=replace(world().cluster, status=BookieClusterStatus(conditions=serving)))
    assert found(at, writes) == found(world(), Plan(Rest()))
    # What a new generation asks for is not there before the pass has looked at all of it.
    changed = replace(at, cluster=replace(at.cluster, generation=8))
    assert found(changed, writes)["Ready"].status == "False"
    assert found(changed, writes)["Reconciling"].status == "True"


def test_nobody_who_could_tell() -> None:
    told = found(world(facts=None, facts_error="no session"), Plan(Rest()))
    for name in ("Available", "LedgersReplicated"):
        assert (told[name].status, told[name].reason) == ("Unknown", "MetadataUnreachable")
    assert [name for name, each in told.items() if each.message == "no session"] == ["Ready", "Available"]
    assert (told["Ready"].status, told["Ready"].reason) == ("False", "MetadataUnreachable")


def test_without_an_auditor_nobody_knows_whether_copies_are_missing() -> None:
    told = found(world(facts=replace(FACTS, auditor=None)), Plan(Rest()))
    assert (told["LedgersReplicated"].status, told["LedgersReplicated"].reason) == ("Unknown", "NotAudited")
    told = found(world(facts=replace(FACTS, under_replicated=3)), Plan(Rest()))
    assert (told["LedgersReplicated"].status, told["LedgersReplicated"].reason) == ("False", "UnderReplicated")


def test_copies_that_nobody_has_looked_at_yet_may_be_missing() -> None:
    away, new = frozenset({bookie(1)}), replace(FACTS, unchecked=None)
    for facts, status, reason in (
        (replace(FACTS, unchecked=away), "Unknown", "CopiesUnchecked"),
        (replace(FACTS, unchecked=away, autorecovery_enabled=False), "Unknown", "AutoRecoveryDisabled"),
        (new, "Unknown", "CopiesUnchecked"),
        (replace(new, silent_since=1941.0), "Unknown", "CopiesUnchecked"),
        (replace(new, silent_since=1940.0), "True", "AllReplicated"),
    ):
        told = found(world(facts=facts), Plan(Rest()))["LedgersReplicated"]
        assert (told.status, told.reason) == (status, reason)


def test_too_few_writable_bookies() -> None:
    told = found(world(facts=replace(FACTS, writable=frozenset({bookie(0)}))), Plan(Rest()))
    assert (told["Available"].status, told["Available"].reason) == ("False", "BelowEnsemble")


def test_a_deletion_that_waits_for_a_person() -> None:
    deleting = replace(world().cluster, deleting=True)
    told = found(world(cluster=deleting), Plan(Wait("DeletionBlocked", "confirm it", stalled=True)))
    assert (told["DeletionBlocked"].status, told["DeletionBlocked"].message) == ("True", "confirm it")
    assert told["Ready"].reason == "Deleting"


def test_a_wrong_spec() -> None:
    told = found(world(spec_errors=("spec.a: wrong",)), Plan(Wait("InvalidSpec", "x", stalled=True)))
    assert (told["SpecValid"].status, told["SpecValid"].message) == ("False", "spec.a: wrong")
    assert told["Stalled"].reason == "InvalidSpec"


def test_what_this_kubernetes_does_not_offer_is_told_and_holds_nothing_up() -> None:
    asked = replace(DESIRED, missing=("spec.monitoring.podMonitor: there is no Prometheus operator here",))
    told = {each.type: each for each in conditions.findings(world(), asked, Plan(Rest()), None)}
    assert (told["SpecValid"].status, told["SpecValid"].reason) == ("True", "PartlyApplied")
    assert "no Prometheus operator" in told["SpecValid"].message
    assert told["Ready"].status == "True"


def test_times_change_with_the_status_of_a_condition_only() -> None:
    before = [Condition(type="Ready", status="False", reason="A", last_transition_time="2026-01-01T00:00:00Z")]
    same = conditions.dated([conditions.Finding("Ready", "False", "B", "other words")], before, 8, "now")
    assert (same[0].last_transition_time, same[0].reason, same[0].observed_generation) == (
        "2026-01-01T00:00:00Z",
        "B",
        8,
    )
    other = conditions.dated([conditions.Finding("Ready", "True", "B")], before, 8, "now")
    assert other[0].last_transition_time == "now"


def test_the_status_of_an_unchanged_cluster_does_not_change() -> None:
    first = reporting.status_after(world(), DESIRED, Plan(Rest()), BookieClusterStatus(), "zk://a/ledgers")
    later = world(now=9999.0, cluster=replace(world().cluster, status=first))
    assert reporting.status_after(later, DESIRED, Plan(Rest()), first, "zk://a/ledgers") == first
    assert first.observed_generation == 7
    assert first.metadata_service_uri == "zk://a/ledgers"
    assert BookieClusterStatus.model_validate(reporting.body(first)) == first


def test_a_spec_that_cannot_be_read_keeps_what_is_known() -> None:
    known = BookieClusterStatus(instance_id="i", operation=operation(OperationType.ROLLOUT), replicas=3)
    told = reporting.unreadable(known, 9, ("spec.replicas: wrong",), 5.0)
    assert (told.instance_id, told.operation, told.replicas, told.observed_generation) == ("i", known.operation, 3, 9)
    assert reporting.unreadable(told, 9, ("spec.replicas: wrong",), 99.0) == told


@pytest.mark.parametrize(
    ("percent", "before", "after"),
    [(51.0, None, 50), (53.0, 50, 50), (54.9, 50, 50), (55.0, 50, 55), (None, 50, 50), (99.9, None, 100)],
)
def test_a_disk_that_breathes_changes_nothing(percent: float | None, before: int | None, after: int) -> None:
    facts = None if percent is None else BookieFacts(False, 1, 2, percent)
    earlier = [reporting.BookieStatus(name="d-bookie-0", ordinal=0, disk_used_percent=before)]
    told = reporting.bookies(world(bookies={"d-bookie-0": facts}), DESIRED, earlier, None)
    assert told[0].disk_used_percent == after


def test_what_each_bookie_does() -> None:
    pods = list(world().pods)
    pods[1] = replace(pods[1], ready=False, fault=PodFault.COOKIE, fault_message="another cluster's")
    pods[2] = replace(pods[2], ready=False)
    facts = replace(FACTS, writable=frozenset({bookie(0)}), read_only=frozenset({bookie(3)}))
    drains = {bookie(3): DrainFacts(bookie(3), DrainPhase.RUNNING, ledgers_left=8)}
    leaving = operation(OperationType.DECOMMISSION, bookie="d-bookie-3")
    told = reporting.bookies(world(pods=tuple(pods), facts=facts, drains=drains), DESIRED, [], leaving)
    assert [each.state for each in told] == [
        BookieState.WRITABLE,
        BookieState.LOST,
        BookieState.PENDING,
        BookieState.DRAINING,
    ]
    assert told[1].message == "another cluster's"
    assert told[3].ledgers_remaining == 8
    without = reporting.bookies(world(pods=tuple(pods[:2]), facts=facts), DESIRED, [], None)
    assert [each.state for each in without][2:] == [BookieState.STOPPED, BookieState.READ_ONLY]
    unknown = reporting.bookies(world(facts=None), DESIRED, [], None)
    assert {each.state for each in unknown} == {BookieState.UNKNOWN}


def test_since_when_each_bookie_does_what_it_does() -> None:
    (first, *_) = reporting.bookies(world(), DESIRED, [], None)
    assert first.since == "1970-01-01T00:33:20.000000Z"
    later = world(now=9000.0)
    (same, *_) = reporting.bookies(later, DESIRED, [first], None)
    assert same == first
    down = replace(later, facts=replace(FACTS, writable=frozenset()))
    (other, *_) = reporting.bookies(down, DESIRED, [first], None)
    assert (other.state, other.since) == (BookieState.PENDING, "1970-01-01T02:30:00.000000Z")


def test_the_cookie_of_each_bookie() -> None:
    pods = list(world().pods)
    pods[1] = replace(pods[1], ready=False, fault=PodFault.COOKIE)
    pods[2] = replace(pods[2], ready=False)
    here = frozenset({bookie(0), bookie(3)})
    facts = replace(FACTS, writable=here, cookies=IDS - {bookie(3)})
    told = reporting.bookies(world(pods=tuple(pods), facts=facts), DESIRED, [], None)
    assert [each.cookie for each in told] == [CookieState.MATCH, CookieState.MISMATCH, None, CookieState.MISSING]
    unknown = reporting.bookies(world(pods=tuple(pods), facts=None), DESIRED, [], None)
    assert [each.cookie for each in unknown] == [None, CookieState.MISMATCH, None, None]


def test_the_revision_is_told_when_all_pods_have_one() -> None:
    assert reporting.revision(world(), DESIRED) == RevisionStatus(current="h2", update="h2")
    old = tuple(replace(pod, template_hash="h1") for pod in world().pods)
    assert reporting.revision(world(pods=old), DESIRED) == RevisionStatus(current="h1", update="h2")
    assert reporting.revision(world(pods=(*old[:3], world().pods[3])), DESIRED).current == ""
    assert reporting.revision(world(pods=()), DESIRED).current == ""


def test_the_revision_of_several_stateful_sets_is_one_hash() -> None:
    sets = tuple(DesiredStatefulSet(f"d-bookie-{zone}", zone, 1, f"h-{zone}", {}) for zone in "ab")
    pods = tuple(PodView(f"{one.name}-0", "u", one.name, 0, template_hash=one.template_hash) for one in sets)
    desired = replace(DESIRED, stateful_sets=sets)
    told = reporting.revision(world(pods=pods), desired)
    assert told.current == told.update
    assert len(told.update) == 16
    another = (pods[0], replace(pods[1], template_hash="h-c"))
    assert reporting.revision(world(pods=another), desired).current not in ("", told.update)


def test_the_version_is_told_when_all_run_it() -> None:
    before = VersionStatus(current="1", target="1")
    assert reporting.version(world(), DESIRED, before).current == "2"
    old = tuple(replace(pod, template_hash="h1") for pod in world().pods)
    assert reporting.version(world(pods=old), DESIRED, before).current == "1"
    mixed = (*old[:3], world().pods[3])
    assert reporting.version(world(pods=mixed), DESIRED, before).current == ""
    assert reporting.version(world(pods=mixed), DESIRED, VersionStatus(current="2", target="2")).current == "2"


def test_the_smallest_volume_counts_by_its_size_and_not_by_its_name() -> None:
    claims = tuple(
        ClaimView(f"ledger-0-d-bookie-{number}", "u", f"d-bookie-{number}", number, "ledger", "2Gi", actual)
        for number, actual in enumerate(["9Gi", "10Gi", "1Ti"])
    )
    assert reporting.storage(world(claims=claims)).ledger.smallest_actual == "9Gi"
    unbound = (*claims, replace(claims[0], actual=""))
    assert reporting.storage(world(claims=unbound)).ledger.smallest_actual == ""


def test_what_is_advised_about_memory_helps() -> None:
    nothing = SPEC.model_dump(by_alias=True) | {"pod": {"resources": {}}}
    bare = replace(world().cluster, spec=BookieClusterSpec.model_validate(nothing))
    before = found(world(cluster=bare), Plan(Rest()))["SpecValid"]
    assert found(world(), Plan(Rest()))["SpecValid"].reason == "Valid", "some is asked for by default"
    assert (before.reason, "give requests of memory where data count" in before.message) == ("NothingReserved", True)
    asked = SPEC.model_dump(by_alias=True) | {"pod": {"resources": {"requests": {"memory": "4Gi"}}}}
    better = replace(world().cluster, spec=BookieClusterSpec.model_validate(asked))
    assert found(world(cluster=better), Plan(Rest()))["SpecValid"].reason == "Valid"


def claim(volume: str, number: int, requested: str) -> ClaimView:
    bookie_of = f"d-bookie-{number}"
    return ClaimView(f"{volume}-0-{bookie_of}", f"{volume}{number}", bookie_of, number, volume, requested, requested)


def test_a_size_that_does_nothing_is_told_once_for_each_kind() -> None:
    grown = tuple(claim("ledger", number, "3Gi") for number in range(2))
    at = world(claims=(claim("journal", 0, "1Gi"), *grown, claim("ledger", 2, "2048Mi")))
    told = found(at, Plan(Rest()))["SpecValid"]
    assert (told.status, told.reason) == ("True", "PartlyApplied")
    assert told.message.count("spec.storage.") == 1
    assert "ledger-0-d-bookie-0 keeps its 3Gi" in told.message
    assert found(at, Plan(Rest()))["Ready"].status == "True"


def test_bookies_that_share_a_file_system_are_named_also_while_one_does_not_answer() -> None:
    def one(*file_systems: str) -> BookieFacts:
        return BookieFacts(False, 1, 2, 50.0, file_systems=frozenset(file_systems))

    found = world(bookies={"a": one("n/1", "n/2"), "b": one("n/2"), "c": one("m/1"), "d": one()})
    told = reporting.storage(
        replace(found, bookies={name: each for name, each in found.bookies.items() if name != "d"})
    )
    assert told.shared_by == ["a", "b"]
    known = found.cluster.status.model_copy(update={"storage": told})
    silent = replace(found, bookies={**found.bookies, "b": None}, cluster=replace(found.cluster, status=known))
    assert reporting.storage(silent).shared_by == ["a", "b"]
    apart = replace(silent, bookies={"a": one("n/1"), "b": one("n/2")})
    assert reporting.storage(apart).shared_by == []
