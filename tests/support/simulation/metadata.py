"""A metadata service on the virtual network: one tree of nodes, a session for each host, faults on demand.

The drivers' common layer (`bookie_protocol.metadata_service.tree`) runs on top of it unchanged: layout, retries,
recognition of own writes, watches.

What it models
- A session talks to a follower: reads may be as old as `lag`, but never older than what the session saw or wrote.
- When the connection breaks, the requests under way get `ConnectionLost`; the first few of them were carried out.
- An answer may be lost after a write was applied; then the connection breaks as well.
- A session that was away longer than its time-out is over, with everything ephemeral that it made.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from bookie_protocol.errors import (
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.interface import ANY_VERSION, SessionState
from bookie_protocol.metadata_service.tree.nodes import (
    NO_SESSION,
    Children,
    ConnectionLost,
    Node,
    NodeStat,
    Watch,
    parent_of,
)
from bookie_protocol.metadata_service.tree.session import DriverSession
from tests.support.simulation.network import Network
from tests.support.simulation.trace import Trace

HOST: Final = "metadata"
RECONNECT_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Record:
    version: int
    child_version: int
    ctime_ms: int
    owner: int
    children: int
    sequence: int
    data: bytes

    @property
    def stat(self) -> NodeStat:
        return NodeStat(self.version, self.child_version, self.ctime_ms, self.owner, self.children)


class NodeHistory:
    """All nodes at all times. `now` counts changes; `at` looks at an earlier state."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._versions: dict[str, list[tuple[int, _Record | None]]] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._times: list[float] = []
        self.on_change: Callable[[str, int], None] = lambda path, change: None
        self.now = 0
        self._put("/", _Record(0, 0, 0, 0, 0, 0, b""))

    # --- reading --------------------------------------------------------------------------------------------

    def change_at(self, time: float) -> int:
        """The last change made by that time."""
        return bisect_right(self._times, time)

    def time_of(self, change: int) -> float:
        return self._times[change - 1]

    def at(self, path: str, change: int) -> _Record | None:
        versions = self._versions.get(path)
        if not versions:
            return None
        if versions[-1][0] <= change:
            return versions[-1][1]
        at = bisect_right(versions, change, key=lambda version: version[0])
        return versions[at - 1][1] if at else None

    def changed_after(self, path: str, change: int) -> int | None:
        """The first later change of this node."""
        for number, _ in self._versions.get(path, ()):
            if number > change:
                return number
        return None

    def require(self, path: str, change: int | None = None) -> _Record:
        record = self.at(path, self.now if change is None else change)
        if record is None:
            raise MetadataNotFound(f"{path} does not exist")
        return record

    def children(self, path: str, change: int) -> Children:
        record = self.require(path, change)
        prefix = "" if path == "/" else path
        names = tuple(name for name in self._children.get(path, ()) if self.at(f"{prefix}/{name}", change) is not None)
        return Children(names, record.child_version)

    # --- writing --------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes, owner: int, sequential: bool) -> str:
        parent_path = parent_of(path)
        parent = self.require(parent_path)
        sequence = parent.sequence
        if sequential:
            path, sequence = f"{path}{sequence:010d}", sequence + 1
        if self.at(path, self.now) is not None:
            raise MetadataExists(f"{path} exists already")
        self._children.setdefault(parent_path, {})[path.rpartition("/")[2]] = None
        self._put(path, _Record(0, 0, int(self._clock() * 1000), owner, 0, 0, data))
        more = replace(parent, child_version=parent.child_version + 1, children=parent.children + 1, sequence=sequence)
        self._put(parent_path, more)
        return path

    def set(self, path: str, data: bytes, version: int) -> int:
        record = self.require(path)
        _check_version(path, record, version)
        self._put(path, replace(record, version=record.version + 1, data=data))
        return record.version + 1

    def delete(self, path: str, version: int) -> None:
        record = self.require(path)
        _check_version(path, record, version)
        if record.children:
            raise MetadataNotEmpty(f"{path} has children")
        parent_path = parent_of(path)
        parent = self.require(parent_path)
        self._put(path, None)
        self._put(parent_path, replace(parent, child_version=parent.child_version + 1, children=parent.children - 1))

    def _put(self, path: str, record: _Record | None) -> None:
        self.now += 1
        self._times.append(self._clock())
        self._versions.setdefault(path, []).append((self.now, record))
        self.on_change(path, self.now)


def _check_version(path: str, record: _Record, version: int) -> None:
    if version not in (ANY_VERSION, record.version):
        raise MetadataVersionConflict(f"{path} has version {record.version}, not {version}")


