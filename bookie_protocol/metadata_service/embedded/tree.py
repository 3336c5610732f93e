"""`NodeTree` over an embedded store, wherever its owner is: in this process or behind gRPC.

Invariants
- While there is no session, calls wait for one, up to their time-out (`tree.keeping` says how sessions are kept).
- When the event stream breaks, fired watches may be lost: then all watches fire.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final, Protocol

from bookie_protocol.errors import (
    MetadataError,
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataReplaced,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.processes import this_process
from bookie_protocol.metadata_service.interface import Identity
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
    number_by_node,
    version_of_children,
)

_ANY_VERSION: Final = -1


class _NotKnown(MetadataUnavailable):
    """The owner knows no operation of this kind."""


_ERRORS: Final[dict[int, type[MetadataError]]] = {
    messages.NOT_FOUND: MetadataNotFound,
    messages.EXISTS: MetadataExists,
    messages.VERSION_CONFLICT: MetadataVersionConflict,
    messages.NOT_EMPTY: MetadataNotEmpty,
    messages.REPLACED: MetadataReplaced,
    messages.INVALID: _NotKnown,
}


class Transport(Protocol):
    """The way to the owner. `timeout` in seconds; `ConnectionLost` if there was no answer."""

    @property
    def target(self) -> str:
        """The owner, for messages."""
        ...

    async def open_session(self, request: messages.OpenSessionRequest, timeout: float) -> messages.OpenSessionReply: ...

    async def heartbeat(self, request: messages.SessionRequest, timeout: float) -> messages.Outcome: ...

    async def close_session(self, request: messages.SessionRequest, timeout: float) -> messages.Outcome: ...

    async def execute(self, request: messages.ExecuteRequest, timeout: float) -> messages.ExecuteReply: ...

    def events(self, request: messages.SessionRequest) -> AsyncIterator[messages.Event]:
        """Ends, or raises `ConnectionLost`, when the stream breaks."""
        ...

    async def reconnect(self) -> None:
        """A request was not answered: if nothing else was since, take a new connection.

        What is under way on the present one ends in `ConnectionLost`.
        """
        ...

    async def close(self) -> None: ...


class EmbeddedTree(KeptSession):
    """One session with an owner; `timeout` of the session in seconds."""

    keeps_times: Final = True
    removes_directories: Final = True

    def __init__(self, transport: Transport, timeout: float) -> None:
        super().__init__(timeout)
        self._transport = transport
        self._identity = messages.SessionRequest()
        self._watches: dict[int, Watch] = {}
        self._watch_ids = itertools.count(1)

    @property
    def session_id(self) -> int:
        return self._identity.session_id or NO_SESSION

    # --- NodeTree -----------------------------------------------------------------------------------------

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
        node = messages.NewNode(path=path, data=data)
        operation = messages.Create(node=node, ephemeral=ephemeral, sequential=sequential)
        reply = await self._execute(messages.ExecuteRequest(create=operation), timeout, session_id)
        return Created(reply.path, reply.stat.creation)

    async def take_number(self, prefix: str, *, timeout: float) -> tuple[int, str | None]:
        return await number_by_node(self, prefix, timeout)

    async def create_all(
        self, nodes: Sequence[tuple[str, bytes]], *, session_id: int | None = None, timeout: float
    ) -> None:
        operation = messages.CreateAll(nodes=[messages.NewNode(path=path, data=data) for path, data in nodes])
        await self._execute(messages.ExecuteRequest(create_all=operation), timeout, session_id)

    async def get(self, path: str, *, watch: Watch | None = None, timeout: float) -> Node:
        read = self._read(path, watch)
        reply = await self._watching(messages.ExecuteRequest(get=read), read.watch, timeout)
        return Node(reply.data, _stat(reply.stat))

    async def get_each(
        self, paths: Sequence[str], *, childless: bool = False, timeout: float
    ) -> list[Node | MetadataError]:
        found: list[Node | MetadataError] = []
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            while len(found) < len(paths):
                left = paths[len(found) :]
                request = messages.ExecuteRequest(get_each=messages.ReadEach(paths=left))
                answers = (await self._execute(request, max(0.001, deadline - loop.time()))).found
                if not 0 < len(answers) <= len(left):
                    raise MetadataUnavailable(f"{self._transport.target} answered {len(answers)} of {len(left)} reads")
                for path, each in zip(left, answers, strict=False):
                    is_there = each.HasField("stat")
                    missing = MetadataNotFound(f"{path} does not exist")
                    found.append(Node(each.data, _stat(each.stat)) if is_there else missing)
        except _NotKnown:  # an owner of an earlier release
            return await asyncio.gather(*(self._get_or_error(path, timeout) for path in paths))
        return found

    async def _get_or_error(self, path: str, timeout: float) -> Node | MetadataError:
        try:
            return await self.get(path, timeout=timeout)
        except MetadataUnavailable:
            raise
        except MetadataError as error:
            return error

    async def exists(self, path: str, *, watch: Watch | None = None, timeout: float) -> NodeStat | None:
        read = self._read(path, watch)
        reply = await self._watching(messages.ExecuteRequest(exists=read), read.watch, timeout)
        return _stat(reply.stat) if reply.HasField("stat") else None

    async def children(self, path: str, *, watch: Watch | None = None, timeout: float) -> Children:
        read = self._read(path, watch)
        reply = await self._watching(messages.ExecuteRequest(children=read), read.watch, timeout)
        return Children(tuple(reply.names), version_of_children(reply.stat.ctime_ms, reply.stat.child_version))

    async def set(
        self, path: str, data: bytes, this: Identity | None, *, session_id: int | None = None, timeout: float
    ) -> NodeStat:
        version, creation = _named(this)
        write = messages.Write(path=path, data=data, version=version, creation=creation)
        return _stat((await self._execute(messages.ExecuteRequest(set=write), timeout, session_id)).stat)

    async def delete(self, path: str, this: Identity | None, *, session_id: int | None = None, timeout: float) -> None:
        version, creation = _named(this)
        request = messages.ExecuteRequest(delete=messages.Delete(path=path, version=version, creation=creation))
        await self._execute(request, timeout, session_id)

    async def sync(self, path: str, *, timeout: float) -> None:
        await self._execute(messages.ExecuteRequest(sync=messages.Sync()), timeout)

    # --- requests -----------------------------------------------------------------------------------------

    def _read(self, path: str, watch: Watch | None) -> messages.Read:
        if watch is None:
            return messages.Read(path=path)
        number = next(self._watch_ids)
        self._watches[number] = watch
        return messages.Read(path=path, watch=number)

    async def _watching(self, request: messages.ExecuteRequest, watch: int, timeout: float) -> messages.ExecuteReply:
        try:
            return await self._execute(request, timeout)
        except BaseException:
            self._watches.pop(watch, None)
            raise

    async def _execute(
        self, request: messages.ExecuteRequest, timeout: float, session_id: int | None = None
    ) -> messages.ExecuteReply:
        if self._closing:
            raise MetadataUnavailable("the metadata service was closed")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._session.wait_connected()
                check_session(self._transport.target, session_id, self.session_id)
                request.session.CopyFrom(self._identity)
                asked = self._session.asks()
                reply = await self._transport.execute(request, max(0.001, deadline - loop.time()))
                self._session.answered(reply.outcome.revision, asked)
        except TimeoutError:
            raise MetadataUnavailable(
                f"no answer from the embedded metadata store at {self._transport.target} within {timeout:g} s"
            ) from None
        self._check(reply.outcome)
        return reply

    def _check(self, outcome: messages.Outcome) -> None:
        if outcome.code == messages.OK:
            return
        if outcome.code == messages.SESSION_EXPIRED:
            raise ConnectionLost(f"the session with {self._transport.target} has ended")
        raise _ERRORS.get(outcome.code, MetadataUnavailable)(outcome.message)

    # --- session ------------------------------------------------------------------------------------------

    async def _open_session(self) -> None:
        request = messages.OpenSessionRequest(
            timeout_ms=int(self._session.default_timeout * 1000), process=this_process()
        )
        asked = self._session.asks()
        reply = await self._transport.open_session(request, self._session.default_timeout)
        self._check(reply.outcome)
        self._session.answered(reply.outcome.revision, asked)
        self._identity = reply.session

    async def _renew(self, within: float) -> bool:
        asked = self._session.asks()
        outcome = await self._transport.heartbeat(self._identity, within)
        if outcome.code == messages.SESSION_EXPIRED:
            return False
        self._check(outcome)
        self._session.answered(outcome.revision, asked)
        return True

    async def _end_session(self) -> None:
        await self._transport.close_session(self._identity, self._session.default_timeout)

    async def _reconnect(self) -> None:
        await self._transport.reconnect()

    async def _close_connection(self) -> None:
        await self._transport.close()

    def _no_answer(self, timeout: float) -> str:
        return (
            f"the embedded metadata store at {self._transport.target} did not answer within {timeout:g} s: check "
            "metadataServiceUri and that its owner runs"
        )

    async def _listen(self) -> None:
        while True:
            with suppress(MetadataUnavailable):
                async for event in self._transport.events(self._identity):
                    if event.all_watches:
                        self._fire_all()
                    for number in event.watches:
                        self._fire(number)
            self._in_doubt.set()
            self._fire_all()
            await asyncio.sleep(self._pause())

    def _fire(self, number: int) -> None:
        watch = self._watches.pop(number, None)
        if watch is not None:
            watch()

    def _fire_all(self) -> None:
        for number in list(self._watches):
            self._fire(number)


def _stat(stat: messages.Stat) -> NodeStat:
    return NodeStat(stat.version, stat.creation, stat.ctime_ms, stat.owner, stat.children)


def _named(this: Identity | None) -> tuple[int, int | None]:
    """Version and creation as the owner compares them."""
    return (_ANY_VERSION, None) if this is None else (this.version, this.creation)
