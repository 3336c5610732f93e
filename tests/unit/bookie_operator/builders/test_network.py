"""Services, policies and certificates: who finds and reaches whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bookie_operator.builders.build import build
from bookie_operator.builders.context import BuildContext
from tests.support.operator_clusters import EMBEDDED, FULL, INSTANCE_ID, MINIMAL, built, cluster

BROKERS = {"podSelector": {"matchLabels": {"app": "broker"}}}


def peers(policy: Mapping[str, Any], port: int) -> list[Any] | None:
    """Who may use a port; None: nobody."""
    for rule in policy["spec"]["ingress"]:
        if port in [each["port"] for each in rule["ports"]]:
            return list(rule["from"])
    return None


def test_services_have_what_spec_adds_and_that_of_gateways_its_type() -> None:
    given = {"annotations": {"external-dns.alpha.kubernetes.io/hostname": "x"}, "gatewayType": "LoadBalancer"}
    objects = build(cluster({**MINIMAL, "services": given, "gateway": {"enabled": True}}), BuildContext()).objects
    services = {key: each for key, each in objects.items() if key.startswith("Service/")}
    assert len(services) == 3
    assert all(each["metadata"]["annotations"].items() >= given["annotations"].items() for each in services.values())
    types = {key: each["spec"].get("type") for key, each in services.items()}
    assert types == {
        "Service/demo-bookie": None,
        "Service/demo-client": "ClusterIP",
        "Service/demo-gateway": "LoadBalancer",
    }


def policy(name: str = "demo-bookie", context: BuildContext | None = None, **given: Any) -> dict[str, Any]:
    spec = {**MINIMAL, "networkPolicy": given}
    return build(cluster(spec), context or BuildContext()).objects[f"NetworkPolicy/{name}"]


def test_by_default_nobody_of_another_namespace_reaches_anything_but_the_operator() -> None:
    found = policy(context=BuildContext(operator_namespace="operators"))
    assert peers(found, 3181) == peers(found, 3182) == [{"podSelector": {}}]
    operator = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "operators"}}}
    assert peers(found, 8000) == [{"podSelector": {}}, operator]
    assert found["spec"]["policyTypes"] == ["Ingress"]
    for objects in (built(case).objects for case in ("minimal", "embedded", "gateway", "zones")):
        for key, each in objects.items():
            if key.startswith("NetworkPolicy/") and "Ingress" in each["spec"]["policyTypes"]:
                assert all(rule["from"] for rule in each["spec"]["ingress"]), key


def reached(**given: Any) -> dict[int, Any]:
    """Peers that the cluster's pods reach, by port."""
    objects = build(cluster({**MINIMAL, **given}), BuildContext()).objects
    spec = objects["NetworkPolicy/demo-egress"]["spec"]
    assert spec["policyTypes"] == ["Egress"]
    return {port["port"]: rule.get("to") for rule in spec["egress"] for port in rule["ports"]}


