"""`bookie cluster metadata copy`, `backup`, `restore` and `reopen`, on metadata stores in folders."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bookie_pod.cli.exit_codes import CommandExit
from bookie_pod.cli.main import run
from bookie_pod.node.metadata_witness import KIND, Place, Seen
from bookie_protocol.errors import ExitCode, MetadataDamaged
from bookie_protocol.metadata_service.moving.backup_file import BackupFile
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.service import MetadataService
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


def backed_up(uri: str, folder: Path, capsys: Capture) -> dict[str, object]:
    assert run(["cluster", "metadata", "backup", uri, str(folder), "--keep", "2", "--json"]) == 0
    return answer(capsys)


def test_backups_in_a_folder_go_when_newer_ones_were_read_back(
    uri: str, cluster: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    others = ["metadata-another-cluster-20200101T000000Z", f"metadata-{cluster}-by-hand", "lost+found"]
    abandoned = f"metadata-{cluster}-20200101T000000Z.00aa.part"
    for name in (*others, abandoned):
        (folder / name).touch()
    made = []
    for second in range(4):
        monkeypatch.setattr(time, "time", lambda at=1_900_000_000.0 + second: at)
        made.append(backed_up(uri, folder, capsys))
    files = [Path(str(each["file"])).name for each in made]
    assert [each["removed"] for each in made] == [[], [], [made[0]["file"]], [made[1]["file"]]]
    assert {each.name for each in folder.iterdir()} == {*others, *files[2:]}
    assert run(["cluster", "metadata", "restore", str(folder / files[3]), str(tmp_path / "there"), "--json"]) == 0
    assert answer(capsys)["instance_id"] == cluster


def test_a_backup_stays_whose_clock_was_put_back(
    uri: str, cluster: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in (1_900_000_002.0, 1_900_000_001.0, 1_900_000_000.0):
        monkeypatch.setattr(time, "time", lambda at=at: at)
        made = backed_up(uri, tmp_path, capsys)
    assert len(list(tmp_path.glob("metadata-*"))) == 2
    assert Path(str(made["file"])).exists()


def test_a_cluster_that_becomes_another_one_is_not_backed_up_under_the_name_of_the_first(
    uri: str, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first(_: TreeCluster) -> str:
        return "the-id-of-a-moment-ago"

    monkeypatch.setattr(TreeCluster, "instance_id", first)
    (tmp_path / "backups").mkdir()
    assert run(["cluster", "metadata", "backup", uri, str(tmp_path / "backups"), "--keep", "1"]) == (
        CommandExit.REFUSED
    )
    assert list((tmp_path / "backups").iterdir()) == []


def test_a_cluster_whose_id_names_no_file_has_no_folder_of_backups(uri: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(["cluster", "init", uri, "--instance-id", "a/b"]) == 0
    words = ["cluster", "metadata", "backup", uri]
    assert run([*words, str(tmp_path), "--keep", "1"]) == ExitCode.INVALID_CONFIGURATION
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert run([*words, str(tmp_path / "file")]) == 0


def test_a_backup_that_fails_removes_none(
    uri: str, cluster: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [tmp_path / f"metadata-{cluster}-2020010{day}T000000Z" for day in range(1, 5)]
    for each in old:
        each.touch()

    async def damaged(_: BackupFile) -> None:
        raise MetadataDamaged("not what was written")

    monkeypatch.setattr(BackupFile, "checked", damaged)
    assert run(["cluster", "metadata", "backup", uri, str(tmp_path), "--keep", "1"]) != 0
    assert set(tmp_path.glob("metadata-*")) == set(old)
    assert run(["cluster", "metadata", "backup", uri, str(tmp_path / "none"), "--keep", "1"]) == (
        ExitCode.INVALID_CONFIGURATION
    )


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
        (Seen(BOOKIE, "old", "", 1, place=Place("another place")), CommandExit.COULD_NOT_TELL),
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
