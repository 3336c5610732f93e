from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest

from bookie_protocol.errors import (
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataReplaced,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.embedded import notices
from bookie_protocol.metadata_service.embedded import store as module
from bookie_protocol.metadata_service.embedded.commits import StoreThread
from bookie_protocol.metadata_service.embedded.records import Change, NodeRecord
from bookie_protocol.metadata_service.embedded.store import NodeStore
from tests.support.until import until

FIRST = b"podkeeper embedded metadata 1"


def test_nodes(store: NodeStore) -> None:
    path, made = store.create("/a", b"1", 0, False)
    assert (path, made.version) == ("/a", 0)
    store.create("/a/b", b"", 0, False)
    store.create("/a/c", b"", 0, False)
    store.create("/ab", b"", 0, False)
    assert store.get("/a").data == b"1"
    assert sorted(store.children("/a")[0]) == ["b", "c"]
    assert sorted(store.children("/")[0]) == ["a", "ab"]
    assert store.children("/a/b")[0] == ()
    stat = store.exists("/a")
    assert stat is not None
    assert (stat.version, stat.children, stat.owner) == (0, 2, 0)
    assert store.set("/a", b"2", 0, None).version == 1
    with pytest.raises(MetadataVersionConflict, match="version 1, not 0"):
        store.set("/a", b"3", 0, None)
    assert store.set("/a", b"3", -1, None).version == 2
    with pytest.raises(MetadataNotEmpty):
        store.delete("/a", -1, None)
    store.delete("/a/b", 0, None)
    store.delete("/a/c", -1, None)
    assert store.children("/a")[1].child_version == 4
    store.delete("/a", 2, None)
    assert store.exists("/a") is None
    for call in (
        lambda: store.get("/a"),
        lambda: store.children("/a"),
        lambda: store.set("/a", b"", -1, None),
        lambda: store.delete("/a", -1, None),
        lambda: store.create("/a/b", b"", 0, False),
    ):
        with pytest.raises(MetadataNotFound):
            call()


def test_numbers_are_given_out_once(store: NodeStore) -> None:
    store.create("/q", b"", 0, False)
    names = []
    for _ in range(5):
        names.append(store.create("/q/ID-", b"", 0, True)[0])
        store.delete(names[-1], -1, None)
    assert names == [f"/q/ID-{i:010d}" for i in range(5)]


def test_all_or_none(store: NodeStore) -> None:
    store.create("/there", b"", 0, False)
    with pytest.raises(MetadataExists):
        list(store.create_all([("/a", b""), ("/a/b", b""), ("/there", b"")]))
    assert store.exists("/a") is None
    list(store.create_all([("/a", b""), ("/a/b", b"x"), ("/c", b"")]))
    assert store.get("/a/b").data == b"x"
    root = store.exists("/")
    assert root is not None
    assert root.children == 3


def test_a_session_takes_its_nodes_along(store: NodeStore) -> None:
    store.create("/a", b"", 0, False)
    one, two = store.open_session(1000), store.open_session(2000)
    for i in range(3):
        store.create(f"/a/one-{i}", b"", one.session_id, False)
    store.create("/a/two", b"", two.session_id, False)
    with pytest.raises(MetadataUnavailable, match="ephemeral"):
        store.create("/a/two/below", b"", 0, False)
    store.take_news()
    store.end_session(one.session_id)
    assert store.children("/a")[0] == ("two",)
    assert store.take_news().changes >= {(Change.CHILDREN, "/a"), (Change.NODE, "/a/one-0")}
    parent = store.exists("/a")
    assert parent is not None
    assert (parent.children, store.children("/a")[1].child_version) == (1, 7)
    assert [session.session_id for session in store.sessions()] == [two.session_id]
    store.end_session(one.session_id)  # again is fine


def test_a_session_with_many_nodes_ends_in_steps_and_counts_as_ended_from_the_first_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SESSION_STEP", 10)
    first = NodeStore(str(tmp_path))
    session = first.open_session(1000, process="oxia me")
    for i in range(25):
        first.create(f"/n{i:02d}", b"", session.session_id, False)
    assert not first.end_session(session.session_id)
    assert len(first.children("/")[0]) == 15
    first.sync()
    first.close()
    second = NodeStore(str(tmp_path))
    (left,) = second.sessions()
    assert left.local, "the next owner ends it"
    assert not left.process, "a client of Oxia makes nothing in it any more"
    assert [second.end_session(session.session_id) for _ in range(3)] == [False, True, True]
    assert second.children("/")[0] == ()
    assert second.sessions() == []
    second.close()


def test_notices_of_one_write_beyond_what_is_kept_leave_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "KEPT_BATCHES", 3)
    monkeypatch.setattr(notices, "BATCH_NOTICES", 2)
    first = NodeStore(str(tmp_path), keep_notices=True)
    session = first.open_session(1000, heard=True)
    for i in range(20):
        first.create(f"/n{i:02d}", b"", session.session_id, False)
    assert first.end_session(session.session_id)
    assert len(list(first.rows(notices.ROWS))) == 3
    first.sync()
    first.close()


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    first = NodeStore(str(tmp_path))
    session = first.open_session(1234)
    first.create("/a", b"x", 0, False)
    first.create("/a/ID-", b"", session.session_id, True)
    first.sync()
    first.close()
    second = NodeStore(str(tmp_path))
    assert second.sessions() == [session]
    assert second.children("/a")[0] == ("ID-0000000000",)
    second.end_session(session.session_id)
    assert second.create("/a/ID-", b"", 0, True)[0] == "/a/ID-0000000001"
    second.close()


