"""What comes before SIGTERM in a pod: writers are sent away, and the next start is as the last one was."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest

from bookie_pod.storage.journal.marks import LogMark
from tests.support.bookie_process import free_port
from tests.support.certificates import Certificates
from tests.support.frames import entry, v2_add, v2_code, v2_read
from tests.support.serve_process import ServeProcess, SyncClient

TOKEN = "s3cret-of-the-cluster"
READ_ONLY = 105


class Pod(ServeProcess):
    def get(self, path: str, token: str | None = TOKEN) -> tuple[int, bytes]:
        url = f"http://127.0.0.1:{self.settings['httpServerPort']}{path}"
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
            return answer.status, answer.read()

    def is_read_only(self) -> bool:
        return bool(json.loads(self.get("/api/v1/bookie/state/readonly")[1])["readOnly"])

    def drain(self) -> tuple[int, str]:
        """As the hook does: with the bookie's own configuration."""
        done = self.command("drain-clients", "--config", str(self.work / "bookie.conf"))
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    settings = {
        "httpServerEnabled": "true",
        "httpServerHost": "0.0.0.0",
        "httpServerPort": str(free_port()),
        "httpServerAuthTokenFile": str(token),
        "persistBookieStatusEnabled": "true",
        "flushInterval": "600000",
    }
    with Pod(tmp_path / "pod", settings) as pod:
        yield pod


def test_the_next_start_is_writable(pod: Pod) -> None:
    pod.start()
    with SyncClient(pod.port) as client:
        assert v2_code(client.ask(v2_add(entry(7, 0)))) == 0
        assert pod.drain() == (
            0,
            f"the bookie at http://127.0.0.1:{pod.settings['httpServerPort']} takes no more writes, and has flushed\n",
        )
        assert v2_code(client.ask(v2_add(entry(7, 1)))) == READ_ONLY
        assert v2_code(client.ask(v2_read(7, 0))) == 0
    assert pod.is_read_only()
    assert pod.get("/readyz", token=None)[0] == 200
    mark = LogMark.from_bytes((pod.work / "ledgers" / "current" / "lastMark").read_bytes())
    assert mark.offset > 0
    pod.kill()  # a crash after the hook: nothing of it was written down
    assert pod.drain()[0] == 0
    pod.start()
    assert not pod.is_read_only()
    assert pod.stop() == 0


def test_a_mode_that_an_operator_set_is_kept(pod: Pod) -> None:
    pod.start()
    url = f"http://127.0.0.1:{pod.settings['httpServerPort']}/api/v1/bookie/state/readonly"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    wanted = urllib.request.Request(url, b'{"readOnly": true}', headers, method="PUT")
    with urllib.request.urlopen(wanted, timeout=20) as answer:
        assert answer.status == 200
    assert pod.drain()[0] == 0
    assert pod.stop() == 0
    pod.start()
    assert pod.is_read_only()


def test_probes_need_no_token_and_facts_do(pod: Pod) -> None:
    pod.start()
    assert [pod.get(path, token=None)[0] for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]
    assert pod.get("/api/v1/cluster/state")[0] == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        pod.get("/api/v1/cluster/state", token=None)
    with refused.value:
        assert refused.value.code == 401


@pytest.fixture
def encrypted(pod: Pod, tmp_path: Path) -> Certificates:
    """As in Kubernetes: https without certificates of clients, the certificate has the name that others call it by."""
    (tmp_path / "certificates").mkdir()
    certificates = Certificates(tmp_path / "certificates").make_all()
    certificates.make_named("pod", "DNS:localhost")
    folder = certificates.folder
    pod.settings |= {
        "httpServerTlsEnable": "true",
        "httpServerTlsClientAuthentication": "false",
        "httpServerCertificatePath": str(folder / "pod.pem"),
        "httpServerKeyStorePath": str(folder / "pod.key"),
        "httpServerTrustStorePath": str(folder / "authority.pem"),
        "advertisedAddress": "localhost",
    }
    return certificates


def test_commands_in_a_pod_speak_https_to_its_bookie(
    pod: Pod, encrypted: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod.start()
    probe = ssl.create_default_context()
    probe.check_hostname, probe.verify_mode = False, ssl.CERT_NONE  # as the kubelet, which verifies nothing
    port = pod.settings["httpServerPort"]
    with urllib.request.urlopen(f"https://127.0.0.1:{port}/readyz", timeout=20, context=probe) as answer:
        assert answer.status == 200
    with pytest.raises((OSError, HTTPException)):  # nothing unencrypted
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20)
    monkeypatch.setenv("BOOKIE_CONF", str(pod.work / "bookie.conf"))
    asked = pod.command("gc", "status")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert pod.drain() == (0, f"the bookie at https://127.0.0.1:{port} takes no more writes, and has flushed\n")
    (encrypted.folder / "stranger.pem").replace(encrypted.folder / "authority.pem")
    code, said = pod.drain()
    assert code != 0, "somebody whom nobody vouches for is no bookie that is gone"
    assert "its certificate is not trusted: unable to get local issuer certificate" in said
