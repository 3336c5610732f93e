"""Objects of BookieJobs: what holds for all of them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_operator.builders import naming
from bookie_operator.builders.build import build
from bookie_operator.builders.common import object_hash
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.jobs import pod, spark
from bookie_operator.builders.jobs.build import build_job, spark_image
from bookie_operator.builders.jobs.common import object_name, pod_labels
from bookie_operator.crds import names
from bookie_operator.crds.job_rules import OWN_SPARK_CONF, OWN_VARIABLES, OWN_VOLUMES
from tests.support.operator_clusters import MINIMAL, cluster
from tests.support.operator_jobs import CASES, ONCE, SCHEDULED, built, job

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_JOB_NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)


def pods(case: str) -> Iterator[dict[str, Any]]:
    """Specs of driver and executors."""
    objects = built(case)
    spec = objects.runner["spec"]
    yield (spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec)["template"]["spec"]
    if spark.EXECUTOR_FILE in objects.support[0]["data"]:
        yield json.loads(objects.support[0]["data"][spark.EXECUTOR_FILE])["spec"]


def driver(case: str) -> dict[str, Any]:
    return next(pods(case))


def submitted(case: str) -> list[str]:
    """Arguments of `spark-submit`."""
    variables = {each["name"]: each.get("value") for each in driver(case)["containers"][0]["env"]}
    return shlex.split(variables[pod.SUBMIT_VARIABLE])


def defaults(case: str) -> dict[str, str]:
    lines = built(case).support[0]["data"][spark.DEFAULTS_FILE].splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("case", CASES)
def test_pods_satisfy_the_restricted_standard(case: str) -> None:
    for spec in pods(case):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }


@pytest.mark.parametrize("case", CASES)
def test_only_a_driver_with_executors_gets_a_token(case: str) -> None:
    many = CASES[case][1].spec.executors.instances > 0
    first, *others = pods(case)
    assert first["automountServiceAccountToken"] is many
    assert (first["serviceAccountName"] == "demo-spark") is many
    assert bool(others) is many
    assert all(each["automountServiceAccountToken"] is False for each in others)


@pytest.mark.parametrize("case", CASES)
def test_what_is_mounted_is_there(case: str) -> None:
    for spec in pods(case):
        volumes = [volume["name"] for volume in spec["volumes"]]
        assert len(volumes) == len(set(volumes))
        mounts = spec["containers"][0]["volumeMounts"]
        assert {mount["name"] for mount in mounts} <= set(volumes)
        paths = [mount["mountPath"] for mount in mounts]
        assert len(paths) == len(set(paths))


@pytest.mark.parametrize("case", CASES)
def test_executors_see_what_the_driver_sees(case: str) -> None:
    """But for the driver's own configuration."""
    first, *others = pods(case)
    mounted = {mount["mountPath"] for mount in first["containers"][0]["volumeMounts"]} - {spark.DIRECTORY}
    for each in others:
        assert {mount["mountPath"] for mount in each["containers"][0]["volumeMounts"]} == mounted


@pytest.mark.parametrize("case", CASES)
def test_what_the_operator_sets_cannot_be_given(case: str) -> None:
    """What is refused in a BookieJob is just what is set here."""
    spec = driver(case)
    own = {variable["name"] for variable in spec["containers"][0]["env"]} - {"AWS_ACCESS_KEY_ID"}
    assert own == OWN_VARIABLES
    assert all(
        each["name"].startswith(OWN_VOLUMES) for each in spec["volumes"] if each["name"] not in ("jars", "login")
    )
    arguments = submitted(case)
    given_on_the_line = {arguments[i + 1].partition("=")[0] for i, word in enumerate(arguments) if word == "--conf"}
    if CASES[case][1].spec.executors.instances:
        assert set(OWN_SPARK_CONF) <= {*defaults(case), *given_on_the_line, "spark.master"}


def test_no_secret_stands_in_a_config_map_or_in_arguments() -> None:
    text = json.dumps(built("executors").support[0]) + json.dumps(driver("executors")["containers"][0]["args"])
    text += " ".join(submitted("executors"))
    assert "secretKeyRef" in text, "executors take it by reference"
    assert "/etc/podkeeper/password/password" in text
    assert "AWS_ACCESS_KEY_ID=" not in text


