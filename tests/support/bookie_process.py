"""A bookie as a process of its own, whatever it is written in.

Invariants
- A started process is ended by `stop` or `kill`, which the owner must call; its output goes to a file, never
  to a pipe.
- `configuration` holds keys of Apache's bk_server.conf only: both kinds of bookie run from the same file.
- "Ready" is what clients see: registered in ZooKeeper and accepting connections.

One thread at a time may use one `BookieProcess`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from kazoo.client import KazooClient

from tests.support.warm import BOOKIE, WarmProcess

DB_STORAGE = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
SORTED_STORAGE = "org.apache.bookkeeper.bookie.SortedLedgerStorage"
INTERLEAVED_STORAGE = "org.apache.bookkeeper.bookie.InterleavedLedgerStorage"

_POLL_SECONDS = 0.005
_PORTS = (12000, 32000)
_given_ports: set[int] = set()
_STOP_SECONDS = 60


def _own_ports() -> range:
    """Those of this worker of a test run: another one cannot take a port between the look at it and its use."""
    worker, workers = (os.environ.get(f"PYTEST_XDIST_WORKER{end}") for end in ("", "_COUNT"))
    first = int(worker.removeprefix("gw")) if worker else 0
    return range(_PORTS[0] + first, _PORTS[1], int(workers) if worker and workers else 1)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now. It lies below those that the system gives to
    outgoing connections, so it stays free while a bookie that is to come back to it is down."""
    ports = _own_ports()
    while True:
        if len(_given_ports) > len(ports) // 2:
            _given_ports.clear()
        port = random.choice(ports)
        if port in _given_ports:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given_ports.add(port)
        return port


def loopback_configuration(directory: Path, metadata_uri: str, port: int) -> dict[str, str]:
    """Keys that every bookie on this machine needs: loopback only, its own directories, no admin server."""
    return {
        "bookiePort": str(port),
        "listeningInterface": "lo",
        "allowLoopback": "true",
        "advertisedAddress": "127.0.0.1",
        "metadataServiceUri": metadata_uri,
        "journalDirectories": str(directory / "journal"),
        "ledgerDirectories": str(directory / "ledgers"),
        "ledgerStorageClass": DB_STORAGE,
        "httpServerEnabled": "false",
        "prometheusStatsHttpEnable": "false",
        "grpcServerEnabled": "false",
        "diskUsageThreshold": "0.99",
        "diskUsageWarnThreshold": "0.98",
        "diskUsageLwmThreshold": "0.99",
    }


@dataclass
class BookieProcess:
    """Runs `command(configuration file)` on the directories of `configuration`."""

    kind: str
    configuration: dict[str, str]
    work: Path  # the configuration file and the output go here
    zookeeper: str  # host:port
    command: Callable[[Path, Mapping[str, str]], Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    warm: bool = False  # the command is ours, and is run by a fork of a process that has imported it
    process: subprocess.Popen[bytes] | WarmProcess | None = None

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.configuration['bookiePort']}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def log(self) -> Path:
        return self.work / "bookie.log"

    def start(self, timeout: float = 60.0) -> float:
        """Starts the process and waits until it is ready. Returns the seconds that took."""
        self.work.mkdir(parents=True, exist_ok=True)
        file = self.work / "bookie.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.configuration.items()))
        # The registration of an earlier process lives until its session ends; it must not count as ready.
        client = KazooClient(self.zookeeper)
        client.start()
        try:
            path = self._registration_path()
            if client.exists(path) is not None:
                client.delete(path)
            began = time.monotonic()
            with self.log.open("ab") as output:
                self.process = self._launched(file, output)
            self._wait_ready(client, path, began + timeout)
            return time.monotonic() - began
        except BaseException:
            if self.process is not None:
                self.kill()
            raise
        finally:
            client.stop()
            client.close()

    def stop(self) -> None:
        """Asks the process to end (SIGTERM) and waits."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(
                f"{self.kind} bookie did not end within {_STOP_SECONDS} s of SIGTERM: {self.tail()}"
            ) from None
        self.process = None

    def kill(self) -> None:
        """Ends the process as a crash would (SIGKILL), and any children with it; it may have ended by itself."""
        process = self._running()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.process = None

    def wait(self, timeout: float | None = None) -> int:
        """Waits until the process ends by itself; returns its exit code. TimeoutError after `timeout` seconds."""
        try:
            return self._running().wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.kind} bookie still runs after {timeout} s:\n{self.tail()}") from None

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def tail(self) -> str:
        """The end of the output, for messages."""
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def _wait_ready(self, client: KazooClient, path: str, deadline: float) -> None:
        while time.monotonic() < deadline:
            code = self._running().poll()
            if code is not None:
                raise RuntimeError(f"{self.kind} bookie ended with exit code {code} at start:\n{self.tail()}")
            if client.exists(path) is not None and self._accepts():
                return
            time.sleep(_POLL_SECONDS)
        raise TimeoutError(f"{self.kind} bookie {self.bookie_id} is not ready in time:\n{self.tail()}")

    def _accepts(self) -> bool:
        """True if a connection is accepted and kept: one made before start-up is over is closed at once."""
        try:
            with socket.create_connection(("127.0.0.1", int(self.configuration["bookiePort"])), timeout=1) as probe:
                probe.settimeout(0.02)
                try:
                    return probe.recv(1) != b""
                except TimeoutError:
                    return True
        except OSError:
            return False

    def _registration_path(self) -> str:
        root = "/" + self.configuration["metadataServiceUri"].split("://", 1)[1].split("/", 1)[1]
        return f"{root}/available/{self.bookie_id}"

    def _launched(self, file: Path, output: IO[bytes]) -> subprocess.Popen[bytes] | WarmProcess:
        """In a session of its own."""
        command = self.command(file, self.configuration)
        environment = {**os.environ, **self.environment}
        if self.warm:
            return WarmProcess(BOOKIE, command[1:], stdout=output, stderr=output, env=environment)
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def _running(self) -> subprocess.Popen[bytes] | WarmProcess:
        if self.process is None:
            raise RuntimeError(f"{self.kind} bookie {self.bookie_id} is not running")
        return self.process


def podkeeper_bookie(configuration: dict[str, str], work: Path, zookeeper: str, *, warm: bool = False) -> BookieProcess:
    """Our bookie, not started: `bookie serve` of the environment that runs this."""

    def command(file: Path, _: Mapping[str, str]) -> Sequence[str]:
        return [str(Path(sys.executable).with_name("bookie")), "serve", "--config", str(file)]

    return BookieProcess("ours", configuration, work, zookeeper, command, warm=warm)