def test_a_store_of_the_first_format_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes have no creation of their own: any that is made from then on differs from them."""
    encode = NodeRecord.encode
    with monkeypatch.context() as patch:
        patch.setattr(module, "FORMAT", FIRST)
        patch.setattr(NodeRecord, "encode", lambda record: encode(record)[16:])
        first = NodeStore(str(tmp_path))
        first.create("/a", b"old", 0, False)
        first.sync()
        first.close()
    second = NodeStore(str(tmp_path))
    old = second.get("/a")
    assert (old.data, old.stat.version, old.stat.creation) == (b"old", 0, 0)
    assert second.set("/a", b"changed", 0, 0).creation == 0
    second.delete("/a", 1, 0)
    _, made = second.create("/a", b"new", 0, False)
    second.set("/a", b"new", 0, made.creation)
    with pytest.raises(MetadataReplaced):
        second.set("/a", b"late", 1, 0)
    second.close()
    third = NodeStore(str(tmp_path))
    assert third.get("/a").stat.creation == made.creation
    third.close()
    monkeypatch.setattr(module, "FORMAT", FIRST)
    monkeypatch.setattr(module, "_FORMAT_1", b"")
    with pytest.raises(MetadataUnavailable, match="release"):
        NodeStore(str(tmp_path))


def test_a_second_owner_is_told_where_to_go(tmp_path: Path) -> None:
    first = NodeStore(str(tmp_path))
    with pytest.raises(MetadataUnavailable, match="embedded://"):
        NodeStore(str(tmp_path))
    first.close()


def test_a_full_disk_is_no_other_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    NodeStore(str(tmp_path)).close()

    def refuses(folder: str, options: object) -> None:
        raise Exception(f"IO error: No space left on device: While appending to file: {folder}/MANIFEST-000013")

    with monkeypatch.context() as patch:
        patch.setattr(module, "Rdict", refuses)
        with pytest.raises(MetadataUnavailable, match="full") as told:
            NodeStore(str(tmp_path))
    assert "another process" not in str(told.value)
    NodeStore(str(tmp_path)).close()


@pytest.mark.parametrize("path", ["a", "/a/", "/a//b", "/\0", ""])
def test_paths_are_checked(store: NodeStore, path: str) -> None:
    with pytest.raises(MetadataUnavailable, match="path"):
        store.create(path, b"", 0, False)
    with pytest.raises(MetadataNotEmpty):
        store.delete("/", -1, None)


async def test_waiting_calls_share_one_sync(store: NodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = []
    sync, gate = store.sync, threading.Event()
    monkeypatch.setattr(store, "sync", lambda: (syncs.append(1), sync()))
    changes: list[set[tuple[Change, str]]] = []
    thread = StoreThread(store, lambda news: changes.append(news.changes), pytest.fail)
    post = asyncio.get_running_loop().create_task
    blocked = post(thread.post(lambda _: gate.wait(10)))
    calls = [post(thread.post(partial(_create, path=f"/n{i}"))) for i in range(20)]
    failing = post(thread.post(lambda s: s.get("/nowhere")))
    await until(lambda: thread.pending == 22)
    gate.set()
    assert await asyncio.gather(*calls) == [f"/n{i}" for i in range(20)]
    await blocked
    with pytest.raises(MetadataNotFound):
        await failing
    assert len(syncs) <= 3
    assert (Change.NODE, "/n7") in set().union(*changes)
    await thread.stop()
    await thread.stop()
    with pytest.raises(MetadataUnavailable, match="closed"):
        await thread.post(lambda s: s.get("/"))


def _create(store: NodeStore, path: str) -> str:
    return store.create(path, b"", 0, False)[0]


async def test_callers_wait_for_a_place(store: NodeStore) -> None:
    gate = threading.Event()
    thread = StoreThread(store, lambda _: None, lambda _: None, places=3)
    post = asyncio.get_running_loop().create_task
    blocked = post(thread.post(lambda _: gate.wait(10)))
    impatient = [post(thread.post(partial(_create, path=f"/impatient{i}"))) for i in range(2)]
    patient = [post(thread.post(partial(_create, path=f"/patient{i}"))) for i in range(5)]
    await until(lambda: thread.pending == 3)
    for caller in (*impatient, patient[1]):
        caller.cancel()
    await asyncio.wait([*impatient, patient[1]])
    assert thread.pending == 3, "a call keeps its place when its caller gives up"
    gate.set()
    assert await blocked
    assert await asyncio.gather(*patient[:1], *patient[2:]) == ["/patient0", "/patient2", "/patient3", "/patient4"]
    names = await thread.post(lambda s: s.children("/")[0])
    assert sorted(names) == ["patient0", "patient2", "patient3", "patient4"], "nobody waits for the others"
    await until(lambda: thread.pending == 0)
    await thread.stop()


async def test_who_waits_for_a_place_at_the_end_is_refused(store: NodeStore) -> None:
    gate = threading.Event()
    thread = StoreThread(store, lambda _: None, lambda _: None, places=1)
    post = asyncio.get_running_loop().create_task
    accepted = post(thread.post(lambda _: gate.wait(10)))
    await until(lambda: thread.pending == 1)
    waiting = post(thread.post(lambda s: s.get("/")))
    stopping = post(thread.stop())
    await asyncio.sleep(0)
    gate.set()
    assert await accepted
    with pytest.raises(MetadataUnavailable, match="closed"):
        await waiting
    await stopping


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_nobody_waits_for_a_thread_that_ended(store: NodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> None:
        raise SystemExit

    monkeypatch.setattr(store, "sync", end)
    gate, broken = threading.Event(), list[str]()
    thread = StoreThread(store, lambda _: None, broken.append, places=2)
    post = asyncio.get_running_loop().create_task
    calls = [post(thread.post(lambda _: gate.wait(10))) for _ in range(3)]
    await until(lambda: thread.pending == 2)
    gate.set()
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        await thread.stop()
    assert [type(outcome) for outcome in outcomes] == [MetadataUnavailable] * 3
    assert len(broken) == 1


async def test_what_is_not_accepted_takes_no_place(store: NodeStore) -> None:
    thread = StoreThread(store, lambda _: None, lambda _: None, places=1)

    def refuse() -> None:
        raise MetadataNotFound("too late")

    for _ in range(2):
        with pytest.raises(MetadataNotFound, match=r"\blate\b"):
            await thread.post(lambda s: s.get("/"), refuse)
    assert thread.pending == 0
    assert (await thread.post(lambda s: s.get("/"))).data == b""
    await thread.stop()


async def test_nothing_is_answered_after_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = NodeStore(str(tmp_path))

    class BrokenDisk:
        def __getattr__(self, name: str) -> object:
            return getattr(database, name)

        def flush_wal(self, sync: bool) -> None:
            raise RuntimeError("No space left on device")

    database = store._db
    monkeypatch.setattr(store, "_db", BrokenDisk())
    thread = StoreThread(store, lambda _: None, lambda _: None)
    for _ in range(2):
        with pytest.raises(MetadataUnavailable, match="space"):
            await thread.post(lambda s: s.create("/a", b"", 0, False))
    with pytest.raises(MetadataUnavailable, match="restart"):
        await thread.post(lambda s: s.exists("/a"))
    await thread.stop()


def test_whoever_does_not_mean_to_makes_no_store(tmp_path: Path) -> None:
    """A URI that names another folder than it should, given to a command that only reads."""
    for folder in (tmp_path / "missing" / "deep", tmp_path / "missing", tmp_path):
        with pytest.raises(MetadataNotFound, match=r"metadataServiceUri.* init`"):
            NodeStore(str(folder), make=False)
    assert list(tmp_path.iterdir()) == []
    NodeStore(str(tmp_path)).close()
    NodeStore(str(tmp_path), make=False).close()


def test_a_folder_with_somebodys_files_becomes_no_store(tmp_path: Path) -> None:
    """A mistyped URI must not put a database among them."""
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(MetadataUnavailable, match=r"it holds 'letter\.txt'"):
        NodeStore(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    volume = tmp_path / "volume"
    (volume / "lost+found").mkdir(parents=True)
    for _ in range(3):
        store = NodeStore(str(volume))
        store.create("/a", bytes(10_000), 0, False)
        store.delete("/a", -1, None)
        store.close()
        (volume / ".nfs0000000000000001").write_text("what a file system, or a backup, leaves there")


def test_a_folder_that_cannot_be_used_is_told_with_what_may_help(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MetadataUnavailable, match=r"file/below.*: Not .*metadataServiceUri"):
        NodeStore(str(tmp_path / "file" / "below"))
