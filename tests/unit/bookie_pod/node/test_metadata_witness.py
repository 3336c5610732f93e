"""Whether the metadata service went back: by the bookie's own mark, and by how far its history had gone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie_pod.node import metadata_witness
from bookie_pod.node.metadata_witness import KIND, NAME, MetadataWitness
from bookie_pod.storage.files_posix import PosixFiles
from bookie_protocol.errors import (
    MetadataNotFound,
    MetadataRefused,
    MetadataUnavailable,
    MetadataWentBack,
    StorageFault,
)
from bookie_protocol.metadata_service.embedded.local import connect_local
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.tree import EmbeddedTree
from bookie_protocol.metadata_service.moving.backup_file import BackupFile
from bookie_protocol.metadata_service.moving.moves import back_up, copy_cluster, restore
from bookie_protocol.metadata_service.records import HISTORY, HISTORY_NAME
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.decommission_rig import DyingTransport
from tests.support.until import until

BOOKIE = "b:1"


class World:
    """A store that is put back to what it was before, and the bookie that remembers."""

    def __init__(self, folder: Path) -> None:
        self._store = folder / "store"
        self._backup = folder / "backup"
        self.bookie = folder / "bookie"
        self.bookie.mkdir()
        self.service: MetadataService
        self.ledgers = [1]

    async def open(self) -> None:
        self._owner = await EmbeddedOwner.open(str(self._store))
        self.transport = DyingTransport(self._owner)
        tree = EmbeddedTree(self.transport, 4.0)
        await tree.connect()
        self.service = MetadataService(tree, "/ledgers", None)

    async def close(self) -> None:
        await self.service.close()
        await self._owner.close()

    async def back_up(self) -> None:
        await self.close()
        shutil.copytree(self._store, self._backup)
        await self.open()

    async def put_back(self) -> None:
        await self.close()
        self._store.rename(self._store.parent / "newest")
        shutil.copytree(self._backup, self._store)
        await self.open()

    async def bring_newest_back(self) -> None:
        await self.close()
        shutil.rmtree(self._store)
        (self._store.parent / "newest").rename(self._store)
        await self.open()

    async def witness(self) -> MetadataWitness:
        """Of a new process of the bookie."""
        made = self.witness_of(BOOKIE)
        await made.begin()
        return made

    def witness_of(self, bookie_id: str) -> MetadataWitness:
        return MetadataWitness(self.service, PosixFiles(), str(self.bookie), bookie_id, lambda: self.ledgers)

    async def use(self, changes: int = 50) -> None:
        """By others, so that the service is soon as far as it was."""
        for _ in range(changes):
            await self.service.ledgers.generate_id()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.open()
    await made.service.cluster.initialize()
    yield made
    await made.close()


async def test_service_that_goes_forwards_is_believed(world: World) -> None:
    witness = await world.witness()
    for _ in range(3):
        await witness.check()
        await world.use(3)
    await witness.stop()
    again = await world.witness()
    await again.check()
    assert again.went_back is None


async def test_checks_that_wait_share_one_mark(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions about many ledgers come at once."""
    witness = await world.witness()
    marks = 0
    renew = witness._renew

    async def counted(stored: object) -> None:
        nonlocal marks
        marks += 1
        await renew(stored)  # type: ignore[arg-type]

    monkeypatch.setattr(witness, "_renew", counted)
    await asyncio.gather(*(witness.check() for _ in range(20)))
    assert marks == 2, "that of the first, which had begun when the others came, and theirs"
    await witness.check()
    assert marks == 3, "what was checked before counts for no later question"


