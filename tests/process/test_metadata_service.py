"""`bookie metadata-service` as its own process: what it serves, what it survives, what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_pod.cli.main import run
from bookie_pod.storage.disks import RESERVE
from bookie_protocol.errors import ExitCode, MetadataNotFound, MetadataUnavailable
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support import warm
from tests.support.bookie_process import free_port
from tests.support.serve_process import PROGRAM, ServeProcess, SmallDisk
from tests.support.until import until_true
from tests.support.warm import WarmProcess

_END_S = 40.0


class Served:
    """The process; its port and directory are the same at every start."""

    def __init__(self, work: Path) -> None:
        self.data = work / "data"
        self.port, self.http_port = free_port(), free_port()
        self.uri = f"embedded://127.0.0.1:{self.port}/bk/ledgers"
        self.errors = work / "stderr"
        self.process: WarmProcess | None = None

    def arguments(self, port: int, http_port: int) -> list[str]:
        ports = ["--port", str(port), "--http-port", str(http_port)]
        return ["metadata-service", "--data", str(self.data), "--host", "127.0.0.1", *ports]

    def launch(self) -> None:
        with self.errors.open("wb") as errors:
            self.process = WarmProcess(warm.BOOKIE, self.arguments(self.port, self.http_port), stderr=errors)

    def start(self) -> None:
        self.launch()
        until_true(lambda: self.probe("readyz") == 200, _END_S)

    def probe(self, path: str) -> int | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return None

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(_END_S)
        self.process = None
        return code


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    if made.process is not None:
        made.end(signal.SIGKILL)


def init(uri: str) -> subprocess.CompletedProcess[str]:
    return ServeProcess.command("cluster", "init", uri, "--if-absent", "--wait", "30", "--timeout", "2", "--json")


async def cookie_of(uri: str, bookie_id: str, written: bytes | None = None) -> bytes:
    service: MetadataService = await open_metadata_service(uri)
    try:
        if written is not None:
            await service.cookies.create(bookie_id, written)
        return (await service.cookies.read(bookie_id)).value
    finally:
        await service.close()


def test_a_cluster_lives_in_it_over_stops_and_crashes(served: Served) -> None:
    served.start()
    first = init(served.uri)
    assert (first.returncode, first.stderr) == (0, "")
    assert asyncio.run(cookie_of(served.uri, "b:1", b"cookie")) == b"cookie"
    assert [served.probe(path) for path in ("healthz", "readyz", "metrics")] == [200, 200, 200]
    assert served.probe("api/v1/cluster/state") == 404  # probes and metrics only
    for number in (signal.SIGTERM, signal.SIGKILL):
        assert served.end(number) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        assert served.probe("healthz") is None
        served.start()
        assert asyncio.run(cookie_of(served.uri, "b:1")) == b"cookie"
        assert json.loads(init(served.uri).stdout) == json.loads(first.stdout)


async def test_a_pause_of_the_process_ends_no_session(served: Served) -> None:
    await asyncio.to_thread(served.start)
    opened = [await open_metadata_service(served.uri, timeout=1) for _ in range(10)]
    states: list[SessionState] = []
    for service in opened:
        service.session.add_listener(states.append)
    assert served.process is not None
    served.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(2.5)
    served.process.send_signal(signal.SIGCONT)
    async with asyncio.timeout(_END_S):
        for service in opened:
            assert not await service.cluster.exists(timeout=_END_S)
    assert SessionState.EXPIRED not in states
    assert SessionState.SUSPENDED in states
    for service in opened:
        await service.close()


async def test_a_disk_without_room_ends_the_process(served: Served) -> None:
    """Nobody else would: a store that refuses everything looks as alive as ever."""
    await asyncio.to_thread(served.start)
    service = await open_metadata_service(served.uri, timeout=10)
    await service.cluster.initialize()
    await service.cookies.create("b:1", b"kept")
    assert served.process is not None
    resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    with pytest.raises(MetadataUnavailable):
        await service.cookies.create("b:2", b"x" * 200_000, timeout=2)
    assert await asyncio.to_thread(served.process.wait, _END_S) == ExitCode.SERVER_EXCEPTION
    assert "restart its owner" in served.errors.read_text()
    await service.close()
    await asyncio.to_thread(served.start)
    assert await cookie_of(served.uri, "b:1") == b"kept"
    with pytest.raises(MetadataNotFound):
        await cookie_of(served.uri, "b:2")


@pytest.mark.slow
def test_a_start_on_a_disk_that_somebody_has_filled_takes_what_was_held_for_it(tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", 128) as disk:
        served = Served(tmp_path)
        served.data = disk.path / "data"
        served.start()
        try:
            assert init(served.uri).returncode == 0
            for number in range(40):
                asyncio.run(cookie_of(served.uri, f"b:{number}", os.urandom(200_000)))
            until_true((served.data / RESERVE).exists, _END_S)
            served.end(signal.SIGKILL)
            disk.fill()
            served.start()
            assert len(asyncio.run(cookie_of(served.uri, "b:39"))) == 200_000
            assert not (served.data / RESERVE).exists()
        finally:
            if served.process is not None:
                served.end(signal.SIGKILL)


FORKS = """
import os, sys, threading
from bookie_client.blocking import BlockingClient

