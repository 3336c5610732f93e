"""A secret in every place of a cluster that takes one shows nowhere: not in logs at debug level, metrics, views, the
audit trail, the list of processes, or in what any command prints."""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import pytest

from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.main import cli
from bookie_protocol.keys import master_key
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.support.bookie_process import free_port
from tests.support.certificates import Certificates
from tests.support.command_lines import leaves
from tests.support.serve_process import PROGRAM, ServeProcess
from tests.support.until import until_true
from tests.support.warm import BOOKIE, WarmProcess, run

NEW = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


ONE_COPY = "--ensemble=1 --write-quorum=1 --ack-quorum=1"
SERVED = {
    "version": "",
    "completion": "bash",
    "man": "{folder}/man",
    "config check": "{conf}",
    "config docs": "",
    "config print": "{conf} --json",
    "cluster init": "{uri} --if-absent",
    "cluster whoami": "--json",
    "cluster status": "--ledgers --json",
    "cluster bookies": "--json",
    "cluster placement": ONE_COPY,
    "cluster autorecovery disable": "",
    "cluster autorecovery enable": "",
    "cluster autorecovery status": "",
    "cluster who-is-auditor": "",
    "cluster trigger-audit": "",
    "cluster force-auditor-checks": "--ledgers",
    "cluster lost-delay set": "0",
    "cluster lost-delay get": "",
    "cluster list-under-replicated": "",
    "cluster health-check": "--ensemble=1",
    "cluster client-quarantine": "",
    "cluster cookie generate": "10.1.1.1:3181 -j /j -l /l -o {folder}/cookie",
    "cluster cookie create": "10.1.1.1:3181 --cookie-file={folder}/cookie",
    "cluster cookie update": "10.1.1.1:3181 --cookie-file={folder}/cookie",
    "cluster cookie get": "10.1.1.1:3181",
    "cluster cookie delete": "10.1.1.1:3181 --force",
    "ledger create": f"{ONE_COPY} --password-file={{password}} --json",
    "ledger write": f"{ONE_COPY} --id=7 --password-file={{password}} {{folder}}/lines",
    "ledger read": "7 --password-file={password}",
    "ledger tail": "7 --first=0 --password-file={password}",
    "ledger recover": "7 --password-file={password} --json",
    "ledger list": "--long",
    "ledger info": "7 --json",
    "ledger doctor": "7 --json",
    "shell": "ledgermetadata -ledgerid 7",
    "bench read": "7 --entries=1 --password-file={password}",
    "bench write": f"{ONE_COPY} --entries=10 --password-file={{password}}",
    "cluster replicas": "7 --json",
    "cluster safety-check": "{bookie}",
    "cluster recover": "{bookie} --query",
    "cluster rename-bookie": "10.1.1.1:3181 10.1.1.2:3181 --dry-run",
    "cluster decommission": "{bookie} --plan",
    "stream create": f"s {ONE_COPY}",
    "stream append": "s {folder}/lines --password-file={password}",
    "stream read": "s --password-file={password}",
    "stream list": "--long",
    "stream info": "s",
    "stream cursors": "s --move c latest",
    "stream truncate": "s --before=latest --force --yes",
    "stream seal": "s",
    "stream delete": "s --force --yes",
    "gc status": "",
    "gc suspend": "--major --minor",
    "gc resume": "--major --minor",
    "gc run": "",
    "gc allow-deletions": "--older-metadata",
    "gc why": "0",
    "gc forecast": "",
    "gc logs": "",
    "gc quarantine": "",
    "scrub run": "",
    "scrub status": "",
    "scrub damages": "",
    "index rebuild": "--locations",
    "index status": "",
    "index stop": "",
    "ledger delete": "7 --yes",
    "drain-clients": "",
    "doctor": "--no-writes",
    "support-bundle": "--output={folder}/bundle.tar.gz",
    "cluster metadata backup": "{uri} {folder}/backup",
}
"""Commands beside the bookie, which they find by BOOKIE_CONF, and the rest of their command lines."""
STOPPED = {
    "disk files": "",
    "disk lastmark": "",
    "disk cookie": "",
    "disk logs": "",
    "disk ledgers": "--entries",
    "disk ledger": "7",
    "disk locate": "7 0",
    "disk at": "0 1024",
    "disk readlog": "0",
    "disk readlogmetadata": "0",
    "disk readjournal": "--payload=hex",
    "disk check": "--findings=9",
    "disk rebuild-locations": "",
    "disk rebuild-ledgers": "",
    "disk convert": "--to=sorted",
    "disk rebuild-index-files": "--missing --password-file={password}",
    "disk finish": "",
    "disk rename-bookie": "{bookie} 10.1.1.1:3181",
    "disk format": "--yes",
    "cluster metadata restore": "{folder}/backup {folder}/restored",
    "cluster metadata copy": "{uri} {folder}/copied",
    "cluster metadata reopen": "{uri} --confirm",
    "cluster format": "{uri} --confirm --force",
    "cluster nuke": "{uri} --root=/ledgers --confirm --force",
}
"""Those that want it stopped."""
ENDED = ("serve", "autorecovery", "gateway", "metadata-service", "stream tail")
"""Those that run until they are told to stop."""
TAKE_NONE = {"job": "its process is Spark's", "standalone": "a cluster without any", "trial": "a cluster without any"}
MISTAKEN = {
    "ledger list": "--metadata=embedded://user:{mistaken}@127.0.0.1:1/ledgers --timeout=0.2",
    "ledger delete": "7 --yes --metadata=zk://user:{mistaken}@127.0.0.1:1/ledgers --timeout=0.2",
    "ledger read": "7 --password-file={wrong}",
    "ledger recover": "7 --password-file={wrong}",
    "ledger tail": "7 --metadata=embedded://127.0.0.1:1/ledgers?token={mistaken} --timeout=0.2",
    "ledger info": "7 --client=token={mistaken}",
    "ledger write": f"{ONE_COPY} --property={{mistaken}} {{folder}}/lines",
    "cluster status": "--client={mistaken}",
    "cluster bookies": "--client=auth={mistaken}",
    "gc run": "--url=https://user:{mistaken}@127.0.0.1:1/",
    "gc resume": "--url=http://127.0.0.1:1/?token={mistaken}",
    "gc status": "--url=https://127.0.0.1:{http} --ca-file={authority} --token-file={wrong}",
    "drain-clients": "--url=https://user:{mistaken}@127.0.0.1:1/",
    "cluster decommission": "{bookie} --live --admin-url=http://user:{mistaken}@127.0.0.1:1",
    "shell": "regenerate-interleaved-storage-index-file -ledgerIds 7 -password {mistaken}",
    "config check": "{conf} --set=httpServerKeyStorePasword={mistaken}",
    "config print": "--set=metadataServiceUri=embedded://user:{mistaken}@127.0.0.1:1/ledgers",
    "disk check": "--set=zkAuthCredentials={mistaken}",
    "disk files": "--set={mistaken}",
}
"""Command lines that name a secret where there should be none, or another one, and are refused."""
NOT_CONNECTED = re.compile("^bookie: .*((does|did) not answer|refuses this client)|^Traceback", re.MULTILINE)


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
        (folder / "metadata-tokens").write_text(self.plant("metadata service's token"))
        password = self.plant("password of ledgers")
        (folder / "password").write_text(password)
        self.keys = {"key of ledgers": master_key(password.encode())}
        (folder / "wrong").write_text(self.plant("wrong password of ledgers"))
        (folder / "lines").write_text("a\nb\n")
        self.folder, self.http, self.grpc, metadata = folder, free_port(), free_port(), free_port()
        self.uri = f"embedded://127.0.0.1:{metadata}/ledgers"
        self.metadata = f"metadata-service --data={folder}/m --host=127.0.0.1 --port={metadata} --no-http"
        self.metadata += f" --token-file={folder}/metadata-tokens"
        self.bookie = ServeProcess(
            folder / "b",
            {
                "metadataServiceUri": self.uri,
                "metadataServiceTokenFile": str(folder / "metadata-tokens"),
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
        self.conf = self.bookie.work / "bookie.conf"
        self._processes: dict[str, WarmProcess] = {}

    def launch(self, command: str) -> None:
        """A command that runs until it is told to stop."""
        with self._said(command).open("wb") as said:
            environment = {**os.environ, "BOOKIE_CONF": str(self.conf)}
            self._processes[command] = WarmProcess(BOOKIE, command.split(), stdout=said, stderr=said, env=environment)

    def end(self, command: str) -> str:
        """What it has said."""
        process = self._processes.pop(command)
        process.terminate()
        assert process.wait(60) in (0, CommandExit.TERMINATED)
        return self._said(command).read_text()

    def _said(self, command: str) -> Path:
        return self.folder / f"{command.split()[0]}.said"

    def run(self, words: str, given: str) -> tuple[int, str]:
        """A command, its exit code and what it says."""
        names = {
            **{name: str(self.folder / name) for name in ("password", "wrong")},
            "folder": str(self.folder),
            "conf": str(self.conf),
            "uri": self.uri,
            "http": str(self.http),
            "bookie": f"127.0.0.1:{self.bookie.port}",
            "authority": str(self._authority),
            "mistaken": self.plant(f"given to {words} by mistake") if "{mistaken}" in given else "",
        }
        environment = {**os.environ, "BOOKIE_CONF": str(self.conf)}
        done = run(BOOKIE, [*words.split(), *given.format(**names).split()], 60, env=environment)
        return done.returncode, (done.stdout + done.stderr).decode()

    def shown(self, found: Mapping[str, str]) -> list[tuple[str, str]]:
        """Which secrets stand in which of these places, in whatever form."""
        wanted = {**self.keys, **{name: value.encode() for name, value in self.secrets.items()}}
        return [
            (place, name)
            for place, text in found.items()
            for name, value in wanted.items()
            if any(form in text for form in (repr(value)[2:-1], value.hex(), base64.b64encode(value).decode()))
        ]

    def __enter__(self) -> Planted:
        self.launch(self.metadata)
        self.conf.write_text(f"metadataServiceTokenFile={self.folder}/metadata-tokens\n")
        code, said = self.run("cluster init", "{uri} --wait=60")
        assert code == 0, said
        self.bookie.start()
        until_true(lambda: self.ask("/readyz").startswith("OK"), 60)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.kill()
        if self.bookie.process is not None:
            self.bookie.kill()

    def plant(self, where: str) -> str:
        self.secrets[where] = f"c4nary{len(self.secrets)}of-the-cluster"
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
    with Planted(tmp_path) as planted:
        planted.over_http()
        planted.over_grpc()
        found = dict(planted.places())
        found["the metadata service"] = planted.end(planted.metadata)
    assert '"level": "debug"' in found["the log"]
    lines = [json.loads(line) for line in found["the audit trail"].splitlines()]
    assert {(line["via"], line["outcome"]) for line in lines} == {
        (via, outcome) for via in ("http", "grpc") for outcome in ("done", "failed", "refused")
    } - {("grpc", "failed")} | {("bookie", "refused")}
    assert "bookie_audit_ACTIONS" in found["the metrics"]
    assert planted.shown(found) == []


@pytest.mark.timeout(600)
def test_no_command_tells_one(tmp_path: Path) -> None:
    assert sorted([*SERVED, *STOPPED, *ENDED, *TAKE_NONE]) == sorted(leaves(cli))
    found, failed = dict[str, str](), dict[str, str]()

    def ask(commands: Mapping[str, str], *, refused: bool = False) -> None:
        for words, given in commands.items():
            code, said = planted.run(words, given)
            found[f"{words} {given}"] = said
            # What it finds may be a reason for another code than 0.
            if code == 0 if refused else code == CommandExit.USAGE or NOT_CONNECTED.search(said):
                failed[words] = f"{code}: {said}"

    with Planted(tmp_path) as planted:
        planted.launch("autorecovery --http-port=0")
        planted.launch(f"gateway --http-port=0 --grpc-port={free_port()}")
        planted.run("stream create", f"t {ONE_COPY}")
        planted.run("stream append", "t {folder}/lines --password-file={password}")
        planted.launch(f"stream tail t --from=earliest --password-file={tmp_path}/password")
        until_true(lambda: "b" in (tmp_path / "stream.said").read_text(), 30)
        ask(SERVED)
        ask(MISTAKEN, refused=True)
        found |= {command: planted.end(command) for command in list(planted._processes) if command != planted.metadata}
        found |= dict(planted.places())
        assert planted.bookie.stop() == 0
        ask(STOPPED)
        found["the audit trail"] = (tmp_path / "audit.log").read_text()
        found["metadata-service"] = planted.end(planted.metadata)
    assert failed == {}
    assert planted.shown(found) == []
