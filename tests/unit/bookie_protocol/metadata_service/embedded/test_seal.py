"""A store that lost changes which were acknowledged does not open, whatever took them."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from rocksdict import Options, Rdict, WriteBatch

from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.embedded import store as module
from bookie_protocol.metadata_service.embedded.seal import NAME
from bookie_protocol.metadata_service.embedded.store import NodeStore
from tests.support.until import until_true

NODES = 60


def _fill(store: NodeStore, numbers: range) -> None:
    for number in numbers:
        store.create(f"/n{number:04d}", b"x" * 100, 0, False)
        store.sync()


def _nodes(folder: Path) -> int | None:
    """How many there are; None: it does not open."""
    try:
        store = NodeStore(str(folder))
    except MetadataUnavailable:
        return None
    with suppress(MetadataUnavailable):
        names = store.children("/")[0]
        assert sorted(names) == [f"n{number:04d}" for number in range(len(names))]
    store.close()
    return len(names)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed process leaves."""
    folder = tmp_path_factory.mktemp("seal") / "store"
    store = NodeStore(str(folder))
    _fill(store, range(NODES))
    copy = shutil.copytree(folder, folder.with_name("copy"))
    store.close()
    return copy


def _files(folder: Path) -> dict[str, bytes]:
    """What RocksDB may not change when a store is refused."""
    files = (*folder.glob("CURRENT"), *folder.glob("MANIFEST-*"), *folder.glob("*.log"), *folder.glob("*.sst"))
    return {file.name: file.read_bytes() for file in files}


def _log(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def _cut(log: Path, rng: random.Random) -> None:
    os.truncate(log, rng.randrange(log.stat().st_size))


def _cut_little(log: Path, rng: random.Random) -> None:
    os.truncate(log, log.stat().st_size - 1 - rng.randrange(200))


def _zeros(log: Path, rng: random.Random) -> None:
    size = log.stat().st_size
    _cut(log, rng)
    os.truncate(log, size)


def _flip(log: Path, rng: random.Random) -> None:
    data = bytearray(log.read_bytes())
    data[-1 - rng.randrange(300)] ^= 1 << rng.randrange(8)
    log.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [_cut, _cut_little, _zeros, _flip, lambda log, _: os.truncate(log, 0), lambda log, _: log.unlink()],
    ids=["cut", "cut a little", "zeros", "flipped", "emptied", "removed"],
)
def test_no_damage_of_the_log_is_silent(
    killed: Path, tmp_path: Path, damage: Callable[[Path, random.Random], None]
) -> None:
    rng = random.Random(7)
    for number in range(6):
        folder = shutil.copytree(killed, tmp_path / str(number))
        damage(_log(folder), rng)
        left = _files(folder)
        assert _nodes(folder) is None
        assert {name: _files(folder)[name] for name in left} == left, "trying takes nothing away"
    assert _nodes(shutil.copytree(killed, tmp_path / "whole")) == NODES


@pytest.mark.parametrize("make", [True, False])
def test_a_store_without_the_file_that_names_its_manifest_is_not_made_anew(
    killed: Path, tmp_path: Path, make: bool
) -> None:
    folder = shutil.copytree(killed, tmp_path / "store")
    current = (folder / "CURRENT").rename(tmp_path / "CURRENT")
    left = _files(folder)
    with pytest.raises(MetadataUnavailable, match=r"CURRENT .*copy"):
        NodeStore(str(folder), make=make)
    assert _files(folder) == left
    current.rename(folder / "CURRENT")
    assert _nodes(folder) == NODES


