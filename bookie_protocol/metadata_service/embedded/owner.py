"""The owner of an embedded store: sessions as leases, operations, watches.

Invariants
- A session ends when its lease was not renewed for its time-out, or when its client says so; its ephemeral
  nodes go in the same write.
- Sessions outlive the owner: after a restart each gets its full time-out once more. But those of the former
  owner's own process, and of processes of this machine that are certainly gone, end with the open: nobody
  has to wait for the dead. (The database admits one owner, so the former one is gone.)
- A session that has begun to end does end, though whoever ended it gives up, or closes the owner, meanwhile.
- An operation of an ended session is refused; one that was accepted before the end is carried out before it.
- At most `commits.MAX_PENDING` operations wait for the store; beyond, callers wait for their turn.

Threads: event loop only; the store has its own thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from bookie_protocol.errors import (
    MetadataError,
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.commits import StoreThread
from bookie_protocol.metadata_service.embedded.processes import is_gone
from bookie_protocol.metadata_service.embedded.records import SessionRecord
from bookie_protocol.metadata_service.embedded.store import Change, NodeStore
from bookie_protocol.metadata_service.embedded.watches import SessionWatches, Watches
from bookie_protocol.metadata_service.tree.nodes import NodeStat

MAX_SESSIONS: Final = 10_000
SHORTEST_TIMEOUT_MS: Final = 100
LONGEST_TIMEOUT_MS: Final = 600_000
_REAP_SECONDS: Final = 0.05

_CODES: Final = (
    (MetadataNotFound, messages.NOT_FOUND),
    (MetadataExists, messages.EXISTS),
    (MetadataVersionConflict, messages.VERSION_CONFLICT),
    (MetadataNotEmpty, messages.NOT_EMPTY),
)
_EXPIRED: Final = messages.Outcome(code=messages.SESSION_EXPIRED, message="the session has ended")


@dataclass(slots=True)
class _Lease:
    record: SessionRecord
    deadline: float
    watches: SessionWatches = field(default_factory=SessionWatches)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class _SessionEnded(Exception):
    """The session of an operation ended before its turn came."""


class EmbeddedOwner:
    """One open store. Use `EmbeddedOwner.open`."""

    def __init__(self, store: NodeStore, sessions: list[SessionRecord]) -> None:
        self._loop = asyncio.get_running_loop()
        self._watches = Watches()
        self._thread = StoreThread(store, self._watches.fire)
        self._leases: dict[int, _Lease] = {}
        for record in sessions:
            self._leases[record.session_id] = _Lease(record, self._loop.time() + record.timeout_ms / 1000)
        self._endings: set[asyncio.Task[None]] = set()
        self._reaper = self._loop.create_task(self._reap())

    @staticmethod
    async def open(folder: str) -> EmbeddedOwner:
        """Open or create the store in this folder. `MetadataUnavailable` if it cannot be opened."""
        return EmbeddedOwner(*await asyncio.to_thread(_open, folder))

    async def close(self) -> None:
        """Close the store. Sessions stay in it until they expire after the next open."""
        self._reaper.cancel()
        await asyncio.wait([self._reaper])
        for lease in self._leases.values():
            lease.ended.set()
        self._leases.clear()
        if self._endings:
            await asyncio.wait(self._endings)
        await self._thread.stop()

    # --- sessions -----------------------------------------------------------------------------------------

    async def open_session(
        self, request: messages.OpenSessionRequest, *, local: bool = False
    ) -> messages.OpenSessionReply:
        """`local`: the session cannot outlive this process."""
        if len(self._leases) >= MAX_SESSIONS:
            return messages.OpenSessionReply(
                outcome=messages.Outcome(code=messages.FAILED, message=f"{MAX_SESSIONS} sessions are open")
            )
        timeout_ms = min(max(request.timeout_ms, SHORTEST_TIMEOUT_MS), LONGEST_TIMEOUT_MS)
        try:
            record = await self._thread.post(
                lambda store: store.open_session(timeout_ms, local=local, process=request.process)
            )
        except MetadataError as error:
            return messages.OpenSessionReply(outcome=_outcome(error))
        self._leases[record.session_id] = _Lease(record, self._loop.time() + timeout_ms / 1000)
        return messages.OpenSessionReply(
            outcome=messages.Outcome(),
            session=messages.SessionRequest(session_id=record.session_id, password=record.password),
        )

    def heartbeat(self, request: messages.SessionRequest) -> messages.Outcome:
        """Renew the lease."""
        lease = self._lease(request)
        if lease is None:
            return _EXPIRED
        lease.deadline = self._loop.time() + lease.record.timeout_ms / 1000
        return messages.Outcome()

    async def close_session(self, request: messages.SessionRequest) -> messages.Outcome:
        if self._lease(request) is None:
            return _EXPIRED
        try:
            await self.expire(request.session_id)
        except MetadataError as error:
            return _outcome(error)
        return messages.Outcome()

    async def expire(self, session_id: int) -> None:
        """End a session now. `MetadataUnavailable`: its nodes stand until the store is opened again."""
        lease = self._leases.pop(session_id, None)
        if lease is None:
            return
        # Its lease is gone, so nobody would try again: that the caller gives up must not end this. It comes first:
        # whoever hears of the end finds the nodes gone.
        ending = self._loop.create_task(self._thread.post(lambda store: store.end_session(session_id)))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        self._watches.remove_all(session_id, lease.watches)
        lease.ended.set()
        lease.watches.signal.set()
        await asyncio.shield(ending)

    async def events(self, request: messages.SessionRequest) -> AsyncIterator[messages.Event]:
        """Fired watches; ends with the session."""
        lease = self._lease(request)
        if lease is None:
            return
        yield messages.Event()
        while not lease.ended.is_set():
            fired, overflowed = await lease.watches.take()
            if fired or overflowed:
                yield messages.Event(watches=fired, all_watches=overflowed)

    def _lease(self, request: messages.SessionRequest) -> _Lease | None:
        lease = self._leases.get(request.session_id)
        return lease if lease is not None and lease.record.password == request.password else None

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(_REAP_SECONDS)
            now = self._loop.time()
            for session_id in [i for i, lease in self._leases.items() if lease.deadline < now]:
                with suppress(MetadataError):  # the store is broken: it refuses everything anyway
                    await self.expire(session_id)

    # --- operations ---------------------------------------------------------------------------------------

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

        try:
            return await self._thread.post(call, accept)
        except _SessionEnded:
            return messages.ExecuteReply(outcome=_EXPIRED)
        except MetadataError as error:
            if watched is not None:
                self._watches.remove(session_id, lease.watches, watched[0])
            return messages.ExecuteReply(outcome=_outcome(error))


def _open(folder: str) -> tuple[NodeStore, list[SessionRecord]]:
    """Open a store and end the sessions that nobody can hold any more; returns it with those that stand."""
    store = NodeStore(folder)
    try:
        standing = []
        for record in store.sessions():
            if record.local or is_gone(record.process):
                store.end_session(record.session_id)
            else:
                standing.append(record)
        store.sync()
    except BaseException:
        store.close()
        raise
    return store, standing


def _watched(request: messages.ExecuteRequest) -> tuple[int, tuple[Change, str]] | None:
    kind = request.WhichOneof("operation")
    if kind not in ("get", "exists", "children"):
        return None
    read: messages.Read = getattr(request, kind)
    change = Change.CHILDREN if kind == "children" else Change.NODE
    return (read.watch, (change, read.path)) if read.watch else None


def _call(request: messages.ExecuteRequest) -> Callable[[NodeStore], messages.ExecuteReply] | None:
    kind = request.WhichOneof("operation")
    if kind is None:
        return None
    operation: Any = getattr(request, kind)
    handler = _HANDLERS[kind]
    return lambda store: handler(store, operation, request.session.session_id)


def _create(store: NodeStore, operation: messages.Create, session_id: int) -> messages.ExecuteReply:
    owner = session_id if operation.ephemeral else 0
    path = store.create(operation.node.path, operation.node.data, owner, operation.sequential)
    return messages.ExecuteReply(path=path)


def _create_all(store: NodeStore, operation: messages.CreateAll, _: int) -> messages.ExecuteReply:
    store.create_all([(node.path, node.data) for node in operation.nodes])
    return messages.ExecuteReply()


def _get(store: NodeStore, operation: messages.Read, _: int) -> messages.ExecuteReply:
    node = store.get(operation.path)
    return messages.ExecuteReply(data=node.data, stat=_stat(node.stat))


def _exists(store: NodeStore, operation: messages.Read, _: int) -> messages.ExecuteReply:
    stat = store.exists(operation.path)
    return messages.ExecuteReply(stat=None if stat is None else _stat(stat))


def _children(store: NodeStore, operation: messages.Read, _: int) -> messages.ExecuteReply:
    found = store.children(operation.path)
    return messages.ExecuteReply(names=found.names, stat=messages.Stat(child_version=found.child_version))


def _set(store: NodeStore, operation: messages.Write, _: int) -> messages.ExecuteReply:
    return messages.ExecuteReply(stat=_stat(store.set(operation.path, operation.data, operation.version)))


def _delete(store: NodeStore, operation: messages.Delete, _: int) -> messages.ExecuteReply:
    store.delete(operation.path, operation.version)
    return messages.ExecuteReply()


def _sync(store: NodeStore, operation: messages.Sync, _: int) -> messages.ExecuteReply:
    return messages.ExecuteReply()


_HANDLERS: Final[dict[str, Callable[[NodeStore, Any, int], messages.ExecuteReply]]] = {
    "create": _create,
    "create_all": _create_all,
    "get": _get,
    "exists": _exists,
    "children": _children,
    "set": _set,
    "delete": _delete,
    "sync": _sync,
}


def _stat(stat: NodeStat) -> messages.Stat:
    return messages.Stat(
        version=stat.version,
        child_version=stat.child_version,
        ctime_ms=stat.ctime_ms,
        owner=stat.owner,
        children=stat.children,
    )


def _outcome(error: MetadataError) -> messages.Outcome:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return messages.Outcome(code=code, message=str(error))
    assert isinstance(error, MetadataUnavailable)
    return messages.Outcome(code=messages.FAILED, message=str(error))
