"""`NodeTree` over Oxia, and a metadata service on it.

Oxia compares and changes one record at a time. What the seam promises of several is got by order, and by a look
behind each step:

Invariants
- A write or deletion of a node that is named by its identity reads the record, compares creation and count of changes,
  and then demands the version id that it read: that is unique among all states of all records of the shard.
- A node is created, and then its parent is looked for; without one the node is taken back. A node is deleted, and then
  its children are looked for; with one the node is put back. Whichever of the two is later sees the other.
- `create_all` creates parents first and the last node last, which tells that all are there (the instance id). What an
  interrupted call left is taken over by the next one.
- Every write of an ephemeral record names the session that holds it: one that names none would make it persistent.
- A write that depends on our session asks every shard whether it lasts, right before. Oxia has no request that does
  both: a process that is stopped between the two, for longer than its session lasts, writes too late.
- A listing has the keys of all shards of one moment of the namespace, or it fails. Empty ones are believed because the
  order of the namespace was proved (`sessions`).
- Reads are answered by who leads the shard, or believes to: `sync` writes to every shard first.
- The creation of a node is the time in ms at which it was made. Two nodes of one name that were made in the same ms
  differ in their version ids alone, which only the caller that read one of them last compares.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from bookie_protocol.errors import (
    MetadataDamaged,
    MetadataError,
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataReplaced,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.interface import Identity
from bookie_protocol.metadata_service.oxia import keys, wire
from bookie_protocol.metadata_service.oxia import oxia_pb2 as messages
from bookie_protocol.metadata_service.oxia.connection import OxiaConnection, SessionGone
from bookie_protocol.metadata_service.oxia.history import History
from bookie_protocol.metadata_service.oxia.sessions import LONGEST_SECONDS, ShardSessions, clamped, every, owner_of
from bookie_protocol.metadata_service.tree.keeping import KeptSession
from bookie_protocol.metadata_service.tree.nodes import (
    NO_SESSION,
    Children,
    ConnectionLost,
    Created,
    Node,
    NodeStat,
    Watch,
    check_session,
    parent_of,
)

_DIGITS: Final = 10
_Answer = TypeVar("_Answer")
_NOT_COUNTED: Final = 1
_ABOVE: Final = NodeStat(0, 0, 0, NO_SESSION, _NOT_COUNTED)
"""The top of the tree, which is not a record."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was read. `shard` is where it is."""

    shard: int
    value: bytes
    version: messages.Version

    def stat(self) -> NodeStat:
        created = self.version.created_timestamp
        owner = owner_of(self.shard, self.version)
        return NodeStat(self.version.modifications_count, created, created, owner, _NOT_COUNTED)

    def node(self, children: int = _NOT_COUNTED) -> Node:
        return Node(self.value, replace(self.stat(), children=children))


