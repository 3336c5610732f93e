"""A real etcd for tests: the `etcd` of the search path, such as Debian's or that of `make test-etcd`, or the one that
ETCD names.

A server, or a cluster of several, on free ports, without waits for disks where the program can. Members can be paused
(SIGSTOP: connections stay, nobody answers), killed, and started again with their data.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.bookie_process import free_port
from tests.support.hanging import hang

PROGRAM: Final = os.environ.get("ETCD") or "etcd"
MISSING: Final = "these tests need etcd: apt-get install etcd-server etcd-client"
_START_SECONDS: Final = 60.0
_BINDING: Final = "address already in use"


class EtcdMember:
    """`tls`: a folder with `server.pem`, `server.key` and `authority.pem`; clients need a certificate then."""

    def __init__(
        self,
        folder: Path,
        number: int = 0,
        *,
        tls: Path | None = None,
        options: Sequence[str] = (),
        host: str = "127.0.0.1",
    ) -> None:
        self.name = f"m{number}"
        self._host = host
        self.folder = folder / self.name
        self.port, self._peer_port = free_port(), free_port()
        self._tls = tls
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> str:
        return f"{self._host}:{self.port}"

    @property
    def peer(self) -> str:
        return f"{self.name}=http://127.0.0.1:{self._peer_port}"

    @property
    def log(self) -> str:
        return Path(f"{self.folder}.log").read_text(errors="replace")

    def launch(self, peers: Sequence[str]) -> None:
        scheme = "http" if self._tls is None else "https"
        secure = (
            ()
            if self._tls is None
            else (
                *("--cert-file", f"{self._tls}/server.pem", "--key-file", f"{self._tls}/server.key"),
                *("--trusted-ca-file", f"{self._tls}/authority.pem", "--client-cert-auth"),
            )
        )
        with open(f"{self.folder}.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(_program(PROGRAM), "--name", self.name, "--data-dir", str(self.folder), "--log-level", "warn"),
                    *("--listen-client-urls", f"{scheme}://{self.target}"),
                    *("--advertise-client-urls", f"{scheme}://{self.target}"),
                    *("--listen-peer-urls", f"http://127.0.0.1:{self._peer_port}"),
                    *("--initial-advertise-peer-urls", f"http://127.0.0.1:{self._peer_port}"),
                    *("--initial-cluster", ",".join(peers), "--unsafe-no-fsync", *secure, *self._options),
                ],
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None


class EtcdServer:
    """A cluster of `members`; `start` returns when it has a leader and serves. `host`: where clients reach it."""

    def __init__(
        self,
        folder: Path,
        members: int = 1,
        *,
        tls: Path | None = None,
        options: Sequence[str] = (),
        host: str = "127.0.0.1",
    ) -> None:
        self._folder = folder
        self._host = host
        self._tls = tls
        self._options = options
        self.members = self._make(members)

    def _make(self, number: int) -> list[EtcdMember]:
        return [
            EtcdMember(self._folder, each, tls=self._tls, options=self._options, host=self._host)
            for each in range(number)
        ]

    @property
    def pid(self) -> int:
        """Of the only member."""
        (member,) = self.members
        return member.pid

    @property
    def endpoints(self) -> str:
        return ",".join(member.target for member in self.members)

    def uri(self, root: str = "/podkeeper") -> str:
        return f"etcd://{self.endpoints}{root}"

    def start(self) -> None:
        for attempts_left in (2, 1, 0):
            for member in self.members:
                member.launch([each.peer for each in self.members])
            deadline = time.monotonic() + _START_SECONDS
            while all(member.is_running for member in self.members) and time.monotonic() < deadline:
                if self._serves():
                    return
                time.sleep(0.05)
            told = "\n".join(member.log[-1500:] for member in self.members)
            self.stop()
            if not attempts_left or _BINDING not in told:
                raise RuntimeError(f"etcd did not start within {_START_SECONDS:g} s:\n{told}")
            self.members = self._make(len(self.members))

    def stop(self) -> None:
        for member in self.members:
            member.kill()

    def restart(self, member: EtcdMember) -> None:
        """With its data; it need not serve yet."""
        member.launch([each.peer for each in self.members])

    def put_back(self, member: EtcdMember, snapshot: Path) -> None:
        """Start a member that was alone with what it held when the snapshot was saved."""
        peer = ("--name", member.name, "--initial-cluster", member.peer)
        advertised = ("--initial-advertise-peer-urls", member.peer.partition("=")[2])
        words = ("snapshot", "restore", str(snapshot), "--data-dir", str(member.folder), *peer, *advertised)
        if shutil.which("etcdutl") is None:  # before etcd 3.5, etcdctl restores
            self.control(*words)
        else:
            subprocess.run([_program("etcdutl"), *words], check=True, capture_output=True, timeout=60)
        self.restart(member)

    def pause(self) -> None:
        for member in self.members:
            hang(member.pid)

    def resume(self) -> None:
        for member in self.members:
            os.kill(member.pid, signal.SIGCONT)

    def leader(self) -> EtcdMember:
        """As the members that run say."""
        while True:
            for member in self.members:
                if member.is_running:
                    status = self.ask(member, "maintenance/status", {})
                    if status.get("leader") == status["header"]["member_id"]:
                        return member
            time.sleep(0.05)

    def ask(self, member: EtcdMember, call: str, body: dict[str, Any]) -> dict[str, Any]:
        """By etcd's own HTTP gateway; not with TLS."""
        request = urllib.request.Request(f"http://{member.target}/v3/{call}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def control(self, *words: str) -> str:
        """What etcdctl prints."""
        secure = (
            ()
            if self._tls is None
            else (
                *("--cacert", f"{self._tls}/authority.pem", "--cert", f"{self._tls}/client.pem"),
                *("--key", f"{self._tls}/client.key"),
            )
        )
        done = subprocess.run(
            [_program("etcdctl"), "--endpoints", self.endpoints, *secure, *words],
            env={"ETCDCTL_API": "3", "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise RuntimeError(f"etcdctl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def _serves(self) -> bool:
        if self._tls is not None:
            try:
                self.control("get", "nothing")
            except RuntimeError:
                return False
            return True
        try:
            self.ask(self.members[0], "kv/range", {"key": "AA=="})
        except OSError:
            return False
        return True


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(MISSING)
    return found