@dataclass(slots=True)
class MetadataOptions:
    lag: float = 0.0
    """How far a follower may be behind, in seconds."""
    lost_answer_chance: float = 0.0
    """Of a write that was applied."""
    session_timeout: float = 4.0


class MetadataServer:
    """The service itself. `on_write` hears every applied write: (host, path, data), before its answer leaves."""

    def __init__(self, network: Network, random: Random, trace: Trace, options: MetadataOptions) -> None:
        self.network = network
        self.random = random
        self.trace = trace
        self.options = options
        self.nodes = NodeHistory(network.loop.time)
        self.nodes.on_change = self._changed
        self.on_write: Callable[[str, str, bytes], None] = lambda host, path, data: None
        self.up = True
        self.lose_answers = 0
        """So many of the next writes are applied and their answers lost."""
        self._sessions: dict[int, str] = {}
        self._owned: dict[int, dict[str, None]] = {}
        self._next_session = 1
        self._watches: dict[str, list[tuple[VirtualTree, Watch]]] = {}
        self._trees: list[VirtualTree] = []
        network.on_partition.append(self._look_at_links)

    async def connect(self, host: str) -> VirtualTree:
        """A session of this host."""
        tree = VirtualTree(self, host)
        self._trees.append(tree)
        await tree.connect()
        return tree

    # --- faults ---------------------------------------------------------------------------------------------

    def set_up(self, up: bool) -> None:
        """Nobody is answered while the service is down; it has no sessions' time-outs meanwhile."""
        self.up = up
        self._look_at_links()

    def drop(self, host: str) -> None:
        """Break the connection of a host's session; it connects again."""
        for tree in self._trees:
            if tree.host == host:
                tree.lost("connection dropped")

    def expire(self, host: str) -> None:
        """End a host's session."""
        for tree in self._trees:
            if tree.host == host:
                self.end_session(tree.session_id)
                tree.lost("session expired")

    def forget(self, host: str) -> None:
        """The host's process is gone; its sessions run out."""
        for tree in [tree for tree in self._trees if tree.host == host]:
            tree.die()
            self._trees.remove(tree)

    def reaches(self, host: str) -> bool:
        return self.up and not self.network.blocked(host, HOST) and not self.network.blocked(HOST, host)

    def _look_at_links(self) -> None:
        for tree in list(self._trees):
            tree.link_changed()

    # --- sessions -------------------------------------------------------------------------------------------

    def open_session(self, host: str) -> int:
        number = self._next_session
        self._next_session += 1
        self._sessions[number] = host
        return number

    def is_alive(self, session_id: int) -> bool:
        return session_id in self._sessions

    def end_session(self, session_id: int) -> None:
        host = self._sessions.pop(session_id, None)
        if host is None:
            return
        self.trace(HOST, f"session {session_id} of {host} ends")
        for path in self._owned.pop(session_id, {}):
            record = self.nodes.at(path, self.nodes.now)
            if record is not None and record.owner == session_id:
                self.nodes.delete(path, ANY_VERSION)

    # --- requests, as they arrive ---------------------------------------------------------------------------

    def apply_create(self, session: VirtualTree, path: str, data: bytes, ephemeral: bool, sequential: bool) -> str:
        owner = session.session_id if ephemeral else 0
        created = self.nodes.create(path, data, owner, sequential)
        if ephemeral:
            self._owned.setdefault(owner, {})[created] = None
        self._wrote(session, created, data)
        return created

    def apply_create_all(self, session: VirtualTree, nodes: Sequence[tuple[str, bytes]]) -> None:
        for path, _ in nodes:
            if self.nodes.at(path, self.nodes.now) is not None:
                raise MetadataExists(f"{path} exists already")
        for path, data in nodes:
            self.apply_create(session, path, data, False, False)

    def apply_set(self, session: VirtualTree, path: str, data: bytes, version: int) -> int:
        written = self.nodes.set(path, data, version)
        self._wrote(session, path, data)
        return written

    def apply_delete(self, session: VirtualTree, path: str, version: int) -> None:
        self.nodes.delete(path, version)
        self.trace(HOST, f"{session.host} deletes {path}")

    def _wrote(self, session: VirtualTree, path: str, data: bytes) -> None:
        self.trace(HOST, f"{session.host} writes {path}")
        self.on_write(session.host, path, data)

    def view(self, seen: int) -> int:
        """The state that a follower shows to a session that has seen `seen`."""
        lag = self.options.lag
        if not lag:
            return self.nodes.now
        return max(seen, self.nodes.change_at(self.network.loop.time() - self.random.random() * lag))

    def watch(self, tree: VirtualTree, path: str, watch: Watch, seen: int) -> None:
        """Fire once, after the next change of `path` that is newer than `seen`."""
        newer = self.nodes.changed_after(path, seen)
        if newer is None:
            self._watches.setdefault(path, []).append((tree, watch))
        else:
            tree.fire_later(watch, newer, self.options.lag)

    def _changed(self, path: str, change: int) -> None:
        for tree, watch in self._watches.pop(path, ()):
            tree.fire_later(watch, change, self.random.random() * self.options.lag)


