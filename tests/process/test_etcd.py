"""A cluster with etcd and nothing else: bookies, commands, a gateway and auto-recovery, as processes."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_operator.builders import commands
from tests.process.cluster_life import make_use_and_remove, run, three_bookies
from tests.support.etcd import EtcdServer
from tests.support.operator_clusters import MINIMAL
from tests.support.operator_clusters import cluster as operator_cluster
from tests.support.serve_cluster import ServeCluster
from tests.support.serve_process import ServeProcess

pytestmark = pytest.mark.etcd


@pytest.fixture
def cluster(tmp_path: Path, etcd: EtcdServer) -> Iterator[ServeCluster]:
    with three_bookies(tmp_path / "bookies", etcd.uri(f"/process-{uuid.uuid4().hex[:8]}")) as made:
        yield made


def test_jobs_of_the_operator_make_find_and_remove_a_cluster(etcd: EtcdServer, tmp_path: Path) -> None:
    """Their commands, word by word. A second one that makes the cluster changes nothing; another cluster's metadata are
    not removed; and a root without a cluster is not taken for one whose metadata were removed."""
    root = f"/jobs-{uuid.uuid4().hex[:8]}"
    view = operator_cluster({**MINIMAL, "metadataService": {"uri": etcd.uri(""), "rootPath": root}})
    made = run_job(tmp_path, commands.initialise(view))
    assert (made, run_job(tmp_path, commands.initialise(view))) == (view.uid, view.uid)
    looked = run_job(tmp_path, commands.look(), code=0, BK_metadataServiceUri=etcd.uri(root))
    assert looked == f"{view.uid} 0 0"
    other = replace(view, status=view.status.model_copy(update={"instance_id": str(uuid.uuid4())}))
    refused = ServeProcess.command(*commands.destroy(other))
    assert (refused.returncode != 0, view.uid in refused.stderr) == (True, True), refused.stderr
    mine = replace(view, status=view.status.model_copy(update={"instance_id": view.uid}))
    run(*commands.destroy(mine))
    assert ServeProcess.command(*commands.destroy(mine)).returncode != 0
    assert [key for key in etcd.control("get", f"{root}/", "--prefix", "--keys-only").split() if "/@/" not in key] == []


def run_job(folder: Path, command: Sequence[str], code: int = 0, **environment: str) -> str:
    """Run the script of a Job; returns its termination message."""
    shell, options, script, *arguments = command
    log = folder / "termination-log"
    script = script.replace("/tmp/cluster.json", f"{folder}/cluster.json").replace(commands.TERMINATION_LOG, str(log))
    found = {**os.environ, **environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([shell, options, script, *arguments], env=found, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return log.read_text().strip()


async def test_from_its_making_to_its_end(cluster: ServeCluster, etcd: EtcdServer, tmp_path: Path) -> None:
    root = await make_use_and_remove(cluster, tmp_path)
    assert [key for key in etcd.control("get", f"{root}/", "--prefix", "--keys-only").split() if "/@/" not in key] == []