@pytest.mark.parametrize("caught_up", [False, True])
async def test_service_that_was_put_back_is_not_believed_until_the_newest_is_back(
    world: World, caught_up: bool
) -> None:
    witness = await world.witness()
    await witness.check()
    await world.back_up()
    await (await world.witness()).check()
    await world.put_back()
    if caught_up:
        await world.use()
    witness = await world.witness()
    for _ in range(2):
        with pytest.raises(MetadataWentBack):
            await witness.check()
        await world.use()
    witness = await world.witness()
    assert witness.went_back, "a restart forgets nothing"
    await world.bring_newest_back()
    witness = await world.witness()
    await witness.check()
    assert witness.went_back is None
    await (await world.witness()).check()


async def test_service_that_never_had_the_mark_any_more(world: World) -> None:
    await world.back_up()
    await (await world.witness()).check()
    await world.put_back()
    await world.use()
    with pytest.raises(MetadataWentBack):
        await (await world.witness()).check()


async def test_older_position_is_found_out_without_a_pass(world: World) -> None:
    """The mark is renewed with a pass; what was written since tells by its position alone."""
    await (await world.witness()).check()
    await world.back_up()
    witness = await world.witness()
    await world.use()
    await witness.stop()
    await world.put_back()
    witness = await world.witness()
    assert witness.went_back is not None
    await world.use(200)
    with pytest.raises(MetadataWentBack):
        await witness.check()


async def test_running_bookie_notices_older_answers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_witness, "LOOK_S", 0.01)
    witness = await world.witness()
    following = asyncio.create_task(witness.follow())
    world.service.session.answered(1, world.service.session.asks())
    await until(lambda: witness.went_back is not None)
    following.cancel()
    assert (await world.witness()).went_back is not None, "it is noted"


async def test_position_is_noted_now_and_then(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_witness, "LOOK_S", 0.01)
    monkeypatch.setattr(metadata_witness, "NOTE_S", 0.0)
    following = asyncio.create_task((await world.witness()).follow())
    await until(lambda: (world.bookie / NAME).exists())
    following.cancel()


async def test_person_lets_the_older_state_count(world: World) -> None:
    await world.back_up()
    await (await world.witness()).check()
    await world.put_back()
    witness = await world.witness()
    with pytest.raises(MetadataWentBack):
        await witness.check()
    await witness.accept()
    assert witness.went_back is None
    await witness.check()
    await (await world.witness()).check()


async def test_service_that_the_session_doubts_is_not_believed_until_a_person_says_so(world: World) -> None:
    """As when Pulsar moved the metadata without waiting for this process."""
    witness = await world.witness()
    await witness.check()
    world.service.session.doubt = "what was written last may be missing"
    with pytest.raises(MetadataWentBack):
        await witness.check()
    world.service.session.doubt = ""  # as in the next process
    again = await world.witness()
    with pytest.raises(MetadataWentBack):
        await again.check()
    await again.accept()
    await again.check()


async def test_mark_whose_writing_was_interrupted_is_known(world: World) -> None:
    witness = await world.witness()
    await witness.check()
    for after in (False, True):
        world.transport.die_at, world.transport.die_after = world.transport.requests + 3, after  # sync, read, write
        with pytest.raises(MetadataUnavailable):
            await witness.check()
        world.transport.died.clear()
        world.transport.die_at = None
        await (await world.witness()).check()
        witness = await world.witness()


async def test_nobody_answers_is_no_older_state(world: World) -> None:
    witness = await world.witness()
    world.transport.died.set()
    with pytest.raises(MetadataUnavailable):
        await witness.check()
    world.transport.died.clear()
    assert witness.went_back is None


async def test_full_disk_keeps_nobody_from_collecting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = await world.witness()
    await witness.check()

    def full(seen: object) -> None:
        raise StorageFault("no space")

    monkeypatch.setattr(witness, "_store", full)
    before = (await world.service.records(KIND).read(BOOKIE)).value
    await witness.check()
    assert (await world.service.records(KIND).read(BOOKIE)).value == before, "no mark that nobody would remember"
    await (await world.witness()).check()


