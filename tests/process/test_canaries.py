"""A secret in every place of a bookie that takes one shows nowhere: not in logs at debug level, metrics, views, the
audit trail, or the list of processes."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.support.bookie_process import free_port
from tests.support.certificates import Certificates
from tests.support.serve_process import PROGRAM, ServeProcess
from tests.support.until import until_true

NEW = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


class Planted:
    """A bookie with all of them set, asked for everything that names some."""

    def __init__(self, folder: Path) -> None:
        self.secrets: dict[str, str] = {}
        certificates = Certificates(folder).make_all()
        certificates.make_named("server", "IP:127.0.0.1")
        self._authority = folder / "authority.pem"
        self._log = folder / "audit.log"
        for name in ("tcp", "http"):
            password = self.plant(f"password of the key of {name}")
            encrypt = ("openssl", "pkey", "-in", "server.key", "-aes256", "-passout", f"pass:{password}")
            subprocess.run([*encrypt, "-out", f"{name}.key"], cwd=folder, check=True)
        for name in ("server", "tcp", "http", "bookie", "client"):
            pem = (folder / f"{name}.key").read_text().splitlines()
            self.secrets[f"private key {name}"] = pem[1]
        (folder / "tcp.password").write_text(self.secrets["password of the key of tcp"])
        self.admin, self.viewer = self.plant("admin's token"), self.plant("viewer's token")
        (folder / "admin-tokens").write_text(f"{self.admin}\n{self.viewer} viewer dashboards\n")
        self.client = self.plant("client's token")
        (folder / "client-tokens").write_text(self.client)
        login, other = self.plant("password of bookies"), self.plant("password of a client")
        (folder / "jaas").write_text(
            f'Bookie {{ Digest required user_bookkeeper="{login}" user_other="{other}"; }};'
            f'BookKeeper {{ Digest required username=bookkeeper password="{login}"; }};'
        )
        (folder / "zookeeper").write_text("user:" + self.plant("password of ZooKeeper"))
        self.http, self.grpc = free_port(), free_port()
        self.bookie = ServeProcess(
            folder / "b",
            {
                "logLevel": "debug",
                "auditLogFile": str(self._log),
                "zkAuthCredentialsPath": str(folder / "zookeeper"),
                "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
                "clientAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLClientProviderFactory",
                "saslJaasConfigFile": str(folder / "jaas"),
                **certificates.settings(),
                "tlsKeyStore": str(folder / "tcp.key"),
                "tlsCertificatePath": str(folder / "server.pem"),
                "tlsKeyStorePasswordPath": str(folder / "tcp.password"),
                "httpServerEnabled": "true",
                "httpServerHost": "127.0.0.1",
                "httpServerPort": str(self.http),
                "httpServerAuthTokenFile": str(folder / "admin-tokens"),
                "httpServerTlsEnable": "true",
                "httpServerTlsClientAuthentication": "false",
                "httpServerCertificatePath": str(folder / "server.pem"),
                "httpServerKeyStorePath": str(folder / "http.key"),
                "httpServerKeyStorePassword": self.secrets["password of the key of http"],
                "httpServerTrustStorePath": str(self._authority),
                "httpServerTrustStorePassword": self.plant("password of a trust store"),
                "grpcServerEnabled": "true",
                "grpcServerHost": "127.0.0.1",
                "grpcServerPort": str(self.grpc),
                "grpcServerTlsEnable": "true",
                "grpcServerCertificatePath": str(folder / "server.pem"),
                "grpcServerKeyPath": str(folder / "server.key"),
                "grpcServerAuthTokenFile": str(folder / "client-tokens"),
            },
        )
        self.bookie.program = [sys.executable, PROGRAM]  # with a command line of its own

    def plant(self, where: str) -> str:
        self.secrets[where] = f"c4nary{len(self.secrets)}of-it"
        return self.secrets[where]

    def ask(self, path: str, method: str = "GET", body: object = None, token: str | None = None) -> str:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"https://127.0.0.1:{self.http}{path}", data, method=method)  # type: ignore[arg-type]
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        trust = ssl.create_default_context(cafile=str(self._authority))
        try:
            with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def over_http(self) -> None:
        change = "/api/v1/config/server_config"
        for key in ("httpServerKeyStorePassword", "httpServerTrustStorePassword"):
            self.ask(change, "PUT", {key: self.plant(f"new {key}")}, self.admin)
        self.ask(change, "PUT", {"gcWaitTime": self.plant("a wrong value")}, self.admin)
        self.ask(change, "PUT", self.plant("a wrong body").encode(), self.admin)
        self.ask("/api/v1/bookie/gc", "PUT", {}, self.plant("a stranger's token"))
        self.ask("/api/v1/bookie/gc", "PUT", {}, self.viewer)
        self.ask("/api/v1/bookie/gc", "PUT", {}, self.admin)

    def over_grpc(self) -> None:
        trust = grpc.ssl_channel_credentials(self._authority.read_bytes())
        shown = grpc.composite_channel_credentials(trust, grpc.access_token_call_credentials(self.client))
        wrong = grpc.composite_channel_credentials(trust, grpc.access_token_call_credentials(self.plant("wrong token")))
        password, other = (self.plant(f"{which} password of a ledger").encode() for which in ("the", "a wrong"))
        payload = self.plant("payload over gRPC").encode()
        address = f"127.0.0.1:{self.grpc}"
        with grpc.secure_channel(address, shown) as channel, grpc.secure_channel(address, wrong) as stranger:
            stub = LedgerServiceStub(channel)
            new = pb.AppendRequest(create=pb.CreateRequest(**NEW, password=password), entries=[payload])
            *_, last = stub.Append(iter([new]), timeout=30)
            for refused in (
                lambda: stub.Recover(pb.RecoverRequest(ledger_id=last.ledger_id, password=other), timeout=30),
                lambda: stub.Delete(pb.DeleteRequest(ledger_id=last.ledger_id, password=other), timeout=30),
                lambda: LedgerServiceStub(stranger).Create(pb.CreateRequest(**NEW), timeout=30),
            ):
                with pytest.raises(grpc.RpcError):
                    refused()

    def places(self) -> Iterator[tuple[str, str]]:
        yield "the log", self.bookie.log.read_text()
        yield "the audit trail", self._log.read_text()
        yield "the command line", Path(f"/proc/{self.bookie._running().pid}/cmdline").read_text()
        yield "the metrics", self.ask("/metrics")
        yield "an answer to a stranger", self.ask("/api/v1/bookie/info")
        for path in ("config/server_config", "bookie/info", "ledger/list?print_metadata=true", "bookie/list_disk_file"):
            yield path, self.ask(f"/api/v1/{path}", token=self.viewer)
        yield "the settings that admins see", self.ask("/api/v1/config/server_config", token=self.admin)
        printed = ServeProcess.command("config", "print", str(self.bookie.work / "bookie.conf"))
        yield "the printed configuration", printed.stdout + printed.stderr


def test_no_secret_is_told(tmp_path: Path) -> None:
    planted = Planted(tmp_path)
    with planted.bookie as bookie:
        bookie.start()
        until_true(lambda: planted.ask("/readyz").startswith("OK"), 60)
        planted.over_http()
        planted.over_grpc()
        found = dict(planted.places())
    assert '"level": "debug"' in found["the log"]
    lines = [json.loads(line) for line in found["the audit trail"].splitlines()]
    assert {(line["via"], line["outcome"]) for line in lines} == {
        (via, outcome) for via in ("http", "grpc") for outcome in ("done", "failed", "refused")
    } - {("grpc", "failed")} | {("bookie", "refused")}
    assert "bookie_audit_ACTIONS" in found["the metrics"]
    shown = [
        (place, secret) for place, text in found.items() for secret, value in planted.secrets.items() if value in text
    ]
    assert shown == []