def test_a_driver_is_found_by_the_name_of_its_run() -> None:
    """Of the pod of an indexed Job in a headless Service: host names of different runs differ."""
    objects, spec = built("executors"), driver("executors")
    (service,) = [each for each in objects.support if each["kind"] == "Service"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert spec["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= pod_labels(CASES["executors"][1], "job").items()
    run = objects.runner["spec"]["jobTemplate"]["spec"]
    assert (run["completionMode"], run["completions"], run["parallelism"]) == ("Indexed", 1, 1)
    (host,) = [each for each in submitted("executors") if each.startswith("spark.driver.host=")]
    assert host == "spark.driver.host=$(JOB_NAME)-0.nightly-offload-job.storage.svc"
    named = [variable["name"] for variable in spec["containers"][0]["env"]]
    at = named.index(pod.SUBMIT_VARIABLE)
    assert {"JOB_NAME", "POD_NAME"} <= set(named[:at]), "Kubernetes puts in only what stands before"


def test_bookies_let_the_pods_of_a_job_in() -> None:
    """Also where `networkPolicy.clients` names others."""
    narrow = cluster({**MINIMAL, "networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"app": "broker"}}}]}})
    objects = build(narrow, BuildContext())
    (policy,) = [
        each for each in objects.support if each["kind"] == "NetworkPolicy" and "bookie" in each["metadata"]["name"]
    ]
    (data,) = [
        rule for rule in policy["spec"]["ingress"] if {"protocol": "TCP", "port": naming.BOOKIE_PORT} in rule["ports"]
    ]
    selectors = [peer["podSelector"]["matchLabels"] for peer in data["from"] if "podSelector" in peer]
    for component in ("job", "job-executor"):
        labels = pod_labels(job(ONCE), component)
        assert any(selector.items() <= labels.items() for selector in selectors)


def test_nobody_reaches_a_driver_without_executors() -> None:
    (policy,) = [each for each in built("once").support if each["kind"] == "NetworkPolicy"]
    assert policy["spec"]["ingress"] == []
    assert not [each for each in built("secured").support if each["kind"] == "NetworkPolicy"], "the cluster wants none"


def test_nothing_of_a_job_is_taken_for_what_a_cluster_left() -> None:
    """Passes over clusters select by instance and manager: a BookieJob may be called as its cluster is."""
    own = build(cluster(), BuildContext()).support[0]["metadata"]["labels"]
    objects = build_job(cluster(), job(SCHEDULED, name="demo"), BuildContext())
    for each in (*objects.support, objects.runner):
        assert each["metadata"]["labels"][names.MANAGED_BY] != own[names.MANAGED_BY]
        assert each["metadata"]["ownerReferences"][0]["kind"] == "BookieJob"


@given(_JOB_NAMES)
def test_names_fit(name: str) -> None:
    made = object_name(name)
    assert _LABEL.fullmatch(made)
    assert len(made) <= 52, "a CronJob adds eleven characters"
    assert len(f"{made}-29384756-0") <= 63, "host name of the pod of an indexed Job"


def test_half_of_the_memory_is_javas() -> None:
    assert defaults("scheduled")["spark.driver.memory"] == "1536m"
    assert defaults("executors")["spark.executor.memory"] == "2560m"
    assert defaults("executors")["spark.executor.memoryOverhead"] == "2560m"
    assert "spark.driver.memory" not in defaults("once"), "no limit: Spark's default"


def test_configuration_of_the_user_wins_over_defaults_alone() -> None:
    own = {"spark.log.level": "INFO", "spark.driver.port": "1", "spark.driver.extraJavaOptions": "-Xlog:gc"}
    given = {**ONCE, "executors": {"instances": 1}, "sparkConf": own}
    text = build_job(cluster(), job(given), BuildContext()).support[0]["data"][spark.DEFAULTS_FILE]
    assert "spark.log.level=INFO" in text
    assert "spark.driver.extraJavaOptions=-Xlog:gc" in text
    assert "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1" in text
    assert "spark.driver.port=7078" in text


@pytest.mark.parametrize(
    ("cluster_image", "image", "expected"),
    [
        ("", "", "podkeeper:0.1.0-spark"),
        ("registry.example:5000/podkeeper:2.0", "", "registry.example:5000/podkeeper:2.0-spark"),
        ("registry.example:5000/podkeeper", "", "podkeeper:0.1.0-spark"),
        ("registry.example/podkeeper@sha256:" + "a" * 64, "", "podkeeper:0.1.0-spark"),
        ("podkeeper:2.0", "mine:1", "mine:1"),
    ],
)
def test_image(cluster_image: str, image: str, expected: str) -> None:
    spec = {**MINIMAL, **({"image": cluster_image} if cluster_image else {})}
    assert spark_image(cluster(spec), job({**ONCE, "image": image}), BuildContext()) == expected


def test_a_suspension_changes_nothing_of_what_runs() -> None:
    going, stopped = (
        build_job(cluster(), job({**SCHEDULED, "suspend": each}), BuildContext()) for each in (False, True)
    )
    assert going.desired().template_hash == stopped.desired().template_hash
    assert object_hash(going.runner) != object_hash(stopped.runner)
    assert going.support == stopped.support


def test_arguments_of_the_job_follow_its_name() -> None:
    container = driver("scheduled")["containers"][0]
    assert container["command"] == ["bookie", "job"], "Java is no parent of it: it gets the signals of the pod"
    assert container["args"] == ["scrub", *SCHEDULED["args"], "--result", pod.TERMINATION_LOG]


def test_without_executors_nothing_of_kubernetes_is_asked_for() -> None:
    assert submitted("once") == [
        *("--master", "local[*]"),
        *("--properties-file", "/etc/podkeeper/spark/spark-defaults.conf"),
        "pyspark-shell",
    ]


def test_logins_and_certificates_are_those_of_the_cluster() -> None:
    arguments = driver("secured")["containers"][0]["args"]
    options = dict(arguments[i + 1].split("=", 1) for i, word in enumerate(arguments) if word == "--option")
    assert options == {
        "tls.caFile": "/etc/podkeeper/tls/ca.crt",
        "tls.certificateFile": "/etc/podkeeper/tls/tls.crt",
        "tls.keyFile": "/etc/podkeeper/tls/tls.key",
        "tls.checkHostname": "false",
        "zkAuthScheme": "sasl",
        "zkAuthCredentialsPath": "/etc/zookeeper/login",
    }


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (
            {"clientAuthProviderFactoryClass": "dev.podkeeper.SharedToken", "authTokenFile": "/tokens"},
            {"authTokenFile": "/tokens"},
        ),
        (
            {"clientAuthProviderFactoryClass": "SASLClientProviderFactory", "saslJaasConfigFile": "/jaas"},
            {"saslJaasConfigFile": "/jaas"},
        ),
        ({"authTokenFile": "/tokens", "saslJaasConfigFile": "/jaas"}, {}),  # nobody uses them
    ],
)
def test_jobs_log_in_as_the_clients_of_the_bookies_do(config: dict[str, str], options: dict[str, str]) -> None:
    objects = build_job(cluster({**MINIMAL, "config": config}), job(ONCE), BuildContext())
    arguments = objects.runner["spec"]["template"]["spec"]["containers"][0]["args"]
    found = dict(arguments[i + 1].split("=", 1) for i, word in enumerate(arguments) if word == "--option")
    assert found == options


@pytest.mark.parametrize("kind", ["space", "compact-report"])
def test_a_job_that_asks_the_bookies_has_their_token(kind: str) -> None:
    objects = build_job(cluster(), job({**ONCE, "kind": kind}), BuildContext())
    spec = objects.runner["spec"]["template"]["spec"]
    container = spec["containers"][0]
    file = container["args"][container["args"].index(pod.TOKEN_ARGUMENT) + 1]
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volume = next(each for each in spec["volumes"] if each["name"] == mounted[file.rpartition("/")[0]])
    assert volume["secret"]["secretName"] == naming.admin_token("demo")


def test_a_token_of_the_user_and_other_jobs_get_none() -> None:
    own = {**ONCE, "kind": "space", "args": ["--admin-token-file=/secrets/token"]}
    for spec in (own, ONCE):
        found = build_job(cluster(), job(spec), BuildContext()).runner["spec"]["template"]["spec"]
        assert naming.admin_token("demo") not in str(found)
        assert pod.TOKEN_ARGUMENT not in found["containers"][0]["args"]
