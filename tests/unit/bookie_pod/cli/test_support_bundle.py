"""`bookie support-bundle`: it has what helps, and nothing that is secret; what is missing is named."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from bookie_pod.cli.main import run
from bookie_pod.cli.support import bundle as parts
from bookie_pod.cli.support import machine
from bookie_pod.config.load import load_config
from tests.support.served_admin import TOKEN, ServedAdmin

SECRETS = {
    "httpServerAuthTokenFile": "c4nary-of-the-admin-api reader,operator ada\n",
    "grpcServerAuthTokenFile": "c4nary-of-the-gateway-api writer eve\n",
    "metadataServiceTokenFile": "c4nary-of-the-metadata\n",
    "authTokenFile": "c4nary-of-the-shared-token\n",
    "zkAuthCredentialsPath": "bookie:c4nary-of-zookeeper\n",
    "saslJaasConfigFile": 'Bookie { Digest required user_orders="c4nary-of-jaas"; };\n',
    "tlsKeyStorePasswordPath": "c4nary-of-the-key-store\n",
    "metadataServiceKeyPath": "-----BEGIN PRIVATE KEY-----\nc4naryInBase64Lines\n-----END PRIVATE KEY-----\n",
}
"""A file for each kind of secret that a configuration names."""
PLANTED = (
    "c4nary-of-the-admin-api",
    "c4nary-of-the-gateway-api",
    "c4nary-of-the-metadata",
    "c4nary-of-the-shared-token",
    "c4nary-of-zookeeper",
    "c4nary-of-jaas",
    "c4nary-of-the-key-store",
    "c4naryInBase64Lines",
    "c4nary-of-the-configuration",
    "c4nary-of-the-environment",
    "zk://ada:c4nary-of-an-address@zk-1:2181",
    "Authorization: Bearer c4nary-of-a-header",
    "--password c4nary-of-a-command",
)


@pytest.fixture(autouse=True)
def quick_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_doctor", lambda _: [])


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        read = {each.name: archive.extractfile(each) for each in archive.getmembers()}
        return {name.removeprefix("bookie-support/"): file.read().decode() for name, file in read.items() if file}


def configured(folder: Path, **keys: str) -> str:
    lines = {
        "bookieId": "b1",
        "allowLoopback": "true",
        "journalDirectories": str(folder / "journal"),
        "ledgerDirectories": str(folder / "ledgers"),
        **keys,
    }
    (folder / "bookie.conf").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return str(folder / "bookie.conf")


@pytest.mark.parametrize(
    "more",
    [{"metadataServiceTlsEnable": "true", "metadataServiceCertificatePath": "/none"}, {"gcWaitTime": "never"}],
    ids=["valid", "refused"],
)
def test_no_secret_of_any_kind_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]) -> None:
    keys = {"httpServerKeyStorePassword": "c4nary-of-the-configuration", "httpServerPort": "1", **more}
    for key, text in SECRETS.items():
        (tmp_path / key).write_text(text)
        keys[key] = str(tmp_path / key)
    monkeypatch.setenv("BK_httpServerTrustStorePassword", "c4nary-of-the-environment")
    (tmp_path / "bookie.log").write_text("".join(f"a line with {secret} in it\n" for secret in PLANTED))
    out = tmp_path / "out.tar.gz"
    words = ["support-bundle", "--config", configured(tmp_path, **keys), "-o", str(out)]
    assert run([*words, "--log", str(tmp_path / "bookie.log")]) == 0
    files = contents(out)
    for name, text in files.items():
        assert "c4nary" not in text, name
    assert files["logs/0-bookie.log"].count("a line with") == len(PLANTED)
    if "gcWaitTime" not in more:
        assert f"tlsKeyStorePasswordPath={tmp_path}/tlsKeyStorePasswordPath" in files["configuration.properties"]


def test_bookie_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "ledgers").mkdir()
    (tmp_path / "ledgers" / "0.log").write_bytes(b"12345")
    served = ServedAdmin(tmp_path / "token")
    try:
        port = served.url.rpartition(":")[2]
        file = configured(tmp_path, httpServerPort=port, httpServerAuthTokenFile=str(tmp_path / "token"))
        assert run(["support-bundle", "-c", file, "-o", str(tmp_path / "out.tar.gz"), "--json"]) == 0
    finally:
        served.stop()
    told = json.loads(capsys.readouterr().out)
    assert stat.S_IMODE(Path(told["path"]).stat().st_mode) == 0o600
    files = contents(Path(told["path"]))
    assert told["files"] == len(files)
    assert json.loads(files["facts/state.json"])["running"] is True
    assert isinstance(json.loads(files["facts/gc.json"]), list)
    assert "metrics.txt" in files
    assert TOKEN not in "".join(files.values())
    assert "podkeeper" in json.loads(files["versions.json"])["packages"]
    (ledgers,) = [each for each in json.loads(files["disks.json"]) if each["kind"] == "ledgers"]
    assert ledgers["files"] == {".log": {"number": 1, "bytes": 5}}


def test_what_is_missing_is_named_and_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = configured(tmp_path, httpServerPort="1", bookiePort="2")
    words = ["support-bundle", "-c", file, "-o", str(tmp_path / "out.tar.gz"), "--json"]
    assert run([*words, "--log", str(tmp_path / "pipe"), "--log", str(tmp_path / "none")]) == 0
    missing = json.loads(capsys.readouterr().out)["missing"]
    named = {line.partition(":")[0] for line in missing}
    assert {"/api/v1/bookie/state", "/metrics", "process", str(tmp_path / "pipe"), str(tmp_path / "none")} <= named
    assert contents(tmp_path / "out.tar.gz")["missing.txt"].splitlines() == missing


def test_a_fault_of_one_part_costs_that_part_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OverflowError("of-a-secret")

    monkeypatch.setattr(parts, "_doctor", fails)
    file = configured(tmp_path, httpServerPort="1", bookiePort="2")
    out = tmp_path / "out.tar.gz"
    assert run(["support-bundle", "-c", file, "-o", str(out)]) == 0
    files = contents(out)
    assert ("OverflowError" in files["missing.txt"], "of-a-secret" in files["missing.txt"]) == (True, False)
    assert "versions.json" in files


def test_without_a_usable_configuration_the_rest_is_there(tmp_path: Path) -> None:
    out = tmp_path / "out.tar.gz"
    words = ["support-bundle", "--set", "gcWaitTime=never", "--url", "http://127.0.0.1:1", "-o", str(out)]
    assert run(words) == 0
    files = contents(out)
    assert "gcWaitTime" in files["missing.txt"]
    assert "versions.json" in files


def test_logs_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 100 + b"end")
    assert parts._end_of(str(tmp_path / "long"), 5) == b"xxend"


def test_process_and_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "owner_of", lambda _: (os.getpid(), []))
    files = dict(machine.process_files(3181))
    assert "Max open files" in files["process/limits.txt"]
    assert f"\n{os.getpid()} " in files["process/threads.txt"]


def test_directory_with_many_files_is_counted_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ledgers").mkdir()
    for number in range(3):
        (tmp_path / "ledgers" / f"{number}.log").touch()
    monkeypatch.setattr(machine, "MOST_FILES", 2)
    found = machine.disk_use(load_config(configured(tmp_path)))
    (ledgers,) = [each for each in found if each["kind"] == "ledgers"]
    assert ledgers["all_files"] is False
    assert ledgers["files"][".log"]["number"] == 2
    assert "error" in next(each for each in found if each["kind"] == "journal")