async def test_bookie_that_was_renamed_has_no_mark_yet(world: World) -> None:
    await (await world.witness()).check()
    renamed = world.witness_of("b9:1")
    await renamed.begin()
    await renamed.check()
    again = world.witness_of("b9:1")
    await again.begin()
    await again.check()


async def test_service_that_takes_no_mark_is_believed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        async def read(self, name: str) -> None:
            raise MetadataNotFound(name)

        async def create(self, name: str, data: bytes) -> None:
            raise MetadataRefused("no right")

    monkeypatch.setattr(world.service, "records", lambda kind: Refusing())
    witness = await world.witness()
    for _ in range(2):
        await witness.check()


async def test_file_that_cannot_be_understood_is_a_doubt(world: World) -> None:
    await (await world.witness()).check()
    (world.bookie / NAME).write_bytes(b"{")
    witness = await world.witness()
    with pytest.raises(MetadataWentBack):
        await witness.check()
    await witness.accept()
    await witness.check()


@pytest.fixture
async def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MetadataService]:
    """Another store, whose history has just begun."""
    owner = await EmbeddedOwner.open(str(tmp_path_factory.mktemp("elsewhere")))
    made = await connect_local(owner, 4.0)
    yield made
    await made.close()
    await owner.close()


async def used_much(world: World) -> None:
    """The bookie notes a position that no new place has."""
    witness = await world.witness()
    await witness.check()
    for _ in range(200):
        await world.service.tree.overwrite("/ledgers/available", b"")
    await witness.stop()


async def test_metadata_that_were_moved_are_believed(world: World, elsewhere: MetadataService) -> None:
    await used_much(world)
    await copy_cluster(world.service, elsewhere, lambda _: None)
    assert elsewhere.session.position < world.service.session.position
    at_home, world.service = world.service, elsewhere
    witness = await world.witness()
    await witness.check()
    assert witness.went_back is None
    await witness.check()
    world.service = at_home
    with pytest.raises(MetadataWentBack):
        await (await world.witness()).check()


async def test_service_that_counts_something_else_from_now_on_is_believed(world: World) -> None:
    """As when Pulsar moves the metadata to Oxia under a running bookie."""
    await used_much(world)
    witness, session = await world.witness(), world.service.session
    session.counts, session.position = "oxia", 3
    await witness.stop()  # it has not read anything of the new place yet
    assert witness.went_back is None
    await witness.check()
    assert witness.went_back is None
    again = await world.witness()
    session.position = 2
    await again.stop()
    assert again.went_back is not None


