"""The owner of an embedded store: sessions as leases, operations, watches.

Invariants
- A session ends when its lease was not renewed for its time-out, or when its client says so; its ephemeral
  nodes go in the same write, or, of more than `store.SESSION_STEP`, in several. A heartbeat that was answered OK keeps
  it for a whole time-out.
- Time in which the owner itself did not run (a paused process, a machine that was moved) counts against no session.
- Sessions outlive the owner: after a restart each gets its full time-out once more. But those of the former owner's own
  process, and of processes of this machine that are certainly gone, end with the open: no client has to wait for the
  dead. (The database admits one owner, so the former one is gone.)
- A session that has begun to open or to end does so, even if its caller gives up, or closes the owner, meanwhile: each
  one in the store has a lease, so that it ends some time.
- A session has one stream of events: a new one ends that before it, and counts all watches as fired, since it is
  unknown which events arrived before.
- An owner whose store is broken renews no lease, and says so (`broken`): its process has to end it.
- An operation of an ended session is refused; one that was accepted before the end and may change something is carried
  out before it.
- At most `commits.MAX_PENDING` operations wait for the store, and `MAX_LISTINGS` of those that list children; beyond,
  callers wait for their turn.
- Sessions and watches are bounded (`OwnerLimits`), and no connection opens more sessions than are left for the others.

Threads: event loop only; the store has its own thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from bookie_protocol.errors import (
    MetadataError,
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataReplaced,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.lasting import heard, lasting_task
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.commits import StoreThread
from bookie_protocol.metadata_service.embedded.notices import News, Notices
from bookie_protocol.metadata_service.embedded.processes import is_gone
from bookie_protocol.metadata_service.embedded.records import Change, SessionRecord
from bookie_protocol.metadata_service.embedded.store import NodeStore
from bookie_protocol.metadata_service.embedded.watches import SessionWatches, Watches
from bookie_protocol.metadata_service.tree.nodes import NODES_AT_ONCE, NodeStat

MAX_LISTINGS: Final = 16
"""Their answers are large, and are made one after the other anyway."""
MAX_PROCESS_CHARS: Final = 512
SHORTEST_TIMEOUT_MS: Final = 100
LONGEST_TIMEOUT_MS: Final = 600_000
_REAP_SECONDS: Final = 0.05
_WATCHING: Final = ("get", "exists", "children")
_READS: Final = (*_WATCHING, "get_each")
_LARGE: Final = ("children", "get_each")
_FOUND_BYTES: Final = 1 << 20
"""An answer ends with the node that reaches this size."""

_CODES: Final = (
    (MetadataNotFound, messages.NOT_FOUND),
    (MetadataExists, messages.EXISTS),
    (MetadataReplaced, messages.REPLACED),
    (MetadataVersionConflict, messages.VERSION_CONFLICT),
    (MetadataNotEmpty, messages.NOT_EMPTY),
)
T = TypeVar("T")
_log = logging.getLogger(__name__)
_EXPIRED: Final = messages.Outcome(code=messages.SESSION_EXPIRED, message="the session has ended")


@dataclass(frozen=True, slots=True)
class OwnerLimits:
    """Limits of what clients may make an owner keep."""

    sessions: int = 2_000
    watch_bytes: int = 64 * 1024 * 1024
    """Bytes of all watches, with those that fired and were not taken."""


@dataclass(slots=True)
class _Lease:
    record: SessionRecord
    deadline: float
    watches: SessionWatches
    peer: str = ""
    """The connection that opened it; empty: this process, or that is not known any more."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        """Operations are refused from here on, and the stream of events ends."""
        self.ended.set()
        self.watches.end()


class _SessionEnded(Exception):
    """The session of an operation ended before its turn came."""


class EmbeddedOwner:
    """One open store. Use `EmbeddedOwner.open`."""

    def __init__(self, store: NodeStore, sessions: list[SessionRecord], limits: OwnerLimits = OwnerLimits()) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._watches = Watches(limits.watch_bytes)
        self._listings = asyncio.Semaphore(MAX_LISTINGS)
        self._broken: asyncio.Future[str] = self._loop.create_future()
        self._store = store
        self.notices = None if store.notices is None else Notices(store.notices.take_found())
        """The notifications for clients of Oxia; None if this owner keeps none."""
        self._on_news(store.take_news())
        self._thread = StoreThread(store, self._on_news, self._on_broken)
        self._leases: dict[int, _Lease] = {}
        for record in sessions:
            self._grant(record)
        self._endings: set[asyncio.Task[None]] = set()
        self._openings: set[asyncio.Task[_Lease]] = set()
        self._reaper = lasting_task(self._reap(), "ends of metadata sessions")

    @staticmethod
    async def open(
        folder: str, limits: OwnerLimits = OwnerLimits(), *, make_store: bool = True, keep_notices: bool = False
    ) -> EmbeddedOwner:
        """Open or create the store in this folder. `MetadataUnavailable` if it cannot be opened (see `NodeStore`),
        `MetadataNotFound` if there is none and it is not to be made. `keep_notices`: for clients of Oxia."""
        return EmbeddedOwner(*await asyncio.to_thread(_open, folder, make_store, keep_notices), limits)

    async def close(self) -> None:
        """Close the store. Sessions stay in it until they expire after the next open."""
        self._reaper.cancel()
        await asyncio.wait([self._reaper])
        if self._openings:
            await asyncio.wait(self._openings)
        for lease in self._leases.values():
            lease.end()
        self._leases.clear()
        if self._endings:
            await asyncio.wait(self._endings)
        if self.notices is not None:
            self.notices.end()
        await self._thread.stop()

    @property
    def broken(self) -> str | None:
        """Return why this owner cannot work any more; None: it can."""
        return self._broken.result() if self._broken.done() else None

    async def wait_broken(self) -> str:
        """Wait until the store is broken, which may be never, and return why."""
        return await asyncio.shield(self._broken)

    def _on_broken(self, reason: str) -> None:
        if not self._broken.done():
            _log.error("%s", reason)
            self._broken.set_result(reason)

    def _on_news(self, news: News) -> None:
        self._watches.fire(news.changes)
        if self.notices is not None:
            self.notices.add(news)

    # --- sessions -----------------------------------------------------------------------------------------

    async def open_session(
        self, request: messages.OpenSessionRequest, *, local: bool = False, peer: str = "", heard: bool = False
    ) -> messages.OpenSessionReply:
        """`local`: the session cannot outlive this process. `peer`: the connection that asks, if it is another's.
        `heard`: as for `NodeStore.open_session`."""
        if (refused := self._refuse_session(request, peer)) is not None:
            return messages.OpenSessionReply(outcome=messages.Outcome(code=messages.FAILED, message=refused))
        timeout_ms = min(max(request.timeout_ms, SHORTEST_TIMEOUT_MS), LONGEST_TIMEOUT_MS)
        opening = self._loop.create_task(self._open_session(timeout_ms, local, request.process, peer, heard))
        self._openings.add(opening)
        opening.add_done_callback(self._opened)
        try:
            record = (await asyncio.shield(opening)).record
        except MetadataError as error:
            return messages.OpenSessionReply(outcome=_outcome(error))
        return messages.OpenSessionReply(
            outcome=self._done(),
            session=messages.SessionRequest(session_id=record.session_id, password=record.password),
        )

    def _refuse_session(self, request: messages.OpenSessionRequest, peer: str) -> str | None:
        """Return why a session is refused; None: there is room for one."""
        if len(request.process) > MAX_PROCESS_CHARS:
            return f"the name of a process with {len(request.process)} characters; at most {MAX_PROCESS_CHARS}"
        left = self._limits.sessions - len(self._leases) - len(self._openings)
        if left <= 0:
            return f"{self._limits.sessions} sessions are open, as many as may be"
        if peer and sum(lease.peer == peer for lease in self._leases.values()) > left:
            return f"this connection has more sessions than the {left} that are left for all others"
        return None

    async def _open_session(self, timeout_ms: int, local: bool, process: str, peer: str, heard: bool) -> _Lease:
        record = await self._thread.post(
            lambda store: store.open_session(timeout_ms, local=local, process=process, heard=heard)
        )
        return self._grant(record, peer)

    def _grant(self, record: SessionRecord, peer: str = "") -> _Lease:
        deadline = self._loop.time() + record.timeout_ms / 1000
        lease = self._leases[record.session_id] = _Lease(record, deadline, SessionWatches(self._watches), peer)
        return lease

    def _opened(self, opening: asyncio.Task[_Lease]) -> None:
        self._openings.discard(opening)
        heard(opening)

    def heartbeat(self, request: messages.SessionRequest) -> messages.Outcome:
        """Renew the lease."""
        if (reason := self.broken) is not None:
            return messages.Outcome(code=messages.FAILED, message=reason)
        lease = self._lease(request)
        if lease is None:
            return _EXPIRED
        lease.deadline = self._loop.time() + lease.record.timeout_ms / 1000
        return self._done()

    async def close_session(self, request: messages.SessionRequest) -> messages.Outcome:
        if self._lease(request) is None:
            return _EXPIRED
        try:
            await self.expire(request.session_id)
        except MetadataError as error:
            return _outcome(error)
        return messages.Outcome()

    async def expire(self, session_id: int) -> None:
        """End a session now. `MetadataUnavailable`: its nodes remain until the store is opened again."""
        ending = self._end(session_id)
        if ending is not None:
            await asyncio.shield(ending)

    def _end(self, session_id: int) -> asyncio.Task[None] | None:
        lease = self._leases.pop(session_id, None)
        if lease is None:
            return None
        # Its lease is gone, so no later pass would try again: a caller that gives up must not end this. It comes first:
        # a client that hears of the end finds the nodes gone.
        ending = self._loop.create_task(self._end_in_steps(session_id))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        self._watches.remove_all(session_id, lease.watches)
        lease.end()
        return ending

    async def _end_in_steps(self, session_id: int) -> None:
        while not await self._thread.post(lambda store: store.end_session(session_id)):
            pass  # others have their turns between two

    async def events(self, request: messages.SessionRequest) -> AsyncIterator[messages.Event]:
        """Fired watches, at first all of them; ends with the session, or when another stream of it begins."""
        lease = self._lease(request)
        if lease is None:
            return
        watches = lease.watches
        self._watches.remove_all(request.session_id, watches)
        stream = watches.begin_stream()
        yield messages.Event(all_watches=True)
        while not lease.ended.is_set():
            await watches.signal.wait()
            if watches.stream is not stream:
                return
            fired, overflowed = watches.take()
            if fired or overflowed:
                yield messages.Event(watches=fired, all_watches=overflowed)

    def _done(self) -> messages.Outcome:
        return messages.Outcome(revision=self._store.revision)

    def _lease(self, request: messages.SessionRequest) -> _Lease | None:
        lease = self._leases.get(request.session_id)
        return lease if lease is not None and lease.record.password == request.password else None

    def session_by_id(self, session_id: int, process: str) -> messages.SessionRequest | None:
        """Return the identity of a session for a client that only knows its id, if its process has a name with this
        prefix; None if there is no such session."""
        lease = self._leases.get(session_id)
        if lease is None or not lease.record.process.startswith(process):
            return None
        return messages.SessionRequest(session_id=session_id, password=lease.record.password)

    async def _reap(self) -> None:
        while True:
            before = self._loop.time()
            await asyncio.sleep(_REAP_SECONDS)
            if self.broken is not None:
                continue  # that is reported, and nothing can be ended any more
            now = self._loop.time()
            absent = now - before - _REAP_SECONDS
            if absent > _REAP_SECONDS:
                for lease in self._leases.values():
                    lease.deadline += absent
            late = [session_id for session_id, lease in self._leases.items() if lease.deadline < now]
            endings = [ending for session_id in late if (ending := self._end(session_id)) is not None]
            if endings:  # all at once: between this look and an end no session can renew
                await asyncio.gather(*endings, return_exceptions=True)  # a broken store refuses everything anyway

    # --- operations ---------------------------------------------------------------------------------------

    async def read(self, call: Callable[[NodeStore], T], *, lists: bool = False) -> T:
        """Run a call that only reads the store. `lists`: the result may be large."""
        async with self._listings if lists else nullcontext():
            return await self._thread.post(call, only_reads=True)

    async def change(self, call: Callable[[NodeStore], T], *, lists: bool = False) -> T:
        """Run a call on the store, and return its result once that is durable. `lists`: it looks at many nodes."""
        async with self._listings if lists else nullcontext():
            return await self._thread.post(call)

    async def change_in_steps(self, call: Callable[[NodeStore], Generator[None, None, T]]) -> T:
        """Do the same in steps, between which others read the state before the change."""
        return await self._thread.post_steps(call)

    async def execute(self, request: messages.ExecuteRequest) -> messages.ExecuteReply:
        """Carry out one operation; the reply is sent only when its effect is durable."""
        lease = self._lease(request.session)
        if lease is None:
            return messages.ExecuteReply(outcome=_EXPIRED)
        call = _call(request)
        if call is None:
            outcome = messages.Outcome(code=messages.INVALID, message="the request names no known operation")
            return messages.ExecuteReply(outcome=outcome)
        watched = _watched(request)
        session_id = request.session.session_id

        def accept() -> None:
            if lease.ended.is_set():
                raise _SessionEnded
            if watched is not None:  # before the read: at worst it fires for a change that the read shows
                self._watches.add(session_id, lease.watches, *watched)

        reply: messages.ExecuteReply
        try:
            async with self._listings if request.WhichOneof("operation") in _LARGE else nullcontext():
                if request.HasField("create_all"):
                    reply = await self._thread.post_steps(call, accept)
                else:
                    only_reads = request.WhichOneof("operation") in _READS
                    reply = await self._thread.post(call, accept, only_reads=only_reads)
            reply.outcome.CopyFrom(self._done())
            return reply
        except _SessionEnded:
            return messages.ExecuteReply(outcome=_EXPIRED)
        except MetadataError as error:
            if watched is not None:
                self._watches.remove(session_id, lease.watches, watched[0])
            return messages.ExecuteReply(outcome=_outcome(error))


def _open(folder: str, make_store: bool, keep_notices: bool) -> tuple[NodeStore, list[SessionRecord]]:
    """Open a store and end the sessions whose process is gone. Return it with the remaining sessions."""
    store = NodeStore(folder, make=make_store, keep_notices=keep_notices)
    try:
        standing = []
        for record in store.sessions():
            if record.local or is_gone(record.process):
                while not store.end_session(record.session_id):
                    pass
            else:
                standing.append(record)
        store.sync()
    except BaseException:
        store.close()
        raise
    return store, standing


def _watched(request: messages.ExecuteRequest) -> tuple[int, tuple[Change, str]] | None:
    kind = request.WhichOneof("operation")
    if kind not in _WATCHING:
        return None
    read: messages.Read = getattr(request, kind)
    change = Change.CHILDREN if kind == "children" else Change.NODE
    return (read.watch, (change, read.path)) if read.watch else None


def _call(request: messages.ExecuteRequest) -> Callable[[NodeStore], Any] | None:
    kind = request.WhichOneof("operation")
    if kind is None:
        return None
    operation: Any = getattr(request, kind)
    handler = _HANDLERS[kind]
    return lambda store: handler(store, operation, request.session.session_id)


def _create(store: NodeStore, operation: messages.Create, session_id: int) -> messages.ExecuteReply:
    owner = session_id if operation.ephemeral else 0
    path, stat = store.create(operation.node.path, operation.node.data, owner, operation.sequential)
    return messages.ExecuteReply(path=path, stat=_stat(stat))


def _create_all(
    store: NodeStore, operation: messages.CreateAll, _: int
) -> Generator[None, None, messages.ExecuteReply]:
    yield from store.create_all([(node.path, node.data) for node in operation.nodes])
    return messages.ExecuteReply()


def _get(store: NodeStore, operation: messages.Read, _: int) -> messages.ExecuteReply:
    node = store.get(operation.path)
    return messages.ExecuteReply(data=node.data, stat=_stat(node.stat))


def _get_each(store: NodeStore, operation: messages.ReadEach, _: int) -> messages.ExecuteReply:
    reply, size = messages.ExecuteReply(), 0
    for path in operation.paths[:NODES_AT_ONCE]:
        try:
            node = store.get(path)
        except MetadataNotFound:
            reply.found.add()
            continue
        reply.found.add(data=node.data, stat=_stat(node.stat))
        size += len(node.data)
        if size >= _FOUND_BYTES:
            break
    return reply


def _exists(store: NodeStore, operation: messages.Read, _: int) -> messages.ExecuteReply:
    stat = store.exists(operation.path)
    return messages.ExecuteReply(stat=None if stat is None else _stat(stat))


def _children(store: NodeStore, operation: messages.Read, _: int) -> messages.ExecuteReply:
    names, parent = store.children(operation.path)
    return messages.ExecuteReply(
        names=names, stat=messages.Stat(child_version=parent.child_version, ctime_ms=parent.ctime_ms)
    )


def _set(store: NodeStore, operation: messages.Write, _: int) -> messages.ExecuteReply:
    stat = store.set(operation.path, operation.data, operation.version, _creation(operation))
    return messages.ExecuteReply(stat=_stat(stat))


def _delete(store: NodeStore, operation: messages.Delete, _: int) -> messages.ExecuteReply:
    store.delete(operation.path, operation.version, _creation(operation))
    return messages.ExecuteReply()


def _creation(operation: messages.Write | messages.Delete) -> int | None:
    """None: any, which clients of earlier releases mean always."""
    return operation.creation if operation.HasField("creation") else None


def _sync(store: NodeStore, operation: messages.Sync, _: int) -> messages.ExecuteReply:
    return messages.ExecuteReply()


_HANDLERS: Final[dict[str, Callable[[NodeStore, Any, int], Any]]] = {
    "create": _create,
    "create_all": _create_all,
    "get": _get,
    "get_each": _get_each,
    "exists": _exists,
    "children": _children,
    "set": _set,
    "delete": _delete,
    "sync": _sync,
}


def _stat(stat: NodeStat) -> messages.Stat:
    return messages.Stat(
        version=stat.version,
        ctime_ms=stat.ctime_ms,
        owner=stat.owner,
        children=stat.children,
        creation=stat.creation,
    )


def _outcome(error: MetadataError) -> messages.Outcome:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return messages.Outcome(code=code, message=str(error))
    assert isinstance(error, MetadataUnavailable)
    return messages.Outcome(code=messages.FAILED, message=str(error))
