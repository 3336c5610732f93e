"""One host's session with the virtual metadata service.

Invariants
- Requests are served, and answered, in the order in which they were made.
- When the connection breaks, the requests under way get `ConnectionLost`; the first few of them were carried out.
- A request that its caller gave up is carried out all the same, unless the connection breaks first.
- Nothing that is read is older than what this session has seen or written before.
- A watch fires once, also when the connection breaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bookie_protocol.errors import MetadataError, MetadataNotFound, MetadataUnavailable
from bookie_protocol.metadata_service.interface import Session, SessionState
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
)
from bookie_protocol.versioned import Identity

if TYPE_CHECKING:
    from tests.support.simulation.metadata import MetadataServer

HOST: Final = "metadata"
"""The service's host."""
RECONNECT_SECONDS: Final = 0.05


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

    keeps_times = True
    removes_directories = True

    def __init__(self, server: MetadataServer, host: str) -> None:
        self._server = server
        self._loop = server.network.loop
        self.host = host
        self.session = Session(server.options.session_timeout)
        self.session_id = NO_SESSION
        self.seen = 0
        self._calls: dict[_Call, None] = {}
        self._armed: dict[Watch, None] = {}
        self._last_arrival = 0.0
        self._last_answer = 0.0
        self._held_until = 0.0
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
        self._held_until = 0.0
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

    def hold(self, seconds: float) -> None:
        """What is asked for from now on arrives that much later; the connection, and so the session, lives on."""
        self._held_until = self._loop.time() + seconds

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
        session_id: int | None = None,
        timeout: float,
    ) -> Created:
        server = self._server
        return await self._call(
            lambda: server.apply_create(self, path, data, ephemeral, sequential), timeout, session_id=session_id
        )

    async def take_number(self, prefix: str, *, timeout: float) -> tuple[int, str | None]:
        return await number_by_node(self, prefix, timeout)

    async def create_all(
        self, nodes: Sequence[tuple[str, bytes]], *, session_id: int | None = None, timeout: float
    ) -> None:
        await self._call(lambda: self._server.apply_create_all(self, nodes), timeout, session_id=session_id)

    async def get(self, path: str, *, watch: Watch | None = None, timeout: float) -> Node:
        def read() -> Node:
            change = self._view()
            record = self._server.nodes.require(path, change)
            self._watch(path, watch, change)
            return Node(record.data, record.stat)

        return await self._call(read, timeout, writes=False)

    async def get_each(
        self, paths: Sequence[str], *, childless: bool = False, timeout: float
    ) -> list[Node | MetadataError]:
        def read() -> list[Node | MetadataError]:
            change = self._view()
            records = [self._server.nodes.at(path, change) for path in paths]
            return [
                MetadataNotFound(path) if record is None else Node(record.data, record.stat)
                for path, record in zip(paths, records, strict=True)
            ]

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
            self._server.on_list(self.host, path)
            return children

        return await self._call(read, timeout, writes=False)

    async def set(
        self, path: str, data: bytes, this: Identity | None, *, session_id: int | None = None, timeout: float
    ) -> NodeStat:
        return await self._call(lambda: self._server.apply_set(self, path, data, this), timeout, session_id=session_id)

    async def delete(self, path: str, this: Identity | None, *, session_id: int | None = None, timeout: float) -> None:
        await self._call(lambda: self._server.apply_delete(self, path, this), timeout, session_id=session_id)

    async def sync(self, path: str, *, timeout: float) -> None:
        def catch_up() -> None:
            self.seen = self._server.nodes.now

        await self._call(catch_up, timeout, writes=False)

    async def _call(
        self, run: Callable[[], Any], timeout: float, *, writes: bool = True, session_id: int | None = None
    ) -> Any:
        if self._closed:
            raise MetadataUnavailable("the metadata service was closed")
        deadline = self._loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                if self.session.state is not SessionState.CONNECTED:
                    await self.session.wait_connected()
                check_session(self.host, session_id, self.session_id)
                call = _Call(run, self._loop.create_future(), writes, self.session_id)
                self._calls[call] = None
                arrival = self._loop.time() + self._server.network.delay(self.host, HOST)
                self._last_arrival = max(arrival, self._last_arrival, self._held_until)
                self._loop.call_at(self._last_arrival, self._arrive, call)
                call.future.add_done_callback(lambda _: self._answered(call))
                return await call.future
        except TimeoutError:
            raise MetadataUnavailable(f"no answer from the virtual metadata service within {timeout:g} s") from None

    def _answered(self, call: _Call) -> None:
        if call.arrived:
            self._calls.pop(call, None)

    def _arrive(self, call: _Call) -> None:
        if call not in self._calls:
            return  # carried out, or lost, with the connection
        if not self._server.reaches(self.host):
            self._swallowed = True
            return
        outcome = self._run(call)
        if call.future.done():
            del self._calls[call]  # given up by its caller
            return
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