async def test_place_that_nobody_can_tell_yet_is_compared_later(
    world: World, elsewhere: MetadataService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await used_much(world)
    await copy_cluster(world.service, elsewhere, lambda _: None)
    at_home, world.service = world.service, elsewhere
    with monkeypatch.context() as patched:
        patched.setattr(elsewhere, "records", lambda _: Silent())
        witness = await world.witness()
        with pytest.raises(MetadataUnavailable):
            await witness.check()
        await witness.stop()
    await witness.check()
    world.service = at_home


class Silent:
    """Records that nobody can read."""

    async def read(self, name: str) -> object:
        raise MetadataUnavailable(name)


@pytest.fixture
async def restored(world: World, elsewhere: MetadataService, tmp_path: Path) -> AsyncIterator[MetadataService]:
    """A place that was restored from a backup; the bookie looked at the service before, and not since."""
    await (await world.witness()).check()
    file = BackupFile(str(tmp_path / "file"))
    await back_up(world.service, "here", file, lambda _: None)
    await restore(file, elsewhere, lambda _: None)
    at_home = world.service
    yield elsewhere
    world.service = at_home


async def test_older_backup_is_not_believed(world: World, restored: MetadataService) -> None:
    """It has the newest mark; the bookie has seen ledgers that were made behind it."""
    witness = await world.witness()
    await world.use()
    await witness.stop()
    world.service = restored
    for _ in range(2):
        with pytest.raises(MetadataWentBack):
            await (await world.witness()).check()


async def test_backup_as_new_as_all_that_was_noted_is_not_believed_until_a_person_says_so(
    world: World, restored: MetadataService
) -> None:
    world.service = restored
    witness = await world.witness()
    assert witness.went_back, "it is known at once"
    with pytest.raises(MetadataWentBack):
        await witness.check()
    await witness.accept()
    await witness.check()
    await witness.stop()
    await (await world.witness()).check()


@pytest.mark.parametrize("ledgers", [[1], []])
async def test_place_that_was_restored_under_a_running_bookie_is_not_believed(
    world: World, tmp_path: Path, ledgers: list[int]
) -> None:
    """Its session had ended, so nobody saw the bookie. The service went forwards, and has the newest mark."""
    world.ledgers = ledgers
    witness = await world.witness()
    await witness.check()
    file = BackupFile(str(tmp_path / "file"))
    await back_up(world.service, "here", file, lambda _: None)
    world.ledgers = [1, 2]
    await world.service.cluster.nuke(instance_id=None, with_ledgers=True)
    await restore(file, world.service, lambda _: None)
    for _ in range(2):
        with pytest.raises(MetadataWentBack):
            await witness.check()
    await witness.accept()
    await witness.check()


async def test_bookie_without_a_mark_believes_no_backup(world: World, restored: MetadataService) -> None:
    at_home, world.service = world.service, restored
    for remembers in (True, False):
        if not remembers:
            (world.bookie / NAME).unlink()
        renamed = world.witness_of("b9:1")
        await renamed.begin()
        for _ in range(2):
            with pytest.raises(MetadataWentBack):
                await renamed.check()
    world.service = at_home


async def test_bookie_without_ledgers_believes_a_backup(world: World, restored: MetadataService) -> None:
    world.service, world.ledgers = restored, []
    await world.witness()
    world.ledgers = [1]
    for _ in range(2):
        await (await world.witness()).check()


async def test_backup_that_was_moved_on_is_not_believed(
    world: World, restored: MetadataService, tmp_path: Path
) -> None:
    owner = await EmbeddedOwner.open(str(tmp_path / "third"))
    third = await connect_local(owner, 4.0)
    await copy_cluster(restored, third, lambda _: None)
    world.service = third
    with pytest.raises(MetadataWentBack):
        await (await world.witness()).check()
    await third.close()
    await owner.close()


@pytest.mark.parametrize("newest", [True, False])
async def test_place_of_before_is_believed_again_unless_it_is_older(
    world: World, restored: MetadataService, newest: bool
) -> None:
    await world.back_up()
    witness = await world.witness()
    await world.use()
    await witness.stop()
    at_home, world.service = world.service, restored
    assert (await world.witness()).went_back
    world.service = at_home
    if newest:
        await (await world.witness()).check()
    else:
        await world.put_back()
        with pytest.raises(MetadataWentBack):
            await (await world.witness()).check()


async def test_zookeeper_that_the_metadata_had_left_for_oxia_is_not_believed(world: World) -> None:
    """A backup from behind the last garbage collection in ZooKeeper has the newest mark, and Oxia's position says
    nothing."""
    session = world.service.session
    await (await world.witness()).check()
    session.counts = "oxia"
    witness = await world.witness()
    await witness.stop()
    session.counts = ""
    for _ in range(2):
        with pytest.raises(MetadataWentBack):
            await (await world.witness()).check()
    session.counts = "oxia"
    await (await world.witness()).check()
    session.counts = ""
    left = await world.witness()
    await left.accept()
    await left.check()
    await (await world.witness()).check()


async def test_history_that_cannot_be_understood_is_a_doubt(world: World) -> None:
    await (await world.witness()).check()
    await world.service.records(HISTORY).create(HISTORY_NAME, b"{")
    witness = await world.witness()
    with pytest.raises(MetadataWentBack):
        await witness.check()
    await witness.accept()
    await (await world.witness()).check()
