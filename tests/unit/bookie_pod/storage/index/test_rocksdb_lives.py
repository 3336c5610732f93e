"""A RocksDB database that is closed, or opened anew under those who use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_pod.config.sections.ledger_storage import RocksDbConfig
from bookie_pod.storage.index import rocksdb_store
from bookie_pod.storage.index.rocksdb_store import RocksStore
from bookie_protocol.errors import StorageFault


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _fill(store: RocksStore, numbers: range) -> None:
    batch = store.batch()
    batch.put_many(map(_key, numbers), (b"v%d" % n for n in numbers))
    batch.commit()


def test_a_database_whose_identity_cannot_be_read_is_not_left_open(tmp_path: Path) -> None:
    path = str(tmp_path / "locations")

    def refuses() -> bytes:
        raise OSError(5, "Input/output error")

    with pytest.raises(StorageFault, match="identity"):
        RocksStore(path, read_identity=refuses)
    store = RocksStore(path, read_identity=lambda: b"name")
    assert store.identity() == b"name"
    store.close()
    store.close()
    with pytest.raises(StorageFault, match="closed"):
        store.get(b"k")
    with pytest.raises(StorageFault, match="closed"):
        store.sync()


def test_the_buffer_of_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocksdb_store, "WAL_FLUSH_BYTES", 1000)
    store = RocksStore(str(tmp_path / "locations"))
    waiting = []
    for number in range(6):
        batch = store.batch()
        batch.put(_key(number), b"v" * 400)
        size = batch.raw.size_in_bytes()
        batch.commit(sync=False)
        waiting.append(store._buffered)
    assert 400 < size < 500
    assert waiting == [size, 2 * size] * 3
    store.sync()
    assert store._buffered == 0
    store.close()


class _Borrowed:
    """A database that somebody uses: so many tries to close it fail, for this reason."""

    def __init__(self, reason: str, times: int) -> None:
        self.reason = reason
        self.left = times

    def close(self) -> None:
        self.left -= 1
        if self.left >= 0:
            raise Exception(self.reason)


def test_a_close_waits_for_who_looks_something_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("bookie_pod.storage.index.rocksdb_store.time.sleep", pauses.append)

    def closed(reason: str, times: int, *, failed: bool = False) -> int:
        store = RocksStore.__new__(RocksStore)
        store._path, store._closed, store._write_failed = "locations", False, failed
        store._db = _Borrowed(reason, times)  # type: ignore[assignment]
        pauses.clear()
        store.close()
        return len(pauses)

    assert closed("it is borrowed", 3) == 3
    assert closed("it is borrowed", rocksdb_store.REOPEN_TRIES - 1) == rocksdb_store.REOPEN_TRIES - 1
    with pytest.raises(StorageFault, match="borrowed"):
        closed("it is borrowed", rocksdb_store.REOPEN_TRIES)
    with pytest.raises(StorageFault, match=r"close.*disk"):
        closed("the disk", 1)
    assert closed("the disk", 1, failed=True) == 0, "it was told by the write"


def test_a_database_is_opened_anew_only_once_there_is_room_and_the_disk_answers(tmp_path: Path) -> None:
    usable: list[int | OSError] = [OSError(5, "Input/output error"), 2 * 4096 - 1, 2 * 4096]

    def left() -> int:
        found = usable.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    store = RocksStore(str(tmp_path / "locations"), RocksDbConfig(write_buffer_size_bytes=4096), left)
    _fill(store, range(3))
    store._write_failed = True
    with pytest.raises(StorageFault, match="Input/output"):
        store.sync()
    with pytest.raises(StorageFault, match="room"):
        store.sync()
    store.sync()
    assert (store._write_failed, store.get(_key(2))) == (False, b"v2")
    store.close()


@pytest.mark.parametrize(("tries", "opens"), [(0, True), (3, True), (200, False)])
def test_it_is_opened_anew_as_soon_as_nobody_holds_its_lock(
    tries: int, opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RocksStore.__new__(RocksStore)
    left = [StorageFault("lock hold by current process")] * tries
    pauses: list[float] = []
    monkeypatch.setattr("bookie_pod.storage.index.rocksdb_store.time.sleep", pauses.append)

    def opening() -> str:
        if left:
            raise left.pop()
        return "open"

    monkeypatch.setattr(store, "_open", opening)
    if opens:
        assert store._open_when_free() == "open"  # type: ignore[comparison-overlap]
        assert len(pauses) == tries
    else:
        with pytest.raises(StorageFault, match="lock"):
            store._open_when_free()
        assert len(pauses) == rocksdb_store.REOPEN_TRIES
    left[:] = [StorageFault("it is damaged")]
    pauses.clear()
    with pytest.raises(StorageFault, match="damaged"):
        store._open_when_free()
    assert pauses == []


def test_a_look_up_is_repeated_once_if_the_database_was_opened_anew_under_it(tmp_path: Path) -> None:
    store = RocksStore(str(tmp_path / "locations"))
    _fill(store, range(2))
    database, asked = store._db, list[object]()

    def meets_the_gap(db: object) -> object:
        asked.append(db)
        if len(asked) == 1:
            store._db = "opened anew"  # type: ignore[assignment]
            raise ValueError("it was closed")
        return db

    assert store._call("get", meets_the_gap) == "opened anew"
    assert asked == [database, "opened anew"]
    store._db = database
    asked.clear()

    def fails(db: object) -> None:
        store._db = "opened anew"  # type: ignore[assignment]
        asked.append(db)
        raise ValueError(f"it is damaged {len(asked)}")

    with pytest.raises(StorageFault, match=r"get .*damaged 2"):
        store._call("get", fails)
    store._db = None
    with pytest.raises(StorageFault, match=r"get.*closed"):
        store.get(_key(0))
    store.close()
    assert database is not None
    database.close()
