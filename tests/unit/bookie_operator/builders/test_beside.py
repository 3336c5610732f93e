"""Gateways in a Deployment of their own: who finds and reaches them, and what they start with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bookie_operator.builders import config
from bookie_operator.builders.build import build
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.desired_objects import DesiredObjects
from bookie_operator.crds.validation import validate
from bookie_pod.config.load import read_config
from bookie_pod.node.processes.gateway import GatewayProcess
from bookie_pod.node.processes.service import STOP_S
from bookie_protocol.errors import InvalidConfiguration
from tests.support.operator_clusters import CASES, MINIMAL, Spec, built, cluster, environment

DEPLOYMENT = "Deployment/demo-gateway"
TLS: Spec = {"tls": {"enabled": True, "secretName": "ours"}}
TOKENS = {"name": "BK_grpcServerAuthTokenFile", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}


def of(**changes: Any) -> DesiredObjects:
    given = {"enabled": True, **changes.pop("gateway", {})}
    return build(cluster({**MINIMAL, **changes, "gateway": given}), BuildContext())


def parts(objects: DesiredObjects) -> set[str]:
    return {key for key in objects.objects if key.endswith("-gateway")}


# --- what is there ----------------------------------------------------------------------------------------------------


def test_it_is_there_when_it_is_asked_for_and_nothing_else_differs() -> None:
    without, beside = build(cluster(), BuildContext()), of()
    assert parts(without) == set()
    kinds = {"Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget"}
    assert parts(beside) == {f"{kind}/demo-gateway" for kind in kinds}
    of_spec = {"Secret/demo-identity"}  # `spec` itself is kept there, for whoever adopts the cluster
    differing = {key for key, each in without.objects.items() if beside.objects.get(key) != each}
    assert (differing, beside.objects.keys() - without.objects.keys()) == (of_spec, parts(beside))


def test_auto_recovery_has_a_budget_too_and_both_spread_over_zones() -> None:
    objects = of().objects
    for component in ("autorecovery", "gateway"):
        budget = objects[f"PodDisruptionBudget/demo-{component}"]["spec"]
        assert budget["selector"]["matchLabels"]["app.kubernetes.io/component"] == component
        pod = objects[f"Deployment/demo-{component}"]["spec"]["template"]["spec"]
        (spread,) = pod["topologySpreadConstraints"]
        assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("topology.kubernetes.io/zone", "ScheduleAnyway")
        assert spread["labelSelector"]["matchLabels"] == budget["selector"]["matchLabels"]


@pytest.mark.parametrize(("memory", "budget"), [("1Gi", "256"), ("4Gi", "1024"), ("100Mi", "64")])
def test_a_gateway_goes_by_the_memory_of_its_own_container(memory: str, budget: str) -> None:
    made = of(
        pod={"resources": {"limits": {"memory": "16Gi"}}}, gateway={"resources": {"limits": {"memory": memory}}}
    ).objects[DEPLOYMENT]
    env = made["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "BK_memoryBudgetMb", "value": budget} in env


def test_without_policies_and_budgets_of_bookies_it_has_none_either() -> None:
    found = parts(of(networkPolicy={"enabled": False}, disruption={"enabled": False}))
    assert found == {DEPLOYMENT, "Service/demo-gateway"}


def test_its_service_finds_its_pods_and_that_of_bookies_finds_none_of_them() -> None:
    objects = built("gateway").objects
    pods = {
        key: each["spec"]["template"]["metadata"]["labels"]
        for key, each in objects.items()
        if key.startswith(("Deployment/", "StatefulSet/"))
    }
    for name, wanted in (("gateway", {DEPLOYMENT}), ("client", {"StatefulSet/demo-bookie"})):
        chosen = objects[f"Service/demo-{name}"]["spec"]["selector"].items()
        assert {key for key, labels in pods.items() if chosen <= labels.items()} == wanted


def test_its_service_has_the_port_of_grpc_alone() -> None:
    objects = of().objects
    (port,) = objects["Service/demo-gateway"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (3182, "grpc")
    (container,) = objects[DEPLOYMENT]["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [
        {"name": "grpc", "containerPort": 3182},
        {"name": "https", "containerPort": 8000},
    ]
    assert container["args"] == ["gateway"]


def test_clients_reach_grpc_and_who_reads_metrics_http() -> None:
    rules = built("gateway").objects["NetworkPolicy/demo-gateway"]["spec"]["ingress"]
    bookies = built("gateway").objects["NetworkPolicy/demo-bookie"]["spec"]["ingress"]
    assert [[each["port"] for each in rule["ports"]] for rule in rules] == [[3182], [8000]]
    assert [rule["from"] for rule in rules] == [rule["from"] for rule in bookies]


def test_one_is_evicted_at_a_time_and_one_that_does_not_serve_whenever() -> None:
    budget = of().objects["PodDisruptionBudget/demo-gateway"]["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert budget["selector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"


def test_the_certificate_of_clients_names_its_service_and_that_of_the_admin_api_does_not() -> None:
    names = built("gateway").objects["Certificate/demo-bookie-tls"]["spec"]["dnsNames"]
    others = built("index-tls").objects["Certificate/demo-bookie-tls"]["spec"]["dnsNames"]
    assert set(names) - set(others) == {"demo-gateway", "demo-gateway.storage", "demo-gateway.storage.svc"}
    context = CASES["gateway"][1]
    issuer = {"tls": {"adminApi": {"issuerRef": {"name": "ca"}}}}
    asked = build(cluster({**MINIMAL, **issuer, "gateway": {"enabled": True}}), context)
    assert not [
        each for each in asked.objects["Certificate/demo-admin-issued"]["spec"]["dnsNames"] if "gateway" in each
    ]


def test_its_metrics_are_read_while_it_is_there() -> None:
    (monitor,) = built("gateway").monitoring
    (expression,) = monitor["spec"]["selector"]["matchExpressions"]
    assert expression["values"] == ["bookie", "autorecovery", "gateway"]


# --- its pods ---------------------------------------------------------------------------------------------------------


def test_it_may_close_its_ledgers_before_it_is_killed() -> None:
    assert of().objects[DEPLOYMENT]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > STOP_S


def test_while_it_is_rolled_as_many_serve_and_two_avoid_one_node() -> None:
    spec = of(gateway={"replicas": 7}).objects[DEPLOYMENT]["spec"]
    assert spec["replicas"] == 7
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    rule = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert rule[0]["podAffinityTerm"]["labelSelector"]["matchLabels"] == spec["selector"]["matchLabels"]


def test_its_template_depends_on_its_resources_and_not_on_its_number() -> None:
    def asked(**changes: Any) -> tuple[str, str]:
        template, _, number = of(gateway=changes).desired().gateway.inputs.partition("/")
        return template, number

    base = asked()
    assert asked(replicas=4) == (base[0], "4") != base
    assert asked(resources={"limits": {"cpu": 1}})[0] != base[0]
    assert of(version="9.9.9").desired().gateway.inputs != of().desired().gateway.inputs
    assert of().desired().autorecovery == build(cluster(), BuildContext()).desired().autorecovery


# --- what it starts with ----------------------------------------------------------------------------------------------


LOGINS = {
    "bookieAuthProviderFactoryClass": "SharedToken",
    "clientAuthProviderFactoryClass": "SharedToken",
    "authTokenFile": "/tokens",
}


@pytest.mark.parametrize(
    ("spec", "starts"),
    [
        ({}, True),
        (TLS, True),
        ({"config": {"gatewayEnabled": "true"}}, True),
        ({"config": {"gatewayEnabled": ""}}, True),
        ({"config": {"gatewayEnabled": "off"}}, False),
        ({"config": {"grpcServerEnabled": "no"}}, False),
        ({"config": {"tlsClientAuthentication": "true"}}, True),
        ({**TLS, "config": {"tlsClientAuthentication": "true"}}, True),
        ({**TLS, "config": {"tlsClientAuthentication": "true", "allowInsecureAccess": "true"}}, False),
        ({**TLS, "config": {"tlsClientAuthentication": "true", "allowInsecureAccess": "no"}}, True),
        ({**TLS, "config": {"tlsClientAuthentication": "true", "gatewayEnabled": "true"}}, True),
        ({**TLS, "config": {"tlsClientAuthentication": "true", "gatewayEnabled": " "}}, True),
        ({**TLS, "config": {"tlsClientAuthentication": "true", "grpcServerTlsClientAuthentication": "yes"}}, True),
        ({**TLS, "config": {"tlsClientAuthentication": "true", "grpcServerAuthTokenFile": "/tokens"}}, True),
        ({**TLS, "config": {"tlsClientAuthentication": "true", "grpcServerAuthTokenFile": " "}}, False),
        ({**TLS, "config": {"tlsClientAuthentication": "true", "grpcServerTlsEnable": "false"}}, True),
        ({"config": LOGINS}, True),
        ({"config": {**LOGINS, "allowInsecureAccess": "true"}}, False),
        ({"config": {**LOGINS, "grpcServerAuthTokenFile": "/tokens"}}, True),
    ],
    ids=lambda each: str(each.get("config", each)) if isinstance(each, dict) else "",
)
def test_a_spec_is_refused_exactly_where_the_process_would_refuse_to_start(
    spec: dict[str, Any], starts: bool, tmp_path: Path
) -> None:
    view = cluster({**MINIMAL, **spec, "gateway": {"enabled": True}})
    objects = build(view, BuildContext()).objects
    (file,) = [each for key, each in objects.items() if key.startswith("ConfigMap/demo-config-")]
    (tmp_path / config.FILE).write_text(file["data"][config.FILE], encoding="utf-8")
    loaded = read_config(str(tmp_path / config.FILE), environment(objects[DEPLOYMENT], objects))
    assert loaded.config is not None, loaded.problems
    if starts:
        GatewayProcess(loaded.config)
        assert validate(view.spec, view.status) == ()
        return
    with pytest.raises(InvalidConfiguration):
        GatewayProcess(loaded.config)
    (told,) = validate(view.spec, view.status)
    assert told.startswith("spec.gateway.enabled: ")
    without = cluster({**MINIMAL, **spec})
    assert validate(without.spec, without.status) == ()


def test_what_a_secret_may_say_is_left_to_the_process() -> None:
    config = {"tlsClientAuthentication": "true", "allowInsecureAccess": "true"}
    spec = {**MINIMAL, **TLS, "config": config, "gateway": {"enabled": True}}
    assert validate(cluster(spec).spec, cluster().status) != ()
    assert validate(cluster({**spec, "pod": {"env": [TOKENS]}}).spec, cluster().status) == ()
