"""`bookie drain-clients` against a server of fakes: what it asks for, and what it takes for the end."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from bookie_pod.cli.bookie_api import admin_url
from bookie_pod.cli.main import run
from bookie_pod.config.sections.service import HttpConfig
from bookie_protocol.errors import InvalidConfiguration, StorageFault
from tests.support.bookie_process import free_port
from tests.support.served_admin import ServedAdmin

Capture = pytest.CaptureFixture[str]
drain_clients = sys.modules["bookie_pod.cli.drain_clients"]


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOOKIE_CONF", raising=False)


def test_it_is_told_and_says_so(served: ServedAdmin, capsys: Capture) -> None:
    assert run(["drain-clients"]) == 0
    assert capsys.readouterr().out == f"the bookie at {served.url} takes no more writes, and has flushed\n"
    assert served.admin.node.drained == 1


def test_url_and_token_come_from_the_configuration(
    served: ServedAdmin, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a pod, which has the bookie's own configuration and nothing else."""
    file = tmp_path / "bookie.conf"
    file.write_text(
        f"httpServerPort={served.url.rpartition(':')[2]}\nhttpServerHost=0.0.0.0\n"
        f"httpServerAuthTokenFile={tmp_path}/token\n"
    )
    monkeypatch.delenv("BOOKIE_URL")
    monkeypatch.delenv("BOOKIE_TOKEN_FILE")
    monkeypatch.setenv("BOOKIE_CONF", str(file))
    assert run(["drain-clients"]) == 0
    assert served.admin.node.drained == 1
    assert served.url in capsys.readouterr().out


def test_a_bookie_that_is_gone_is_fine(capsys: Capture) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert run(["drain-clients", "--url", url]) == 0
    assert capsys.readouterr().out == f"no bookie at {url}: nothing to do\n"


def test_a_bookie_that_does_not_serve_yet_is_fine(served: ServedAdmin, capsys: Capture) -> None:
    served.node.flags = served.node.flags._replace(running=False)
    assert run(["drain-clients"]) == 0
    assert capsys.readouterr().out == f"the bookie at {served.url} does not serve: nothing to do\n"
    assert served.admin.node.drained == 0


def test_a_bookie_that_hangs_is_not_waited_for(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_clients, "LOOK_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert run(["drain-clients", "--url", url]) == 12
    assert capsys.readouterr().err == f"bookie: {url} does not answer within 0.2 s\n"


def test_a_flush_that_fails_is_an_error(served: ServedAdmin, capsys: Capture) -> None:
    served.admin.node.fault = StorageFault("/ledgers: no space left on device")
    assert run(["drain-clients"]) == 12
    assert capsys.readouterr().err == "bookie: /ledgers: no space left on device\n"


def test_a_wrong_token_is_an_error(served: ServedAdmin, capsys: Capture, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("wrong\n")
    assert run(["drain-clients", "--token-file", str(other)]) == 10
    assert "demands a token" in capsys.readouterr().err
    assert served.admin.node.drained == 0


@pytest.mark.parametrize(
    ("host", "tls", "url"),
    [
        ("0.0.0.0", False, "http://127.0.0.1:8000"),
        ("::", False, "http://[::1]:8000"),
        ("10.0.0.7", False, "http://10.0.0.7:8000"),
        ("0.0.0.0", True, "https://127.0.0.1:8000"),
    ],
)
def test_where_the_bookie_is(host: str, tls: bool, url: str) -> None:
    assert admin_url(HttpConfig(server_host=host, tls_enable=tls)) == url


def test_without_a_server_nobody_can_be_told() -> None:
    with pytest.raises(InvalidConfiguration, match="httpServerEnabled=false"):
        admin_url(HttpConfig(server_enabled=False))
