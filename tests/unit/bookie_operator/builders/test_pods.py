"""Every pod of a cluster: security, probes, what it mounts and where it runs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from bookie_operator.builders.build import build
from bookie_operator.builders.context import BuildContext
from tests.support.operator_clusters import CASES, FULL, MINIMAL, Spec, built, cluster
from tests.support.pod_security import violations

WITH_ZONES: Spec = {**MINIMAL, "placement": {"zones": [{"name": "a"}, {"name": "b"}]}}


def templates(case: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    objects = built(case)
    for key, manifest in {**objects.objects, "Job/destroy": objects.destroy_job}.items():
        spec = manifest.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield key, spec["template"]


def bookie_pod(spec: Spec, **others: Any) -> dict[str, Any]:
    found: dict[str, Any] = build(cluster(spec, **others), BuildContext()).sets[0].manifest["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_pod_is_admitted_where_only_restricted_ones_are(case: str) -> None:
    found = {key: violations(template["spec"]) for key, template in templates(case)}
    assert len(found) >= 3
    assert {key: problems for key, problems in found.items() if problems} == {}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["securityContext", "runAsNonRoot"], False),
        (["securityContext", "seccompProfile"], None),
        (["containers", 0, "securityContext", "allowPrivilegeEscalation"], True),
        (["containers", 0, "securityContext", "capabilities"], {"drop": ["NET_RAW"]}),
        (["containers", 0, "securityContext"], None),
        (["hostNetwork"], True),
        (["volumes", 0], {"name": "host", "hostPath": {"path": "/"}}),
    ],
)
def test_the_check_of_pod_security_sees_what_is_not_restricted(path: list[Any], value: Any) -> None:
    spec = copy.deepcopy(bookie_pod(MINIMAL))
    place: Any = spec
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    assert violations(spec) != []


@pytest.mark.parametrize("case", CASES)
def test_no_pod_has_a_token_of_kubernetes_or_a_writable_root(case: str) -> None:
    for _, template in templates(case):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        own = [each for each in spec["containers"] if each["name"] in ("bookie", "etcd")]
        assert [each["securityContext"]["readOnlyRootFilesystem"] for each in own] == [True]
        assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize("case", CASES)
def test_whatever_is_mounted_is_there(case: str) -> None:
    objects = built(case)
    for manifest in objects.objects.values():
        if "template" not in manifest.get("spec", {}):
            continue
        claims = {each["metadata"]["name"] for each in manifest["spec"].get("volumeClaimTemplates", ())}
        spec = manifest["spec"]["template"]["spec"]
        volumes = [each["name"] for each in spec["volumes"]]
        assert len(set(volumes) | claims) == len(volumes) + len(claims)
        for container in spec["containers"]:
            mounts = container.get("volumeMounts", [])
            assert {each["name"] for each in mounts} <= set(volumes) | claims
            assert len({each["mountPath"] for each in mounts}) == len(mounts)


def test_liveness_and_startup_do_not_ask_whether_clients_are_served() -> None:
    container = bookie_pod({**MINIMAL, "pod": {"startupProbe": {"periodSeconds": 7}}})["containers"][0]
    assert container["startupProbe"]["httpGet"] == container["livenessProbe"]["httpGet"]
    asked = {"port": "https", "scheme": "HTTPS"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", **asked}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", **asked}
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] == 7 * 180


def test_bookies_avoid_the_same_node_whatever_the_user_adds() -> None:
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    more = {"topologyKey": "rack", "labelSelector": {}}
    affinity = {"podAntiAffinity": {rule: [more]}, "nodeAffinity": {"preferred": []}}
    found = bookie_pod({**MINIMAL, "pod": {"affinity": affinity}})["affinity"]
    assert [term["topologyKey"] for term in found["podAntiAffinity"][rule]] == ["kubernetes.io/hostname", "rack"]
    assert found["nodeAffinity"] == {"preferred": []}


def pod_templates(spec: dict[str, Any]) -> list[dict[str, Any]]:
    objects = build(cluster({**spec, "gateway": {"enabled": True}, "metadataService": {"type": "Embedded"}}), FULL)
    made = [*objects.objects.values(), objects.destroy_job]
    found = [each["spec"]["template"] for each in made if "template" in (each.get("spec") or {})]
    assert len(found) == 6
    return found


def test_no_pod_asks_for_ids_where_the_namespace_gives_them() -> None:
    for template in pod_templates({**MINIMAL, "pod": {"user": "Namespace"}}):
        asked = template["spec"]["securityContext"]
        assert asked.keys().isdisjoint({"runAsUser", "runAsGroup", "fsGroup"})
        assert asked["runAsNonRoot"]


def test_jobs_ask_for_what_bookies_do() -> None:
    """Where a quota counts limits a pod without any is never made."""
    resources = {"limits": {"cpu": "2", "memory": "4Gi"}}
    objects = build(cluster({**MINIMAL, "pod": {"resources": resources}}), FULL)
    for job in (objects.metadata_job, objects.destroy_job):
        for container in job["spec"]["template"]["spec"]["containers"]:
            assert container["resources"] == resources


def test_labels_and_annotations_of_users_are_on_every_pod() -> None:
    """Such as those that keep sidecars out: a Job with one never ends."""
    added = {"labels": {"team": "data"}, "annotations": {"sidecar.istio.io/inject": "false"}}
    for template in pod_templates({**MINIMAL, "pod": added}):
        assert template["metadata"]["labels"]["team"] == "data"
        assert template["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"


def test_bookies_share_nodes_where_that_is_asked_for() -> None:
    rule = "preferredDuringSchedulingIgnoredDuringExecution"
    more = {"weight": 1, "podAffinityTerm": {"topologyKey": "rack"}}
    spec = {**MINIMAL, "placement": {"nodes": "Shared"}, "pod": {"affinity": {"podAntiAffinity": {rule: [more]}}}}
    found = bookie_pod(spec)["affinity"]["podAntiAffinity"]
    assert found.keys() == {rule}
    assert [term["podAffinityTerm"]["topologyKey"] for term in found[rule]] == ["kubernetes.io/hostname", "rack"]


def test_a_zone_is_where_its_pods_run_and_what_the_bookie_publishes() -> None:
    for each in build(cluster(WITH_ZONES), BuildContext()).sets:
        spec = each.manifest["spec"]["template"]["spec"]
        env = {variable["name"]: variable.get("value") for variable in spec["containers"][0]["env"]}
        assert spec["nodeSelector"] == {"topology.kubernetes.io/zone": each.zone}
        assert env["BK_networkLocation"] == f"/{each.zone}"
        assert "topologySpreadConstraints" not in spec


def test_without_zones_pods_are_spread_as_far_as_it_goes() -> None:
    (constraint,) = bookie_pod(MINIMAL)["topologySpreadConstraints"]
    assert (constraint["topologyKey"], constraint["whenUnsatisfiable"]) == (
        "topology.kubernetes.io/zone",
        "ScheduleAnyway",
    )


def test_spreading_of_the_user_stands_beside_the_operators_or_instead_of_it() -> None:
    rack = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    zone = {**rack, "topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"a": "b"}}}
    ours, theirs = bookie_pod({**MINIMAL, "pod": {"topologySpreadConstraints": [rack]}})["topologySpreadConstraints"]
    assert ours == bookie_pod(MINIMAL)["topologySpreadConstraints"][0]
    assert theirs == {**rack, "labelSelector": ours["labelSelector"]}
    assert bookie_pod({**MINIMAL, "pod": {"topologySpreadConstraints": [zone]}})["topologySpreadConstraints"] == [zone]
    assert bookie_pod({**WITH_ZONES, "pod": {"topologySpreadConstraints": [zone]}})["topologySpreadConstraints"] == [
        zone
    ]


def test_containers_of_the_user_that_run_before_the_bookie() -> None:
    given = [{"name": "tune", "image": "a"}, {"name": "wait", "image": "b", "securityContext": {"runAsUser": 5}}]
    _, first, second = bookie_pod({**MINIMAL, "pod": {"initContainers": given}})["initContainers"]
    assert (first["name"], first["securityContext"]["capabilities"]) == ("tune", {"drop": ["ALL"]})
    assert second == given[1]
    assert len(bookie_pod(MINIMAL)["initContainers"]) == 1


def test_auto_recovery_takes_as_many_ledgers_at_once_as_spec_says() -> None:
    def env(**autorecovery: Any) -> dict[str, Any]:
        made = build(cluster({**MINIMAL, "autorecovery": autorecovery}), BuildContext()).autorecovery
        assert made is not None
        (container,) = made["spec"]["template"]["spec"]["containers"]
        return {each["name"]: each.get("value") for each in container["env"]}

    assert env(maxConcurrentLedgers=3)["BK_replicationLedgersAtOnce"] == "3"
    assert "BK_replicationLedgersAtOnce" not in env()


def test_variables_of_the_user_take_none_of_the_operators_away() -> None:
    env = bookie_pod({**MINIMAL, "pod": {"env": [{"name": "BK_advertisedAddress", "value": "x"}, {"name": "A"}]}})[
        "containers"
    ][0]["env"]
    assert [each["value"] for each in env if each["name"] == "BK_advertisedAddress"] == [
        "$(POD_NAME).demo-bookie.storage.svc"
    ]
    assert {"name": "A"} in env


def test_labels_of_the_user_take_none_of_the_operators_away() -> None:
    spec = {**MINIMAL, "pod": {"labels": {"app.kubernetes.io/component": "mine", "team": "x"}}}
    manifest = build(cluster(spec), BuildContext()).sets[0].manifest
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "x"
    assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_a_volume_that_only_one_pod_can_have_is_the_bookies_alone() -> None:
    spec = built("everything").objects["Deployment/a-cluster-with-a-name-of-forty-characte0-autorecovery"]["spec"]
    names = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    assert "zookeeper-login" in names
    assert "scratch" not in names


@pytest.mark.parametrize("case", CASES)
def test_no_pod_that_keeps_data_or_copies_goes_first_where_memory_runs_short(case: str) -> None:
    """Requests and limits by default; `resources: {}` is a person's own decision."""
    for key, template in templates(case):
        for container in template["spec"]["containers"]:
            if container["name"] == "bookie":
                assert any("memory" in part for part in container["resources"].values()), key