def test_what_the_pods_of_a_cluster_reach() -> None:
    namespace = [{"podSelector": {}}]
    assert reached() == {53: None, 5353: None, 2181: None, 3181: namespace, 8000: namespace}
    for uri, ports in (
        ("zk://zk-0", {2181}),
        ("zk+null://a:2281;b:2282/", {2281, 2282}),
        ("etcd://etcd-0,etcd-1:2380", {2379, 2380}),
        ("oxia://oxia-0,oxia-1:6649/default", {6648, 6649}),
        ("zk://[fd00::1]:2183,zk-1", {2183, 2181}),
    ):
        assert set(reached(metadataService={"uri": uri})) - {53, 5353, 3181, 8000} == ports
    assert 2281 in reached(metadataService={"type": "Embedded"})
    more = {"ports": [{"port": 443}], "to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}
    assert reached(networkPolicy={"egress": [more]})[443] == more["to"]


def test_jobs_reach_what_they_are_told() -> None:
    chosen = built("minimal").objects["NetworkPolicy/demo-egress"]["spec"]["podSelector"]
    assert chosen["matchExpressions"] == [
        {"key": "app.kubernetes.io/component", "operator": "NotIn", "values": ["job", "job-executor"]}
    ]


def test_the_clusters_own_pods_reach_the_data_whoever_else_may() -> None:
    own = {"app.kubernetes.io/name": "podkeeper", "app.kubernetes.io/instance": "demo"}
    assert peers(policy(clients=[BROKERS]), 3181) == [BROKERS, {"podSelector": {"matchLabels": own}}]


@pytest.mark.parametrize("context", [BuildContext(), BuildContext(operator_namespace="operators")])
def test_the_operator_reaches_the_admin_api_whoever_else_may(context: BuildContext) -> None:
    operator = (
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "operators"}}}
        if context.operator_namespace
        else {
            "namespaceSelector": {},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "podkeeper-operator"}},
        }
    )
    for name in ("demo-bookie", "demo-autorecovery"):
        found = peers(policy(name, context, metricsFrom=[BROKERS]), 8000)
        assert found is not None
        assert BROKERS in found
        assert operator in found


def test_nobody_reaches_the_data_ports_of_auto_recovery() -> None:
    assert peers(policy("demo-autorecovery"), 3181) is None


def test_clients_reach_the_embedded_metadata_service() -> None:
    found = built("embedded").objects["NetworkPolicy/dev-metadata"]
    assert peers(found, 2281) == [{"podSelector": {}}]
    assert peers(found, 3181) is None


def test_bookies_are_found_before_they_are_ready() -> None:
    objects = built("minimal").objects
    headless, client = (objects[f"Service/demo-{name}"]["spec"] for name in ("bookie", "client"))
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    assert headless["selector"] == client["selector"]
    assert [port["port"] for port in client["ports"]] == [3182, 8000]
    (only,) = built("minimal").sets
    assert only.manifest["spec"]["serviceName"] == "demo-bookie"
    ports = only.manifest["spec"]["template"]["spec"]["containers"][0]["ports"]
    targets = {port["name"]: port["targetPort"] for port in headless["ports"]}
    assert targets == {"bookie": "bookie", "grpc": "grpc", "https": 8000}
    assert targets.keys() == {port["name"] for port in ports}


