"""A real ZooKeeper for tests, out of the jars that PySpark brings along.

One JVM (small heap) with one stand-alone server on a free port. It can be paused (SIGSTOP: connections stay,
nobody answers), stopped and started again on the same port with the same data.
"""

from __future__ import annotations

import glob
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from bookie_protocol.metadata_service.options import SaslLogin
from bookie_protocol.metadata_service.zookeeper.client import log_in_by
from tests.support.bookie_process import free_port
from tests.support.hanging import hang
from tests.support.java import SHORT_LIVED

_JARS = ("zookeeper-*", "zookeeper-jute-*", "slf4j-api-*", "log4j-*", "netty-*", "metrics-core-*", "snappy-*")
_COMMONS = ("commons-io-*", "commons-lang*", "commons-cli-*", "commons-codec-*")
_START_SECONDS = 60.0
_SESSION_SECONDS = 10.0
_SERVES = b"Zookeeper version"
_ATTEMPTS = 3
_EXPIRE_SECONDS = 30.0
_CONNECT = struct.Struct(">iiqiqi")
"""Length, version, newest transaction, time-out in ms, session, length of its password; then that, and one flag."""
_CONNECTED = struct.Struct(">iiiq")
"""Length, version, time-out, session: how its answer begins."""
_CLOSE = struct.Struct(">iii")
"""Length, number of the request, its kind."""
_CLOSE_SESSION = -11
_ANSWER_BYTES = 20
"""Of an answer without a body, with its length."""
TICK_MS = 500


