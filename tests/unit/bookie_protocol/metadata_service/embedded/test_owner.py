from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookie_protocol.errors import MetadataUnavailable, ServerStartFailed
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded import owner as owner_module
from bookie_protocol.metadata_service.embedded import watches as watches_module
from bookie_protocol.metadata_service.embedded.commits import StoreThread
from bookie_protocol.metadata_service.embedded.local import connect_local
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner, OwnerLimits
from bookie_protocol.metadata_service.embedded.records import Change
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from bookie_protocol.metadata_service.embedded.store import NodeStore
from bookie_protocol.metadata_service.embedded.watches import SessionWatches, Watches
from bookie_protocol.metadata_service.interface import BookieGroup, SessionState
from bookie_protocol.metadata_service.service_info import BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.until import until

REPOSITORY = Path(__file__).parents[5]
INFO = BookieServiceInfo((Endpoint("bookie", "h", 3181, "bookie-rpc"),))


def test_drivers_are_imported_when_needed() -> None:
    program = (
        "import sys, bookie_protocol.metadata_service.uri, bookie_protocol.metadata_service.embedded.local;"
        "print(sorted({'grpc', 'kazoo'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert out.stdout.strip() == "[]"


async def test_a_lease_ends_unless_it_is_renewed(tmp_path: Path) -> None:
    owner = await EmbeddedOwner.open(str(tmp_path))
    opened = await owner.open_session(messages.OpenSessionRequest(timeout_ms=200))
    session = opened.session
    create = messages.Create(node=messages.NewNode(path="/b", data=b""), ephemeral=True)
    made = await owner.execute(messages.ExecuteRequest(session=session, create=create))
    assert made.outcome.code == messages.OK
    wrong = messages.SessionRequest(session_id=session.session_id, password=b"guess")
    assert owner.heartbeat(wrong).code == messages.SESSION_EXPIRED
    refused = await owner.execute(messages.ExecuteRequest(session=wrong, sync=messages.Sync()))
    assert refused.outcome.code == messages.SESSION_EXPIRED
    async with asyncio.timeout(5):
        assert [event async for event in owner.events(session)] == [messages.Event(all_watches=True)]
    assert owner.heartbeat(session).code == messages.SESSION_EXPIRED
    assert (await owner.close_session(session)).code == messages.SESSION_EXPIRED
    other = (await owner.open_session(messages.OpenSessionRequest(timeout_ms=60_000))).session
    left = await owner.execute(messages.ExecuteRequest(session=other, exists=messages.Read(path="/b")))
    assert not left.HasField("stat")
    empty = await owner.execute(messages.ExecuteRequest(session=other))
    assert empty.outcome.code == messages.INVALID
    await owner.close()


async def test_time_in_which_the_owner_did_not_run_ends_no_session(tmp_path: Path) -> None:
    owner = await EmbeddedOwner.open(str(tmp_path))
    session = (await owner.open_session(messages.OpenSessionRequest(timeout_ms=200))).session
    await asyncio.sleep(0.01)
    time.sleep(0.6)  # noqa: ASYNC251 - nothing runs here meanwhile, as in a paused process
    await asyncio.sleep(0.06)  # the reaper has looked
    assert owner.heartbeat(session).code == messages.OK
    async with asyncio.timeout(5):
        assert [event async for event in owner.events(session)]  # it ends as always if nothing renews it
    await owner.close()


def hold(monkeypatch: pytest.MonkeyPatch, store: NodeStore, name: str) -> tuple[threading.Event, threading.Event]:
    """The call of this name waits; events that say that it does, and that let it go on."""
    entered, gate, call = threading.Event(), threading.Event(), getattr(store, name)

    def held(*arguments: object, **options: object) -> object:
        entered.set()
        assert gate.wait(60)
        return call(*arguments, **options)

    monkeypatch.setattr(store, name, held)
    return entered, gate


async def test_a_heartbeat_that_was_answered_keeps_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the end of another session, at the same look, takes its time."""
    store = NodeStore(str(tmp_path))
    owner = EmbeddedOwner(store, [])
    entered, gate = hold(monkeypatch, store, "end_session")
    opened = [await owner.open_session(messages.OpenSessionRequest(timeout_ms=150)) for _ in range(5)]
    assert await asyncio.to_thread(entered.wait, 60)
    renewed = [each.session for each in opened if owner.heartbeat(each.session).code == messages.OK]
    gate.set()
    await owner.execute(messages.ExecuteRequest(session=opened[0].session, sync=messages.Sync()))
    assert [owner.heartbeat(session).code for session in renewed] == [messages.OK] * len(renewed)
    await owner.close()


async def test_a_session_whose_opening_was_given_up_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = NodeStore(str(tmp_path))
    owner = EmbeddedOwner(store, [])
    entered, gate = hold(monkeypatch, store, "open_session")
    opening = asyncio.create_task(owner.open_session(messages.OpenSessionRequest(timeout_ms=100)))
    assert await asyncio.to_thread(entered.wait, 60)
    opening.cancel()
    await asyncio.wait([opening])
    ended = asyncio.Event()
    end = store.end_session
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(store, "end_session", lambda number: (end(number), loop.call_soon_threadsafe(ended.set)))
    gate.set()
    async with asyncio.timeout(10):
        await ended.wait()
    await owner.close()
    left = NodeStore(str(tmp_path))
    assert left.sessions() == []
    left.close()


async def test_a_broken_store_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = NodeStore(str(tmp_path))
    owner = EmbeddedOwner(store, [])
    service = await connect_local(owner, 0.6)
    states: list[SessionState] = []
    suspended = asyncio.Event()
    service.session.add_listener(states.append)
    service.session.add_listener(lambda _: suspended.set())
    assert owner.broken is None

    def full() -> None:
        raise OSError("no space left on device")

    db = store._db
    names = ("get", "iter", "write", "property_int_value", "close")
    broken = SimpleNamespace(**{name: getattr(db, name) for name in names}, flush_wal=lambda _: full())
    monkeypatch.setattr(store, "_db", broken)
    session = messages.SessionRequest()
    with pytest.raises(MetadataUnavailable, match="no space"):
        await service.cluster.initialize(timeout=0.1)
    async with asyncio.timeout(10):
        assert "restart its owner" in await owner.wait_broken()
        await suspended.wait()
    assert owner.heartbeat(session).code == messages.FAILED
    assert states == [SessionState.SUSPENDED], "nobody said that the session has ended"
    await service.close()
    await owner.close()


async def test_a_new_stream_ends_the_one_before_it(tmp_path: Path) -> None:
    """Were there two, each would get what the other waits for."""
    owner = await EmbeddedOwner.open(str(tmp_path))
    session = (await owner.open_session(messages.OpenSessionRequest(timeout_ms=60_000))).session
    old, new = owner.events(session), owner.events(session)
    assert await anext(old) == messages.Event(all_watches=True)
    waiting = asyncio.ensure_future(anext(old, None))
    await asyncio.sleep(0)
    assert await anext(new) == messages.Event(all_watches=True)
    assert await waiting is None
    for number in range(1, 6):
        read = messages.Read(path=f"/{number}", watch=number)
        await owner.execute(messages.ExecuteRequest(session=session, exists=read))
        create = messages.Create(node=messages.NewNode(path=f"/{number}"))
        await owner.execute(messages.ExecuteRequest(session=session, create=create))
        assert await anext(new) == messages.Event(watches=[number])
    await owner.close()


@pytest.mark.parametrize("closes", [False, True], ids=["caller gives up", "owner is closed"])
async def test_a_session_that_waits_for_its_turn_to_end_does_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    monkeypatch.setattr(owner_module, "StoreThread", partial(StoreThread, places=1))
    store = NodeStore(str(tmp_path))
    owner = EmbeddedOwner(store, [])
    session = (await owner.open_session(messages.OpenSessionRequest(timeout_ms=60_000))).session
    create = messages.Create(node=messages.NewNode(path="/b", data=b""), ephemeral=True)
    await owner.execute(messages.ExecuteRequest(session=session, create=create))
    entered, gate, exists = threading.Event(), threading.Event(), store.exists

    def blocked(path: str) -> object:
        entered.set()
        assert gate.wait(60)
        return exists(path)

    monkeypatch.setattr(store, "exists", blocked)
    run = asyncio.get_running_loop().create_task
    look = messages.ExecuteRequest(session=session, exists=messages.Read(path="/b"))
    looking = run(owner.execute(look))
    assert await asyncio.to_thread(entered.wait, 60)  # the only place is taken
    ending = run(owner.close_session(session))
    await asyncio.sleep(0)
    if closes:
        closing = run(owner.close())
        await asyncio.sleep(0)
    else:
        ending.cancel()
        await asyncio.wait([ending])
        assert ending.cancelled()
        closing = run(owner.open_session(messages.OpenSessionRequest(timeout_ms=60_000)))  # behind it
    gate.set()
    assert (await looking).HasField("stat")
    await closing
    await owner.close()
    left = NodeStore(str(tmp_path))
    assert left.exists("/b") is None
    assert session.session_id not in [record.session_id for record in left.sessions()]
    left.close()


DIES_WITH_A_REGISTRATION = """
import asyncio, os, signal, sys
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.uri import open_metadata_service

async def main():
    service = await open_metadata_service(sys.argv[1], timeout=60)
    if not await service.cluster.exists():
        await service.cluster.initialize()
    info = BookieServiceInfo((Endpoint("bookie", "old", 1, "bookie-rpc"),))
    await service.bookies.register("b:1", BookieGroup.WRITABLE, info)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def die_with_a_registration(uri: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", DIES_WITH_A_REGISTRATION, uri)
    assert await process.wait() == -signal.SIGKILL


async def test_sessions_of_others_outlive_the_owner_until_they_expire(tmp_path: Path) -> None:
    owner = await EmbeddedOwner.open(str(tmp_path))
    opened = await owner.open_session(messages.OpenSessionRequest(timeout_ms=600, process="another machine 1 7 1"))
    create = messages.Create(node=messages.NewNode(path="/b", data=b""), ephemeral=True)
    await owner.execute(messages.ExecuteRequest(session=opened.session, create=create))
    await owner.close()  # as if the process had died: nobody closed the session
    again = await EmbeddedOwner.open(str(tmp_path))
    assert again.heartbeat(opened.session).code == messages.OK
    reader = (await again.open_session(messages.OpenSessionRequest(timeout_ms=60_000))).session
    look = messages.ExecuteRequest(session=reader, exists=messages.Read(path="/b"))
    assert (await again.execute(look)).HasField("stat")
    async with asyncio.timeout(5):
        assert [event async for event in again.events(opened.session)] == [messages.Event(all_watches=True)]
    assert not (await again.execute(look)).HasField("stat")
    await again.close()


async def test_nobody_waits_for_a_former_owner(tmp_path: Path) -> None:
    await die_with_a_registration(str(tmp_path / "m"))
    service = await open_metadata_service(str(tmp_path / "m"), timeout=60)
    assert not await service.bookies.is_registered("b:1", BookieGroup.WRITABLE)
    async with asyncio.timeout(5):
        await service.bookies.register("b:1", BookieGroup.WRITABLE, INFO)
    await service.close()


async def test_after_a_restart_nobody_waits_for_the_dead_of_this_machine(tmp_path: Path) -> None:
    owner = await EmbeddedOwner.open(str(tmp_path))
    server = EmbeddedMetadataServer(owner)
    await server.start()
    await die_with_a_registration(server.uri())
    alive = await open_metadata_service(server.uri(), timeout=60)
    await alive.bookies.register("b:2", BookieGroup.WRITABLE, INFO)
    assert await alive.bookies.is_registered("b:1", BookieGroup.WRITABLE)  # its lease runs on
    await server.stop()
    await owner.close()
    again = await EmbeddedOwner.open(str(tmp_path))
    reader = await connect_local(again, 10.0)
    assert (await reader.bookies.list(BookieGroup.WRITABLE)).bookies == {"b:2"}
    await reader.close()
    await alive.close()
    await again.close()


async def test_a_folder_as_uri(tmp_path: Path) -> None:
    service = await open_metadata_service(str(tmp_path / "m"), timeout=5)
    instance = await service.cluster.initialize()
    with pytest.raises(MetadataUnavailable, match="embedded://"):
        await open_metadata_service(str(tmp_path / "m"), timeout=5)
    await service.close()
    again = await open_metadata_service(f"file://{tmp_path}/m", timeout=5)
    assert await again.cluster.instance_id() == instance
    await again.close()


async def test_served_uri_and_an_occupied_port(tmp_path: Path) -> None:
    owner = await EmbeddedOwner.open(str(tmp_path))
    server = EmbeddedMetadataServer(owner)
    await server.start()
    service = await open_metadata_service(server.uri(), timeout=5)
    assert service.session.state is SessionState.CONNECTED
    assert not await service.cluster.exists()
    with pytest.raises(ServerStartFailed, match="in use"):
        await EmbeddedMetadataServer(owner, port=server.port).start()
    await service.close()
    await server.stop()
    await owner.close()


async def test_fired_watches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches_module, "MAX_FIRED", 3)
    monkeypatch.setattr(watches_module, "MAX_WATCHES", 5)
    every = Watches()
    mine = SessionWatches(every)
    for number in range(1, 6):
        every.add(7, mine, number, (Change.NODE, f"/{number}"))
    monkeypatch.setattr(watches_module, "POLL_SECONDS", 0.05)
    every.add(7, mine, 6, (Change.NODE, "/6"))  # cannot be kept: fires some time later
    assert mine.take() == ((), False)
    await mine.signal.wait()
    assert mine.take() == ((6,), False)
    every.remove(7, mine, 5)
    every.fire({(Change.NODE, f"/{number}") for number in range(1, 6)})
    fired, overflowed = mine.take()
    assert overflowed
    assert len(fired) <= 3
    assert mine.set == {}
    every.add(7, mine, 9, (Change.CHILDREN, "/a"))
    every.fire({(Change.NODE, "/a")})
    every.remove_all(7, mine)
    every.fire({(Change.CHILDREN, "/a")})
    assert not mine.signal.is_set()
    assert every.nbytes == mine.nbytes == 0


async def test_watches_of_all_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes, paths counted; one that has many leaves room for others."""
    monkeypatch.setattr(watches_module, "POLL_SECONDS", 0.01)
    limit = 200_000
    every = Watches(limit)
    greedy, modest = SessionWatches(every), SessionWatches(every)
    for number in range(1000):
        every.add(7, greedy, number, (Change.NODE, f"/{'x' * 1000}/{number}"))
    assert limit // 4 < every.nbytes <= limit // 2
    every.add(8, modest, 1, (Change.NODE, "/" + "y" * 10_000))
    assert modest.set
    kept = len(greedy.set)
    assert kept + len(greedy.fired) < 1000  # the others fire by themselves, some time later
    await until(lambda: len(greedy.fired) + kept == 1000 or greedy.overflowed)
    assert every.nbytes <= limit
    every.fire({(Change.NODE, f"/{'x' * 1000}/{number}") for number in range(1000)})
    greedy.take()
    assert every.nbytes == modest.nbytes
    for number in range(2, 1000):
        modest.fire(number)
    modest.end()
    modest.fire(1000)
    every.remove_all(8, modest)
    assert every.nbytes == 0


async def test_sessions_are_bounded_and_no_connection_has_more_than_are_left(tmp_path: Path) -> None:
    owner = await EmbeddedOwner.open(str(tmp_path), OwnerLimits(sessions=8))
    asks = messages.OpenSessionRequest(timeout_ms=60_000)

    async def opened(peer: str) -> bool:
        return (await owner.open_session(asks, peer=peer)).outcome.code == messages.OK

    assert [await opened("greedy") for _ in range(8)] == [True] * 5 + [False] * 3
    assert [await opened("b"), await opened("c"), await opened("")] == [True] * 3
    refused = await owner.open_session(asks, peer="d")
    assert refused.outcome.message == "8 sessions are open, as many as may be"
    await owner.close()
    named = messages.OpenSessionRequest(timeout_ms=60_000, process="x" * 10_000)
    again = await EmbeddedOwner.open(str(tmp_path / "other"))
    assert "characters" in (await again.open_session(named)).outcome.message
    await again.close()
