"""The charts, as Helm renders them and as the API server takes them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from bookie_operator.builders.metadata_uri import metadata_service_uri
from bookie_operator.main import main
from tests.e2e.support.environment import Environment
from tests.support.chart_files import CHARTS, CLUSTER, OPERATOR, alert_files
from tests.support.helm_api import RELEASE, HelmApi, serve_helm
from tests.support.helm_charts import NAMESPACE, Object, lint, program, refused, render
from tests.support.operator_clusters import MINIMAL, cluster

EXAMPLES = sorted(CHARTS.glob("*/ci/*.yaml"))
URI = {"spec": {"metadataService": {"uri": "zk+hierarchical://zk-0:2181"}}}
OF_OTHERS = {"PrometheusRule", "ServiceMonitor"}
"""Their definitions come with the Prometheus operator."""
ACCOUNT = "podkeeper-operator"

each_example = pytest.mark.parametrize("values", EXAMPLES, ids=lambda path: f"{path.parts[-3]}-{path.stem}")


def only(objects: list[Object], kind: str) -> Object:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def pod_specs(objects: list[Object]) -> list[Object]:
    found = [each["spec"] for each in objects if each["kind"] == "Pod"]
    return found + [each["spec"]["template"]["spec"] for each in objects if each["kind"] in ("Deployment", "Job")]


# --- without a cluster ------------------------------------------------------------------------------------------------


@each_example
def test_lint(values: Path):
    lint(values.parents[1], values)


@each_example
def test_rendered_objects_are_whole(values: Path):
    objects = render(values.parents[1], values)
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(set(keys)) == len(keys)
    for each in objects:
        labels = each["metadata"]["labels"]
        assert len(each["metadata"]["name"]) <= 63
        if each["kind"] != "CustomResourceDefinition":
            assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["app.kubernetes.io/part-of"] == "podkeeper"


@each_example
def test_rendering_twice_gives_the_same(values: Path):
    """Whoever compares with the cluster, as Argo CD does, sees no difference."""
    assert render(values.parents[1], values) == render(values.parents[1], values)


@each_example
def test_pods_are_restricted(values: Path):
    for spec in pod_specs(render(values.parents[1], values)):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


def test_the_namespace_gives_every_pod_of_the_operator_its_user():
    """Also that of the check before an uninstall: refused, it would stand in the way of that."""
    specs = pod_specs(render(OPERATOR, values={"runAsUser": None}))
    assert len(specs) > 1
    assert not any({"runAsUser", "runAsGroup"} & set(spec["securityContext"]) for spec in specs)


def test_the_check_before_an_uninstall_is_no_pod_of_the_operator():
    """A budget that counts pods of a Job lets none go, and a check that found something leaves its pod."""
    objects = render(OPERATOR, values={"networkPolicy": {"enabled": True}})
    labels = only(objects, "Job")["spec"]["template"]["metadata"]["labels"].items()
    assert not only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels
    assert not only(objects, "Service")["spec"]["selector"].items() <= labels
    assert only(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels


def test_a_refused_uninstall_leaves_the_release_as_it_was():
    """Helm marks it as uninstalling before the check, and upgrades no such release."""
    objects = render(OPERATOR, values={"namespaces": ["a", "b"]})
    policy, binding = only(objects, "ValidatingAdmissionPolicy"), only(objects, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    matched = policy["spec"]["matchConstraints"]
    assert matched["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
    assert matched["objectSelector"]["matchLabels"] == {"owner": "helm", "name": "podkeeper", "status": "uninstalling"}
    assert [(rule["resources"], rule["operations"]) for rule in matched["resourceRules"]] == [(["secrets"], ["UPDATE"])]
    assert policy["spec"]["failurePolicy"] == "Ignore"
    for without in ({"keepRelease": False}, {"enabled": False}):
        kinds = {each["kind"] for each in render(OPERATOR, values={"uninstallCheck": without})}
        assert "ValidatingAdmissionPolicy" not in kinds
        assert ("Job" in kinds) is without.get("enabled", True)


def test_a_policy_for_pods_is_there_only_where_it_is_asked_for():
    assert all(each["metadata"]["name"] != f"{NAMESPACE}-podkeeper-operator-pods" for each in render(OPERATOR))
    asked = {"enabled": True, "serviceAccounts": ["spark"]}
    quiet = {"uninstallCheck": {"enabled": False}, "podPolicy": asked}
    objects = render(OPERATOR, values={**quiet, "namespaces": ["a", "b"]})
    policy, binding = only(objects, "ValidatingAdmissionPolicy"), only(objects, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    matched = policy["spec"]["matchConstraints"]
    assert matched["namespaceSelector"]["matchExpressions"][0]["values"] == ["a", "b"]
    assert [rule["resources"] for rule in matched["resourceRules"]] == [["bookieclusters", "bookiejobs"]]
    assert policy["spec"]["failurePolicy"] == "Fail"
    said = " ".join(each["expression"] for each in policy["spec"]["validations"])
    for field in ("pod.sidecars", "pod.initContainers", "pod.serviceAccountName", "executors.serviceAccountName"):
        assert f"object.spec.{field}" in said
    assert 'in ["spark",""]' in said
    everywhere = only(render(OPERATOR, values={**quiet, "clusterWide": True}), "ValidatingAdmissionPolicy")
    assert "namespaceSelector" not in everywhere["spec"]["matchConstraints"]


def test_the_roles_of_kubernetes_get_what_their_users_need_of_our_resources():
    roles = {
        each["metadata"]["name"].rpartition("-")[2]: each
        for each in render(OPERATOR)
        if "rbac.authorization.k8s.io/aggregate-to-admin" in each["metadata"]["labels"]
    }
    reached = {
        name: {label.rpartition("-")[2] for label in each["metadata"]["labels"] if "/aggregate-to-" in label}
        for name, each in roles.items()
    }
    assert reached == {"view": {"view", "edit", "admin"}, "edit": {"edit", "admin"}}
    granted = {name: {verb for rule in each["rules"] for verb in rule["verbs"]} for name, each in roles.items()}
    assert granted["view"] == {"get", "list", "watch"}
    assert granted["edit"] == {"create", "update", "patch", "delete", "deletecollection"}
    for each in roles.values():
        for rule in each["rules"]:
            assert rule["apiGroups"] == ["podkeeper.dev"]
            assert {"bookieclusters", "bookiejobs", "bookietasks"} <= set(rule["resources"])
            assert not {name for name in rule["resources"] if name.endswith(("/status", "/finalizers", "*"))}


@pytest.mark.parametrize(
    ("guarded", "fails", "state", "upgrades"),
    [(False, True, "uninstalling", False), (True, True, "deployed", True), (True, False, None, None)],
    ids=["without the policy", "refused", "uninstalled"],
)
async def test_helm_upgrades_a_release_whose_uninstall_was_refused(
    guarded: bool, fails: bool, state: str | None, upgrades: bool | None, tmp_path: Path
):
    objects = render(OPERATOR)
    policy = only(objects, "ValidatingAdmissionPolicy") if guarded else None
    async with serve_helm(HelmApi(tmp_path, only(objects, "Job"), fails, policy)) as api:
        code, printed = await api.helm("uninstall", RELEASE)
        assert (code != 0) is fails, printed
        assert api.state == state
        assert ("configmaps" in api.deleted) is not fails
        if upgrades is not None:
            code, printed = await api.helm("upgrade", RELEASE, api.chart(), "--dry-run=client")
            assert (code == 0) is upgrades, printed
            assert ("no deployed releases" in printed) is not upgrades


def test_operator_by_default_works_in_its_own_namespace():
    objects = render(OPERATOR)
    names = {each["metadata"]["name"].rpartition("-")[2] for each in objects if each["kind"] == "ClusterRole"}
    assert names == {"read", "view", "edit"}
    assert {each["metadata"]["namespace"] for each in objects if each["kind"] == "Role"} == {NAMESPACE}
    assert len([each for each in objects if each["kind"] == "CustomResourceDefinition"]) == 3
    for each in objects:
        if each["kind"] == "CustomResourceDefinition":
            assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_operator_with_a_list_of_namespaces_has_a_role_in_each_and_no_cluster_role():
    objects = render(OPERATOR, values={"namespaces": ["a", "b"], "rbac": {"clusterRead": False, "aggregate": False}})
    assert not [each for each in objects if each["kind"].startswith("ClusterRole")]
    roles = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in objects if each["kind"] == "Role"}
    assert roles == {("a", ACCOUNT), ("b", ACCOUNT), (NAMESPACE, f"{ACCOUNT}-lease")}
    lease = only([each for each in objects if each["metadata"]["name"] == f"{ACCOUNT}-lease"], "Role")
    assert lease["rules"][1]["resourceNames"] == [ACCOUNT]
    arguments = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"--lease-name={ACCOUNT}" in arguments
    for binding in (each for each in objects if each["kind"] == "RoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}]


@pytest.mark.parametrize("values", sorted(OPERATOR.glob("ci/*.yaml")), ids=lambda path: path.stem)
def test_operator_is_started_with_options_that_it_has(values: Path):
    (container,) = only(render(OPERATOR, values), "Deployment")["spec"]["template"]["spec"]["containers"]
    command, *options = container["args"]
    assert container["command"] == ["bookie-operator"]
    given = main.commands[command].make_context(command, options).params
    wanted = yaml.safe_load(values.read_text(encoding="utf-8"))
    assert given["all_namespaces"] == wanted.get("clusterWide", False)
    everywhere = wanted.get("clusterWide", False)
    assert given["namespaces"] == (() if everywhere else tuple(wanted.get("namespaces", [NAMESPACE])))
    assert given["no_nodes"] != wanted.get("rbac", {}).get("clusterRead", True)
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["PODKEEPER_IMAGE"] == "podkeeper"
    assert set(variables) == {
        "MALLOC_ARENA_MAX",
        "POD_NAME",
        "POD_NAMESPACE",
        "PODKEEPER_IMAGE",
        "PODKEEPER_OPERATOR_IMAGE",
    }


def test_definitions_are_what_they_were_but_for_annotations():
    rendered = {
        each["metadata"]["name"]: each for each in render(OPERATOR) if each["kind"] == "CustomResourceDefinition"
    }
    for path in (OPERATOR / "files" / "crds").glob("*.yaml"):
        expected = yaml.safe_load(path.read_text(encoding="utf-8"))
        expected["metadata"]["annotations"] = {"helm.sh/resource-policy": "keep"}
        assert rendered.pop(expected["metadata"]["name"]) == expected
    assert not rendered


def test_alerts_are_rendered_for_the_cluster():
    rule = only(render(CLUSTER, CLUSTER / "ci" / "production-values.yaml"), "PrometheusRule")
    (group,) = rule["spec"]["groups"]
    by_name = {each["alert"]: each for each in group["rules"]}
    files = {path.stem for path in alert_files() if path.is_relative_to(CLUSTER)}
    assert set(by_name) == files - {"PodkeeperAddsRejected"}
    text = json.dumps(rule)
    assert "__" not in text.replace("__name__", "")
    assert 'pod=~\\"events-bookie-.+\\"' in text
    filling = by_name["PodkeeperDiskFilling"]
    assert (filling["for"], filling["labels"]) == ("1h", {"severity": "critical", "team": "storage"})
    assert filling["annotations"]["runbook_url"] == "https://runbooks.example.org/podkeeper/PodkeeperDiskFilling/"
    assert "< 3" in by_name["PodkeeperClusterNotWritable"]["expr"]


def test_dashboards_of_two_clusters_differ_in_id_and_title():
    def identities(release: str) -> set[str]:
        found = only(render(CLUSTER, release=release, values={**URI, "dashboards": {"enabled": True}}), "ConfigMap")
        boards = [json.loads(text) for text in found["data"].values()]
        assert all(len(board["uid"]) <= 40 for board in boards)
        return {board[key] for board in boards for key in ("uid", "title")}

    assert len(identities("one") | identities("two")) == 8


def test_spec_is_handed_through_whole():
    given = yaml.safe_load((CLUSTER / "ci" / "production-values.yaml").read_text(encoding="utf-8"))
    cluster = only(render(CLUSTER, CLUSTER / "ci" / "production-values.yaml"), "BookieCluster")
    assert cluster["spec"] == given["spec"]
    assert cluster["metadata"]["name"] == "events"
    assert cluster["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_test_pod_is_a_client_of_the_cluster():
    """With its URI, quorums, certificate and login."""
    spec = only(render(CLUSTER, CLUSTER / "ci" / "production-values.yaml"), "Pod")["spec"]
    (container,) = spec["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    config = dict(line.split("=", 1) for line in variables["CLIENT_CONFIG"].splitlines())
    assert config["metadataServiceUri"].endswith(";zk-2.zk:2181/events/ledgers")
    assert config["tlsTrustStore"] == "/tls/ca.crt"
    assert config["zkAuthScheme"] == "sasl"
    assert {volume["name"] for volume in spec["volumes"]} == {"scratch", "tls", "login"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {"scratch", "tls", "login"}
    plain = only(render(CLUSTER, CLUSTER / "ci" / "embedded-values.yaml"), "Pod")["spec"]
    assert [volume["name"] for volume in plain["volumes"]] == ["scratch", "metadata"]


def test_values_of_false_and_zero_reach_the_spec():
    values = {
        "spec": {
            **URI["spec"],
            "autorecovery": {"enabled": False},
            "update": {"canary": 0, "requireFullyReplicated": False},
        }
    }
    spec = only(render(CLUSTER, values=values), "BookieCluster")["spec"]
    assert spec["autorecovery"] == {"enabled": False}
    assert spec["update"] == {"canary": 0, "requireFullyReplicated": False}


REFUSALS = [
    (OPERATOR, {"replicaCount": 2}, "replicaCount"),
    (OPERATOR, {"replicas": 3}, "'/replicas': maximum: got 3, want 2"),
    (OPERATOR, {"clusterWide": True, "namespaces": ["a"]}, "'/namespaces': maxItems: got 1, want 0"),
    (CLUSTER, {}, "'/spec/metadataService': missing property 'uri'"),
    (CLUSTER, {"spec": {**URI["spec"], "replica": 4}}, "'/spec': additional properties 'replica' not allowed"),
    (CLUSTER, {"spec": {**URI["spec"], "replicas": "4"}}, "'/spec/replicas': got string, want integer"),
    (CLUSTER, {"spec": {**URI["spec"], "config": {"gcWaitTime": 5}}}, "'/spec/config/gcWaitTime': got number, want"),
    (CLUSTER, {**URI, "clusterName": "a" * 41}, "'/clusterName': maxLength: got 41, want 40"),
]


@pytest.mark.parametrize(("chart", "values", "message"), REFUSALS, ids=[message for _, _, message in REFUSALS])
def test_wrong_values_are_refused_with_their_place(chart: Path, values: dict[str, Any], message: str):
    assert message in refused(chart, values)


def test_a_release_with_a_long_name_needs_a_name_for_the_cluster():
    done = render(CLUSTER, release="r" * 41, values={**URI, "clusterName": "short"})
    assert only(done, "BookieCluster")["metadata"]["name"] == "short"
    with pytest.raises(AssertionError, match="set clusterName"):
        render(CLUSTER, release="r" * 41, values=URI)


# --- on the API server ------------------------------------------------------------------------------------------------


def kubectl(settings: Environment, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [program("kubectl"), "--kubeconfig", settings.kubeconfig, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


@each_example
def test_server_takes_every_object(values: Path, operator, kube, settings: Environment):
    """By a server-side dry run, in a namespace that enforces the restricted Pod Security standard."""
    objects = render(values.parents[1], values, release="dry-run")
    mine = [each for each in objects if each["kind"] not in OF_OTHERS]
    for each in mine:
        if "namespace" in each["metadata"]:
            each["metadata"]["namespace"] = kube.namespace
        if each["kind"] == "CustomResourceDefinition":
            each["metadata"].pop("annotations")
    done = kubectl(
        settings,
        *("apply", "--server-side", "--dry-run=server", "--force-conflicts", "--warnings-as-errors", "-f", "-"),
        stdin=yaml.safe_dump_all(mine),
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(mine)


def test_operator_may_do_what_it_does_and_no_more(operator, kube, settings: Environment):
    account = f"system:serviceaccount:{kube.namespace}:{ACCOUNT}"

    def may(*words: str) -> bool:
        done = kubectl(settings, "-n", kube.namespace, "auth", "can-i", *words, "--as", account)
        assert done.stdout.strip() in {"yes", "no"}, done.stderr
        return done.stdout.strip() == "yes"

    assert may("patch", "bookieclusters.podkeeper.dev", "--subresource=status")
    assert may("create", "pods", "--subresource=eviction")
    assert may("update", "statefulsets.apps", "--subresource=scale")
    assert may("get", "secrets/some-name")
    assert may("list", "nodes")
    for words in (
        ("list", "secrets"),
        ("create", "pods"),
        ("create", "pods", "--subresource=exec"),
        ("get", "pods", "--subresource=log"),
        ("delete", "bookieclusters.podkeeper.dev"),
        ("create", "roles.rbac.authorization.k8s.io"),
        ("delete", "nodes"),
        ("list", "pods", "-n", "kube-system"),
        ("delete", "customresourcedefinitions.apiextensions.k8s.io"),
    ):
        assert not may(*words), words


def previous_version(folder: Path) -> Path:
    """A chart as an earlier release was: another version, and definitions without columns."""
    chart = folder / OPERATOR.name
    subprocess.run(["cp", "-r", str(OPERATOR), str(chart)], check=True)
    found = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**found, "version": "0.0.1"}), encoding="utf-8")
    for path in (chart / "files" / "crds").glob("*.yaml"):
        definition = yaml.safe_load(path.read_text(encoding="utf-8"))
        for version in definition["spec"]["versions"]:
            version.pop("additionalPrinterColumns")
        path.write_text(yaml.safe_dump(definition), encoding="utf-8")
    return chart


def columns(kube) -> list[str]:
    definition = kube.get("CustomResourceDefinition", "bookieclusters.podkeeper.dev")
    (version,) = definition["spec"]["versions"]
    return [column["name"] for column in version.get("additionalPrinterColumns") or ()]


def test_upgrade_and_uninstall_of_the_operator_leave_clusters_alone(make_cluster, operator, helm, kube, tmp_path: Path):
    """Definitions are upgraded with the release, and stay when it goes; no bookie restarts."""
    repository, _, tag = operator.image.rpartition(":")
    helm.install(
        "podkeeper", str(previous_version(tmp_path)), {"image": {"repository": repository, "tag": tag}}, wait=True
    )
    assert "Writable" not in columns(kube)
    cluster = make_cluster()
    cluster.wait_ready(240)
    pods, identity = cluster.uids(), cluster.get()["metadata"]["uid"]
    operator.install()
    assert "Writable" in columns(kube)
    helm.uninstall("podkeeper", hooks=False)
    assert "Writable" in columns(kube)
    assert cluster.get()["metadata"]["uid"] == identity
    operator.install()
    cluster.wait_ready(120)
    assert cluster.uids() == pods


@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_the_pod_of_helm_test_uses_the_uri_that_the_operator_tells(replicas: int):
    service = {"type": "Etcd", "rootPath": "/events", "etcd": {"replicas": replicas}}
    pod = only(render(CLUSTER, values={"spec": {"metadataService": service}}), "Pod")
    name = pod["metadata"]["name"].removesuffix("-test-write-read")
    wanted = metadata_service_uri(
        replace(cluster({**MINIMAL, "metadataService": service}, name=name), namespace=NAMESPACE)
    )
    (config,) = [each["value"] for each in pod["spec"]["containers"][0]["env"] if each["name"] == "CLIENT_CONFIG"]
    assert f"metadataServiceUri={wanted}" in config.splitlines()
    (secret,) = [each["secret"] for each in pod["spec"]["volumes"] if each["name"] == "metadata"]
    assert secret == {"secretName": f"{name}-metadata-client"}
