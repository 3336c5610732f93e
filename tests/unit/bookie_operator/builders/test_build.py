"""All objects of a cluster together: owners, labels, hashes, and what the planner is told of them."""

from __future__ import annotations

import base64
import copy
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from bookie_operator.builders.build import build
from bookie_operator.builders.common import content_hash, object_hash, stamped
from bookie_operator.builders.context import CERT_MANAGER, PROMETHEUS_OPERATOR, VOLUME_ATTRIBUTES, BuildContext
from bookie_operator.builders.desired_objects import DesiredObjects
from bookie_operator.builders.identity import recorded_bookies, recorded_spec
from bookie_operator.crds import names
from bookie_operator.planner.desired import Evictions
from tests.support.chart_files import CLUSTER
from tests.support.operator_clusters import CASES, INSTANCE_ID, MINIMAL, built, cluster

RULES = frozenset({PROMETHEUS_OPERATOR, f"{PROMETHEUS_OPERATOR}/PrometheusRule"})
THREE_ZONES = {"zones": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}


def every_selector(value: Any) -> list[dict[str, str]]:
    """Each `matchLabels`, and each Service's selector."""
    found: list[dict[str, str]] = []
    if isinstance(value, dict):
        if value.get("kind") == "Service":
            found.append(value["spec"]["selector"])
        for key, inner in value.items():
            found += [inner] if key == "matchLabels" else every_selector(inner)
    elif isinstance(value, list):
        for inner in value:
            found += every_selector(inner)
    return found


@pytest.mark.parametrize("case", CASES)
def test_all_but_claims_and_the_identity_go_with_the_cluster(case: str) -> None:
    view, _ = CASES[case]
    objects = built(case)
    for key, manifest in {**objects.objects, "Job/destroy": objects.destroy_job}.items():
        owners = [owner["uid"] for owner in manifest["metadata"].get("ownerReferences", ())]
        outlives = key in (f"Secret/{view.name}-identity", f"PersistentVolumeClaim/{view.name}-backup")
        assert owners == ([] if outlives else [view.uid])
        for claim in manifest.get("spec", {}).get("volumeClaimTemplates", ()):
            assert "ownerReferences" not in claim["metadata"]


@pytest.mark.parametrize("case", CASES)
def test_selectors_hold_names_and_nothing_that_changes(case: str) -> None:
    view, _ = CASES[case]
    allowed = {
        "app.kubernetes.io/name": {"podkeeper", "podkeeper-operator"},
        "app.kubernetes.io/instance": {view.name},
        "app.kubernetes.io/component": {"bookie", "autorecovery", "gateway", "metadata"},
        "kubernetes.io/metadata.name": {"operators"},
        "podkeeper.dev/zone": {zone.name for zone in view.spec.placement.zones},
    }
    given = json.dumps(view.spec.model_dump(mode="json", by_alias=True))
    own = [each for each in every_selector(list(built(case).objects.values())) if json.dumps(each) not in given]
    assert own
    for selector in own:
        assert {key for key, text in selector.items() if text not in allowed.get(key, ())} == set()


