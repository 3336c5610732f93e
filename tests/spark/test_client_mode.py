"""A job with executors from end to end, but for the kubelet: the operator's objects, a real driver in client
mode against the API server of the tests, and each pod that Spark makes as a process of the image's entry point."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

import pyspark
import pytest
import yaml

from bookie_client import BlockingClient
from bookie_operator.api.kinds import POD
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.jobs import spark as settings
from bookie_operator.builders.jobs.build import build_job
from bookie_operator.builders.jobs.pod import SUBMIT_VARIABLE, TERMINATION_LOG
from tests.support.chart_files import CLUSTER, ROOT
from tests.support.fake_kubernetes import api_server
from tests.support.fake_kubernetes.store import Change, Store
from tests.support.java import java_home
from tests.support.operator_clusters import cluster as cluster_view
from tests.support.operator_jobs import ONCE, job
from tests.support.spark_environment import spark_environment

HOME = Path(pyspark.__file__).parent
NAMESPACE = "storage"
DRIVER = "driver-0"
_SECONDS = 500


class Pods:
    """What kubelets do for executors, in `folder`."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store, self._folder = store, folder
        self.made: list[subprocess.Popen[bytes]] = []
        store.listeners.append(self._changed)

    def _changed(self, change: Change) -> None:
        metadata = change.obj["metadata"]
        if change.resource != POD or change.type != "ADDED" or metadata["name"] == DRIVER:
            return
        container = change.obj["spec"]["containers"][0]
        facts = {"SPARK_EXECUTOR_POD_IP": "127.0.0.1", "SPARK_EXECUTOR_POD_NAME": metadata["name"]}
        given = {each["name"]: each.get("value", facts.get(each["name"], "")) for each in container["env"]}
        own = {"SPARK_LOCAL_DIRS": str(self._folder), "SPARK_JAVA_OPT_0": "-Dspark.blockManager.port=0"}
        del given["SPARK_CONF_DIR"]
        with open(self._folder / f"{metadata['name']}.log", "wb") as log:
            command = [ROOT / "docker" / "spark" / "entrypoint", *container["args"]]
            self.made.append(subprocess.Popen(command, env=here() | given | own, stdout=log, stderr=log))
        asyncio.get_running_loop().call_soon(self._run, metadata["name"])

    def _run(self, name: str) -> None:
        running = {"phase": "Running", "containerStatuses": [{"name": "executor", "state": {"running": {}}}]}
        self._store.replace(POD, NAMESPACE, name, {"metadata": {"resourceVersion": ""}, "status": running}, "status")

    def stop(self) -> None:
        for process in self.made:
            process.terminate()
            process.wait(60)


def here() -> dict[str, str]:
    """The environment of the image, in this work tree."""
    return spark_environment(SPARK_HOME=str(HOME), PATH=f"{java_home() / 'bin'}:{os.environ['PATH']}")


def driver_process(server: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Command and variables of the driver's container, with its files in `folder`."""
    objects = build_job(cluster_view(), job({**ONCE, "executors": {"instances": 2, "memory": "1Gi"}}), BuildContext())
    for name, text in objects.support[0]["data"].items():
        (folder / name).write_text(text)
    container = objects.runner["spec"]["template"]["spec"]["containers"][0]
    places = {
        settings.KUBERNETES: f"k8s://{server}",
        settings.DIRECTORY: str(folder),
        TERMINATION_LOG: str(folder / "result"),
        "$(POD_NAME)": DRIVER,
        settings.driver_host(job(ONCE), "$(JOB_NAME)"): "127.0.0.1",
    }
    variables = {each["name"]: each.get("value", "") for each in container["env"]}
    words, submit = list(container["args"]), variables[SUBMIT_VARIABLE]
    for place, instead in places.items():
        words = [word.replace(place, instead) for word in words]
        submit = submit.replace(place, instead)
    quicker = {
        "spark.kubernetes.executor.apiPollingInterval": "1s",
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.kubernetes.executor.podTemplateFile": str(folder / settings.EXECUTOR_FILE),
    }
    more = [word for key, value in quicker.items() for word in ("--conf", f"{key}={value}")]
    program, *before = container["command"]
    return [str(Path(sys.executable).with_name(program)), *before, *words], {
        SUBMIT_VARIABLE: f"{shlex.join(more)} {submit}"
    }


def opened(path: Path) -> BinaryIO:
    return open(path, "wb")


def executor_logs(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*-exec-*.log"))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_executors_do_the_work(uri: str, client: BlockingClient, tmp_path: Path) -> None:
    with client.create(write_quorum=3) as ledger:
        ledger.append_many(b"entry %d" % number for number in range(100))
    store = Store(time.time)
    pods = Pods(store, tmp_path)
    ready: dict[str, Any] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    try:
        async with api_server.serving(store) as server:
            store.create(POD, NAMESPACE, {"metadata": {"name": DRIVER, "labels": {}}, "spec": {}, "status": ready})
            words, variables = driver_process(server.host, tmp_path)
            with opened(tmp_path / "driver.log") as log:
                driver = await asyncio.create_subprocess_exec(
                    *words,
                    env={**here(), **variables, "BK_metadataServiceUri": uri},
                    cwd=tmp_path,
                    stdout=log,
                    stderr=log,
                )
            try:
                async with asyncio.timeout(_SECONDS):
                    code = await driver.wait()
            finally:
                if driver.returncode is None:
                    driver.kill()
                    await driver.wait()
            asked = {tuple(request.split()[:2]) for request in server.requests}
    finally:
        pods.stop()
    assert code in (0, 2), (tmp_path / "driver.log").read_text()[-3000:]
    row = json.loads((tmp_path / "result").read_text())
    assert row["ledgers"] >= 1
    assert len(pods.made) == 2
    assert "Finished task" in executor_logs(tmp_path), "the work was done by executors"
    (rule,) = yaml.safe_load((CLUSTER / "files" / "rbac" / "spark-driver.yaml").read_text(encoding="utf-8"))
    assert {path.split("/")[5] for _, path in asked} == set(rule["resources"]), "it needs no other rights"
