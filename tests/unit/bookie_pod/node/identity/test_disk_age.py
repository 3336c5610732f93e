"""A disk that was set back to an earlier time: the bookie knows that it lost entries."""

from __future__ import annotations

import asyncio
import errno
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bookie_client import Client
from bookie_pod.node.identity import disk_age
from bookie_pod.node.identity.disk_age import NAME, DiskAge
from bookie_protocol.errors import MetadataRefused, MetadataUnavailable, ResourcesShort, V3Status
from bookie_protocol.keys import master_key
from tests.support.frames import entry, v3_add, v3_read, v3_status
from tests.support.live_bookie import started_bookie
from tests.support.memory_files import MemoryFiles
from tests.support.memory_records import MemoryRecords
from tests.support.served_bookie import RawClient
from tests.support.until import until

FOLDERS = ["/journal/current", "/ledgers/current"]
ENGINES = ["DbLedgerStorage", "SortedLedgerStorage", "InterleavedLedgerStorage"]


class Service:
    """A metadata service that has records, unless it fails."""

    def __init__(self) -> None:
        self.kept = MemoryRecords()
        self.failure: Exception | None = None

    def records(self, kind: str) -> Any:
        if self.failure is not None:
            raise self.failure
        return self.kept.of(kind)


def make(service: Any, files: MemoryFiles, bookie: str = "a:1", folders: list[str] = FOLDERS) -> DiskAge:
    for folder in folders:
        files.makedirs(folder)
    return DiskAge(files, folders, service, bookie)


async def test_a_folder_that_was_set_back_is_found() -> None:
    service, files = Service(), MemoryFiles()
    age = make(service, files)
    assert await age.earlier() == []
    await age.rise()
    before = files.read_bytes(f"{FOLDERS[1]}/{NAME}")
    assert await make(service, files).earlier() == []
    await age.rise()
    files.write_bytes(f"{FOLDERS[1]}/{NAME}", before)
    again = make(service, files)
    assert await again.earlier() == [FOLDERS[1]]
    await again.rise()
    assert await make(service, files).earlier() == []


@pytest.mark.parametrize("failing", ["the files", "the service"])
async def test_what_could_not_be_noted_is_no_loss(failing: str) -> None:
    service, files = Service(), MemoryFiles()
    age = make(service, files)
    await age.earlier()
    await age.rise()
    if failing == "the service":
        service.failure = MetadataUnavailable("away")
        await age.rise()
        service.failure = None
    else:
        files.faults.fail("rename", path=FOLDERS[1])
        await age.rise()
        files.faults.clear()
    assert await make(service, files).earlier() == []
    await age.rise()
    assert await make(service, files).earlier() == []


async def test_a_snapshot_from_while_the_service_was_away_is_found() -> None:
    service, files = Service(), MemoryFiles()
    age = make(service, files)
    await age.earlier()
    service.failure = MetadataUnavailable("away")
    await age.rise()
    before = files.read_bytes(f"{FOLDERS[0]}/{NAME}")
    await age.rise()
    service.failure = None
    await age.rise()
    files.write_bytes(f"{FOLDERS[0]}/{NAME}", before)
    assert await make(service, files).earlier() == [FOLDERS[0]]


@pytest.mark.parametrize(("code", "ends"), [(errno.EIO, False), (errno.EMFILE, True)])
async def test_a_file_that_cannot_be_read(code: int, ends: bool) -> None:
    """Damage is a loss; a lack of descriptors says nothing."""
    service, files = Service(), MemoryFiles()
    age = make(service, files)
    await age.earlier()
    await age.rise()
    files.faults.fail("open", path=FOLDERS[0], errno=code)
    with pytest.raises(ResourcesShort) if ends else nullcontext():
        assert await make(service, files).earlier() == [FOLDERS[0]]


async def test_a_new_folder_and_one_of_another_id_are_not_of_an_earlier_time() -> None:
    service, files = Service(), MemoryFiles()
    age = make(service, files)
    await age.earlier()
    await age.rise()
    assert await make(service, files, folders=[*FOLDERS, "/more/current"]).earlier() == []
    other = make(service, MemoryFiles(), "b:1")
    other_service = Service()
    for _ in range(3):
        await other.rise()
    assert await make(service, files, "b:1").earlier() == []
    assert await make(other_service, files).earlier() == []


async def test_a_damaged_file_counts_as_one_of_an_earlier_time() -> None:
    service, files = Service(), MemoryFiles()
    age = make(service, files)
    await age.earlier()
    await age.rise()
    files.write_bytes(f"{FOLDERS[0]}/{NAME}", b"{")
    assert await make(service, files).earlier() == [FOLDERS[0]]


async def test_a_service_that_gives_no_record_ends_no_start_unless_it_is_away() -> None:
    service, files = Service(), MemoryFiles()
    service.failure = MetadataRefused("not for you")
    assert await make(service, files).earlier() == []
    service.failure = MetadataUnavailable("away")
    with pytest.raises(MetadataUnavailable):
        await make(service, files).earlier()


async def test_the_count_rises_while_the_bookie_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot may be taken at any time."""
    monkeypatch.setattr(disk_age, "RISE_S", 0.001)
    service, files = Service(), MemoryFiles()
    following = asyncio.create_task(make(service, files).follow())
    await until(lambda: len(service.kept.writes) > 3)
    following.cancel()


@pytest.mark.parametrize(("engine", "is_accepted"), [*((each, False) for each in ENGINES), (ENGINES[0], True)])
async def test_a_bookie_whose_volumes_were_set_back_denies_nothing(
    tmp_path: Path, engine: str, is_accepted: bool
) -> None:
    """They are those of a snapshot, so the bookie has no entry that it acknowledged since. If the whole cluster was
    restored, the older state counts."""
    settings = {"ledgerStorageClass": engine, "bookieId": "set-back", "gcWaitTime": "3600000"}
    names = ("journal", "ledgers")
    async with started_bookie(tmp_path, settings) as bookie, Client(bookie._metadata) as client:
        writer = await client.create(ensemble=1, write_quorum=1, ack_quorum=1, password=b"")
        await writer.append(b"old")
    for name in names:
        shutil.copytree(tmp_path / name, tmp_path / f"snapshot of {name}")
    async with started_bookie(tmp_path, settings) as bookie, Client(bookie._metadata) as client:
        raw = await RawClient.connect(bookie.port)
        added = v3_add(entry(writer.ledger_id, 1), master_key(b""))
        assert v3_status(await raw.ask(added)) == V3Status.EOK
        await raw.close()
    for name in names:
        shutil.rmtree(tmp_path / name)
        (tmp_path / f"snapshot of {name}").rename(tmp_path / name)
    accepted = {"acceptEarlierDisks": "true"} if is_accepted else {}
    async with started_bookie(tmp_path, settings | accepted) as bookie:
        raw = await RawClient.connect(bookie.port)
        assert v3_status(await raw.ask(v3_read(writer.ledger_id, 0))) == V3Status.EOK
        lost = V3Status.ENOENTRY if is_accepted else V3Status.EUNKNOWNLEDGERSTATE
        assert v3_status(await raw.ask(v3_read(writer.ledger_id, 1))) == lost
        assert v3_status(await raw.ask(added)) == (V3Status.EOK if is_accepted else V3Status.EFENCED)
        await raw.close()
