"""What restarts bookies, and what must not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bookie_operator.builders.build import build
from bookie_operator.builders.context import CERT_MANAGER, PROMETHEUS_OPERATOR, BuildContext
from bookie_operator.builders.inputs import inputs_hash, recorded
from bookie_operator.crds.cluster_spec import BookieClusterSpec, Pod
from tests.support.operator_clusters import MINIMAL, cluster


def template_hash(context: BuildContext | None = None, **changes: Any) -> str:
    (only,) = build(cluster({**MINIMAL, **changes}), context or BuildContext()).sets
    return only.template_hash


def inputs(**changes: Any) -> str:
    (only,) = build(cluster({**MINIMAL, **changes}), BuildContext()).sets
    return only.inputs_hash


STORAGE = MINIMAL["storage"]
BASE = template_hash()
INPUTS = inputs()


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": 9},
        {"durability": {"ensembleSize": 2, "writeQuorum": 2, "ackQuorum": 1}},
        {"storage": {**STORAGE, "journal": {"size": "99Gi"}}},
        {"storage": {**STORAGE, "ledger": {"size": "9Ti", "labels": {"a": "b"}, "annotations": {"c": "d"}}}},
        {"storage": {**STORAGE, "ledger": {"size": "500Gi", "volumeAttributesClassName": "gold"}}},
        {"storage": {**STORAGE, "retention": {"whenScaled": "Retain"}}},
        {"disruption": {"wholeZone": False}},
        {"autorecovery": {"maxConcurrentLedgers": 4}},
        {"logging": {}},
        {"pod": {"topologySpreadConstraints": [], "initContainers": []}},
        {"autorecovery": {"replicas": 5, "lostBookieRecoveryDelaySeconds": 1, "resources": {"limits": {"cpu": 1}}}},
        {"gateway": {"enabled": True, "replicas": 5, "resources": {"limits": {"cpu": 1}}}},
        {"backup": {"schedule": "@daily", "keep": 3}},
        {"update": {"canary": 0, "soakSeconds": 0}},
        {"disruption": {"maxUnavailable": 2}},
        {"networkPolicy": {"clients": [{"podSelector": {}}]}},
        {"monitoring": {"podMonitor": {"enabled": True, "labels": {"a": "b"}}}},
        {"monitoring": {"prometheusRule": {"enabled": True, "disabled": ["PodkeeperNoAuditor"]}}},
        {"config": {"gcWaitTime": "120000", "compactionRate": "7", "majorCompactionThreshold": "0.6"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_no_bookie_is_restarted_for(changes: dict[str, Any]) -> None:
    assert template_hash(**changes) == BASE
    assert inputs(**changes) == INPUTS


@pytest.mark.parametrize(
    "context",
    [
        BuildContext(api_groups=frozenset({CERT_MANAGER, PROMETHEUS_OPERATOR})),
        BuildContext(operator_namespace="elsewhere"),
    ],
    ids=["more kinds of objects", "an operator elsewhere"],
)
def test_what_the_operator_finds_restarts_nobody(context: BuildContext) -> None:
    assert template_hash(context) == BASE


def test_neither_the_resources_identity_nor_its_generation_is_in_the_template() -> None:
    one, other = (
        build(cluster(uid=uid, instance_id=instance_id), BuildContext()).sets[0].template_hash
        for uid, instance_id in (("a", ""), ("b", "c"))
    )
    assert one == other == BASE


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "9.9.9"},
        {"image": "elsewhere/podkeeper:1"},
        {"config": {"journalMaxGroupWaitMSec": "5"}},
        {"metadataService": {"uri": "zk://other:2181"}},
        {"storage": {**STORAGE, "index": {"size": "1Gi"}}},
        {"placement": {"zones": [{"name": "a"}]}},
        {"tls": {"enabled": True, "secretName": "x"}},
        {"pod": {"resources": {"limits": {"memory": "4Gi"}}}},
        {"pod": {"resources": {"limits": {"cpu": "4"}}}},
        {"pod": {"env": [{"name": "A", "value": "b"}]}},
        {"pod": {"labels": {"a": "b"}}},
        {"pod": {"annotations": {"a": "b"}}},
        {"pod": {"terminationGracePeriodSeconds": 30}},
        {"pod": {"livenessProbe": {"periodSeconds": 30}}},
        {"pod": {"tolerations": [{"operator": "Exists"}]}},
        {"pod": {"sidecars": [{"name": "s", "image": "s"}]}},
        {"pod": {"initContainers": [{"name": "s", "image": "s"}]}},
        {
            "pod": {
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "r", "whenUnsatisfiable": "DoNotSchedule"}]
            }
        },
        {"logging": {"level": "debug"}},
        {"logging": {"format": "console"}},
    ],
    ids=str,
)
def test_bookies_are_restarted_for(changes: dict[str, Any]) -> None:
    assert template_hash(**changes) != BASE
    assert inputs(**changes) != INPUTS


def test_bookies_are_restarted_when_somebody_asks_for_it() -> None:
    def asked(when: str) -> str:
        found = build(cluster(annotations={"podkeeper.dev/restart": when}), BuildContext())
        assert found.sets[0].manifest["spec"]["template"]["metadata"]["annotations"]["podkeeper.dev/restart"] == when
        return f"{found.sets[0].template_hash} {found.sets[0].inputs_hash}"

    asks = [asked("2026-01-01T00:00:00Z"), asked("2026-01-02T00:00:00Z")]
    for place, none in enumerate((BASE, INPUTS)):
        assert len({none, *(each.split()[place] for each in asks)}) == 3


def test_the_hash_stands_on_the_pods_and_on_the_stateful_set() -> None:
    (only,) = build(cluster(), BuildContext()).sets
    manifest = only.manifest
    assert manifest["metadata"]["annotations"]["podkeeper.dev/template-hash"] == only.template_hash == BASE
    assert manifest["spec"]["template"]["metadata"]["annotations"]["podkeeper.dev/template-hash"] == BASE


def test_what_it_was_made_for_stands_on_the_stateful_set_and_not_on_the_pods() -> None:
    (only,) = build(cluster(), BuildContext()).sets
    annotations = only.manifest["metadata"]["annotations"]
    assert recorded(annotations) == only.inputs_hash == INPUTS
    assert "podkeeper.dev/template-inputs" not in only.manifest["spec"]["template"]["metadata"]["annotations"]


def test_what_it_was_made_for_counts_for_this_template_alone() -> None:
    """A release that knows nothing of the record may have staged another one since."""
    (only,) = build(cluster(), BuildContext()).sets
    annotations = only.manifest["metadata"]["annotations"]
    assert recorded({**annotations, "podkeeper.dev/template-hash": "another"}) == ""
    assert recorded({"podkeeper.dev/template-hash": BASE}) == ""
    assert recorded({"podkeeper.dev/template-inputs": "/" + INPUTS}) == ""


def test_another_image_repository_is_the_operators_and_no_input() -> None:
    (only,) = build(cluster(), BuildContext("elsewhere/podkeeper")).sets
    assert only.template_hash != BASE
    assert only.inputs_hash == INPUTS


class LaterPod(Pod):
    later: str = "as before"


class LaterSpec(BookieClusterSpec):
    """Of a release with more fields."""

    pod: LaterPod = LaterPod()
    later: str = "as before"


def test_a_field_that_a_release_adds_is_another_input_only_when_it_is_used() -> None:
    """The API server writes its default into every resource."""

    def of(**changes: Any) -> str:
        later = LaterSpec.model_validate({**MINIMAL, "later": "as before", "pod": {"later": "as before"}, **changes})
        return inputs_hash(replace(cluster(), spec=later))

    assert of() == INPUTS
    assert len({INPUTS, of(later="used"), of(pod={"later": "used"})}) == 3


def test_a_template_hash_in_the_users_annotations_counts_for_nothing() -> None:
    assert template_hash(pod={"annotations": {"podkeeper.dev/template-hash": "x"}}) == BASE