with BlockingClient(sys.argv[1]) as client:
    done = threading.Event()

    def use():
        while not done.is_set():
            list(client.list())

    users = [threading.Thread(target=use) for _ in range(3)]
    for user in users:
        user.start()
    ends = []
    for _ in range(30):
        pid = os.fork()
        if not pid:
            try:
                os.execv(sys.executable, [sys.executable, "-S", "-c", ""])
            finally:
                os._exit(9)
        ends.append(os.waitpid(pid, 0)[1])
    done.set()
    for user in users:
        user.join()
print(ends)
"""


def test_children_of_a_program_with_an_open_client_start(served: Served) -> None:
    """As Spark starts Java. No setting of the user's is needed for it."""
    served.start()
    assert init(served.uri).returncode == 0
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    command = [sys.executable, "-c", FORKS, served.uri]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_END_S, check=False, env=environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{[0] * 30}\n", "")


FORKED = """
import os, sys
from bookie_client.blocking import BlockingClient
from bookie_protocol.errors import InvalidConfiguration

with BlockingClient(sys.argv[1]) as client:
    pid = os.fork()
    if not pid:
        try:
            BlockingClient(sys.argv[1]).start()
        except InvalidConfiguration as error:
            os._exit(7 if "spawn" in str(error) else 8)
        finally:
            os._exit(9)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), list(client.list()))
"""


def test_client_in_a_forked_child_says_what_helps(served: Served) -> None:
    served.start()
    assert init(served.uri).returncode == 0
    command = [sys.executable, "-c", FORKED, served.uri]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_END_S, check=False)
    assert (ended.stdout, ended.stderr) == ("7 []\n", "")


def test_who_comes_first_waits(served: Served) -> None:
    """The Job that makes the cluster may start before the service. Both are the installed command here."""
    arguments = [PROGRAM, "cluster", "init", served.uri, "--if-absent", "--wait", str(_END_S), "--timeout", "1"]
    waiting = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    serving = subprocess.Popen(
        [PROGRAM, *served.arguments(served.port, served.http_port)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with waiting, serving:
        try:
            out, err = waiting.communicate(timeout=2 * _END_S)
        finally:
            waiting.kill()
            serving.terminate()
    assert serving.returncode == 0
    assert waiting.returncode == 0
    assert err in ("", f"bookie: the metadata service {served.uri} does not answer yet; it is tried for {_END_S:g} s\n")
    assert out.startswith("new cluster ")


@pytest.mark.parametrize("scheme", ["embedded", "zk+hierarchical"])
def test_who_waits_in_vain_is_told_early_and_once(
    scheme: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bookie_pod.cli.cluster.metadata.TELL_AFTER_S", 0.5)
    monkeypatch.setattr("bookie_pod.logs.configure", lambda *settings: None)  # its stream is gone after the test
    uri = f"{scheme}://127.0.0.1:{free_port()}/ledgers"
    assert run(["cluster", "init", uri, "--wait", "1.5", "--timeout", "0.5"]) == 2
    out, err = capsys.readouterr()
    early, last = err.splitlines()
    assert out == ""
    assert early == f"bookie: the metadata service {uri} does not answer yet; it is tried for 1.5 s"
    assert last.startswith("bookie: the metadata service does not answer: ")


def test_a_directory_has_one_owner(served: Served) -> None:
    served.start()
    found = ServeProcess.command(*served.arguments(0, 0))
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1] == (
        f"bookie: another process owns the metadata store in {served.data}: stop that one, or use another directory"
    )
    assert served.probe("readyz") == 200


def test_ports_that_are_taken_are_named(served: Served, tmp_path: Path) -> None:
    served.start()
    for port, http_port, named in ((served.port, 0, served.port), (0, served.http_port, served.http_port)):
        other = Served(tmp_path / "other")
        found = ServeProcess.command(*other.arguments(port, http_port))
        assert found.returncode == 2
        assert str(named) in found.stderr.splitlines()[-1]
