"""A real Oxia for tests: the program that OXIA_SERVER names, as one server with several shards on free ports, or as
three with a coordinator.

The program is not in Debian: it is built of Oxia's public sources. Without OXIA_SERVER the tests that need it are
skipped. It may also be the address (host:port) of a server that runs already, whose namespace `default` is then used:
tests that pause or kill it are skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.bookie_process import free_port
from tests.support.hanging import hang

SERVER: Final = os.environ.get("OXIA_SERVER", "")
MISSING: Final = "these tests need Oxia: set OXIA_SERVER to its program, or to the host:port of a server"
_START_SECONDS: Final = 60.0
_ATTEMPTS: Final = 3


class OxiaServer:
    """`start` returns when it serves. `options` are further words of `oxia standalone`."""

    def __init__(self, folder: Path, *, shards: int = 3, options: Sequence[str] = ()) -> None:
        self._folder = folder
        self._shards = shards
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}" if is_program() else SERVER

    def uri(self, root: str = "/ledgers") -> str:
        return f"oxia://{self.target}/default{root}"

    def start(self) -> None:
        """Start it, or start it again with its data."""
        if not is_program():
            return
        for _ in range(_ATTEMPTS):
            self.port = self.port or free_port()
            self._launch()
            if self._serves():
                return
            self.kill()
            self.port = 0  # another process may have taken one of the ports
        raise RuntimeError(f"Oxia did not start:\n{self._log.read_text(errors='replace')[-3000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    stop = kill

    def forget(self) -> None:
        """Remove the data of a server that was killed."""
        for name in ("db", "wal"):
            shutil.rmtree(self._folder / name)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def pause(self) -> None:
        assert self._process is not None
        hang(self._process.pid)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    @property
    def _log(self) -> Path:
        return self._folder / "oxia.log"

    def _launch(self) -> None:
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(SERVER, "standalone", "--public-addr", self.target, "--metrics-addr", f"127.0.0.1:{free_port()}"),
                    *("--shards", str(self._shards), "--wal-sync-data=false"),
                    *("--data-dir", str(self._folder / "db"), "--wal-dir", str(self._folder / "wal"), *self._options),
                ],
                stdout=log,
                stderr=log,
            )

    def _serves(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                time.sleep(0.1)  # it ends if it cannot have its other port
                return self._process.poll() is None
        return False


class OxiaCluster:
    """Three servers, or as many as `size`, and a coordinator; each test makes a namespace of its own.

    `tls`: a folder with `server.pem`, `server.key` and `authority.pem`; clients need a certificate then, and the
    coordinator knows the first server as `tls://`, the others without that. `options`: further words of `oxia server`.
    """

    def __init__(self, folder: Path, size: int = 3, *, tls: Path | None = None, options: Sequence[str] = ()) -> None:
        self._folder = folder
        self._tls = tls
        self._options = options
        self.servers = [f"127.0.0.1:{free_port()}" for _ in range(size)]
        self._internal = [f"127.0.0.1:{free_port()}" for _ in self.servers]
        self._admin = f"127.0.0.1:{free_port()}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def uri(self, namespace: str) -> str:
        return f"oxia://{','.join(self.servers)}/{namespace}"

    def start(self) -> None:
        for public, internal in zip(self.servers, self._internal, strict=True):
            self._run_server(public, internal)
        members = [
            f"- {{name: s{number}, public: '{'' if self._tls is None or number else 'tls://'}{public}',"
            f" internal: '{internal}'}}"
            for number, (public, internal) in enumerate(zip(self.servers, self._internal, strict=True))
        ]
        config = self._folder / "cluster.yaml"
        config.write_text("\n".join(["namespaces: []", "servers:", *members, ""]))
        addresses = ("--public-addr", self._admin, "--internal-addr", f"127.0.0.1:{free_port()}")
        files = ("--cconfig", str(config), "--file-clusters-status-path", str(self._folder / "status.json"))
        self._run("coordinator", ("coordinator", *addresses, *files))

    def stop(self) -> None:
        for name in list(self._processes):
            self.kill(name)

    def kill(self, name: str) -> None:
        """A server by its address, or the coordinator."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()

    def restart(self, server: str) -> None:
        """With its data."""
        self._run_server(server, self._internal[self.servers.index(server)])

    def make_namespace(self, name: str, *options: str, shards: int = 2) -> None:
        self.admin(
            *("namespace", "create", name, "--initial-shards", str(shards)),
            *("--replication-factor", str(len(self.servers)), *options),
        )

    def admin(self, *words: str) -> str:
        """What `oxia admin` prints; it is tried until the coordinator serves."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            done = subprocess.run(
                [SERVER, "admin", *words, "--admin-address", self._admin, "-o", "json"],
                capture_output=True,
                text=True,
                timeout=60,
            )
            if done.returncode == 0:
                return done.stdout
            if time.monotonic() > deadline:
                raise RuntimeError(f"oxia admin {' '.join(words)}: {done.stderr}")
            time.sleep(0.1)

    def _run_server(self, public: str, internal: str) -> None:
        data = self._folder / public.rpartition(":")[2]
        addresses = ("--public-addr", public, "--internal-addr", internal)
        files = ("--data-dir", str(data / "db"), "--wal-dir", str(data / "wal"), "--wal-sync-data=false")
        secure = (
            ()
            if self._tls is None
            else (
                *("--tls-cert-file", f"{self._tls}/server.pem", "--tls-key-file", f"{self._tls}/server.key"),
                *("--tls-trusted-ca-file", f"{self._tls}/authority.pem", "--tls-client-auth"),
            )
        )
        self._run(public, ("server", *addresses, *files, *secure, *self._options))

    def _run(self, name: str, words: Sequence[str]) -> None:
        with open(self._folder / f"{name.rpartition(':')[2]}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                [SERVER, *words, "--metrics-addr", f"127.0.0.1:{free_port()}"], stdout=log, stderr=log
            )


def is_program() -> bool:
    """Return True if OXIA_SERVER is a program, and not the address of a server."""
    return os.sep in SERVER
