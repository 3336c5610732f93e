"""The members of etcd that the operator runs, by etcd's own program with the options and certificates of their pods.

All of them run on this machine: peers by ports of `localhost`, clients by addresses of their own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from bookie_operator.api.etcd import Etcd, EtcdError
from bookie_operator.builders.build import build
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.metadata_uri import metadata_host
from bookie_operator.reconcile.certificates import CLIENT, SERVER, Pair, make_authority, make_certificate
from bookie_operator.world.facts import EtcdFacts
from tests.support.bookie_process import free_port
from tests.support.etcd import MISSING, PROGRAM
from tests.support.operator_clusters import ETCD, cluster

pytestmark = pytest.mark.etcd

CLUSTER = cluster(ETCD)
SERVER_NAME = metadata_host(CLUSTER)
PODS = [f"demo-metadata-{ordinal}" for ordinal in range(3)]
HOSTS = {pod: f"127.0.0.{ordinal + 2}" for ordinal, pod in enumerate(PODS)}
SECONDS = 60.0


class Members:
    """Each as its container starts it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.peers = {pod: f"https://localhost:{free_port()}" for pod in PODS}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._authority = make_authority("etcd", 2)
        server = make_certificate(self._authority, "server", [SERVER_NAME, "localhost"], 2, SERVER | CLIENT)
        for name, text in self.files(server).items():
            (folder / name).write_text(text)
        self.client = self.files(make_certificate(self._authority, "client", ["client"], 2, CLIENT))

    def files(self, pair: Pair) -> dict[str, str]:
        return {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": self._authority.certificate}

    def start(self, pod: str, state: str) -> None:
        """`state`: what the pod was told."""
        made = build(CLUSTER, BuildContext()).objects["StatefulSet/demo-metadata"]
        (container,) = made["spec"]["template"]["spec"]["containers"]
        options = dict(word.split("=", 1) for word in container["command"][1:])
        peers = ",".join(f"{name}={url}" for name, url in self.peers.items())
        own = {
            "--name": pod,
            "--data-dir": str(self.data(pod)),
            "--listen-client-urls": f"https://{HOSTS[pod]}:{self.port}",
            "--advertise-client-urls": f"https://localhost:{self.port}",
            "--listen-peer-urls": self.peers[pod].replace("localhost", "127.0.0.1"),
            "--initial-advertise-peer-urls": self.peers[pod],
            "--initial-cluster": peers,
            "--listen-metrics-urls": f"http://{HOSTS[pod]}:{free_port()}",
            "--unsafe-no-fsync": "true",
        }
        files = {
            key: f"{self.folder}/{Path(text).name}"
            for key, text in options.items()
            if text.startswith("/etc/podkeeper")
        }
        command = [f"{key}={text}" for key, text in {**options, **files, **own}.items()]
        with open(self.folder / f"{pod}.log", "ab") as log:
            self.running[pod] = subprocess.Popen(
                [shutil.which(PROGRAM) or PROGRAM, *command],
                env={"ETCD_INITIAL_CLUSTER_STATE": state, "PATH": os.environ["PATH"]},
                stdout=log,
                stderr=log,
            )

    def data(self, pod: str) -> Path:
        return self.folder / f"data-{pod}"

    def kill(self, pod: str) -> None:
        process = self.running.pop(pod)
        process.kill()
        process.wait()

    def etcd(self, files: Mapping[str, str] | None = None) -> Etcd:
        return Etcd(self.client if files is None else files, SERVER_NAME, port=self.port)

    async def serving(self, number: int) -> EtcdFacts:
        """What they tell once so many of them serve."""
        async with asyncio.timeout(SECONDS):
            while True:
                hosts = {pod: HOSTS[pod] for pod in self.running}
                found = await self.etcd().look(hosts)
                if found is not None and sum(each.serves for each in found.health.values()) == number:
                    return found
                ended = [pod for pod, each in self.running.items() if each.poll() is not None]
                assert not ended, (self.folder / f"{ended[0]}.log").read_text()[-2000:]
                await asyncio.sleep(0.1)


async def changed(members: Members, number: int, change: Callable[[], Awaitable[None]]) -> None:
    """Ask until etcd has this number of members. It refuses before they have been connected for some seconds, and may
    do what it has not answered."""
    async with asyncio.timeout(SECONDS):
        while True:
            with suppress(EtcdError):
                await change()
            found = await members.etcd().look({pod: HOSTS[pod] for pod in members.running})
            if found is not None and len(found.members) == number:
                return
            await asyncio.sleep(0.5)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    assert shutil.which(PROGRAM), MISSING
    found = Members(tmp_path)
    yield found
    for pod in list(found.running):
        found.kill(pod)


async def test_a_lost_member_is_replaced_by_its_pod_with_an_empty_volume(members: Members) -> None:
    for pod in PODS:
        members.start(pod, "new")
    before = await members.serving(3)
    assert sorted(each.name for each in before.members) == PODS
    assert sorted(before.health) == PODS
    leaders = {each.leader for each in before.health.values()}
    assert len(leaders) == 1
    assert leaders < {each.id for each in before.members}

    lost = PODS[2]
    members.kill(lost)
    shutil.rmtree(members.data(lost))
    rest = await members.serving(2)
    (old,) = (each for each in rest.members if each.name == lost)
    hosts = {pod: HOSTS[pod] for pod in members.running}
    await changed(members, 2, lambda: members.etcd().remove_member(hosts, old.id))
    with pytest.raises(EtcdError):
        await members.etcd().remove_member(hosts, old.id)
    await changed(members, 3, lambda: members.etcd().add_member(hosts, members.peers[lost]))
    with pytest.raises(EtcdError):
        await members.etcd().add_member(hosts, members.peers[lost])
    found = await members.serving(2)
    (new,) = (each for each in found.members if each.id not in {old.id, *(one.id for one in rest.members)})
    assert (new.name, new.peer_urls) == ("", (members.peers[lost],))

    members.start(lost, "existing")
    after = await members.serving(3)
    assert after.health[lost].id == new.id
    assert {each.id: each.name for each in after.members}[new.id] == lost

    members.kill(lost)
    members.start(lost, "")
    assert (await members.serving(3)).health[lost].id == new.id


async def test_without_a_majority_nothing_is_told_or_changed(members: Members) -> None:
    for pod in PODS:
        members.start(pod, "new")
    before = await members.serving(3)
    for pod in PODS[1:]:
        members.kill(pod)
    async with asyncio.timeout(SECONDS):
        while True:
            found = await members.etcd().look(HOSTS)
            if found is None or not any(each.serves for each in found.health.values()):
                break
            await asyncio.sleep(0.1)
    gone = next(each.id for each in before.members if each.name == PODS[1])
    with pytest.raises(EtcdError):
        await members.etcd().remove_member(HOSTS, gone)


async def test_nobody_without_a_certificate_of_the_cluster_is_let_in(members: Members) -> None:
    for pod in PODS:
        members.start(pod, "new")
    await members.serving(3)
    stranger = make_certificate(make_authority("stranger", 2), "client", ["client"], 2, CLIENT)
    files = {**members.files(stranger), "tls.crt": stranger.certificate, "tls.key": stranger.key}
    assert await members.etcd(files).look(HOSTS) is None
    assert await members.etcd({}).look(HOSTS) is None
    assert await Etcd(members.client, "other.storage.svc", port=members.port).look(HOSTS) is None