def test_an_older_copy_of_the_database_is_told_with_what_to_do(killed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(killed, tmp_path / "store")
    older = shutil.copytree(folder, tmp_path / "older")
    store = NodeStore(str(folder))
    _fill(store, range(NODES, NODES + 1))
    store.close()
    shutil.copy(folder / NAME, older / NAME)
    with pytest.raises(MetadataUnavailable, match=r"copy.* remove .*/podkeeper-seal; "):
        NodeStore(str(older))
    (older / NAME).unlink()
    assert _nodes(older) == NODES
    assert (older / NAME).exists(), "from here on it is sealed again"


@pytest.mark.parametrize("lost", ["the newest table", "all tables"])
def test_tables_that_the_manifest_does_not_name_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """RocksDB takes an end of its manifest that it cannot read for a crash, too."""
    monkeypatch.setattr(module, "TABLE_BYTES", 10_000)
    folder = tmp_path / "store"
    store = NodeStore(str(folder))
    store._db.set_options({"disable_auto_compactions": "true"})  # else tables come and go on threads of RocksDB
    sizes = list[tuple[Path, int]]()
    for number in range(NODES):
        _fill(store, range(number, number + 1))
        manifest = max(folder.glob("MANIFEST-*"))
        sizes.append((manifest, manifest.stat().st_size))
    before = next(size for _, size in reversed(sizes) if size < sizes[-1][1])
    # A log goes on a thread of its own, some time after a table has taken what it holds. With it nothing is lost.
    until_true(lambda: len(list(folder.glob("*.log"))) == 1, seconds=60)
    copy = shutil.copytree(folder, tmp_path / "copy")
    store.close()
    os.truncate(copy / sizes[-1][0].name, before if lost == "the newest table" else sizes[0][1])
    left = _files(copy)
    assert _nodes(copy) is None
    assert _files(copy) == left
    (copy / NAME).unlink()
    with suppress(MetadataUnavailable):  # where RocksDB can make a tree of it, that is accepted
        NodeStore(str(copy)).close()
        NodeStore(str(copy)).close()


# --- what is accepted -------------------------------------------------------------------------------------------


def test_a_torn_end_that_nobody_was_answered_for_goes(killed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(killed, tmp_path / "store")
    store = NodeStore(str(folder))
    _fill(store, range(NODES, NODES + 2))
    synced = _log(folder).stat().st_size
    for number in range(NODES + 2, NODES + 20):
        store.create(f"/n{number:04d}", b"", 0, False)
    store._db.flush_wal(False)
    whole = _log(folder).stat().st_size
    assert whole > synced
    for at in range(synced, whole, 97):
        copy = shutil.copytree(folder, tmp_path / str(at))
        os.truncate(_log(copy), at)
        nodes = _nodes(copy)
        assert nodes is not None
        assert nodes >= NODES + 2
    store.close()


def test_a_store_of_an_older_release_is_accepted_and_sealed(tmp_path: Path) -> None:
    store = NodeStore(str(tmp_path / "made"))
    _fill(store, range(NODES))
    old = Rdict(str(tmp_path / "store"), Options(raw_mode=True))
    batch = WriteBatch(raw_mode=True)
    for key in store._keys(b""):
        if not key.startswith(b"g"):
            batch.put(key, store.row(key))
    old.write(batch)
    old.flush_wal(True)
    folder = shutil.copytree(tmp_path / "store", tmp_path / "killed")
    old.close()
    store.close()
    assert _nodes(folder) == NODES
    assert _nodes(folder) == NODES
    assert (folder / NAME).exists()


def test_one_damaged_record_of_the_seal_is_no_loss_and_two_say_nothing(killed: Path, tmp_path: Path) -> None:
    whole = (killed / NAME).read_bytes()
    for at in (0, 9, 15, 19, 4096, 4105, 4111, 4115):
        folder = shutil.copytree(killed, tmp_path / str(at))
        data = bytearray(whole)
        data[at] ^= 4
        (folder / NAME).write_bytes(data)
        assert _nodes(folder) == NODES
    for data in (b"", whole[:10], bytes(len(whole))):
        (killed / NAME).write_bytes(data)
        folder = shutil.copytree(killed, tmp_path / str(len(data) + 10_000))
        with pytest.raises(MetadataUnavailable, match="seal"):
            NodeStore(str(folder))
    (killed / NAME).write_bytes(whole)


def test_wherever_a_process_ends_the_store_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each call on the seal's file, from the first start on."""

    class Died(BaseException):
        pass

    calls = ["open", "write", "fsync", "rename", "pwrite", "fdatasync"]
    monkeypatch.setattr("bookie_protocol.metadata_service.embedded.seal.SYNC_SECONDS", 0.0)
    for at in range(40):
        left, folder, acknowledged = at, tmp_path / str(at), 0

        def dying(call: Callable[..., object]) -> Callable[..., object]:
            def run(*arguments: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Died
                return call(*arguments)

            return run

        store = None
        with monkeypatch.context() as patch:
            for name in calls:
                patch.setattr(f"bookie_protocol.metadata_service.embedded.seal.os.{name}", dying(getattr(os, name)))
            with suppress(Died):
                store = NodeStore(str(folder))
                for acknowledged in range(1, 5):
                    _fill(store, range(acknowledged - 1, acknowledged))
                acknowledged += 1
        copy = shutil.copytree(folder, tmp_path / f"{at}-left")
        if store is not None:
            store.close()
        nodes = _nodes(copy)
        assert nodes is not None
        assert nodes >= acknowledged - 1
        if acknowledged == 5:
            return
    raise AssertionError("it never came to its end")


def test_a_seal_costs_no_sync_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = NodeStore(str(tmp_path))
    syncs = list[int]()
    monkeypatch.setattr(os, "fdatasync", syncs.append)
    monkeypatch.setattr("bookie_protocol.metadata_service.embedded.seal.time.monotonic", lambda: store._seal._synced_at)
    _fill(store, range(20))
    assert not syncs
    monkeypatch.setattr("bookie_protocol.metadata_service.embedded.seal.SYNC_SECONDS", 0.0)
    _fill(store, range(20, 21))
    assert len(syncs) == 1
    store.close()


def test_a_seal_that_cannot_be_written_ends_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = NodeStore(str(tmp_path))
    store.create("/n0000", b"", 0, False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: 3)
        with pytest.raises(MetadataUnavailable, match="part of"):
            store.sync()
    with pytest.raises(MetadataUnavailable, match="restart"):
        store.exists("/")
    store.close()
    assert _nodes(tmp_path) == 1