class OxiaTree(KeptSession):
    """One session with a namespace of Oxia. `timeout` of the session in seconds; Oxia takes 2 to 300."""

    keeps_times: Final = True
    removes_directories: Final = False

    def __init__(self, connection: OxiaConnection, timeout: float) -> None:
        super().__init__(min(timeout, LONGEST_SECONDS))
        self._session.counts = "oxia"
        self._connection = connection
        self._history = History(connection, self._session, self._in_doubt.set)
        self._sessions: ShardSessions | None = None
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        """Locks of paths, with the number of callers that have or want each."""
        self._last_version = 0
        connection.on_change = self._in_doubt.set

    @property
    def session_id(self) -> int:
        return NO_SESSION if self._sessions is None else self._sessions.owner

    # --- NodeTree: reads -------------------------------------------------------------------------------------

    async def get(self, path: str, *, watch: Watch | None = None, timeout: float) -> Node:
        standing = self._history.watches.add(path, watch)
        try:
            async with self._connected(path, timeout) as left:
                return (await self._present(path, left)).node()
        except BaseException:
            self._history.watches.remove(standing)
            raise

    async def get_each(
        self, paths: Sequence[str], *, childless: bool = False, timeout: float
    ) -> list[Node | MetadataError]:
        async with self._connected(paths[0] if paths else "", timeout) as left:
            found = await self._read(paths, left)
            children = 0 if childless and await self._are_childless(paths, left) else _NOT_COUNTED
            return [
                MetadataNotFound(f"{path} does not exist") if each is None else each.node(children)
                for path, each in zip(paths, found, strict=True)
            ]

    async def exists(self, path: str, *, watch: Watch | None = None, timeout: float) -> NodeStat | None:
        if path == "/":
            return _ABOVE
        standing = self._history.watches.add(path, watch)
        try:
            async with self._connected(path, timeout) as left:
                found = await self._find(path, left)
                # Counted here and in no other read: it takes a request to every shard.
                return None if found is None else replace(found.stat(), children=len(await self._names(path, left)))
        except BaseException:
            self._history.watches.remove(standing)
            raise

    async def children(self, path: str, *, watch: Watch | None = None, timeout: float) -> Children:
        standing = self._history.watches.add(path, watch, names=True)
        try:
            async with self._connected(path, timeout) as left, self._alone(path):
                names = await self._names(path, left)
                if path != "/":  # Behind the listing: that of a node that went would show no children, and no fault.
                    await self._present(path, left)
                self._last_version = max(self._last_version + 1, time.time_ns())
                return Children(names, self._last_version)
        except BaseException:
            self._history.watches.remove(standing)
            raise

    async def sync(self, path: str, *, timeout: float) -> None:
        async with self._connected(path, timeout) as left:
            try:
                await self._open_sessions.touch(left())
            except SessionGone as error:
                raise ConnectionLost(f"{path}: {error}") from error

    # --- NodeTree: writes ------------------------------------------------------------------------------------

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
        async with self._connected(path, timeout) as left:
            check_session(path, session_id, self.session_id)
            # The write names it: another session that begins meanwhile is not the one that the caller looked at.
            holder = self._open_sessions if ephemeral else None
            if holder is None:
                await self._check_alive(path, session_id, left)
            if not sequential:
                return await self._create(path, data, holder, session_id, left)
            return await self._create_next(path, data, holder, session_id, left)

    async def create_all(
        self, nodes: Sequence[tuple[str, bytes]], *, session_id: int | None = None, timeout: float
    ) -> None:
        last, _ = nodes[-1]
        async with self._connected(nodes[0][0], timeout) as left:
            await self._check_alive(last, session_id, left)
            found = await self._read([path for path, _ in nodes], left)
            for (path, data), record in zip(nodes, found, strict=True):
                if record is not None and (path == last or not _is_untouched(record, data)):
                    raise MetadataExists(f"{path} exists already")
            by_depth = sorted(nodes, key=lambda node: (node[0] == last, node[0].count("/")))
            for _, level in itertools.groupby(by_depth, key=lambda node: (node[0] == last, node[0].count("/"))):
                await self._check_alive(last, session_id, left)
                await self._create_level(list(level), last, session_id, left)

    async def take_number(self, prefix: str, *, timeout: float) -> tuple[int, str | None]:
        async with self._connected(prefix, timeout) as left:
            return await self._take_number(prefix, left), None

    async def set(
        self, path: str, data: bytes, this: Identity | None, *, session_id: int | None = None, timeout: float
    ) -> NodeStat:
        async with self._connected(path, timeout) as left:
            while True:
                await self._check_alive(path, session_id, left)
                record = await self._meant(path, this, left)
                put = _put(path, data, record.version.version_id)
                if record.version.HasField("session_id"):
                    put.session_id = record.version.session_id
                    put.client_identity = record.version.client_identity
                answer = await self._put(record.shard, put, left, session_id)
                if answer.status == messages.OK:
                    return Record(record.shard, data, answer.version).stat()
                if answer.status == messages.SESSION_DOES_NOT_EXIST:
                    raise ConnectionLost(f"{path} goes with the session that held it")

    async def delete(self, path: str, this: Identity | None, *, session_id: int | None = None, timeout: float) -> None:
        async with self._connected(path, timeout) as left:
            while True:
                await self._check_alive(path, session_id, left)
                record = await self._meant(path, this, left)
                if await self._names(path, left):
                    raise MetadataNotEmpty(f"{path} has children")
                if await self._delete(path, record, left, session_id):
                    break
            if await self._names(path, left):  # made meanwhile: they would be in no listing
                await self._put(record.shard, _put(path, record.value, wire.NOT_EXISTING), left)
                raise MetadataNotEmpty(f"{path} has children")

    # --- creation --------------------------------------------------------------------------------------------

    async def _create(
        self, path: str, data: bytes, holder: ShardSessions | None, session_id: int | None, left: Callable[[], float]
    ) -> Created:
        """`holder`: the node is ephemeral, and goes with these sessions."""
        parent = parent_of(path)
        if parent != "/":
            await self._present(parent, left)
        shard = self._connection.known.shard_of(path)
        put = _put(path, data, wire.NOT_EXISTING)
        if holder is not None:
            if not holder.holds(shard):
                raise ConnectionLost(f"{path}: shard {shard} of Oxia is new, and has no session of ours yet")
            put.session_id, put.client_identity = holder.ids[shard], holder.identity
        answer = await self._put(shard, put, left, session_id)
        if answer.status == messages.SESSION_DOES_NOT_EXIST:
            self._in_doubt.set()
            raise ConnectionLost(f"{path}: the session with {self._where} has ended")
        if answer.status != messages.OK:
            raise MetadataExists(f"{path} exists already")
        if parent != "/" and await self._find(parent, left) is None:
            await self._delete(path, Record(shard, data, answer.version), left)
            raise MetadataNotFound(f"{parent} does not exist")
        return Created(path, answer.version.created_timestamp)

    async def _create_level(
        self, nodes: Sequence[tuple[str, bytes]], last: str, session_id: int | None, left: Callable[[], float]
    ) -> None:
        """Create nodes as `_create` does, by one write for each shard. Those that are there already, as an interrupted
        call left them, are taken over."""
        parents = sorted({parent_of(path) for path, _ in nodes} - {"/"})
        _check_found(parents, await self._read(parents, left))
        of_shard: dict[int, list[tuple[str, bytes]]] = {}
        for path, data in nodes:
            of_shard.setdefault(self._connection.known.shard_of(path), []).append((path, data))
        refused: list[tuple[str, bytes]] = []
        gone: set[str] = set()

        async def write(shard: int, part: list[tuple[str, bytes]]) -> None:
            puts = [_put(path, data, wire.NOT_EXISTING) for path, data in part]
            answers = (await self._write(shard, messages.WriteRequest(puts=puts), session_id, left)).puts
            made: list[tuple[str, Record]] = []
            for (path, data), answer in zip(part, answers, strict=True):
                if answer.status == messages.OK:
                    made.append((path, Record(shard, data, answer.version)))
                else:
                    refused.append((path, data))
            # Not once all shards have answered: one of them may hang until no time is left to take anything back.
            above = sorted({parent_of(path) for path, _ in made} - {"/"})
            missing = {
                parent for parent, record in zip(above, await self._read(above, left), strict=True) if not record
            }
            gone.update(missing)
            await every(self._delete(path, record, left) for path, record in made if parent_of(path) in missing)

        await every(write(shard, part) for shard, part in of_shard.items())
        if gone:
            raise MetadataNotFound(f"{min(gone)} does not exist")
        there = await self._read([path for path, _ in refused], left)
        for (path, data), record in zip(refused, there, strict=True):
            if path == last or record is None or not _is_untouched(record, data):
                raise MetadataExists(f"{path} exists already")

    async def _create_next(
        self, prefix: str, data: bytes, holder: ShardSessions | None, session_id: int | None, left: Callable[[], float]
    ) -> Created:
        """Make a node of the next number. One that was overtaken by a later number is taken back: a node that is made
        later has a later name."""
        parent, _, name = prefix.rpartition("/")
        while True:
            number = await self._take_number(prefix, left)
            path = f"{prefix}{number:0{_DIGITS}d}"
            try:
                made = await self._create(path, data, holder, session_id, left)
            except MetadataExists:
                continue  # a name given by hand
            if number >= max(_numbers(name, await self._names(parent, left)), default=0):
                return made
            record = await self._find(path, left)
            if record is not None:
                await self._delete(path, record, left)

    async def _take_number(self, prefix: str, left: Callable[[], float]) -> int:
        """Return how often the parent was written, by a write of what it has: so all clients of Pulsar count."""
        parent = parent_of(prefix)
        async with self._alone(f"{parent}/"):  # the calls of this process would only overtake each other
            while True:
                record = await self._present(parent, left)
                answer = await self._put(record.shard, _put(parent, record.value, record.version.version_id), left)
                if answer.status == messages.OK:  # else it was written or deleted meanwhile
                    return int(answer.version.modifications_count)

    # --- records ---------------------------------------------------------------------------------------------

    async def _find(self, path: str, left: Callable[[], float]) -> Record | None:
        (record,) = await self._read([path], left)
        return record

    async def _present(self, path: str, left: Callable[[], float]) -> Record:
        record = await self._find(path, left)
        if record is None:
            raise MetadataNotFound(f"{path} does not exist")
        return record

    async def _meant(self, path: str, this: Identity | None, left: Callable[[], float]) -> Record:
        """Return the record, if it is in the state that is named."""
        record = await self._present(path, left)
        if this is not None:
            check_identity(path, record.stat(), this)
        return record

    async def _read(self, paths: Sequence[str], left: Callable[[], float]) -> list[Record | None]:
        shards = self._connection.known
        of_shard: dict[int, list[str]] = {}
        for path in dict.fromkeys(paths):
            of_shard.setdefault(shards.shard_of(path), []).append(path)
        found: dict[str, Record | None] = {}

        async def read(shard: int, part: list[str]) -> None:
            gets = [messages.GetRequest(key=path, include_value=True) for path in part]
            for path, answer in zip(part, await self._connection.read(shard, gets, left()), strict=True):
                is_there = answer.status == messages.OK
                found[path] = Record(shard, answer.value, answer.version) if is_there else None

        await asyncio.gather(*(read(shard, part) for shard, part in of_shard.items()))
        return [found[path] for path in paths]

    async def _are_childless(self, paths: Sequence[str], left: Callable[[], float]) -> bool:
        """Return whether it is certain that none of these nodes has a child.

        Siblings whose names have the same length have the same order whether keys are compared by components or as a
        whole. So all that is below them is between the first and the last of them, where a leaf has nothing.
        """
        if len({(parent_of(path), len(path.encode())) for path in paths}) != 1:
            return False
        (first, _), (_, end) = keys.children(min(paths, key=str.encode)), keys.children(max(paths, key=str.encode))
        answers = await self._of_each_shard(paths[0], lambda each: self._connection.has_any(each, first, end, left()))
        return not any(answers)

    async def _of_each_shard(self, path: str, ask: Callable[[int], Awaitable[_Answer]]) -> list[_Answer]:
        """`ConnectionLost`: a shard came or went meanwhile."""
        shards = self._connection.known
        shards.check_complete()
        answers = await asyncio.gather(*(ask(each) for each in shards.numbers))
        if self._connection.known.numbers != shards.numbers:
            raise ConnectionLost(f"{path}: a shard was split during the listing")
        return answers

    async def _names(self, path: str, left: Callable[[], float]) -> tuple[str, ...]:
        """Return the names of all children."""
        first, end = keys.children(path)
        answers = await self._of_each_shard(path, lambda each: self._connection.list(each, first, end, left()))
        names = tuple({key.removeprefix(first): None for answer in answers for key in answer})
        if any("/" in name for name in names):
            raise MetadataDamaged(f"{path} is listed with what is below its children: the keys do not sort by levels")
        return names

    async def _write(
        self, shard: int, request: messages.WriteRequest, session_id: int | None, left: Callable[[], float]
    ) -> messages.WriteResponse:
        """Send it, unless the session that it depends on has ended behind the look at it."""
        check_session((request.puts or request.deletes)[0].key, session_id, self.session_id)
        return await self._connection.write(shard, request, left())

    async def _put(
        self, shard: int, put: messages.PutRequest, left: Callable[[], float], session_id: int | None = None
    ) -> messages.PutResponse:
        return (await self._write(shard, messages.WriteRequest(puts=[put]), session_id, left)).puts[0]

    async def _delete(
        self, path: str, record: Record, left: Callable[[], float], session_id: int | None = None
    ) -> bool:
        """Delete this very state; False: there is another one, or none."""
        delete = messages.DeleteRequest(key=path, expected_version_id=record.version.version_id)
        answer = await self._write(record.shard, messages.WriteRequest(deletes=[delete]), session_id, left)
        return answer.deletes[0].status == messages.OK

    # --- requests --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _connected(self, path: str, timeout: float) -> AsyncIterator[Callable[[], float]]:
        """Wait until requests are answered; yields how many seconds are left. `MetadataUnavailable` when none are."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if self._closing:
            raise MetadataUnavailable(f"{path}: the metadata service was closed")
        try:
            async with asyncio.timeout_at(deadline):
                await self._session.wait_connected()
                yield lambda: max(0.001, deadline - loop.time())
        except TimeoutError:
            raise MetadataUnavailable(f"{path}: no answer from {self._where} within {timeout:g} s") from None
        except ConnectionLost:
            self._in_doubt.set()
            raise

    @asynccontextmanager
    async def _alone(self, path: str) -> AsyncIterator[None]:
        """One listing of a path after the other, so that the later one shows what is newer; and so for numbers."""
        lock, callers = self._turns.get(path, (asyncio.Lock(), 0))
        self._turns[path] = lock, callers + 1
        try:
            async with lock:
                yield
        finally:
            lock, callers = self._turns.pop(path)
            if callers > 1:
                self._turns[path] = lock, callers - 1

    async def _check_alive(self, path: str, session_id: int | None, left: Callable[[], float]) -> None:
        """`SessionEnded` unless this session of ours lasts, in every shard."""
        if session_id is None:
            return
        check_session(path, session_id, self.session_id)
        sessions, asked = self._open_sessions, time.monotonic()
        try:
            # The first gives them their whole time from now on. Of whom it asks, the second proves to be the leaders.
            await sessions.keep_alive(left())
            await sessions.touch(left())
        except SessionGone:
            self._in_doubt.set()
            check_session(path, session_id, NO_SESSION)
        if time.monotonic() - asked > self._session.expires_after / 2:
            raise ConnectionLost(f"{path}: {self._where} took too long to say whether the session lasts")

    @property
    def _open_sessions(self) -> ShardSessions:
        assert self._sessions is not None  # callers wait until they are open
        return self._sessions

    # --- session ---------------------------------------------------------------------------------------------

    async def _open_session(self) -> None:
        within = self._session.default_timeout / (len(self._connection.targets) + 1)
        shards = await self._connection.shards(within)
        sessions = ShardSessions(self._connection, shards, self._session.default_timeout)
        await sessions.open(within)
        self._session.expires_after = clamped(self._session.default_timeout)
        self._history.begin(sessions)
        self._sessions = sessions

    async def _renew(self, within: float) -> bool:
        sessions = self._open_sessions
        shards = await self._connection.shards(within)
        lasts = await sessions.renew(shards, within)
        if lasts and not self._history.hears(sessions):
            await self._history.adopt(sessions, within)
        return lasts

    async def _end_session(self) -> None:
        await self._connection.stop_following()
        await self._open_sessions.close(self._session.default_timeout)

    async def _reconnect(self) -> None:
        await self._connection.reconnect()

    async def _close_connection(self) -> None:
        await self._connection.close()

    async def _listen(self) -> None:
        await self._history.listen(self._open_sessions, self._pause())

    def _fire_all(self) -> None:
        self._history.watches.fire_all()

    @property
    def _where(self) -> str:
        return f"Oxia at {','.join(self._connection.targets)}"

    def _no_answer(self, timeout: float) -> str:
        return (
            f"{self._where} did not answer within {timeout:g} s: check metadataServiceUri, metadataServiceTlsEnable,"
            f" and that every shard of the namespace {self._connection.namespace} has a leader"
        )


def check_identity(path: str, stat: NodeStat, this: Identity) -> None:
    """`MetadataReplaced`, `MetadataVersionConflict`: this is not the state of the node."""
    if stat.creation != this.creation:
        raise MetadataReplaced(f"{path} was deleted, and another node has its name")
    if stat.version != this.version:
        raise MetadataVersionConflict(f"{path} has version {stat.version}, not {this.version}")


def _put(path: str, data: bytes, expected: int | None = None) -> messages.PutRequest:
    return messages.PutRequest(key=path, value=data, expected_version_id=expected)


def _check_found(paths: Sequence[str], found: Sequence[Record | None]) -> None:
    for path, record in zip(paths, found, strict=True):
        if record is None:
            raise MetadataNotFound(f"{path} does not exist")


def _is_untouched(record: Record, data: bytes) -> bool:
    """Return True if an interrupted call of ours may have made it."""
    version = record.version
    return record.value == data and version.modifications_count == 0 and not version.HasField("session_id")


def _numbers(name: str, names: Sequence[str]) -> list[int]:
    """Return the numbers of the sequential nodes of this name."""
    digits = (each.removeprefix(name) for each in names if each.startswith(name))
    return [int(each) for each in digits if len(each) == _DIGITS and each.isascii() and each.isdecimal()]
