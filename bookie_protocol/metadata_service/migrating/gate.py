"""A tree that goes on in another service: ZooKeeper first, then Oxia, with a pause without writes between.

Invariants
- The pause begins as a loss of the session does: `EXPIRED`, and another `session_id` for good. So the holder of a
  lock or a vote gives up, a garbage collection starts again, and a write that names the session before is never sent.
  The next session is CONNECTED when the pause is over, wherever that is. Until then our ephemeral nodes are those of
  the session before, except registrations, which stay.
- While there is a pause reads are answered by ZooKeeper, which is complete, and writes wait: those whose time is over
  raise `MetadataUnavailable`, which says nothing of the node. A creation of what is there already, behind a sync, is
  refused at once.
- A write is sent in the session of ZooKeeper in which it was let through, or not at all: another session begins with a
  look at the migration.
- An answer of ZooKeeper counts while writes are let through, because the coordinator waits for this process. In a pause
  it counts only as long as there is a proof that ZooKeeper has the metadata: a watch that has not fired on this
  connection (`Proof`). Any other answer is thrown away and asked again. So while this process cannot follow to Oxia,
  reads are unavailable. An answer that comes behind a change of the flag waits until the flag has been read again.
- What was read before the switch names creations of ZooKeeper, which Oxia cannot compare. So a conditional write or
  deletion of that is a `MetadataVersionConflict`, never a `MetadataReplaced`: the caller reads again. Creations behind
  the switch are marked (`versioned.moved`).
- All watches fire at the switch.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from bookie_protocol.errors import (
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    MetadataUnavailable,
    MetadataVersionConflict,
    SessionEnded,
)
from bookie_protocol.metadata_service.interface import Identity, Session, SessionState
from bookie_protocol.metadata_service.migrating.own_nodes import SourceTree
from bookie_protocol.metadata_service.migrating.proofs import Proofs
from bookie_protocol.metadata_service.tree.nodes import (
    Children,
    ConnectionLost,
    Created,
    Node,
    NodeStat,
    NodeTree,
    Watch,
    check_session,
    number_by_node,
    parent_of,
)
from bookie_protocol.versioned import is_moved, moved

T = TypeVar("T")

_GENERATION_BITS: Final = 64
_LISTING_BITS: Final = 96
"""Versions of listings of ZooKeeper are below 2 to the power of this."""


def _countdown(timeout: float) -> Callable[[], float]:
    """Return a function that returns the seconds left of `timeout`, for calls of several parts."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    return lambda: max(0.0, deadline - loop.time())


def _closed(path: str) -> MetadataUnavailable:
    return MetadataUnavailable(f"{path}: the metadata service was closed")


