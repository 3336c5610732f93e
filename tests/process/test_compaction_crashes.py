"""Reads in the middle of a compaction, and a compaction that is killed at each of its steps: never a missing or a
wrong entry, and the space comes back all the same. The bookie is a process on real files."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookie_client.blocking import BlockingClient
from tests.support import dying_bookie, warm
from tests.support.bookie_process import DB_STORAGE, SORTED_STORAGE
from tests.support.collected_bookie import (
    ENTRY,
    OVERHEAD,
    PATIENCE_S,
    CollectedBookie,
    SurvivorReader,
    check,
    delete,
    write,
)
from tests.support.metadata_process import MetadataProcess
from tests.support.until import until_true

pytestmark = pytest.mark.slow

COUNT = 300
FORMS = {
    "db": {"ledgerStorageClass": DB_STORAGE},
    "sorted": {"ledgerStorageClass": SORTED_STORAGE},
    "db-plain": {"ledgerStorageClass": DB_STORAGE, "useTransactionalCompaction": "false"},
}


STEPS_OF: dict[str, Collection[str]] = {
    "db": dying_bookie.STEPS,
    "sorted": ("copy readable", "half of the index", "index done", "before unlink"),  # where it differs
    "db-plain": dying_bookie.PLAIN_STEPS,
}


@dataclass
class Disk:
    """A stopped bookie one of whose logs is due for compaction: a third of it lives."""

    bookie: CollectedBookie
    name: str
    alive: int

    @property
    def kept(self) -> Path:
        return self.bookie.work / "kept"

    def restore(self) -> None:
        """As it was before the first compaction."""
        for name in ("journal", "ledgers"):
            shutil.rmtree(self.bookie.work / name)
            shutil.copytree(self.kept / name, self.bookie.work / name)


@pytest.fixture(scope="module")
def disk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    work = tmp_path_factory.mktemp(request.param)
    metadata = MetadataProcess(work / "metadata")
    metadata.start()
    try:
        with CollectedBookie(work / "b", metadata.uri(), FORMS[request.param]) as bookie:
            bookie.start()
            with BlockingClient(bookie.uri) as client:
                (alive, *dead) = write(client, [COUNT] * 3)
                bookie.collect()
                dead += write(client, [1, 1], 1_000_000)  # rotates the log
                bookie.collect()
                (name,) = (each for each in bookie.logs() if alive in bookie.owners(each))
                delete(client, dead)
            bookie.stop()
            made = Disk(bookie, name, alive)
            made.kept.mkdir()
            for folder in ("journal", "ledgers"):
                shutil.copytree(bookie.work / folder, made.kept / folder)
            for age in made.kept.glob("*/current/disk-age"):
                age.unlink()  # the older state counts
            yield made
    finally:
        metadata.stop()


@pytest.mark.parametrize(
    ("disk", "step"),
    [(form, step) for form, steps in STEPS_OF.items() for step in steps],
    indirect=["disk"],
)
def test_killed_at(disk: Disk, step: str) -> None:
    bookie = disk.bookie
    disk.restore()
    bookie.program = [*dying_bookie.PROGRAM, step]
    bookie.start()
    reader = SurvivorReader(bookie.port, disk.alive, COUNT)
    reader.start()
    try:
        bookie.force(major=True)
        assert bookie.ended() == -9
    finally:
        bookie.program = [warm.BOOKIE]
    reader.end()

    bookie.start()
    reader = SurvivorReader(bookie.port, disk.alive, COUNT)
    reader.start()
    with BlockingClient(bookie.uri) as client:
        check(client, disk.alive, COUNT)
        for _ in range(2):  # what had been half done, and what had not begun
            assert bookie.collect(major=True)["errors"] == []
        check(client, disk.alive, COUNT)
        reader.end()
        assert bookie.quarantined() == {}
        assert disk.name not in bookie.logs()
        leftovers = [path.name for path in bookie.folder.iterdir() if "compact" in path.name]
        assert leftovers == []
        bookie.kill()
        bookie.start()
        check(client, disk.alive, COUNT)
        bookie.collect()  # nobody writes to the logs of the killed process, so their owners are known
        assert sum(disk.alive in bookie.owners(name) for name in bookie.logs()) == 1, "one copy"
    bookie.stop()


@pytest.mark.parametrize("disk", FORMS, indirect=True)
def test_reads_go_on_all_through_a_compaction(disk: Disk) -> None:
    bookie = disk.bookie
    disk.restore()
    # Read and written: six times what lives, in about three seconds.
    bookie.settings["compactionRateByBytes"] = str(4 * COUNT * (ENTRY + OVERHEAD) // 3)
    bookie.start()
    reader = SurvivorReader(bookie.port, disk.alive, COUNT)
    reader.start()
    bookie.force(major=True)
    until_true(lambda: bookie.details()["majorCompacting"], PATIENCE_S)
    before = reader.rounds
    until_true(lambda: not bookie.details()["majorCompacting"], PATIENCE_S)
    during = reader.rounds - before
    assert disk.name not in bookie.logs()
    after = reader.rounds
    until_true(lambda: reader.rounds >= after + 2, PATIENCE_S)
    reader.end()
    assert during >= 3
    assert bookie.get("gc/progress")[0]["lastPass"]["errors"] == []
    bookie.stop()
