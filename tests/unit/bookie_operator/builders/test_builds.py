"""Objects of a cluster are made anew only when something has changed of which they are made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookie_operator.builders.build import Builds, build
from bookie_operator.builders.context import BuildContext
from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import Condition, Operation, OperationType
from bookie_operator.world.model import ClusterView
from tests.support.operator_clusters import CASES, MINIMAL, cluster

BUSY = {
    "conditions": [Condition(type="Ready", status="False", reason="Upgrading")],
    "operation": Operation(id="Rollout-1", type=OperationType.ROLLOUT, step="Stop"),
    "replicas": 2,
    "observed_generation": 7,
}


def told(view: ClusterView, **changes: Any) -> ClusterView:
    return replace(view, status=view.status.model_copy(update=changes))


@pytest.mark.parametrize("case", CASES)
def test_what_a_pass_tells_makes_no_other_objects(case: str) -> None:
    view, context = CASES[case]
    builds = Builds()
    made = builds.of(view, context)
    assert made == build(view, context)
    busy = replace(told(view, **BUSY), generation=8, deleting=True, created_at=7.0)
    assert builds.of(busy, context) is made
    assert build(busy, context) == made


@pytest.mark.parametrize(
    "change",
    [
        lambda view: cluster({**MINIMAL, "replicas": 5}),
        lambda view: told(view, instance_id="another"),
        lambda view: told(view, recorded_replicas={"demo-bookie": 7}),
        lambda view: told(view, metadata_service_uri="zk://elsewhere/ledgers"),
        lambda view: replace(view, annotations={names.RESTART: "now"}),
    ],
)
def test_what_objects_are_made_of_makes_others(change: Any) -> None:
    view, context = cluster(MINIMAL), BuildContext()
    builds = Builds()
    made = builds.of(view, context)
    changed = change(view)
    assert builds.of(changed, context) == build(changed, context) != made


def test_another_context_and_the_end_of_a_cluster_count() -> None:
    view, builds = cluster(MINIMAL), Builds()
    made = builds.of(view, BuildContext())
    assert builds.of(view, BuildContext(image_repository="mirror/podkeeper")) != made
    builds.forget("storage", "other")
    again = builds.of(view, BuildContext())
    assert builds.of(view, BuildContext()) is again
    builds.forget("storage", "demo")
    assert builds.of(view, BuildContext()) is not again
