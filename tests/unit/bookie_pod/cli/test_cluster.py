"""`bookie cluster init`, `format`, `nuke` and `whoami`, on a metadata store in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bookie_pod.cli.cluster import metadata
from bookie_pod.cli.main import run
from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.metadata_access import with_service
from tests.unit.bookie_pod.cli.clusters import Capture, create_ledger, init


def refusal(capsys: Capture) -> str:
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("bookie: ")
    return line


def test_init(uri: str, capsys: Capture) -> None:
    assert run(["cluster", "init", uri]) == 0
    line = capsys.readouterr().out
    assert line.startswith("new cluster ")
    assert line.endswith(f" at {uri}\n")
    instance = with_service(uri, lambda service: service.cluster.instance_id())
    assert run(["cluster", "init", uri]) == 1
    assert refusal(capsys) == f"bookie: {uri} holds a cluster already; nothing was changed"
    assert with_service(uri, lambda service: service.cluster.instance_id()) == instance


def test_init_with_an_id_of_the_callers(uri: str, capsys: Capture) -> None:
    """Kept where a cluster is made, never given to one that is there."""
    for asked in ("1-2-3", "4-5-6"):
        assert run(["cluster", "init", uri, "--if-absent", "--instance-id", asked, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["instance_id"] == "1-2-3"


def test_init_may_be_repeated(uri: str, capsys: Capture) -> None:
    arguments = ["cluster", "init", uri, "--if-absent", "--json"]
    printed = []
    for _ in range(3):
        assert run(arguments) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0]["uri"] == uri
    assert printed[0] == printed[1] == printed[2]
    assert run(arguments[:-1]) == 0
    assert capsys.readouterr().out == f"cluster {printed[0]['instance_id']} exists at {uri}\n"


def test_format(uri: str, capsys: Capture) -> None:
    before = init(uri, capsys)
    with_service(uri, create_ledger)
    assert run(["cluster", "format", uri]) == 1
    assert "repeat with --confirm" in refusal(capsys)
    assert with_service(uri, lambda service: service.ledgers.read(3)).value.ledger_id == 3
    for given, message in (([], "needs its --instance-id, or --force"), (["--instance-id", "x"], "not x; nothing was")):
        assert run(["cluster", "format", uri, "--confirm", *given]) == 1
        assert message in refusal(capsys)
    assert with_service(uri, lambda service: service.ledgers.read(3)).value.ledger_id == 3
    assert run(["cluster", "format", uri, "--confirm", "--json", "--instance-id", before]) == 0
    after = json.loads(capsys.readouterr().out)["instance_id"]
    assert with_service(uri, lambda service: service.cluster.instance_id()) == after != before


def test_nuke(uri: str, capsys: Capture) -> None:
    instance = init(uri, capsys)
    with_service(uri, create_ledger)
    with_service(uri, lambda service: service.cookies.create("a-0.a:3181", b"cookie"))
    known = ["--root", "/ledgers", "--instance-id", instance]
    for arguments, message in (
        (["--root", "/ledger", "--instance-id", instance, "--confirm"], f"the root of {uri} is /ledgers"),
        (["--root", "/ledgers", "--confirm"], "needs its --instance-id, or --force"),
        (known, "cannot be undone; repeat with --confirm"),
        (["--root", "/ledgers", "--instance-id", "x", "--confirm"], f"has instance id {instance}, not x"),
        ([*known, "--confirm"], "it holds ledgers, such as 3"),
        (["--root", "/ledgers", "--instance-id", "x", "--confirm", "--force"], "not x; nothing was changed"),
        ([*known, "--bookie-suffix", ".b:3181", "--confirm", "--force"], "bookie a-0.a:3181"),
    ):
        assert run(["cluster", "nuke", uri, *arguments]) != 0
        assert message in refusal(capsys)
    assert with_service(uri, lambda service: service.ledgers.read(3)).value.ledger_id == 3
    own = [*known, "--bookie-suffix", ".a:3181", "--confirm", "--force"]
    assert run(["cluster", "nuke", uri, *own]) == 0
    assert capsys.readouterr().out == f"cluster at {uri} removed\n"
    assert not with_service(uri, lambda service: service.cluster.exists())
    assert run(["cluster", "nuke", uri, *known, "--confirm"]) != 0
    assert "there is no cluster at /ledgers" in refusal(capsys)
    assert run(["cluster", "nuke", uri, *own, "--if-exists"]) == 0


def test_nobody_answers(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOOKIE_CONF", raising=False)
    assert run(["cluster", "init", "embedded://127.0.0.1:9/ledgers", "--timeout", "0.3"]) == 2
    assert "the metadata service does not answer" in refusal(capsys)


def test_a_wait_ends(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOOKIE_CONF", raising=False)
    monkeypatch.setattr(metadata, "RETRY_S", 0.01)
    tries: list[str] = []

    async def open_metadata(config: object, uri: str, *, make_store: bool) -> MetadataService:
        tries.append(uri)
        raise MetadataUnavailable("connection refused")

    monkeypatch.setattr("bookie_pod.node.metadata.open_metadata", open_metadata)
    assert run(["cluster", "init", "zk://nowhere/l", "--if-absent", "--wait", "0.1"]) == 2
    assert refusal(capsys) == "bookie: the metadata service does not answer: connection refused"
    assert len(tries) > 1
    monkeypatch.setattr(metadata, "TELL_AFTER_S", 0.01)
    assert run(["cluster", "init", "zk://nowhere/l", "--if-absent", "--wait", "0.1"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "bookie: the metadata service zk://nowhere/l does not answer yet; it is tried for 0.1 s",
        "bookie: the metadata service does not answer: connection refused",
    ]
    tries.clear()
    assert run(["cluster", "init", "zk://nowhere/l"]) == 2
    assert len(tries) == 1


@pytest.fixture
def configured(uri: str, tmp_path: Path) -> list[str]:
    file = tmp_path / "bk.conf"
    file.write_text(
        f"metadataServiceUri={uri}\nbookieId=bookie-1\nadvertisedAddress=10.0.0.1\nbookiePort=4181\n"
        f"journalDirectories={tmp_path}/journal\nledgerDirectories={tmp_path}/ledgers\n"
    )
    return ["cluster", "whoami", "--config", str(file)]


def test_whoami(uri: str, configured: list[str], capsys: Capture, tmp_path: Path) -> None:
    assert run(configured) != 0
    assert str(tmp_path) in refusal(capsys)
    instance = init(uri, capsys)
    assert run(configured) == 0
    printed = capsys.readouterr().out
    assert "bookie id           bookie-1\n" in printed
    assert "cookie              none: a new bookie" in printed
    assert not (tmp_path / "journal").exists()  # looking changes nothing

    cookie = (
        f'5\nbookieHost: "bookie-1"\njournalDir: "{tmp_path}/journal"\n'
        f'ledgerDirs: "1\\t{tmp_path}/ledgers"\ninstanceId: "{instance}"\n'
    )
    for folder in ("journal", "ledgers"):
        (tmp_path / folder / "current").mkdir(parents=True)
        (tmp_path / folder / "current" / "VERSION").write_text(cookie)
    with_service(uri, lambda service: service.cookies.create("bookie-1", cookie.encode()))
    assert run([*configured, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "bookie_id": "bookie-1",
        "advertised_address": "10.0.0.1:4181",
        "metadata_service": uri,
        "instance_id": instance,
        "cookie_instance_ids": [instance],
        "registered": None,
        "registered_address": None,
        "cookie": "matches",
        "problem": None,
        "instance_id_matches": True,
    }

    assert run(["cluster", "format", uri, "--confirm", "--json", "--instance-id", instance]) == 0
    new = json.loads(capsys.readouterr().out)["instance_id"]
    assert run(configured) == 1
    printed = capsys.readouterr()
    assert f"instance id         {new} (a cookie names another)\n" in printed.out
    assert "belongs to the cluster with instance id" in printed.err


@pytest.mark.parametrize("command", ["create", "update"])
def test_a_cookie_of_another_cluster_is_not_stored(command: str, uri: str, capsys: Capture, tmp_path: Path) -> None:
    instance, file = init(uri, capsys), tmp_path / "cookie"
    made = ["b:1", "-j", "/j", "-l", "/l", "-o", str(file), "--metadata", uri]
    if command == "update":
        with_service(uri, lambda service: service.cookies.create("b:1", b"before"))
    assert run(["cluster", "cookie", "generate", *made, "-i", "another"]) == 0
    capsys.readouterr()
    given = ["cluster", "cookie", command, "b:1", "-cf", str(file), "--metadata", uri]
    assert run(given) == 10
    assert f"instance id another, this one has {instance}" in refusal(capsys)
    assert run(["cluster", "cookie", "generate", *made]) == 0
    assert run(given) == 0
    assert with_service(uri, lambda service: service.cookies.read("b:1")).value == file.read_bytes()


def test_whoami_of_a_registered_bookie(
    uri: str, configured: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bookie_pod.node.identity import published as whoami_module
    from bookie_protocol.metadata_service.service_info import BookieServiceInfo, Endpoint

    init(uri, capsys)
    open_metadata = whoami_module.open_metadata

    async def open_and_register(*arguments: Any) -> MetadataService:
        service = await open_metadata(*arguments)
        info = BookieServiceInfo((Endpoint("bookie", "10.0.0.9", 3181, "bookie-rpc"),))
        await service.bookies.register("bookie-1", BookieGroup.READ_ONLY, info)
        return service

    monkeypatch.setattr(whoami_module, "open_metadata", open_and_register)
    assert run([*configured, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["registered"], found["registered_address"]) == ("read-only", "10.0.0.9:3181")


def test_the_switch_over_quarantine(uri: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_pod.logs.configure", lambda *settings: None)
    init(uri, capsys)
    for switch, said in (((), True), (("off",), False), ((), False), (("on",), True), ((), True)):
        assert run(["cluster", "client-quarantine", *switch, "--metadata", uri, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"client_quarantine": said}
    assert run(["cluster", "client-quarantine", "--metadata", uri]) == 0
    assert capsys.readouterr().out == "on: clients may quarantine bookies\n"
