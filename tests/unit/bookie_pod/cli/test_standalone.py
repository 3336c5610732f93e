"""Ports and time-outs of a command line that cannot be: one line, before anything is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_pod.cli.main import run
from bookie_pod.cli.standalone import check_ports


@pytest.fixture
def used() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture(autouse=True)
def log_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_pod.logs.configure", lambda *settings: None)


def line(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()[-1]


@pytest.mark.parametrize("option", ["--metadata-port", "--grpc-port", "--http-port"])
def test_a_port_in_use_names_its_option(
    option: str, used: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [word for each in ("--metadata-port", "--grpc-port") if each != option for word in (each, "0")]
    data = tmp_path / "data"
    assert run(["standalone", "--data", str(data), "--bookies", "1", option, str(used), *others]) == 2
    assert line(capsys) == (
        f"bookie: port {used} of 127.0.0.1 is in use: stop what uses it, or choose another with {option}"
        " (0: any free one)"
    )
    assert not data.exists()


def test_ports_of_later_bookies_are_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["standalone", "--data", str(tmp_path / "data"), "--bookies", "2", "--metadata-port", "0", "--grpc-port"]
    assert run([*words, "65535"]) == 1
    assert line(capsys) == "bookie: --grpc-port: bookies have ports one after the other, and there is no port 65536"


def test_old_connections_do_not_keep_a_port() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # the server's side waits now
            client.recv(1)
    check_ports("--grpc-port", [0, port])


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e400", "99999999999999999999999", "x", ""])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["ledger", "list"], "--timeout"),
        (["bench", "read", "7"], "--seconds"),
        (["cluster", "init", "embedded://127.0.0.1:1/ledgers"], "--timeout"),
        (["cluster", "init", "embedded://127.0.0.1:1/ledgers"], "--wait"),
        (["cluster", "decommission", "b:1"], "--grace"),
        (["drain-clients"], "--timeout"),
        (["gc", "status"], "--timeout"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else each,
)
def test_seconds_that_no_timer_takes(
    command: list[str], option: str, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, f"{option}={seconds}"]) == 1
    told = f"Invalid value for '{option}': {seconds!r} is not a number of seconds: it must be "
    assert told in " ".join(capsys.readouterr().err.split())