@pytest.mark.parametrize("case", CASES)
def test_each_workload_selects_its_own_pods_and_no_others(case: str) -> None:
    workloads = [each for each in built(case).objects.values() if each["kind"] in ("StatefulSet", "Deployment")]
    for one in workloads:
        chosen = one["spec"]["selector"]["matchLabels"].items()
        hits = [
            other["metadata"]["name"]
            for other in workloads
            if chosen <= other["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert hits == [one["metadata"]["name"]]


@pytest.mark.parametrize("case", CASES)
def test_the_planner_is_told_of_every_object_with_its_hash(case: str) -> None:
    objects, desired = built(case), built(case).desired()
    told = {*desired.support, *desired.monitoring, *desired.deployments, desired.metadata_job, desired.budget}
    told = (told | {desired.backup, desired.backup_claim}) - {""}
    assert told | {f"StatefulSet/{each.name}" for each in desired.stateful_sets} == set(objects.objects)
    backup = {desired.backup: desired.backup_hash} if desired.backup else {}
    for key, digest in {**desired.support, **desired.deployments, **desired.monitoring, **backup}.items():
        manifest = objects.objects[key]
        assert object_hash(manifest) == digest == object_hash(stamped(manifest))


def test_the_hash_is_that_of_the_content() -> None:
    service = built("minimal").objects["Service/demo-client"]
    changed = copy.deepcopy(service)
    changed["spec"]["ports"][0]["port"] = 1
    assert object_hash(stamped(changed)) != object_hash(service)
    assert content_hash({"a": 1, "b": [2]}) == content_hash({"b": [2], "a": 1}) != content_hash({"a": 1, "b": [3]})
    with pytest.raises(ValueError, match="JSON"):
        content_hash(float("nan"))


def test_the_same_cluster_makes_the_same_objects() -> None:
    view, context = CASES["everything"]
    assert build(view, context) == build(view, context)


@pytest.mark.parametrize(
    ("zones", "replicas", "expected"),
    [
        ([], 3, [("", 3)]),
        ([{"name": "a"}], 3, [("", 3)]),
        ([{"name": "a"}, {"name": "b"}, {"name": "c"}], 7, [("a", 3), ("b", 2), ("c", 2)]),
        ([{"name": "a"}, {"name": "b"}, {"name": "c"}], 1, [("a", 1), ("b", 0), ("c", 0)]),
        ([{"name": "a", "replicas": 1}, {"name": "b", "replicas": 4}], 5, [("a", 1), ("b", 4)]),
        ([{"name": "a", "replicas": 1}, {"name": "b"}, {"name": "c"}], 4, [("a", 1), ("b", 2), ("c", 1)]),
    ],
)
def test_bookies_are_spread_over_zones(zones: list[Any], replicas: int, expected: list[Any]) -> None:
    desired = build(cluster({**MINIMAL, "placement": {"zones": zones}, "replicas": replicas}), BuildContext()).desired()
    assert [(each.zone, each.replicas) for each in desired.stateful_sets] == expected
    assert len(desired.bookie_ids) == replicas
    assert len({each.template_hash for each in desired.stateful_sets}) == len(expected)


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({}, {"a": 2, "b": 1, "c": 1}),
        ({"demo-bookie-a": 1, "demo-bookie-b": 1, "demo-bookie-c": 2}, {"a": 1, "b": 1, "c": 2}),
    ],
)
def test_the_order_of_zones_moves_no_bookie(recorded: dict[str, int], expected: dict[str, int]) -> None:
    for order in itertools.permutations("abc"):
        zones = {"zones": [{"name": name} for name in order]}
        view = cluster({**MINIMAL, "placement": zones, "replicas": 4}, recorded=recorded)
        found = {each.zone: each.replicas for each in build(view, BuildContext()).sets}
        assert found == expected, order


def test_the_budget_is_there_for_each_number_of_evictions() -> None:
    objects = build(cluster({**MINIMAL, "disruption": {"maxUnavailable": 2}}), BuildContext())
    desired = objects.desired()
    wanted = {Evictions(0): 0, Evictions(2): 2}
    assert {key: each["spec"]["maxUnavailable"] for key, each in objects.budgets.items()} == wanted
    assert len(set(desired.budget_hashes.values())) == 2
    assert objects.objects[desired.budget]["spec"]["maxUnavailable"] == 2


def test_there_is_a_budget_that_lets_one_zone_go_and_keeps_the_others() -> None:
    zones = {"zones": [{"name": "a"}, {"name": "b"}]}
    objects = build(cluster({**MINIMAL, "placement": zones}), BuildContext())
    spec = objects.budgets[Evictions(0, "b")]["spec"]
    assert spec["maxUnavailable"] == 0
    assert spec["selector"]["matchExpressions"] == [{"key": names.ZONE, "operator": "NotIn", "values": ["b"]}]
    assert objects.objects[objects.desired().budget]["spec"]["maxUnavailable"] == 1
    for kept in ({"placement": zones, "disruption": {"wholeZone": False}}, {"placement": {"zones": [{"name": "a"}]}}):
        budgets = build(cluster({**MINIMAL, **kept}), BuildContext()).budgets
        assert budgets.keys() == {Evictions(0), Evictions(1)}


def alerts(**wanted: Any) -> dict[str, dict[str, Any]]:
    monitoring = {"prometheusRule": {"enabled": True, "labels": {"prometheus": "main"}, **wanted}}
    spec = {**MINIMAL, "replicas": 5, "durability": {"ensembleSize": 5}, "monitoring": monitoring}
    (rule,) = build(cluster(spec), BuildContext(api_groups=RULES)).monitoring
    assert (rule["kind"], rule["metadata"]["labels"]["prometheus"]) == ("PrometheusRule", "main")
    (group,) = rule["spec"]["groups"]
    assert group["name"] == "podkeeper.storage.demo"
    return {each["alert"]: each for each in group["rules"]}


def test_alerts_are_those_of_the_chart_for_this_cluster() -> None:
    files = sorted((CLUSTER / "alerts").glob("*.yaml"))
    names = {
        "__NAMESPACE__": "storage",
        "__CLUSTER__": "demo",
        "__ENSEMBLE_SIZE__": "5",
        "__RUNBOOKS__": "https://podkeeper.github.io/podkeeper/latest/runbooks",
    }
    assert len(files) > 20
    wanted = {}
    for path in files:
        text = path.read_text(encoding="utf-8")
        for placeholder, name in names.items():
            text = text.replace(placeholder, name)
        wanted[path.stem] = yaml.safe_load(text)
    assert alerts() == wanted