class ZooKeeperServer:
    """`start` returns when the server answers. Session time-outs down to two ticks (1 s) are granted.

    With `sasl_users` (name and password) the server refuses clients without a SASL login; with `kerberos` (options
    of a Krb5LoginModule, and a `krb5.conf`) those without a Kerberos login. `host`: an address of this machine.
    `tls`: folder with `server.pem`, `server.key` and `authority.pem`; then there is a second port, for TLS with
    certificates of both sides.
    """

    def __init__(
        self,
        directory: str,
        sasl_users: Mapping[str, str] | None = None,
        *,
        host: str = "127.0.0.1",
        tls: str | None = None,
        kerberos: tuple[str, str] | None = None,
        heap_mb: int = 128,
    ) -> None:
        self._directory = directory
        self._heap_mb = heap_mb
        self._host = host
        self._sasl_users = sasl_users
        self._kerberos = kerberos
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        self._started_before = False
        self.port = free_port()
        self.secure_port = free_port() if tls is not None else 0

    @property
    def folder(self) -> str:
        """With its files, those of `tls` among them if that is the folder."""
        return self._directory

    @property
    def hosts(self) -> str:
        return f"{self._host}:{self.port}"

    def uri(self, root: str = "/ledgers", layout: str = "null") -> str:
        return f"zk+{layout}://{self.hosts}{root}"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        java = shutil.which("java")
        if java is None:
            raise RuntimeError("these tests need Java: install openjdk-17-jre-headless")
        for attempts_left in range(_ATTEMPTS, 0, -1):
            self._launch(java)
            if self._answers():
                self._started_before = True
                return
            self.stop()
            if self._started_before or attempts_left == 1:
                break
            self.port = free_port()  # somebody else took it meanwhile
        with open(f"{self._directory}/out.log", encoding="utf-8", errors="replace") as log:
            raise RuntimeError(f"ZooKeeper did not start within {_START_SECONDS:g} s:\n{log.read()[-2000:]}")

    def _launch(self, java: str) -> None:
        os.makedirs(f"{self._directory}/data", exist_ok=True)
        config = f"{self._directory}/zoo.cfg"
        with open(config, "w", encoding="utf-8") as out:
            out.write(
                f"tickTime={TICK_MS}\nmaxSessionTimeout=60000\ndataDir={self._directory}/data\nclientPort={self.port}\n"
                f"clientPortAddress={self._host}\n"
                "admin.enableServer=false\nmaxClientCnxns=0\n"
                "4lw.commands.whitelist=srvr\nextendedTypesEnabled=true\n"
            )
            if self._tls is not None:
                out.write(self._tls_settings(self._tls))
            if self._sasl_users or self._kerberos:
                out.write(
                    "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
                    "sessionRequireClientSASLAuth=true\n"
                )
        command = [
            *(java, f"-Xmx{self._heap_mb}m", *SHORT_LIVED),
            *self._sasl_options(),
            *("-Dzookeeper.forceSync=no", "-Dlog4j2.level=ERROR", "-Dlog4j.rootLogger=ERROR"),
            *("-cp", _class_path(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", config),
        ]
        with open(f"{self._directory}/out.log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _tls_settings(self, folder: str) -> str:
        """The key store is one PEM file with key and certificate."""
        store = f"{self._directory}/store.pem"
        with open(store, "w", encoding="utf-8") as out:
            for name in ("server.key", "server.pem"):
                with open(f"{folder}/{name}", encoding="utf-8") as part:
                    out.write(part.read())
        return (
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            f"secureClientPort={self.secure_port}\nsecureClientPortAddress={self._host}\n"
            f"ssl.keyStore.location={store}\nssl.trustStore.location={folder}/authority.pem\nssl.clientAuth=need\n"
        )

    def _sasl_options(self) -> Iterator[str]:
        if self._kerberos:
            options, configuration = self._kerberos
            module = f"com.sun.security.auth.module.Krb5LoginModule required {options};"
            yield f"-Djava.security.krb5.conf={configuration}"
        elif self._sasl_users:
            users = "\n".join(f'user_{name}="{password}"' for name, password in self._sasl_users.items())
            module = f"org.apache.zookeeper.server.auth.DigestLoginModule required\n{users};"
        else:
            return
        file = f"{self._directory}/jaas.conf"
        with open(file, "w", encoding="utf-8") as out:
            out.write(f"Server {{ {module}\n}};\n")
        yield f"-Djava.security.auth.login.config={file}"

    def stop(self) -> None:
        """Kill the server; its data stays."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Connections stay open, nobody answers."""
        hang(self._running().pid)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def expire(self, session_id: int, password: bytes) -> None:
        """End somebody's session: take it over with a second connection, and close it. Its owner may take it back in
        between, and then all of it is done once more."""
        end = self._take_over_logged_in if self._sasl_users else self._take_over
        deadline = time.monotonic() + _EXPIRE_SECONDS
        while not end(session_id, password):
            if time.monotonic() > deadline:
                raise RuntimeError(f"session {session_id:#x} is taken back again and again")

    def _take_over(self, session_id: int, password: bytes) -> bool:
        """True if the session has ended. Asks for it and for its end in one packet, so its owner hardly comes between:
        a client of a library, of which every step waits for threads, was overtaken for minutes on a busy machine."""
        asked = _CONNECT.pack(_CONNECT.size + len(password) + 1 - 4, 0, 0, 10_000, session_id, len(password))
        with socket.create_connection((self._host, self.port), timeout=_SESSION_SECONDS) as connection:
            connection.sendall(asked + password + b"\0" + _CLOSE.pack(_CLOSE.size - 4, 1, _CLOSE_SESSION))
            try:
                with connection.makefile("rb") as answers:
                    given = answers.read(_CONNECTED.size)
                    if len(given) < _CONNECTED.size:
                        return False
                    length, *_, given_id = _CONNECTED.unpack(given)
                    answers.read(length + 4 - _CONNECTED.size)
                    return given_id != session_id or len(answers.read(_ANSWER_BYTES)) == _ANSWER_BYTES
            except OSError:
                return False

    def _take_over_logged_in(self, session_id: int, password: bytes) -> bool:
        """As `_take_over`, where only who logs in is listened to."""
        client = self.kazoo(timeout=10, client_id=(session_id, password))
        client.start(timeout=10)
        given = client.client_id
        client.stop()
        client.close()
        return given is None or given[0] != session_id

    def kazoo(self, **options: Any) -> KazooClient:
        """A client of kazoo that is not started; it logs in where that is asked for."""
        client = KazooClient(hosts=self.hosts, **options)
        for name, password in (self._sasl_users or {}).items():
            log_in_by(client, SaslLogin(username=name, password=password))
            break
        return client

    @property
    def pid(self) -> int:
        return self._running().pid

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("ZooKeeper is not running")
        return self._process

    def _answers(self) -> bool:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._running().poll() is None:
            try:
                with socket.create_connection((self._host, self.port), timeout=1) as connection:
                    connection.sendall(b"srvr")
                    if connection.recv(len(_SERVES)) == _SERVES:
                        return self._kerberos is not None or self._serves(deadline)
            except OSError:
                pass
            time.sleep(0.05)
        return False

    def _serves(self, deadline: float) -> bool:
        """The first session after a cold start may take seconds on a busy machine; here it is waited for. A connection
        that came before the server was ready is never answered, so it is given up for another one."""
        while (left := deadline - time.monotonic()) > 0:
            client = self.kazoo(timeout=_SESSION_SECONDS)
            try:
                client.start(timeout=min(left, _SESSION_SECONDS))
            except KazooTimeoutError:
                continue
            finally:
                client.stop()
                client.close()
            return True
        return False


def _class_path() -> str:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise RuntimeError(f"these tests need PySpark's jars: {sys.executable} -m pip install pyspark")
    folder = f"{os.path.dirname(spec.origin)}/jars"
    jars = [jar for pattern in _JARS + _COMMONS for jar in glob.glob(f"{folder}/{pattern}.jar")]
    return os.pathsep.join(sorted(jars))
