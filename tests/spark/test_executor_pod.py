"""Executors of a BookieJob: the pod that Spark itself makes of what the operator's builders write, and what the image's
entry point makes of that pod. No Kubernetes is asked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bookie_operator.builders.jobs import spark as settings
from bookie_operator.builders.jobs.common import BLOCK_PORT, DRIVER_PORT
from tests.support.chart_files import ROOT
from tests.support.operator_jobs import built, job
from tests.support.spark import SparkSessions

ENTRY_POINT = ROOT / "docker" / "spark" / "entrypoint"
HOST = settings.driver_host(job(name="nightly-offload"), "nightly-offload-job-1")
BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
POD_FACTS = {"SPARK_EXECUTOR_POD_IP": "10.0.0.9", "SPARK_EXECUTOR_POD_NAME": "exec-1"}

Object = dict[str, Any]


def scala(jvm: Any, package: str, name: str) -> Any:
    """A Scala object."""
    return getattr(getattr(jvm, package), f"{name}$").__getattr__("MODULE$")


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory, spark_sessions: SparkSessions) -> Object:
    """The pod, and the container of it that Spark completed, as Kubernetes gets them."""
    context = spark_sessions.get().sparkContext
    jvm = context._jvm
    files = built("executors").support[0]["data"]
    template = tmp_path_factory.mktemp("executor") / settings.EXECUTOR_FILE
    template.write_text(files[settings.EXECUTOR_FILE])
    conf = jvm.org.apache.spark.SparkConf(False)
    for line in files[settings.DEFAULTS_FILE].splitlines():
        if not line.startswith("#"):
            conf.set(*line.split("=", 1))
    conf.set("spark.kubernetes.executor.podTemplateFile", str(template)).set("spark.driver.host", HOST)
    nothing = jvm.scala.Option.empty()
    of = jvm.org.apache.spark.deploy.k8s.KubernetesConf.createExecutorConf(conf, "1", "app-1", nothing, 0)
    secret = scala(jvm, "org.apache.spark.internal.config", "package").AUTH_SECRET_FILE()
    security = jvm.org.apache.spark.SecurityManager(conf, nothing, secret)
    profiles = scala(jvm, "org.apache.spark.resource", "ResourceProfile")
    profiles.clearDefaultProfile()  # that of the session
    profile = profiles.getOrCreateDefaultProfile(conf)
    client = jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
    try:
        builder = jvm.org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder()
        made = builder.buildFromFeatures(of, security, client, profile).pod()
    finally:
        client.close()
        profiles.clearDefaultProfile()
        profiles.getOrCreateDefaultProfile(context._jsc.sc().conf())
    as_json = jvm.io.fabric8.kubernetes.client.utils.Serialization.asJson
    pod = json.loads(as_json(made.pod()))
    return {**pod, "container": json.loads(as_json(made.container()))}


def environment(executor: Object) -> dict[str, str]:
    return {each["name"]: each.get("value", POD_FACTS.get(each["name"], "")) for each in executor["container"]["env"]}


def test_it_satisfies_the_restricted_standard(executor: Object) -> None:
    spec, container = executor["spec"], executor["container"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert not [volume for volume in spec["volumes"] if "hostPath" in volume]


def test_it_gets_no_token_and_the_account_of_the_bookies(executor: Object) -> None:
    assert executor["spec"]["automountServiceAccountToken"] is False
    assert executor["spec"]["serviceAccountName"] == "demo-bookie"


def test_it_finds_its_driver_by_name(executor: Object) -> None:
    """Not by the address that the driver listens on, which says nothing to others."""
    assert environment(executor)["SPARK_DRIVER_URL"] == f"spark://CoarseGrainedScheduler@{HOST}:{DRIVER_PORT}"


def test_its_memory_and_processors_are_those_of_spec(executor: Object) -> None:
    assert executor["container"]["resources"] == {
        "limits": {"memory": "5120Mi"},
        "requests": {"memory": "5120Mi", "cpu": "2"},
    }


def test_bookies_and_the_driver_take_it_for_one_of_the_job(executor: Object) -> None:
    labels = executor["metadata"]["labels"]
    assert labels["podkeeper.dev/job"] == "nightly-offload"
    assert labels["app.kubernetes.io/instance"] == "demo"
    assert labels["app.kubernetes.io/component"] == "job-executor"
    assert {"containerPort": BLOCK_PORT, "name": "blockmanager"}.items() <= executor["container"]["ports"][0].items()


def test_what_the_job_needs_is_mounted_and_every_path_once(executor: Object) -> None:
    mounts = [mount["mountPath"] for mount in executor["container"]["volumeMounts"]]
    assert {"/tmp", "/etc/podkeeper/password", "/jars"} < set(mounts)
    assert len(set(mounts)) == len(mounts)
    assert {mount["name"] for mount in executor["container"]["volumeMounts"]} <= {
        volume["name"] for volume in executor["spec"]["volumes"]
    }
    given = next(each for each in executor["container"]["env"] if each["name"] == "AWS_ACCESS_KEY_ID")
    assert given["valueFrom"]["secretKeyRef"] == {"name": "archive", "key": "id"}


def test_the_image_starts_an_executor_of_it(executor: Object, tmp_path: Path, spark_sessions: SparkSessions) -> None:
    """By options that Spark's own program reads."""
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    env = {**environment(executor), "PATH": f"{tmp_path}:{os.environ['PATH']}", "SPARK_HOME": "/opt/spark"}
    assert executor["container"]["args"] == ["executor"]
    assert "command" not in executor["container"]
    done = subprocess.run(
        [str(ENTRY_POINT), *executor["container"]["args"]],
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    words = done.stdout.splitlines()
    at = words.index(BACKEND)
    options = words[:at]
    assert "-Xmx2560m" in options
    assert options[options.index("-cp") + 1] == "/opt/spark/jars/*"
    assert f"-Dspark.blockManager.port={BLOCK_PORT}" in options
    gateway = spark_sessions.get().sparkContext._gateway
    given = gateway.new_array(gateway.jvm.String, len(words) - at - 1)
    for place, word in enumerate(words[at + 1 :]):
        given[place] = word
    package, _, name = BACKEND.rpartition(".")
    read = scala(gateway.jvm, package, name).parseArguments(given, name)
    assert read.driverUrl() == environment(executor)["SPARK_DRIVER_URL"]
    assert (read.executorId(), read.cores(), read.appId()) == ("1", 2, "app-1")
    assert (read.bindAddress(), read.podName(), read.resourceProfileId()) == ("10.0.0.9", "exec-1", 0)
