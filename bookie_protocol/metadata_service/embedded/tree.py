"""`NodeTree` over an embedded store, wherever its owner is: in this process or behind gRPC.

Invariants
- The session is renewed every third of its time-out. While renewals fail it is SUSPENDED; when the owner
  says that it ended it is EXPIRED, all watches fire, and a new one is opened.
- While no session stands, calls wait for one, up to their time-out.
- When the event stream breaks, fired watches may be lost: then all watches fire.
- Who hears nothing for a third of the session's time-out takes a new connection: one whose other end vanished without a
  word never says so, and the session may still be saved by another.

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
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.lasting import lasting_task
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.processes import this_process
from bookie_protocol.metadata_service.interface import ANY_VERSION, Session, SessionState
from bookie_protocol.metadata_service.tree.nodes import (
    NO_SESSION,
    Children,
    ConnectionLost,
    Node,
    NodeStat,
    Watch,
    check_session,
)

_LONGEST_PAUSE: Final = 0.5

_ERRORS: Final[dict[int, type[MetadataError]]] = {
    messages.NOT_FOUND: MetadataNotFound,
    messages.EXISTS: MetadataExists,
    messages.VERSION_CONFLICT: MetadataVersionConflict,
    messages.NOT_EMPTY: MetadataNotEmpty,
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


class EmbeddedTree:
    """One session with an owner; `timeout` of the session in seconds."""

    def __init__(self, transport: Transport, timeout: float) -> None:
        self._transport = transport
        self._session = Session(timeout)
        self._identity = messages.SessionRequest()
        self._watches: dict[int, Watch] = {}
        self._watch_ids = itertools.count(1)
        self._upkeep: asyncio.Task[None] | None = None
        self._closing = False
        self._failure = ""
        """Why no session was opened last."""
        self._in_doubt = asyncio.Event()  # the event stream broke: renew now, the session may have ended

    @property
    def session(self) -> Session:
        return self._session

    @property
    def session_id(self) -> int:
        return self._identity.session_id or NO_SESSION

    async def connect(self) -> None:
        """Open the session.

        `MetadataUnavailable` if the owner does not answer within the session time-out.
        """
        timeout = self._session.default_timeout
        self._upkeep = lasting_task(self._keep_sessions(), "metadata session")
        try:
            async with asyncio.timeout(timeout):
                await self._session.wait_connected()
        except BaseException as error:
            await self.close()
            if not isinstance(error, TimeoutError):
                raise
            raise MetadataUnavailable(
                f"the embedded metadata store at {self._transport.target} did not answer within {timeout:g} s: check "
                f"metadataServiceUri and that its owner runs{self._failure}"
            ) from None

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.wait([self._upkeep])
        if self._session.state is SessionState.CONNECTED:
            with suppress(MetadataUnavailable):  # else it ends by itself
                await self._transport.close_session(self._identity, self._session.default_timeout)
        self._session.move(SessionState.CLOSED)
        await self._transport.close()

    # --- NodeTree -----------------------------------------------------------------------------------------

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
        node = messages.NewNode(path=path, data=data)
        operation = messages.Create(node=node, ephemeral=ephemeral, sequential=sequential)
        return (await self._execute(messages.ExecuteRequest(create=operation), timeout)).path

    async def create_all(self, nodes: Sequence[tuple[str, bytes]], *, timeout: float) -> None:
        operation = messages.CreateAll(nodes=[messages.NewNode(path=path, data=data) for path, data in nodes])
        await self._execute(messages.ExecuteRequest(create_all=operation), timeout)

    async def get(self, path: str, *, watch: Watch | None = None, timeout: float) -> Node:
        read = self._read(path, watch)
        reply = await self._watching(messages.ExecuteRequest(get=read), read.watch, timeout)
        return Node(reply.data, _stat(reply.stat))

    async def get_each(self, paths: Sequence[str], *, timeout: float) -> list[Node | MetadataError]:
        return await asyncio.gather(*(self._get_or_error(path, timeout) for path in paths))

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
        return Children(tuple(reply.names), reply.stat.child_version, reply.stat.ctime_ms)

    async def set(self, path: str, data: bytes, version: int, *, session_id: int | None = None, timeout: float) -> int:
        request = messages.ExecuteRequest(set=messages.Write(path=path, data=data, version=version))
        return (await self._execute(request, timeout, session_id)).stat.version

    async def delete(
        self, path: str, version: int = ANY_VERSION, *, session_id: int | None = None, timeout: float
    ) -> None:
        request = messages.ExecuteRequest(delete=messages.Delete(path=path, version=version))
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
                reply = await self._transport.execute(request, max(0.001, deadline - loop.time()))
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

    async def _keep_sessions(self) -> None:
        """One session after the other, until closed."""
        request = messages.OpenSessionRequest(
            timeout_ms=int(self._session.default_timeout * 1000), process=this_process()
        )
        while True:
            try:
                reply = await self._transport.open_session(request, self._session.default_timeout)
                self._check(reply.outcome)
            except MetadataUnavailable as error:
                self._failure = f" ({error})"
                await self._transport.reconnect()
                await asyncio.sleep(self._pause())
                continue
            self._identity = reply.session
            self._session.move(SessionState.CONNECTED)
            listening = lasting_task(self._listen(), "metadata events")
            try:
                await self._renew_until_expired()
            finally:
                listening.cancel()
                await asyncio.wait([listening])
            self._session.move(SessionState.EXPIRED)
            self._fire_all()

    async def _renew_until_expired(self) -> None:
        interval = self._session.default_timeout / 3
        while True:
            try:
                outcome = await self._transport.heartbeat(self._identity, interval)
                if outcome.code == messages.SESSION_EXPIRED:
                    return
                self._check(outcome)
            except MetadataUnavailable:
                self._session.move(SessionState.SUSPENDED)
                await self._transport.reconnect()
                await asyncio.sleep(self._pause())
                continue
            self._session.move(SessionState.CONNECTED)
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._in_doubt.wait()
            self._in_doubt.clear()

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

    def _pause(self) -> float:
        return min(self._session.default_timeout / 10, _LONGEST_PAUSE)

    def _fire(self, number: int) -> None:
        watch = self._watches.pop(number, None)
        if watch is not None:
            watch()

    def _fire_all(self) -> None:
        for number in list(self._watches):
            self._fire(number)


def _stat(stat: messages.Stat) -> NodeStat:
    return NodeStat(stat.version, stat.child_version, stat.ctime_ms, stat.owner, stat.children)
