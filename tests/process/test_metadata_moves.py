"""A cluster of processes moves from ZooKeeper to etcd, and back by a backup: every entry is read behind each step."""

from __future__ import annotations

import json
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from bookie_client.blocking import BlockingClient
from bookie_pod.cli.exit_codes import CommandExit
from bookie_protocol.errors import ExitCode
from tests.process.cluster_life import run
from tests.support.etcd import EtcdServer
from tests.support.serve_cluster import ServeCluster
from tests.support.serve_process import PROGRAM
from tests.support.until import until_true
from tests.support.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.etcd, pytest.mark.zookeeper]

LEDGERS, ENTRIES = 20, 50


def written(uri: str) -> list[int]:
    """Ledgers of which the last one stays open, as that of a writer that died."""
    with BlockingClient(uri) as client:
        ids = []
        for _ in range(LEDGERS):
            writer = client.create(ensemble=2, write_quorum=2, ack_quorum=2, password=b"secret")
            for number in range(ENTRIES):
                writer.append(b"%d of %d" % (number, writer.ledger_id))
            ids.append(writer.ledger_id)
            if len(ids) < LEDGERS:
                writer.close()
        return ids


def check_read(uri: str, ids: list[int]) -> None:
    with BlockingClient(uri) as client:
        for each in ids:
            reader = client.open(each, password=b"secret", recover=True)
            assert [bytes(entry.payload) for entry in reader.read(0, ENTRIES - 1)] == [
                b"%d of %d" % (number, each) for number in range(ENTRIES)
            ]


def stop(cluster: ServeCluster) -> None:
    for bookie in cluster.bookies.values():
        assert bookie.stop() == 0


def start_at(cluster: ServeCluster, uri: str) -> None:
    for bookie in cluster.bookies.values():
        bookie.settings["metadataServiceUri"] = uri
    cluster.start(cluster.bookies)


def seen(cluster: ServeCluster) -> list[dict[str, object]]:
    """What bookies that are stopped know of the metadata service."""
    (name,) = {path.name for path in cluster.bookies["bookie-1"].work.glob("**/metadata-seen")}
    return [json.loads(next(each.work.glob(f"**/{name}")).read_text()) for each in cluster.bookies.values()]


def test_from_zookeeper_to_etcd_and_on(tmp_path: Path, zookeeper: ZooKeeperServer, etcd: EtcdServer) -> None:
    root = f"/move-{uuid.uuid4().hex[:8]}"
    old, new, third = zookeeper.uri(f"{root}/ledgers"), etcd.uri(root), etcd.uri(f"{root}-restored")
    cluster = ServeCluster(tmp_path / "bookies", old)
    try:
        cluster.add(2)
        ids = written(old)
        run("cluster", "metadata", "copy", old, new, code=CommandExit.REFUSED)
        stop(cluster)

        words = ("cluster", "metadata", "copy", old, new, "--timeout=4", "--json")
        copying = subprocess.Popen([PROGRAM, *words])
        until_true(lambda: copying.poll() is not None or bool(etcd.control("get", f"{root}//INSTANCEID")), 60)
        copying.send_signal(signal.SIGKILL)
        copying.wait(60)
        done = json.loads(run(*words))
        assert done["ledgers"] in (LEDGERS, 0), "0: it was complete when it was killed"
        bookie = cluster.bookies["bookie-1"]
        bookie.launch()
        assert bookie.process is not None
        assert bookie.process.wait(60) != ExitCode.OK, "no bookie starts at the old place"

        start_at(cluster, new)
        check_read(new, ids)
        later = written(new)
        assert min(later) > max(ids)
        file = str(tmp_path / "backup")
        assert json.loads(run("cluster", "metadata", "backup", new, file, "--json"))["in_use"]
        stop(cluster)
        for each in seen(cluster):
            assert (each["wentBack"], bool(each["history"])) == ("", True)

        run("cluster", "metadata", "restore", file, third)
        start_at(cluster, third)
        check_read(third, [*ids, *later])
        assert min(written(third)) > max(later)
        stop(cluster)
        assert all(each["wentBack"] for each in seen(cluster)), "nothing is deleted before a person says so"
    finally:
        cluster.stop()
