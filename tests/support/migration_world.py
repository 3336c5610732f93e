"""A cluster whose metadata move from ZooKeeper to Oxia, in memory: two stores, sessions with them, and a coordinator.

The stores differ where the real ones do. ZooKeeper numbers by the changes of children, which the copy leaves behind;
Oxia numbers by the changes of the data of the parent. Tests run on a virtual clock.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pytest

from bookie_protocol.errors import (
    MetadataError,
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataRefused,
    MetadataReplaced,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.interface import Identity, Session, SessionState
from bookie_protocol.metadata_service.migrating import flag
from bookie_protocol.metadata_service.migrating.gate import MigratingTree
from bookie_protocol.metadata_service.migrating.participant import Participant
from bookie_protocol.metadata_service.options import MetadataServiceUri
from bookie_protocol.metadata_service.tree.nodes import (
    Children,
    ConnectionLost,
    Created,
    Node,
    NodeStat,
    Watch,
    check_session,
    number_by_node,
    parent_of,
)
from bookie_protocol.metadata_service.tree.service import MetadataService

ROOT = "/ledgers"
NEW = "/ledgers/new"
"""The node that a move makes in Oxia and ZooKeeper lacks."""
STEP_S = 25.0
"""Seconds that a slow step of a participant takes."""
LOOK_S = 0.01
CLOSE_S = 0.002
PATIENCE_S = 60.0
T = TypeVar("T")
Hook = Callable[[str, str], Awaitable[None]]
"""Gets the name of a request and its path; what it raises is what the caller of the request gets."""


@dataclass(slots=True)
class _Stored:
    data: bytes
    version: int
    creation: int
    owner: int


class Store:
    """The nodes of a service, and the watches of them."""

    def __init__(self, *, is_oxia: bool = False) -> None:
        self.is_oxia = is_oxia
        self.nodes: dict[str, _Stored] = {}
        self.changes: dict[str, int] = {}
        """Number of children that came to, or left, each path."""
        self.sessions = itertools.count(1 if is_oxia else 1 << 56)
        """Those of ZooKeeper have a server and a time in them."""
        self.hidden: set[str] = set()
        """Paths of nodes that nobody here may look at or make children of."""
        self._creations = itertools.count(1000)
        self._watches: list[tuple[str, Watch]] = []
        self._listing_watches: list[tuple[str, Watch]] = []

    def put(self, path: str, data: bytes, owner: int = 0) -> None:
        if path in self.nodes:
            self.nodes[path].data = data
            self.nodes[path].version += 1
        else:
            self.nodes[path] = _Stored(data, 0, next(self._creations), owner)
            self._count(path)
        self._watches = _fire(self._watches, path)

    def remove(self, path: str) -> None:
        del self.nodes[path]
        self._count(path)
        self._watches = _fire(self._watches, path)
        self._listing_watches = _fire(self._listing_watches, path)

    def refuses(self, request: str, path: str) -> bool:
        """Return True as ZooKeeper does since 3.9, which also refuses to say that a hidden node exists."""
        return (request in ("get", "exists", "children") and path in self.hidden) or (
            request == "create" and parent_of(path) in self.hidden
        )

    def clear(self) -> None:
        self.nodes.clear()
        self.changes.clear()

    def children(self, path: str) -> tuple[str, ...]:
        return tuple(each.rpartition("/")[2] for each in self.nodes if parent_of(each) == path and each != "/")

    def watch(self, path: str, watch: Watch | None) -> None:
        """Call `watch` when the node comes, goes, or changes. Equal ones are one, as in kazoo."""
        if watch is not None and (path, watch) not in self._watches:
            self._watches.append((path, watch))

    def watch_listing(self, path: str, watch: Watch | None) -> None:
        """Call `watch` when a child comes or goes, or the node goes."""
        if watch is not None:
            self._listing_watches.append((path, watch))

    def _count(self, path: str) -> None:
        self.changes[parent_of(path)] = self.changes.get(parent_of(path), 0) + 1
        self._listing_watches = _fire(self._listing_watches, parent_of(path))


def _fire(watches: list[tuple[str, Watch]], path: str) -> list[tuple[str, Watch]]:
    """Call the watches of a path, and return the others."""
    for at, watch in watches:
        if at == path:
            asyncio.get_running_loop().call_soon(watch)
    return [each for each in watches if each[0] != path]


class MemoryTree:
    """A `NodeTree`: a session with a store. `before` and `after` are called around each request."""

    keeps_times = True

    def __init__(self, store: Store, timeout: float) -> None:
        self.store = store
        self.removes_directories = not store.is_oxia
        self.session = Session(timeout)
        self.session_id = next(store.sessions)
        self.session.move(SessionState.CONNECTED)
        self.requests = 0
        self._closing = False
        self.before: Hook | None = None
        self.after: Hook | None = None

    def end_session(self) -> None:
        """End the session as a server does when it has not heard from this process for too long."""
        self._remove_own()
        self.session.move(SessionState.EXPIRED)

    def begin_session(self) -> None:
        if self.session.state is SessionState.EXPIRED:
            self.session_id = next(self.store.sessions)
            self.session.move(SessionState.CONNECTED)

    async def create(
        self,
        path: str,
        data: bytes,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        open_to_all: bool = False,
        session_id: int | None = None,
        timeout: float,
    ) -> Created:
        def make() -> Created:
            check_session(path, session_id, self.session_id)
            self._check_parent(path)
            made = f"{path}{self._number(parent_of(path)):010d}" if sequential else path
            if made in self.store.nodes:
                raise MetadataExists(f"{made} exists already")
            self.store.put(made, data, self.session_id if ephemeral else 0)
            return Created(made, self.store.nodes[made].creation)

        return await self._request("create", path, make, timeout)

    async def take_number(self, prefix: str, *, timeout: float) -> tuple[int, str | None]:
        if not self.store.is_oxia:
            return await number_by_node(self, prefix, timeout)

        def take() -> tuple[int, str | None]:
            self._check_parent(prefix)
            return self._number(parent_of(prefix)), None

        return await self._request("take_number", prefix, take, timeout)

    async def create_all(
        self, nodes: Sequence[tuple[str, bytes]], *, session_id: int | None = None, timeout: float
    ) -> None:
        for path, data in nodes:
            await self.create(path, data, session_id=session_id, timeout=timeout)

    async def get(self, path: str, *, watch: Watch | None = None, timeout: float) -> Node:
        def read() -> Node:
            if path not in self.store.nodes:
                raise MetadataNotFound(f"{path} does not exist")
            self.store.watch(path, watch)
            return Node(self.store.nodes[path].data, self._stat(path))

        return await self._request("get", path, read, timeout)

    async def get_each(
        self, paths: Sequence[str], *, childless: bool = False, timeout: float
    ) -> list[Node | MetadataError]:
        def read(path: str) -> Node | MetadataError:
            if self.store.refuses("get", path):
                return MetadataRefused(f"get {path}")
            if path not in self.store.nodes:
                return MetadataNotFound(f"{path} does not exist")
            return Node(self.store.nodes[path].data, self._stat(path))

        about = paths[0] if paths else ""
        return await self._request("get_each", about, lambda: [read(path) for path in paths], timeout)

    async def exists(self, path: str, *, watch: Watch | None = None, timeout: float) -> NodeStat | None:
        def look() -> NodeStat | None:
            self.store.watch(path, watch)
            return self._stat(path) if path in self.store.nodes else None

        return await self._request("exists", path, look, timeout)

    async def children(self, path: str, *, watch: Watch | None = None, timeout: float) -> Children:
        def read() -> Children:
            if path not in self.store.nodes:
                raise MetadataNotFound(f"{path} does not exist")
            self.store.watch_listing(path, watch)
            return Children(self.store.children(path), self.store.changes.get(path, 0))

        return await self._request("children", path, read, timeout)

    async def set(
        self, path: str, data: bytes, this: Identity | None, *, session_id: int | None = None, timeout: float
    ) -> NodeStat:
        def write() -> NodeStat:
            check_session(path, session_id, self.session_id)
            self._check_meant(path, this)
            self.store.put(path, data)
            return self._stat(path)

        return await self._request("set", path, write, timeout)

    async def delete(self, path: str, this: Identity | None, *, session_id: int | None = None, timeout: float) -> None:
        def remove() -> None:
            check_session(path, session_id, self.session_id)
            self._check_meant(path, this)
            if self.store.children(path):
                raise MetadataNotEmpty(f"{path} has children")
            self.store.remove(path)

        await self._request("delete", path, remove, timeout)

    async def delete_while(
        self, paths: Sequence[str], checked: str, version: int, *, session_id: int, timeout: float
    ) -> None:
        def remove() -> None:
            check_session(paths[0], session_id, self.session_id)
            for path in (checked, *paths):
                if path not in self.store.nodes:
                    raise MetadataNotFound(f"{path} does not exist")
            if self.store.nodes[checked].version != version:
                raise MetadataVersionConflict(checked)
            for path in paths:
                self.store.remove(path)

        await self._request("delete", paths[0], remove, timeout)

    async def sync(self, path: str, *, timeout: float) -> None:
        await self._request("sync", path, lambda: None, timeout)

    async def close(self) -> None:
        """As drivers do it: the first call ends the session, unless it is cancelled."""
        if not self._closing:
            self._closing = True
            await asyncio.sleep(CLOSE_S)
            self._remove_own()
            self.session.move(SessionState.CLOSED)

    # --- inside ---------------------------------------------------------------------------------------------

    def _remove_own(self) -> None:
        for path in [each for each, node in self.store.nodes.items() if node.owner == self.session_id]:
            self.store.remove(path)

    async def _request(self, name: str, path: str, work: Callable[[], T], timeout: float) -> T:
        try:
            async with asyncio.timeout(timeout):
                return await self._answer(name, path, work)
        except TimeoutError:
            raise MetadataUnavailable(f"{path}: no answer within {timeout:g} s") from None

    async def _answer(self, name: str, path: str, work: Callable[[], T]) -> T:
        self.requests += 1
        await asyncio.sleep(0)
        if self.before is not None:
            await self.before(name, path)
        if self.store.refuses(name, path):
            raise MetadataRefused(f"{name} {path}")
        if self.session.state is not SessionState.CONNECTED:
            raise ConnectionLost(f"{path}: the session is {self.session.state.value}")
        answer = work()
        if self.after is not None:
            await self.after(name, path)
        return answer

    def _number(self, parent: str) -> int:
        if not self.store.is_oxia:
            return self.store.changes.get(parent, 0)
        self.store.nodes[parent].version += 1
        return self.store.nodes[parent].version

    def _stat(self, path: str) -> NodeStat:
        node = self.store.nodes[path]
        return NodeStat(node.version, node.creation, 0, node.owner, len(self.store.children(path)))

    def _check_parent(self, path: str) -> None:
        parent = parent_of(path)
        if parent != "/" and parent not in self.store.nodes:
            raise MetadataNotFound(f"{parent} does not exist")
        if parent != "/" and self.store.nodes[parent].owner:
            raise MetadataUnavailable(f"{path}: the node above it is ephemeral")

    def _check_meant(self, path: str, this: Identity | None) -> None:
        if path not in self.store.nodes:
            raise MetadataNotFound(f"{path} does not exist")
        stat = self._stat(path)
        if this is not None and stat.creation != this.creation:
            raise MetadataReplaced(path)
        if this is not None and stat.version != this.version:
            raise MetadataVersionConflict(path)


async def always(_: float) -> bool:
    return True


class Process:
    """A process of ours: its service and its parts."""

    def __init__(self, source: MemoryTree, gate: MigratingTree, participant: Participant) -> None:
        self.source = source
        self.gate = gate
        self.participant = participant
        self.service = MetadataService(gate, ROOT, None)

    @property
    def is_connected(self) -> bool:
        return self.service.session.state is SessionState.CONNECTED

    @property
    def is_paused(self) -> bool:
        return self.service.session.state is SessionState.EXPIRED


class MigrationWorld:
    """The cluster, and the coordinator of its migration. `pulsar=False`: no broker has made the parent of participants.
    `believes`: as for `Participant`."""

    def __init__(self, *, pulsar: bool = True, believes: Callable[[float], Awaitable[bool]] = always) -> None:
        self.zookeeper, self.oxia = Store(), Store(is_oxia=True)
        self.targets: list[MemoryTree] = []
        self._believes = believes
        if pulsar:
            for path in ("/pulsar", "/pulsar/migration-coordinator", flag.PARTICIPANTS):
                self.zookeeper.put(path, b"")

    async def begin(self) -> Process:
        """Open the first session, which makes the cluster."""
        first = await self.open()
        await first.service.cluster.initialize(instance_id="one")
        return first

    async def open(self, timeout: float = 5.0, *, before: Hook | None = None) -> Process:
        """Open a service as `open_zookeeper` does. `before`: of its requests."""
        source = MemoryTree(self.zookeeper, timeout)
        source.before = before
        gate = MigratingTree(source)
        process = Process(source, gate, Participant(gate, ROOT, self._connect, self._believes))
        await process.participant.begin()
        await process.service.prepare()
        return process

    async def _connect(self, _: MetadataServiceUri) -> MemoryTree:
        target = MemoryTree(self.oxia, 5.0)
        self.targets.append(target)
        return target

    @property
    def hidden(self) -> set[str]:
        return self.zookeeper.hidden

    # --- the coordinator ------------------------------------------------------------------------------------

    def participants(self) -> tuple[str, ...]:
        """Return the participants that are not ready."""
        return self.zookeeper.children(flag.PARTICIPANTS)

    def set_phase(self, phase: str) -> None:
        self.zookeeper.put(flag.FLAG, json.dumps({"phase": phase, "targetUrl": "oxia://oxia:1/default"}).encode())

    def break_flag(self) -> None:
        """Write a phase that this release does not know, as a later Pulsar may."""
        self.zookeeper.put(flag.FLAG, b'{"phase": "THAWING"}')

    async def prepare(self) -> None:
        self.set_phase("PREPARATION")
        await seen(lambda: not self.participants())

    def copy(self) -> None:
        self.set_phase("COPYING")
        for path, node in self.zookeeper.nodes.items():
            if node.owner == 0 and not path.startswith("/pulsar"):
                self.oxia.put(path, node.data)
                self.oxia.nodes[path].version = node.version

    async def migrate(self) -> None:
        await self.prepare()
        self.copy()
        self.set_phase("COMPLETED")

    def move(self) -> None:
        """Migrate, by a coordinator that waits for nobody, and make a node that ZooKeeper lacks."""
        self.copy()
        self.set_phase("COMPLETED")
        self.oxia.put(NEW, b"")

    @contextmanager
    def flag_rewritten(self, every: float, *phases: str) -> Iterator[None]:
        """Write different flags of these phases in turn, one each `every` seconds."""

        async def write() -> None:
            for number, phase in enumerate(itertools.cycle(phases)):
                self.zookeeper.put(flag.FLAG, b'{"phase": "%s", "n": %d}' % (phase.encode(), number))
                await asyncio.sleep(every)

        writing = asyncio.create_task(write())
        try:
            yield
        finally:
            writing.cancel()

    async def fail(self) -> None:
        """Run a migration that fails after its copy, and empty its namespace for the next one."""
        await self.prepare()
        self.copy()
        self.set_phase("FAILED")
        self.oxia.clear()


async def seen(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Wait on the loop's clock. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(LOOK_S)


async def says_nothing_of_what_is_new(process: Process) -> None:
    for _ in range(50):
        with pytest.raises(ConnectionLost):
            await process.gate.exists(NEW, timeout=2)
        await asyncio.sleep(0.1)


async def unreachable(_: MetadataServiceUri) -> MemoryTree:
    raise MetadataUnavailable("Oxia is away")


async def slow_to_be_unreachable(uri: MetadataServiceUri) -> MemoryTree:
    await asyncio.sleep(STEP_S)
    return await unreachable(uri)