def test_alerts_as_spec_wants_them() -> None:
    found = alerts(
        disabled=["PodkeeperNoAuditor"], alertLabels={"team": "storage"}, runbookUrl="https://runbooks.example/books/"
    )
    assert found.keys() == alerts().keys() - {"PodkeeperNoAuditor"}
    down = found["PodkeeperBookieDown"]
    assert down["labels"] == {"severity": "warning", "team": "storage"}
    assert down["annotations"]["runbook_url"] == "https://runbooks.example/books/PodkeeperBookieDown/"


def test_alerts_that_cannot_be_made_are_told() -> None:
    def missing(groups: frozenset[str], **wanted: Any) -> tuple[str, ...]:
        view = cluster({**MINIMAL, "monitoring": {"prometheusRule": {"enabled": True, **wanted}}})
        objects = build(view, BuildContext(api_groups=groups))
        assert bool(objects.monitoring) == (groups == RULES)
        return objects.missing

    assert missing(RULES) == ()
    (told,) = missing(frozenset({PROMETHEUS_OPERATOR}))
    assert told.startswith("spec.monitoring.prometheusRule: there is no such definition here")
    (told,) = missing(RULES, disabled=["Nothing", "PodkeeperNoAuditor"])
    assert told == "spec.monitoring.prometheusRule.disabled: there is no alert Nothing; docs/runbooks lists them"


def test_kinds_that_this_kubernetes_does_not_know_are_left_out() -> None:
    view, _ = CASES["everything"]
    with_all = build(view, BuildContext(api_groups=frozenset({CERT_MANAGER, PROMETHEUS_OPERATOR}))).objects
    without = build(view, BuildContext()).objects
    assert {key.partition("/")[0] for key in with_all.keys() - without.keys()} == {"Certificate", "PodMonitor"}


def test_claim_templates_name_a_class_where_kubernetes_keeps_it() -> None:
    view, context = CASES["everything"]

    def named(found: DesiredObjects) -> list[str | None]:
        templates = found.sets[0].manifest["spec"]["volumeClaimTemplates"]
        return [each["spec"].get("volumeAttributesClassName") for each in templates]

    with_classes, without = build(view, context), build(view, BuildContext())
    assert named(with_classes) == [None, "more-iops"]
    assert with_classes.desired().stateful_sets[0].volume_attributes == {"ledger": "more-iops"}
    assert named(without) == [None, None]
    assert without.desired().stateful_sets[0].volume_attributes is None


ISSUER = {"issuerRef": {"name": "ca"}}


@pytest.mark.parametrize(
    ("spec", "told", "without"),
    [
        (
            {"tls": {"enabled": True, **ISSUER}},
            "spec.tls.issuerRef: there is no cert-manager here; install it, or give spec.tls.secretName",
            {"tls": {"enabled": True, "secretName": "mine"}},
        ),
        (
            {"tls": {"adminApi": ISSUER}},
            "spec.tls.adminApi.issuerRef: there is no cert-manager here; install it, or leave this out",
            {},
        ),
        (
            {"monitoring": {"podMonitor": {"enabled": True}}},
            "spec.monitoring.podMonitor: there is no Prometheus operator here; install it, or disable this",
            {"monitoring": {"podMonitor": {"enabled": False}}},
        ),
        (
            {"monitoring": {"prometheusRule": {"enabled": True}}},
            "spec.monitoring.prometheusRule: there is no such definition here; install it, or disable this",
            {"monitoring": {"prometheusRule": {"enabled": False}}},
        ),
        (
            {"storage": {"journal": {"size": "1Gi"}, "ledger": {"size": "1Gi", "volumeAttributesClassName": "gold"}}},
            "spec.storage.ledger.volumeAttributesClassName: this Kubernetes has no VolumeAttributesClass; upgrade to"
            " 1.34, or remove this",
            {},
        ),
    ],
)
def test_what_this_kubernetes_lacks_is_told_with_a_remedy_that_helps(
    spec: dict[str, Any], told: str, without: dict[str, Any]
) -> None:
    all_there = BuildContext(api_groups=RULES | {CERT_MANAGER, PROMETHEUS_OPERATOR, VOLUME_ATTRIBUTES})
    view = cluster({**MINIMAL, **spec})
    assert build(view, BuildContext()).desired().missing == (told,)
    assert build(view, all_there).desired().missing == ()
    assert build(cluster({**MINIMAL, **without}), BuildContext()).desired().missing == ()


def test_all_that_lacks_is_told() -> None:
    view, context = CASES["everything"]
    assert len(build(view, BuildContext()).desired().missing) == 3
    assert build(view, context).desired().missing == ()
    assert built("bare").desired().missing == ()


