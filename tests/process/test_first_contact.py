"""What a team that comes from Apache BookKeeper or Pulsar does first: its own configuration, its own messages."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from kazoo.client import KazooClient

from bookie_client.blocking import BlockingClient
from bookie_client.options import ClientOptions
from bookie_protocol.java_properties import parse
from tests.support.bookie_process import free_port
from tests.support.serve_process import ServeProcess
from tests.support.small_bookie import SMALL_BOOKIE
from tests.support.until import until_true
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.zookeeper

SHIPPED = Path("docker/pulsar/conf/bookkeeper.conf")
ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
LARGEST = 5_253_120 - 500
"""Bytes of the largest entry that a bookie of Pulsar's configuration stores."""


@pytest.fixture
def chroot(zookeeper: ZooKeeperServer) -> str:
    """A new cluster in ZooKeeper, at `ledgers` below this path."""
    path = f"/pulsar-{uuid.uuid4().hex[:8]}"
    assert ServeProcess.command("cluster", "init", zookeeper.uri(f"{path}/ledgers")).returncode == 0
    return path


@pytest.fixture
def bookie(tmp_path: Path, zookeeper: ZooKeeperServer, chroot: str) -> Iterator[ServeProcess]:
    """Pulsar's own configuration, with another place and other ports, and less memory than it would take."""
    shipped = {pair.key: pair.value for pair in parse(SHIPPED.read_text())}
    moved = {
        "journalDirectory": str(tmp_path / "journal"),
        "zkServers": zookeeper.hosts,
        "zkLedgersRootPath": f"{chroot}/ledgers",
        "prometheusStatsHttpEnable": "true",
        "prometheusStatsHttpPort": str(free_port()),
        "httpServerPort": str(free_port()),
    }
    with ServeProcess(tmp_path, {**shipped, **SMALL_BOOKIE, **moved, **_place(tmp_path)}) as process:
        del process.settings["journalDirectories"]
        process.start()
        yield process


def _place(work: Path) -> dict[str, str]:
    port = str(free_port())
    return {
        "bookiePort": port,
        "ledgerDirectories": str(work / "ledgers"),
        "allowLoopback": "true",
        "advertisedAddress": "127.0.0.1",
    }


def _in_pulsars_image(work: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    link = work / program
    if not link.exists():
        link.symlink_to(Path("docker/pulsar/commands.py").absolute())
    return subprocess.run([sys.executable, str(link), *arguments], capture_output=True, text=True, check=False)


@contextmanager
def client(uri: str, **options: object) -> Iterator[BlockingClient]:
    with BlockingClient(uri, ClientOptions(**options)) as made:  # type: ignore[arg-type]
        yield made


def test_pulsars_configuration_and_its_largest_messages(
    bookie: ServeProcess, zookeeper: ZooKeeperServer, chroot: str, tmp_path: Path
) -> None:
    """Also with `metadata-store:`, and for readers that were told no limit."""
    in_pulsars_words = f"metadata-store:zk:{zookeeper.hosts}{chroot}"
    payload = b"m" * (LARGEST - 100)
    with client(in_pulsars_words, max_frame_size=5_253_120) as writing:
        with writing.create(**ONE) as ledger:
            ledger.append(payload)
        ledger_id = ledger.ledger_id
    with client(zookeeper.uri(f"{chroot}/ledgers")) as reading, reading.open(ledger_id) as ledger:
        assert [entry.payload == payload for entry in ledger.read(0, 0)] == [True]
    out = tmp_path / "out"
    shown = ServeProcess.command(
        "ledger", "read", str(ledger_id), "-m", in_pulsars_words, "--format", "raw", "--output", str(out)
    )
    assert shown.returncode == 0, shown.stderr
    assert out.read_bytes() == payload
    made = _in_pulsars_image(
        bookie.work, "pulsar", "zookeeper-shell", "-server", zookeeper.hosts, "create", f"{chroot}/x"
    )
    assert made.returncode == 0, made.stderr
    seen = _in_pulsars_image(bookie.work, "pulsar", "zookeeper-shell", "-server", zookeeper.hosts, "ls", chroot)
    assert seen.stdout.split() == ["[ledgers,", "x]"]
    instance = ServeProcess.command("shell", "-conf", str(bookie.work / "bookie.conf"), "whatisinstanceid")
    assert (instance.returncode, "InstanceId: " in instance.stdout) == (0, True), instance.stderr
    assert not bookie.logged("network locations cannot be looked up; the last known ones are used")


def test_racks_that_pulsar_assigns_are_those_of_repairs(
    bookie: ServeProcess, zookeeper: ZooKeeperServer, chroot: str
) -> None:
    racks = {"default": {f"127.0.0.1:{bookie.port}": {"rack": "/east/r1", "hostname": "h"}}}
    pulsar = KazooClient(zookeeper.hosts)
    pulsar.start()
    try:
        pulsar.create(f"{chroot}/bookies", json.dumps(racks).encode())
    finally:
        pulsar.stop()
        pulsar.close()
    file = bookie.work / "bookie.conf"
    told = ServeProcess.command(
        "cluster",
        "placement",
        "--config",
        str(file),
        "--ensemble",
        "1",
        "--write-quorum",
        "1",
        "--ack-quorum",
        "1",
        "--json",
    )
    assert told.returncode == 0, told.stderr
    assert "/east/r1" in told.stdout


def is_ready(host: str, port: int) -> bool:
    """False while the port of gRPC does not listen, which begins a little after the bookie serves."""
    with suppress(HTTPError), urlopen(f"http://{host}:{port}/readyz", timeout=10) as answer:
        return bool(answer.status == 200)
    return False


def test_ipv6(tmp_path: Path, zookeeper: ZooKeeperServer, chroot: str) -> None:
    http, grpc = free_port(), free_port()
    settings = {
        "metadataServiceUri": zookeeper.uri(f"{chroot}/ledgers"),
        "advertisedAddress": "::1",
        "httpServerEnabled": "true",
        "httpServerPort": str(http),
        "httpServerHost": "::",
        "grpcServerEnabled": "true",
        "grpcServerPort": str(grpc),
        "grpcServerHost": "::",
    }
    with ServeProcess(tmp_path, settings) as bookie:
        del bookie.settings["listeningInterface"]
        bookie.start()
        with client(bookie.settings["metadataServiceUri"]) as made:
            with made.create(**ONE) as ledger:
                assert ledger.append(b"six") == 0
            assert made.metadata(ledger.ledger_id).ensembles == {0: (f"::1:{bookie.port}",)}
        for host in ("[::1]", "127.0.0.1"):
            until_true(lambda host=host: is_ready(host, http), 60)
        assert bookie.stop() == 0
