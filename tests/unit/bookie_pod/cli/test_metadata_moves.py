"""`bookie cluster metadata copy`, `backup`, `restore` and `reopen`, on metadata stores in folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.main import run
from bookie_pod.node.metadata_witness import KIND, Seen
from bookie_protocol.errors import ExitCode, MetadataDamaged
from bookie_protocol.metadata_service.interface import MetadataService
from tests.support.metadata_access import with_service
from tests.unit.bookie_pod.cli.clusters import Capture, create_ledger, init

BOOKIE = "b:1"


async def instance_id(service: MetadataService) -> str | None:
    return await service.cluster.instance_id()


async def ledgers(service: MetadataService) -> list[int]:
    return [each async for found in service.ledgers.ranges() for each in found.ids]


@pytest.fixture
def cluster(uri: str, capsys: Capture) -> str:
    """The instance id of one at `uri` that has a ledger."""
    made = init(uri, capsys)
    with_service(uri, create_ledger)
    return made


def answer(capsys: Capture) -> dict[str, object]:
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_copy_and_the_way_back(uri: str, cluster: str, tmp_path: Path, capsys: Capture) -> None:
    there = str(tmp_path / "there")
    assert run(["cluster", "metadata", "copy", uri, there, "--json"]) == 0
    assert answer(capsys)["ledgers"] == 1
    assert with_service(there, instance_id) == cluster
    assert with_service(there, ledgers) == [3]
    with pytest.raises(MetadataDamaged):
        with_service(uri, instance_id)
    assert run(["cluster", "metadata", "copy", uri, there]) == 0
    assert run(["cluster", "metadata", "copy", uri, str(tmp_path / "elsewhere")]) == CommandExit.REFUSED
    assert run(["cluster", "metadata", "reopen", uri]) == ExitCode.INVALID_CONFIGURATION
    assert run(["cluster", "nuke", there, "--root", "/ledgers", "--instance-id", cluster, "--confirm", "--force"]) == 0
    assert run(["cluster", "metadata", "reopen", uri, "--confirm"]) == 0
    assert with_service(uri, instance_id) == cluster
    assert run(["cluster", "metadata", "reopen", uri, "--confirm"]) == ExitCode.INVALID_CONFIGURATION


def test_closed_source_can_be_removed(uri: str, cluster: str, tmp_path: Path) -> None:
    assert run(["cluster", "metadata", "copy", uri, str(tmp_path / "there")]) == 0
    assert run(["cluster", "nuke", uri, "--root", "/ledgers", "--instance-id", cluster, "--confirm", "--force"]) == 0


def test_nothing_is_copied_from_nowhere_or_onto_something(uri: str, cluster: str, tmp_path: Path) -> None:
    assert run(["cluster", "metadata", "copy", str(tmp_path / "nowhere"), str(tmp_path / "there")]) != 0
    assert run(["cluster", "init", str(tmp_path / "there")]) == 0
    assert run(["cluster", "metadata", "copy", uri, str(tmp_path / "there")]) == CommandExit.REFUSED
    assert with_service(uri, instance_id) == cluster


def test_backup_and_restore(uri: str, cluster: str, tmp_path: Path, capsys: Capture) -> None:
    file, there = str(tmp_path / "backup"), str(tmp_path / "there")
    assert run(["cluster", "metadata", "backup", uri, file, "--json"]) == 0
    assert answer(capsys)["ledgers"] == 1
    assert run(["cluster", "metadata", "backup", uri, file]) == ExitCode.INVALID_CONFIGURATION
    assert run(["cluster", "metadata", "restore", file, there, "--json"]) == 0
    assert answer(capsys)["instance_id"] == cluster == with_service(there, instance_id)
    assert with_service(there, ledgers) == [3]
    assert with_service(uri, instance_id) == cluster
    (tmp_path / "half").write_bytes(Path(file).read_bytes()[:-20])
    assert run(["cluster", "metadata", "restore", str(tmp_path / "half"), there]) == CommandExit.COULD_NOT_TELL
    assert run(["cluster", "metadata", "restore", str(tmp_path / "none"), there]) == CommandExit.COULD_NOT_TELL


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (Seen(BOOKIE, "old", "", 1), 0),
        (Seen(BOOKIE, "older", "old", 1), 0),
        (Seen(BOOKIE, "", "", 1), 0),
        (Seen(BOOKIE, "new", "", 1), CommandExit.COULD_NOT_TELL),
        (Seen(BOOKIE, "old", "", 1000), CommandExit.COULD_NOT_TELL),
        (Seen(BOOKIE, "old", "", 0), CommandExit.COULD_NOT_TELL),
        (Seen(BOOKIE, "old", "", 1, history="another place"), CommandExit.COULD_NOT_TELL),
    ],
)
def test_what_bookies_have_seen(uri: str, cluster: str, tmp_path: Path, seen: Seen, code: int) -> None:
    async def leave_mark(service: MetadataService) -> None:
        await service.records(KIND).create(BOOKIE, b"old")

    file, there, disk = str(tmp_path / "backup"), str(tmp_path / "there"), tmp_path / "disk"
    with_service(uri, leave_mark)
    assert run(["cluster", "metadata", "backup", uri, file]) == 0
    (disk / "current").mkdir(parents=True)
    (disk / "current" / "metadata-seen").write_bytes(seen.encode())
    assert run(["cluster", "metadata", "restore", file, there, "--seen", str(disk)]) == code
    if code:
        assert run(["cluster", "metadata", "restore", file, there, "--seen", str(disk), "--older"]) == 0
    assert with_service(there, instance_id) == cluster


def test_directory_that_no_bookie_used_tells_nothing(uri: str, cluster: str, tmp_path: Path) -> None:
    assert run(["cluster", "metadata", "backup", uri, str(tmp_path / "backup")]) == 0
    words = ["cluster", "metadata", "restore", str(tmp_path / "backup"), str(tmp_path / "there")]
    assert run([*words, "--seen", str(tmp_path)]) == ExitCode.INVALID_CONFIGURATION