@pytest.mark.parametrize(("enabled", "spoken"), [(True, "https"), (False, "http")])
def test_probes_and_metrics_speak_what_the_pod_serves(enabled: bool, spoken: str) -> None:
    monitoring = {"podMonitor": {"enabled": True}}
    spec = {**MINIMAL, "tls": {"adminApi": {"enabled": enabled}}, "monitoring": monitoring}
    objects = build(cluster(spec), FULL)
    assert objects.autorecovery is not None
    for workload in (objects.sets[0].manifest, objects.autorecovery):
        container = workload["spec"]["template"]["spec"]["containers"][0]
        assert {"name": spoken, "containerPort": 8000} in container["ports"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            assert (asked["port"], asked.get("scheme", "HTTP")) == (spoken, spoken.upper())
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert ("/etc/podkeeper/admin-tls" in mounted) is enabled
    (monitor,) = objects.monitoring
    read = {each["port"]: each for each in monitor["spec"]["podMetricsEndpoints"]}
    assert "http" in read, "bookies that have not been restarted yet"
    assert ("https" in read) is enabled
    if enabled:
        tls = {"ca": {"secret": {"name": "demo-admin-tls", "key": "ca.crt"}}, "serverName": "demo-bookie.storage.svc"}
        assert (read["https"]["scheme"], read["https"]["tlsConfig"]) == ("https", tls)


def test_an_embedded_metadata_service_that_was_there_before_tokens_goes_on_without() -> None:
    """Its bookies have none, and nobody asked for their restart; a new cluster begins with one."""
    older, newer = (build(cluster(EMBEDDED, instance_id=known), BuildContext()) for known in (INSTANCE_ID, ""))
    assert [text in str(each.objects) for each in (older, newer) for text in ("--token-file", "metadata-token")] == [
        *(False, False),
        *(True, True),
    ]
    assert "metadataServiceTokenFile" in str(newer.destroy_job) + str(newer.objects)


def test_the_embedded_metadata_service_is_where_the_uri_says() -> None:
    objects = built("embedded").objects
    service = objects["Service/dev-metadata"]
    config = next(each for key, each in objects.items() if key.startswith("ConfigMap/dev-config-"))
    assert f"embedded://{service['metadata']['name']}.storage.svc:2281/ledgers" in config["data"]["bookie.conf"]
    assert objects["StatefulSet/dev-metadata"]["spec"]["replicas"] == 1


def test_the_certificate_names_every_bookie() -> None:
    certificate = built("index-tls").objects["Certificate/demo-bookie-tls"]["spec"]
    assert "*.demo-bookie.storage.svc" in certificate["dnsNames"]
    (only,) = built("index-tls").sets
    secrets = [
        volume["secret"]["secretName"]
        for volume in only.manifest["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "podkeeper-tls"
    ]
    assert secrets == [certificate["secretName"]]


def test_an_issuer_makes_the_certificate_of_the_admin_api() -> None:
    issuer = {"name": "ca", "kind": "ClusterIssuer"}
    asked = {"tls": {"adminApi": {"issuerRef": issuer}}, "monitoring": {"podMonitor": {"enabled": True}}}
    objects = build(cluster({**MINIMAL, **asked}), FULL)
    (made,) = [each["spec"] for key, each in objects.objects.items() if key.startswith("Certificate/")]
    assert (made["secretName"], made["issuerRef"]) == ("demo-admin-issued", issuer)
    assert {"*.demo-bookie.storage.svc", "demo-bookie.storage.svc"} <= set(made["dnsNames"])
    assert objects.desired().issued == ("demo-admin-issued",)
    pods = [objects.sets[0].manifest, objects.objects["Deployment/demo-autorecovery"], objects.metadata_job]
    for each in pods:
        volumes = {volume["name"]: volume for volume in each["spec"]["template"]["spec"]["volumes"]}
        assert volumes["podkeeper-admin-tls"]["secret"]["secretName"] == "demo-admin-issued"
    (monitor,) = objects.monitoring
    assert "demo-admin-issued" in str(monitor["spec"]["podMetricsEndpoints"])


def test_a_certificate_of_the_user_is_used_as_it_is() -> None:
    objects = build(cluster({**MINIMAL, "tls": {"enabled": True, "secretName": "mine"}}), FULL)
    assert [key for key in objects.objects if key.startswith("Certificate/")] == []
    volumes = objects.sets[0].manifest["spec"]["template"]["spec"]["volumes"]
    assert [each["secret"]["secretName"] for each in volumes if each["name"] == "podkeeper-tls"] == ["mine"]


def test_names_in_certificates_are_checked_where_the_operator_chose_them() -> None:
    def keys(case: str) -> str:
        return next(
            str(each["data"]["bookie.conf"])
            for key, each in built(case).objects.items()
            if key.startswith("ConfigMap/demo-config-")
        )

    assert "tlsHostnameVerificationEnabled=true" in keys("index-tls")
    assert "tlsHostnameVerificationEnabled" not in keys("bare")
    assert "tlsTrustStore=/etc/podkeeper/tls/ca.crt" in keys("bare")


def test_metrics_of_bookies_and_auto_recovery_are_read() -> None:
    monitor = next(each for key, each in built("everything").objects.items() if key.startswith("PodMonitor/"))
    assert monitor["metadata"]["labels"]["prometheus"] == "main"
    (expression,) = monitor["spec"]["selector"]["matchExpressions"]
    assert expression["values"] == ["bookie", "autorecovery"]
    read = [(each["path"], each["interval"]) for each in monitor["spec"]["podMetricsEndpoints"]]
    assert read == [("/metrics", "15s")] * 2
