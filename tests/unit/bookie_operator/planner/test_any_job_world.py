"""Whatever there is of a BookieJob: what its planner never does."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bookie_operator.crds.job_spec import HISTORY, ActiveRun, BookieJobStatus, Run, RunOutcome
from bookie_operator.planner.operations import written
from bookie_operator.world.model import JobWorld, RunState
from tests.support.job_worlds import NOW, after, applied, planned, run, world
from tests.support.operator_clusters import cluster
from tests.support.operator_jobs import ONCE, SCHEDULED, job

_NAMES = st.integers(0, 40).map(lambda number: f"weekly-job-{number}")
_RUNS = st.lists(
    st.builds(
        lambda name, state, age, suspended: run(
            name,
            state,
            suspended=suspended and state is RunState.RUNNING,
            finished_at=None if state is RunState.RUNNING else NOW - age,
        ),
        _NAMES,
        st.sampled_from(RunState),
        st.integers(0, 200_000).map(float),
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda each: each.name,
)


@st.composite
def worlds(draw: st.DrawFn) -> JobWorld:
    spec = {**draw(st.sampled_from([ONCE, SCHEDULED])), "suspend": draw(st.booleans())}
    past = draw(st.lists(_NAMES, max_size=HISTORY, unique=True))
    history = [
        Run(
            job=name,
            uid=f"uid-of-{name}",
            finished_at=written(NOW - 100_000 + place),
            outcome=draw(st.sampled_from(RunOutcome)),
        )
        for place, name in enumerate(past)
    ]
    going = [ActiveRun(job=name, uid=f"uid-of-{name}") for name in draw(st.lists(_NAMES, max_size=3, unique=True))]
    status = BookieJobStatus(history=history, active=[each for each in going if each.job not in past])
    there = applied(job(spec))
    objects = {key: there[key] for key in draw(st.sets(st.sampled_from(sorted(there))))}
    if draw(st.booleans()):
        objects = {key: replace(view, owner_uid="another") for key, view in objects.items()}
    of = draw(st.sampled_from([None, cluster(), cluster(instance_id=""), replace(cluster(), deleting=True)]))
    without = "there is none" if of is None else ""
    return world(spec, status=status, runs=draw(_RUNS), objects=objects, of=of, without_cluster=without)


@given(worlds())
def test_what_is_planned(given: JobWorld) -> None:
    plan, status = planned(given), given.job.status
    recorded = {each.uid for each in status.history}
    for removal in plan.removals:
        assert removal.key.startswith(("Job/", "Service/", "NetworkPolicy/"))
        if removal.key.startswith("Job/"):
            assert removal.uid in recorded, "its outcome is written"
    if any(key.startswith("Job/") for key in plan.apply):
        assert not given.job.spec.suspend
        assert not given.runs
        assert not status.history
        assert not status.active
    if plan.apply:
        assert plan.blocker is None
        assert given.cluster is not None
        assert not given.cluster.deleting
        assert all(each.owner_uid == given.job.uid for each in given.objects.values())
        assert plan.apply[-1].split("/")[0] in ("Job", "CronJob", "ConfigMap", "NetworkPolicy")
        runners = [key for key in plan.apply if key.startswith(("Job/", "CronJob/"))]
        assert runners in ([], list(plan.apply[-1:])), "the run comes last"
    if plan.suspension is not None and plan.suspension.key.startswith("CronJob/"):
        assert given.objects[plan.suspension.key].owner_uid == given.job.uid
    assert plan.seconds > 0
    assert len({each.uid for each in plan.ended} | recorded) == len(plan.ended) + len(recorded), "counted once"


@given(worlds())
def test_the_status_settles(given: JobWorld) -> None:
    """A pass over an unchanged world writes nothing, and the status fits its own definition."""
    first = after(given)
    again = replace(given, job=replace(given.job, status=first))
    assert BookieJobStatus.model_validate(first.model_dump(mode="json", by_alias=True, exclude_none=True)) == first
    assert len(first.history) <= HISTORY
    assert planned(again).ended == ()
    assert planned(again).events == ()
    assert after(again) == first