def test_without_zones_in_spec_a_bookie_waits_for_that_of_its_node() -> None:
    pod = bookie_pod({**MINIMAL, "pod": {"initContainers": [{"name": "users", "image": "x"}]}})
    first, users = pod["initContainers"]
    assert (first["name"], users["name"]) == ("network-location", "users")
    assert first["image"] == pod["containers"][0]["image"]
    env = {each["name"]: each for each in pod["containers"][0]["env"]}
    path = env["BK_networkLocation"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['podkeeper.dev/network-location']"
    mounted = {each["name"] for each in first["volumeMounts"]}
    assert mounted <= {each["name"] for each in pod["volumes"]}


@pytest.mark.parametrize(
    ("spec", "context"),
    [
        (WITH_ZONES, BuildContext()),
        ({**MINIMAL, "placement": {"zones": [{"name": "a"}]}}, BuildContext()),
        ({**MINIMAL, "pod": {"env": [{"name": "BK_networkLocation", "value": "/mine"}]}}, BuildContext()),
        (MINIMAL, BuildContext(reads_nodes=False)),
    ],
)
def test_who_is_told_its_zone_otherwise_waits_for_nobody(spec: Spec, context: BuildContext) -> None:
    pod = build(cluster(spec), context).sets[0].manifest["spec"]["template"]["spec"]
    assert "initContainers" not in pod
    given = [each for each in pod["containers"][0]["env"] if each["name"] == "BK_networkLocation"]
    assert all("value" in each for each in given)
    assert len(given) == (0 if spec is MINIMAL else 1)