def test_the_identity_is_written_when_the_cluster_has_one() -> None:
    before = build(cluster(instance_id=""), BuildContext())
    assert "Secret/demo-identity" not in before.desired().support
    secret = build(cluster(recorded={"demo-bookie": 5}), BuildContext()).objects["Secret/demo-identity"]
    content = {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}
    assert (content["instanceId"], content["replicas"]) == (INSTANCE_ID, "5")
    assert content["metadataServiceUri"] == "zk+hierarchical://zk-0.zk:2181;zk-1.zk:2181/ledgers"
    bookies = json.loads(content["bookies"])
    assert len(bookies) == 5
    assert bookies["demo-bookie-4"] == {
        "bookieId": "demo-bookie-4.demo-bookie.storage.svc:3181",
        "claims": ["journal-0-demo-bookie-4", "ledger-0-demo-bookie-4"],
    }
    spec = json.loads(content["spec"])
    assert spec == {**MINIMAL}


@pytest.mark.parametrize(
    ("volumes", "length", "kept"), [(1, 40, {"bookieId", "claims"}), (16, 40, {"bookieId"}), (16, 4, {"bookieId"})]
)
def test_a_secret_takes_the_identity_of_the_largest_cluster(volumes: int, length: int, kept: set[str]) -> None:
    """1,000 bookies, of which each may have 16 ledger volumes: the API server takes 1 MiB."""
    name = "n" * length
    storage = {**MINIMAL["storage"], "ledger": {**MINIMAL["storage"]["ledger"], "volumes": volumes}}
    view = cluster(
        {**MINIMAL, "replicas": 1000, "storage": storage},
        recorded={f"{name}-bookie": 1000},
        name=name,
    )
    secret = build(replace(view, namespace="s" * 63), BuildContext()).objects[f"Secret/{name}-identity"]
    content = {key: base64.b64decode(text) for key, text in secret["data"].items()}
    assert sum(map(len, content.values())) < 700_000
    bookies = json.loads(content["bookies"])
    assert (len(bookies), set(bookies[f"{name}-bookie-999"])) == (1000, kept)
    assert recorded_bookies({"bookies": content["bookies"].decode()}) == set(bookies)


@pytest.mark.parametrize("text", ["", "{", "[]", "1" * 5000, "[" * 100_000])
def test_an_identity_that_nobody_can_read_tells_nothing(text: str) -> None:
    """Whoever may write Secrets of the namespace stops no pass."""
    assert recorded_bookies({"bookies": text}) == frozenset()
    assert recorded_spec({"spec": text}) is None


def test_claims_say_whose_data_they_hold_once_that_is_known() -> None:
    def labels(instance_id: str) -> list[dict[str, str]]:
        (only,) = build(cluster(instance_id=instance_id), BuildContext()).sets
        return [claim["metadata"]["labels"] for claim in only.manifest["spec"]["volumeClaimTemplates"]]

    assert [each["podkeeper.dev/volume"] for each in labels(INSTANCE_ID)] == ["journal", "ledger"]
    assert {each["podkeeper.dev/instance-id"] for each in labels(INSTANCE_ID)} == {INSTANCE_ID}
    assert [each for each in labels("") if "podkeeper.dev/instance-id" in each] == []


def test_an_update_keeps_the_claim_templates_that_there_are() -> None:
    objects = build(cluster({**MINIMAL, "placement": THREE_ZONES}), BuildContext())
    live = {
        "spec": {"volumeClaimTemplates": [{"metadata": {"name": "journal-0"}, "spec": {"volumeMode": "Filesystem"}}]}
    }
    made, updated = objects.stateful_set("demo-bookie-b", 4), objects.stateful_set("demo-bookie-b", 4, live)
    assert made["spec"]["replicas"] == updated["spec"]["replicas"] == 4
    assert updated["spec"]["volumeClaimTemplates"] == live["spec"]["volumeClaimTemplates"]
    assert made["spec"]["template"] == updated["spec"]["template"]
    assert [claim["metadata"]["name"] for claim in made["spec"]["volumeClaimTemplates"]] == ["journal-0", "ledger-0"]
    with pytest.raises(KeyError):
        objects.stateful_set("demo-bookie", 4)


def test_no_claim_goes_with_its_stateful_set() -> None:
    for case in CASES:
        for manifest in built(case).objects.values():
            if manifest["kind"] == "StatefulSet":
                policy = manifest["spec"]["persistentVolumeClaimRetentionPolicy"]
                assert policy == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_pods_change_when_somebody_deletes_them_and_start_at_once() -> None:
    for each in built("zones").sets:
        spec = each.manifest["spec"]
        assert (spec["updateStrategy"], spec["podManagementPolicy"]) == ({"type": "OnDelete"}, "Parallel")