class GateSession(Session):
    """The session that callers see. Its counters are those of the current session with ZooKeeper or Oxia."""

    def __init__(self, inner: Session) -> None:
        self.inner = Session(inner.default_timeout)  # takes what the base class assigns
        super().__init__(inner.default_timeout)
        self.inner = inner

    @property
    def expires_after(self) -> float:
        return self.inner.expires_after

    @expires_after.setter
    def expires_after(self, seconds: float) -> None:
        self.inner.expires_after = seconds

    @property
    def position(self) -> int:
        return self.inner.position

    @position.setter
    def position(self, position: int) -> None:
        self.inner.position = position

    @property
    def went_back_to(self) -> int | None:
        return self.inner.went_back_to

    @went_back_to.setter
    def went_back_to(self, position: int | None) -> None:
        self.inner.went_back_to = position

    @property
    def counts(self) -> str:
        return self.inner.counts

    @counts.setter
    def counts(self, what: str) -> None:
        self.inner.counts = what

    def begin_history(self) -> None:
        super().begin_history()
        self.inner.begin_history()


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two services. Its paths are ours without `scope`."""

    tree: NodeTree
    scope: str = ""
    is_target: bool = False

    def there(self, path: str) -> str:
        if not path.startswith(f"{self.scope}/"):
            raise MetadataUnavailable(f"{path} is outside of {self.scope}, which alone was moved to Oxia")
        return path.removeprefix(self.scope)

    def here(self, path: str) -> str:
        return self.scope + path

    def creation(self, of_tree: int) -> int:
        return moved(of_tree) if self.is_target else of_tree

    def identity(self, path: str, this: Identity | None) -> Identity | None:
        """Return the identity as this tree knows it. `MetadataVersionConflict`: the other side gave it."""
        if this is None or not self.is_target:
            return this
        if not is_moved(this.creation):
            raise MetadataVersionConflict(f"{path} was read before the metadata moved to Oxia: it has to be read again")
        return replace(this, creation=moved(this.creation))


class _Reading:
    """A read. Its answer counts only if this side is known to have the metadata, before it and behind it."""

    __slots__ = ("_deadline", "_gate", "_path", "side", "watch")

    def __init__(self, gate: MigratingTree, path: str, timeout: float, watch: Watch | None = None) -> None:
        self._gate = gate
        self._path = path
        self._deadline = asyncio.get_running_loop().time() + timeout
        self.side = gate._side
        self.watch = watch

    def __enter__(self) -> _Reading:
        if not self._gate._counts(self.side):
            raise self._lost()
        if self.watch is not None and not self.side.is_target:
            self.watch = self._gate._noted(self.watch)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        counts = self._gate._counts(self.side)
        if self.watch is not None and (not counts or error is not None):
            self._gate._standing.discard(self.watch)
        if not counts and (error is None or isinstance(error, MetadataError)):
            raise self._lost() from error

    async def answer(self, request: Awaitable[T]) -> T:
        """Return the answer, or raise it, once it is known in a pause what the flag says by now."""
        try:
            answer = await request
        except MetadataError:
            await self._told()
            raise
        await self._told()
        return answer

    async def _told(self) -> None:
        if self.side.is_target or self._gate.is_open:
            return
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._gate.told()
        except TimeoutError:
            raise self._lost() from None

    def _lost(self) -> MetadataUnavailable:
        if self._gate._is_closed:
            return _closed(self._path)
        return ConnectionLost(f"{self._path}: it is not known yet whether ZooKeeper or Oxia has the metadata now")


class _Writing:
    """A write that was let through. `left`: as `_countdown` gives it. `held`: the session on its side."""

    __slots__ = ("_gate", "_path", "_session_id", "held", "left", "side")

    def __init__(self, gate: MigratingTree, path: str, session_id: int | None, left: Callable[[], float]) -> None:
        self._gate = gate
        self._path = path
        self._session_id = session_id
        self.left = left
        self.side = gate._side
        self.held = session_id if self.side.is_target else self.side.tree.session_id

    def __enter__(self) -> _Writing:
        self._gate._writes += 1
        self._gate._drained.clear()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._gate._writes -= 1
        if not self._gate._writes:
            self._gate._drained.set()
        if isinstance(error, SessionEnded) and self._session_id is None:
            raise ConnectionLost(f"{self._path}: {error}") from error  # another try, in the session of then


class MigratingTree:
    """A `NodeTree` on `source`, whose session is connected. The methods of the first part are the participant's."""

    def __init__(self, source: SourceTree) -> None:
        self.source = source
        self._side = Side(source)
        self._outer = GateSession(source.session)
        self._generation = 0
        """Number of pauses. Each ended a session for the callers that goes on in ZooKeeper."""
        self._changed = asyncio.Event()
        """Set, and replaced, when the gate opens or closes."""
        self._is_open = self._is_closed = False
        self._writes = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._standing: set[Watch] = set()
        self.proofs = Proofs()
        self.ephemeral: set[str] = set()
        """The paths at which this session has made, or may have made, ephemeral nodes in ZooKeeper."""
        self.numbered: set[str] = set()
        """Parents of numbered ephemeral nodes in ZooKeeper that this session may have made without an answer."""
        self._stop_listening = source.session.add_listener(self._on_source)
        self.on_session: Callable[[], None]
        """Called when the session with ZooKeeper has changed its state."""
        self.check: Callable[[float], Awaitable[None]]
        """Raises `ConnectionLost` if Oxia has the metadata now. Its argument is a time-out in seconds."""
        self.told: Callable[[], Awaitable[None]]
        """Returns once the flag has been read behind each change of it that was heard."""
        self.outlives: Callable[[str], bool]
        """Return True for the path of an ephemeral node that a pause does not end."""
        self.end: Callable[[], Awaitable[None]]
        """Closes the trees on both sides."""

    # --- the participant's ----------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Return True if writes are let through."""
        return self._is_open

    @property
    def has_switched(self) -> bool:
        return self._side.is_target

    def hold(self) -> None:
        """Begin a pause, unless one has begun. Behind the switch there is none."""
        if self._is_open and not self.has_switched:
            self._is_open = False
            self._generation += 1
            self._tell()
            self._outer.move(SessionState.EXPIRED)

    async def drained(self) -> None:
        """Wait until no write is under way. Each ends by its time-out at the latest."""
        await self._drained.wait()

    def open(self, forgotten: int) -> None:
        """End the pause, because ZooKeeper has the metadata by a look. `forgotten`: the number when that began."""
        if forgotten == self.proofs.forgotten and not self.has_switched:
            self._is_open = True
            self._tell()
            self._outer.move(SessionState.CONNECTED)

    def switch(self, target: NodeTree, scope: str) -> None:
        """End the pause, because Oxia has the metadata. The caller closes the source."""
        self._stop_listening()
        self._side = Side(target, scope, is_target=True)
        self._outer.inner = target.session
        self._is_open = True
        self._tell()
        standing, self._standing = self._standing, set()
        target.session.add_listener(self._outer.move)
        if target.session.state is SessionState.CONNECTED:
            self._outer.move(SessionState.CONNECTED)
        for watch in standing:
            asyncio.get_running_loop().call_soon(watch)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _on_source(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            self.proofs.forget()
        if state is SessionState.EXPIRED:
            self.ephemeral.clear()
            self.numbered.clear()
            if self._is_open:
                self._is_open = False
                self._tell()
        if self._is_open or state is SessionState.EXPIRED:
            self._outer.move(state)
        self.on_session()

    # --- NodeTree -------------------------------------------------------------------------------------------

    @property
    def keeps_times(self) -> bool:
        return self._side.tree.keeps_times

    @property
    def removes_directories(self) -> bool:
        return self._side.tree.removes_directories

    @property
    def session(self) -> Session:
        return self._outer

    @property
    def session_id(self) -> int:
        return self._outer_id(self._side.tree.session_id, self._generation)

    def _outer_id(self, session_id: int, generation: int) -> int:
        """Return an id that no other session of this tree has. ZooKeeper's contain a time, Oxia's are log positions."""
        return session_id if self.has_switched else session_id + (generation << _GENERATION_BITS)

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
        left = _countdown(timeout)
        if not self._is_open and not sequential:
            await self.sync(path, timeout=left())
            if await self.exists(path, timeout=left()) is not None:
                raise MetadataExists(f"{path} exists already")
        with await self._writing(path, session_id, left()) as write:
            try:
                made = await write.side.tree.create(
                    write.side.there(path),
                    data,
                    ephemeral=ephemeral,
                    sequential=sequential,
                    open_to_all=open_to_all,
                    session_id=write.held,
                    timeout=write.left(),
                )
            except (MetadataExists, MetadataNotFound, SessionEnded):
                raise
            except BaseException:
                if ephemeral and not write.side.is_target:  # it may have been made
                    if sequential:
                        self.numbered.add(parent_of(path))
                    else:
                        self.ephemeral.add(path)
                raise
            if ephemeral and not write.side.is_target:
                self.ephemeral.add(made.path)
        return Created(write.side.here(made.path), write.side.creation(made.creation))

    async def take_number(self, prefix: str, *, timeout: float) -> tuple[int, str | None]:
        if not self.has_switched:
            return await number_by_node(self, prefix, timeout)
        side = self._side
        number, node = await side.tree.take_number(side.there(prefix), timeout=timeout)
        return number, None if node is None else side.here(node)

    async def create_all(
        self, nodes: Sequence[tuple[str, bytes]], *, session_id: int | None = None, timeout: float
    ) -> None:
        with await self._writing(nodes[0][0], session_id, timeout) as write:
            there = [(write.side.there(path), data) for path, data in nodes]
            await write.side.tree.create_all(there, session_id=write.held, timeout=write.left())

    async def get(self, path: str, *, watch: Watch | None = None, timeout: float) -> Node:
        with _Reading(self, path, timeout, watch) as read:
            node = await read.answer(read.side.tree.get(read.side.there(path), watch=read.watch, timeout=timeout))
        return self._node(read.side, path, node)

    async def get_each(
        self, paths: Sequence[str], *, childless: bool = False, timeout: float
    ) -> list[Node | MetadataError]:
        with _Reading(self, paths[0] if paths else "", timeout) as read:
            there = [read.side.there(path) for path in paths]
            found = await read.answer(read.side.tree.get_each(there, childless=childless, timeout=timeout))
        return [
            self._node(read.side, path, each) if isinstance(each, Node) else each
            for path, each in zip(paths, found, strict=True)
        ]

    async def exists(self, path: str, *, watch: Watch | None = None, timeout: float) -> NodeStat | None:
        with _Reading(self, path, timeout, watch) as read:
            stat = await read.answer(read.side.tree.exists(read.side.there(path), watch=read.watch, timeout=timeout))
        return None if stat is None else self._stat(read.side, path, stat)

    async def children(self, path: str, *, watch: Watch | None = None, timeout: float) -> Children:
        with _Reading(self, path, timeout, watch) as read:
            there = read.side.there(path)
            listed = await read.answer(read.side.tree.children(there, watch=read.watch, timeout=timeout))
        return replace(listed, version=listed.version + (1 << _LISTING_BITS)) if read.side.is_target else listed

    async def set(
        self, path: str, data: bytes, this: Identity | None, *, session_id: int | None = None, timeout: float
    ) -> NodeStat:
        with await self._writing(path, session_id, timeout) as write:
            side, meant = write.side, write.side.identity(path, this)
            stat = await side.tree.set(side.there(path), data, meant, session_id=write.held, timeout=write.left())
        return self._stat(side, path, stat)

    async def delete(self, path: str, this: Identity | None, *, session_id: int | None = None, timeout: float) -> None:
        with await self._writing(path, session_id, timeout) as write:
            side, meant = write.side, write.side.identity(path, this)
            try:
                await side.tree.delete(side.there(path), meant, session_id=write.held, timeout=write.left())
            except MetadataNotFound:
                self.ephemeral.discard(path)
                raise
            self.ephemeral.discard(path)

    async def sync(self, path: str, *, timeout: float) -> None:
        """Read the flag too in a pause, because other processes may already write to Oxia."""
        left = _countdown(timeout)
        with _Reading(self, path, timeout) as read:
            await read.side.tree.sync(read.side.there(path), timeout=left())
            if not self._is_open:
                await self.check(left())

    async def close(self) -> None:
        self._is_closed = True
        self._tell()
        await self.end()
        self._outer.move(SessionState.CLOSED)

    # --- inside ---------------------------------------------------------------------------------------------

    def _counts(self, side: Side) -> bool:
        """Return True if an answer of this side counts now."""
        return side is self._side and (side.is_target or self._is_open or self.proofs.hold)

    def _noted(self, watch: Watch) -> Watch:
        """Return a watch that also fires at the switch."""

        def fire() -> None:
            self._standing.discard(fire)
            watch()

        self._standing.add(fire)
        return fire

    async def _writing(self, path: str, session_id: int | None, timeout: float) -> _Writing:
        """Wait until writes are let through."""
        left = _countdown(timeout)
        while True:
            if self._is_closed:
                raise _closed(path)
            check_session(path, session_id, self.session_id)
            if self._is_open:
                return _Writing(self, path, session_id, left)
            changed = self._changed
            try:
                async with asyncio.timeout(left()):
                    await changed.wait()
            except TimeoutError:
                raise MetadataUnavailable(
                    f"{path} cannot be written within {timeout:g} s: Pulsar's migration of the metadata to Oxia is"
                    " under way, or the session with ZooKeeper is away"
                ) from None

    def _node(self, side: Side, path: str, node: Node) -> Node:
        stat = self._stat(side, path, node.stat)
        return node if stat is node.stat else Node(node.data, stat)

    def _stat(self, side: Side, path: str, stat: NodeStat) -> NodeStat:
        if side.is_target:
            return replace(stat, creation=moved(stat.creation))
        if not self._generation or stat.owner != side.tree.session_id:
            return stat
        has_ended = not self._is_open and not self.outlives(path)  # it is of the session before the pause
        return replace(stat, owner=self._outer_id(stat.owner, self._generation - has_ended))