@dataclass(slots=True, eq=False)
class _Call:
    """A request under way."""

    run: Callable[[], Any]
    future: asyncio.Future[Any]
    writes: bool
    session_id: int
    arrived: bool = False


class VirtualTree:
    """A `NodeTree`: one host's bond with the service."""

    def __init__(self, server: MetadataServer, host: str) -> None:
        self._server = server
        self._loop = server.network.loop
        self.host = host
        self.session = DriverSession(server.options.session_timeout)
        self.session_id = NO_SESSION
        self.seen = 0
        self._calls: dict[_Call, None] = {}
        self._armed: dict[Watch, None] = {}
        self._last_arrival = 0.0
        self._last_answer = 0.0
        self._away: asyncio.TimerHandle | None = None
        self._reconnect: asyncio.TimerHandle | None = None
        self._swallowed = False
        self._closed = False

    async def connect(self) -> None:
        self._come_back()
        async with asyncio.timeout(self.session.default_timeout):
            await self.session.wait_connected()

    # --- the connection -------------------------------------------------------------------------------------

    def lost(self, why: str) -> None:
        """The connection broke: what is under way is not answered."""
        if self._closed:
            return
        self._server.trace(HOST, f"connection of {self.host} lost: {why}")
        self._swallowed = False
        self.session.move(SessionState.SUSPENDED)
        calls, self._calls = list(self._calls), {}
        waiting = [call for call in calls if not call.arrived]
        carried_out = int(self._server.random.random() * (len(waiting) + 1))
        for call in waiting[:carried_out]:
            self._run(call)
        for call in calls:
            if not call.future.done():
                call.future.set_exception(ConnectionLost(f"the connection of {self.host} was lost: {why}"))
        self._fire_all()
        if self._away is None and self._server.is_alive(self.session_id):
            timeout = self.session.default_timeout
            self._away = self._loop.call_later(timeout, self._server.end_session, self.session_id)
        if self._reconnect is None:
            self._reconnect = self._loop.call_later(RECONNECT_SECONDS, self._come_back)

    def link_changed(self) -> None:
        """A partition, the service itself: noticed a little later, or at once when it is over."""
        if self._closed:
            return
        if not self._server.reaches(self.host):
            patience = self._server.random.random() * self.session.default_timeout / 2
            self._loop.call_later(patience, self._lost_if_blocked)
        elif self._swallowed:
            self.lost("it was interrupted")
        elif self._reconnect is None and self.session.state is not SessionState.CONNECTED:
            self._reconnect = self._loop.call_later(RECONNECT_SECONDS, self._come_back)

    def die(self) -> None:
        """The process is gone. Its session runs out."""
        if not self._closed:
            self.lost("the process is gone")
            self._closed = True
            self.session.move(SessionState.CLOSED)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._fire_all()
        self._server.end_session(self.session_id)
        self.session.move(SessionState.CLOSED)

    def _lost_if_blocked(self) -> None:
        if not self._server.reaches(self.host) and self.session.state is SessionState.CONNECTED:
            self.lost("the service cannot be reached")

    def _come_back(self) -> None:
        self._reconnect = None
        if self._closed or not self._server.reaches(self.host):
            return
        if self._away is not None:
            self._away.cancel()
            self._away = None
        if not self._server.is_alive(self.session_id):
            if self.session_id != NO_SESSION:
                self.session.move(SessionState.EXPIRED)
            self.session_id = self._server.open_session(self.host)
            self._server.trace(HOST, f"session {self.session_id} of {self.host} begins")
        self.session.move(SessionState.CONNECTED)
        self._fire_all()

    # --- requests -------------------------------------------------------------------------------------------

    async def create(
        self,
        path: str,
        data: bytes,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        open_to_all: bool = False,
        timeout: float,
    ) -> str:
        server = self._server
        return await self._call(lambda: server.apply_create(self, path, data, ephemeral, sequential), timeout)

    async def create_all(self, nodes: Sequence[tuple[str, bytes]], *, timeout: float) -> None:
        await self._call(lambda: self._server.apply_create_all(self, nodes), timeout)

    async def get(self, path: str, *, watch: Watch | None = None, timeout: float) -> Node:
        def read() -> Node:
            change = self._view()
            record = self._server.nodes.require(path, change)
            self._watch(path, watch, change)
            return Node(record.data, record.stat)

        return await self._call(read, timeout, writes=False)

    async def exists(self, path: str, *, watch: Watch | None = None, timeout: float) -> NodeStat | None:
        def read() -> NodeStat | None:
            change = self._view()
            record = self._server.nodes.at(path, change)
            self._watch(path, watch, change)
            return None if record is None else record.stat

        return await self._call(read, timeout, writes=False)

    async def children(self, path: str, *, watch: Watch | None = None, timeout: float) -> Children:
        def read() -> Children:
            change = self._view()
            children = self._server.nodes.children(path, change)
            self._watch(path, watch, change)
            return children

        return await self._call(read, timeout, writes=False)

    async def set(self, path: str, data: bytes, version: int, *, timeout: float) -> int:
        return await self._call(lambda: self._server.apply_set(self, path, data, version), timeout)

    async def delete(self, path: str, version: int = ANY_VERSION, *, timeout: float) -> None:
        await self._call(lambda: self._server.apply_delete(self, path, version), timeout)

    async def sync(self, path: str, *, timeout: float) -> None:
        def catch_up() -> None:
            self.seen = self._server.nodes.now

        await self._call(catch_up, timeout, writes=False)

    async def _call(self, run: Callable[[], Any], timeout: float, *, writes: bool = True) -> Any:
        if self._closed:
            raise MetadataUnavailable("the metadata service was closed")
        deadline = self._loop.time() + timeout
        call: _Call | None = None
        try:
            async with asyncio.timeout_at(deadline):
                if self.session.state is not SessionState.CONNECTED:
                    await self.session.wait_connected()
                call = _Call(run, self._loop.create_future(), writes, self.session_id)
                self._calls[call] = None
                arrival = self._loop.time() + self._server.network.delay(self.host, HOST)
                self._last_arrival = max(arrival, self._last_arrival)
                self._loop.call_at(self._last_arrival, self._arrive, call)
                return await call.future
        except TimeoutError:
            raise MetadataUnavailable(f"no answer from the virtual metadata service within {timeout:g} s") from None
        finally:
            if call is not None:
                self._calls.pop(call, None)

    def _arrive(self, call: _Call) -> None:
        if call.arrived or call.future.done():
            return
        if not self._server.reaches(self.host):
            self._swallowed = True
            return
        outcome = self._run(call)
        server = self._server
        if call.writes and (server.lose_answers > 0 or server.random.random() < server.options.lost_answer_chance):
            server.lose_answers = max(0, server.lose_answers - 1)
            self.lost("an answer was lost")
            return
        answer = self._loop.time() + server.network.delay(HOST, self.host)
        self._last_answer = max(answer, self._last_answer)
        self._loop.call_at(self._last_answer, _answer, call, outcome)

    def _run(self, call: _Call) -> Any:
        call.arrived = True
        if not self._server.is_alive(call.session_id):
            self._loop.call_soon(self.lost, "the session has ended")
            return ConnectionLost(f"the session of {self.host} has ended")
        try:
            result = call.run()
        except Exception as error:  # for the caller
            return error
        if call.writes:
            self.seen = max(self.seen, self._server.nodes.now)
        return result

    def _view(self) -> int:
        self.seen = self._server.view(self.seen)
        return self.seen

    # --- watches --------------------------------------------------------------------------------------------

    def _watch(self, path: str, watch: Watch | None, change: int) -> None:
        if watch is not None:
            self._armed[watch] = None
            self._server.watch(self, path, watch, change)

    def fire_later(self, watch: Watch, change: int, lag: float) -> None:
        if self.session.state is SessionState.CONNECTED and self._server.reaches(self.host):
            delay = lag + self._server.network.delay(HOST, self.host)
            self._loop.call_later(delay, self._fire, watch, change)
        else:
            self._swallowed = True

    def _fire(self, watch: Watch, change: int) -> None:
        if watch in self._armed:
            del self._armed[watch]
            self.seen = max(self.seen, change)
            watch()

    def _fire_all(self) -> None:
        armed, self._armed = self._armed, {}
        for watch in armed:
            watch()


def _answer(call: _Call, outcome: Any) -> None:
    if call.future.done():
        return
    if isinstance(outcome, Exception):
        call.future.set_exception(outcome)
    else:
        call.future.set_result(outcome)
