"""`NodeTree` over kazoo.

Invariants
- A request is handed to kazoo only while there is a connection, so that nothing piles up in kazoo's queue and nothing
  is carried out long after its caller gave up. At most `MAX_IN_FLIGHT` requests are under way.
- Losing the connection fails what is under way with `ConnectionLost`; kazoo then fires all watches, and so
  do we.
- After an expired session kazoo opens a new one by itself. Should its connection thread end for another reason, it is
  started again, as a new session, until there is one: kazoo does not report a second end in a row.
- Only ZooKeeper's own NONODE becomes `MetadataNotFound`.
- The session has its id from the moment it is CONNECTED until the next one is, whatever the connection does meanwhile:
  the id says whose a node is, not whether anybody can be asked.
- A request is sent on the connection that the loop knows of, or fails. kazoo's thread may be a session ahead: after a
  pause of the process it has a new one before the loop hears of the old one's end.
- ZooKeeper compares versions alone, which begin again with each node. So a conditional write looks at the node's czxid
  first, behind a sync, and is sent in the same session: what was created before the write began is safe. Between look
  and write lies one answer. Should a node be deleted and made again in that moment, the answer to the write says so.

Threads: event loop only, but for the two listeners, which hop.

Source: docs/internals/metadata-layout.md, sections 1.2, 12 and 13.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kazoo.client import KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.protocol.states import KeeperState
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Permissions

from bookie_protocol.errors import (
    InvalidConfiguration,
    MetadataError,
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataRefused,
    MetadataReplaced,
    MetadataUnavailable,
    MetadataVersionConflict,
    SessionEnded,
)
from bookie_protocol.metadata_service.interface import Identity, Session, SessionState
from bookie_protocol.metadata_service.options import MetadataServiceOptions, MetadataServiceUri, MetadataTls, SaslLogin
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
from bookie_protocol.metadata_service.zookeeper.client import (
    LONGEST_RECONNECT_PAUSE,
    Found,
    ReadBatches,
    await_result,
    hop,
    make_client,
)

MAX_IN_FLIGHT: Final = 1024
_ANY_VERSION: Final = -1
_LOST: Final = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    SessionMovedError,
    OperationTimeoutError,
)
_DEFINITE: Final = {
    NoNodeError: (MetadataNotFound, "does not exist"),
    NodeExistsError: (MetadataExists, "exists already"),
    BadVersionError: (MetadataVersionConflict, "was changed by somebody else"),
    NotEmptyError: (MetadataNotEmpty, "has children"),
    NoChildrenForEphemeralsError: (MetadataUnavailable, "cannot be made: the node above it is ephemeral"),
}

_log = logging.getLogger(__name__)


class ZooKeeperTree:
    """One ZooKeeper session. `hosts` is a connect string, `timeout` the session time-out in seconds.

    `auth` holds (scheme, credential) pairs, `sasl` a login; with `secure` new nodes belong to their creator
    alone (`zkEnableSecurity`). Raises `InvalidConfiguration` if the login needs a package that is missing, or a file of
    TLS cannot be used.
    """

    keeps_times: Final = True
    removes_directories: Final = True

    def __init__(
        self,
        hosts: str,
        timeout: float,
        *,
        auth: Sequence[tuple[str, str]] = (),
        sasl: SaslLogin | None = None,
        secure: bool = False,
        tls: MetadataTls | None = None,
    ) -> None:
        self._hosts = hosts
        self._loop = asyncio.get_running_loop()
        self._session = Session(timeout)
        self._places = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._closing = False
        self._restart: asyncio.Task[None] | None = None
        self._identity: tuple[int, bytes] | None = None
        self._client = make_client(hosts, timeout, auth, sasl, self._agreed, secure=secure, tls=tls)
        self._reads = ReadBatches(self._client)
        self._client.add_listener(self._on_kazoo_state)
        self._tell_loop = hop(self._loop, self._on_state)

    @property
    def session(self) -> Session:
        return self._session

    @property
    def session_id(self) -> int:
        return NO_SESSION if self._identity is None else self._identity[0]

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """Id and password of the session: what another process needs to take it over."""
        return self._identity

    async def connect(self) -> None:
        """Open the session. `MetadataUnavailable` if no server answers within the session time-out."""
        timeout = self._session.default_timeout
        self._client.start_async()
        try:
            async with asyncio.timeout(timeout):
                await self._session.wait_connected()
        except BaseException as error:
            await self.close()
            if not isinstance(error, TimeoutError):
                raise
            raise MetadataUnavailable(
                f"no ZooKeeper server of {self._hosts} answered within {timeout:g} s: check metadataServiceUri and "
                f"that the servers run{self._client.handler.failure}"
            ) from None

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
        def request() -> Any:
            check_session(path, session_id, self.session_id)
            acl = None
            if open_to_all:  # who may change an access list may also hide the node from us, whose it is
                acl = READ_ACL_UNSAFE if ephemeral else OPEN_ACL_UNSAFE
            return self._client.create_async(
                path, data, acl=acl, ephemeral=ephemeral, sequence=sequential, include_data=True
            )

        created, stat = await self._call(path, request, timeout)
        return Created(str(created), stat.czxid)

    async def take_number(self, prefix: str, *, timeout: float) -> tuple[int, str | None]:
        return await number_by_node(self, prefix, timeout)

    async def create_all(
        self, nodes: Sequence[tuple[str, bytes]], *, session_id: int | None = None, timeout: float
    ) -> None:
        def fill(transaction: Any) -> None:
            for path, data in nodes:
                transaction.create(path, data)

        await self._commit([path for path, _ in nodes], fill, session_id, timeout)

    async def delete_while(
        self, paths: Sequence[str], checked: str, version: int, *, session_id: int, timeout: float
    ) -> None:
        """Delete nodes, all or none, if another one has this version still. `MetadataNotFound`: one of these or that is
        missing; `MetadataVersionConflict`; `SessionEnded` as for `set`."""

        def fill(transaction: Any) -> None:
            transaction.check(checked, version)
            for path in paths:
                transaction.delete(path)

        await self._commit([checked, *paths], fill, session_id, timeout)

    async def _commit(
        self, paths: Sequence[str], fill: Callable[[Any], None], session_id: int | None, timeout: float
    ) -> None:
        """Carry out a transaction with a request for each path, or raise the error of the one that fails."""

        def request() -> Any:
            check_session(paths[0], session_id, self.session_id)
            transaction = self._client.transaction()
            fill(transaction)
            return transaction.commit_async()

        results = await self._call(paths[0], request, timeout)
        for path, outcome in zip(paths, results, strict=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, RolledBackError | RuntimeInconsistency):
                raise self._translate(path, outcome)

    async def get(self, path: str, *, watch: Watch | None = None, timeout: float) -> Node:
        def request() -> Awaitable[Any]:
            if watch is None:
                return self._reads.get(path)
            return await_result(self._client.get_async(path, watch=self._watcher(watch)))

        data, stat = await self._answer(path, request, timeout)
        return Node(data, _stat(stat))

    async def get_each(
        self, paths: Sequence[str], *, childless: bool = False, timeout: float
    ) -> list[Node | MetadataError]:
        outcomes = await self._answer(paths[0], lambda: self._reads.get_each(paths), timeout) if paths else []
        return [self._node_or_error(path, outcome) for path, outcome in zip(paths, outcomes, strict=True)]

    def _node_or_error(self, path: str, outcome: Found | BaseException) -> Node | MetadataError:
        if isinstance(outcome, KazooException):
            error = self._translate(path, outcome)
            if isinstance(error, ConnectionLost):
                raise error  # another try may answer for all of them
            return error
        if isinstance(outcome, BaseException):
            raise outcome
        return Node(outcome[0], _stat(outcome[1]))

    async def exists(self, path: str, *, watch: Watch | None = None, timeout: float) -> NodeStat | None:
        stat = await self._call(path, lambda: self._client.exists_async(path, watch=self._watcher(watch)), timeout)
        return None if stat is None else _stat(stat)

    async def children(self, path: str, *, watch: Watch | None = None, timeout: float) -> Children:
        def request() -> Any:
            return self._client.get_children_async(path, watch=self._watcher(watch), include_data=True)

        names, stat = await self._call(path, request, timeout)
        return Children(tuple(names), version_of_children(stat.ctime, stat.cversion))

    async def set(
        self, path: str, data: bytes, this: Identity | None, *, session_id: int | None = None, timeout: float
    ) -> NodeStat:
        def request(session: int | None) -> Any:
            check_session(path, session, self.session_id)
            return self._client.set_async(path, data, _ANY_VERSION if this is None else this.version)

        stat = await self._change(path, this, request, session_id, timeout)
        if this is not None and stat.czxid != this.creation:
            _log.error("%s was deleted and made again while it was written: what was made has been overwritten", path)
            raise _replaced(path)
        return _stat(stat)

    async def delete(self, path: str, this: Identity | None, *, session_id: int | None = None, timeout: float) -> None:
        def request(session: int | None) -> Any:
            check_session(path, session, self.session_id)
            return self._client.delete_async(path, _ANY_VERSION if this is None else this.version)

        await self._change(path, this, request, session_id, timeout)

    async def _change(
        self,
        path: str,
        this: Identity | None,
        request: Callable[[int | None], Any],
        session_id: int | None,
        timeout: float,
    ) -> Any:
        """Look, then carry out the request in the session of the look. `session_id`: both in that one."""
        deadline = self._loop.time() + timeout
        if this is None:
            return await self._call(path, lambda: request(session_id), timeout)
        session = await self._look(path, this, session_id, timeout)
        try:
            return await self._call(path, lambda: request(session), max(0.0, deadline - self._loop.time()))
        except SessionEnded as error:
            if session_id is not None:
                raise
            raise ConnectionLost(f"{path}: {error}") from error  # another look, in the session of then

    async def _look(self, path: str, this: Identity, session_id: int | None, timeout: float) -> int:
        """The session in which the node was seen to be this one. `MetadataNotFound`, `MetadataReplaced`,
        `MetadataVersionConflict`."""
        session = NO_SESSION

        async def request() -> Any:
            nonlocal session
            check_session(path, session_id, self.session_id)
            session = self.session_id
            synced, found = self._client.sync_async(path), self._client.exists_async(path)
            await await_result(synced)  # only what is read behind a sync that was carried out is no older than it
            return await await_result(found)

        stat = await self._answer(path, request, timeout)
        if stat is None:
            raise MetadataNotFound(f"{path} does not exist")
        if stat.czxid != this.creation:
            raise _replaced(path)
        if stat.version != this.version:
            raise MetadataVersionConflict(f"{path} has version {stat.version}, not {this.version}")
        return session

    async def changers(self, path: str, *, timeout: float) -> frozenset[tuple[str, str]]:
        """Return the users, as scheme and id, who may do more to a node than read it. `MetadataNotFound`."""
        found, _ = await self._call(path, lambda: self._client.get_acls_async(path), timeout)
        return frozenset((each.id.scheme, each.id.id) for each in found if each.perms & ~Permissions.READ)

    async def sync(self, path: str, *, timeout: float) -> None:
        await self._call(path, lambda: self._client.sync_async(path), timeout)

    async def close(self) -> None:
        """End the session, if a server answers within its time-out; its ephemeral nodes go with it."""
        if self._closing:
            return
        self._closing = True
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.wait([self._restart])
        await asyncio.to_thread(self._stop)
        self._session.move(SessionState.CLOSED)

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()

    # --- requests -----------------------------------------------------------------------------------------

    async def _call(self, path: str, request: Callable[[], Any], timeout: float) -> Any:
        """Return the result of a request to kazoo."""
        return await self._answer(path, lambda: await_result(request()), timeout)

    async def _answer(self, path: str, request: Callable[[], Awaitable[Any]], timeout: float) -> Any:
        if self._closing:
            raise MetadataUnavailable(f"{path}: the metadata service was closed")
        try:
            async with asyncio.timeout(timeout), self._places:
                await self._session.wait_connected()
                asked = self._session.asks()
                answer = await request()
                self._session.answered(self._client.last_zxid, asked)
                return answer
        except TimeoutError:
            raise MetadataUnavailable(
                f"{path}: no answer from ZooKeeper at {self._hosts} within {timeout:g} s"
            ) from None
        except KazooException as error:
            raise self._translate(path, error) from error

    def _translate(self, path: str, error: Exception) -> MetadataError:
        for kind, (ours, meaning) in _DEFINITE.items():
            if isinstance(error, kind):
                return ours(f"{path} {meaning}")
        if isinstance(error, _LOST):
            return ConnectionLost(f"{path}: connection to ZooKeeper at {self._hosts} lost ({type(error).__name__})")
        if isinstance(error, NoAuthError | AuthFailedError | SessionClosedRequireSaslError):
            return MetadataRefused(
                f"{path}: ZooKeeper at {self._hosts} refuses access; check the credentials and zkEnableSecurity"
                f"{self._client.handler.failure}"
            )
        return MetadataUnavailable(f"{path}: ZooKeeper at {self._hosts} failed: {type(error).__name__} {error}")

    def _watcher(self, watch: Watch | None) -> Callable[..., None] | None:
        if watch is None:
            return None
        return _Watcher(watch, hop(self._loop, watch))

    # --- session ------------------------------------------------------------------------------------------

    def _agreed(self, seconds: float) -> None:
        """Note the time-out that the server agreed to; on kazoo's connection thread."""
        self._session.expires_after = seconds

    def _on_kazoo_state(self, state: str) -> None:
        """Hand a change of the connection to the loop; on kazoo's connection thread."""
        identity = self._client.client_id  # none while the connection is down, though the session lives on
        self._tell_loop(
            state,
            self._client.client_state,
            None if identity is None else (int(identity[0]), bytes(identity[1])),
            self._client.queue,
        )

    def _on_state(self, state: str, keeper_state: str, identity: tuple[int, bytes] | None, queue: Any) -> None:
        if self._closing:
            return
        if identity is not None:
            self._identity, self._client.queue_of_loop = identity, queue
        if state == KazooState.CONNECTED:
            self._session.move(SessionState.CONNECTED)
        elif state == KazooState.SUSPENDED:
            self._session.move(SessionState.SUSPENDED)
        else:
            self._session.move(SessionState.EXPIRED)
            if keeper_state != KeeperState.EXPIRED_SESSION and self._restart is None:
                self._restart = self._loop.create_task(self._start_again())

    async def _start_again(self) -> None:
        _log.warning("the ZooKeeper connection ended; a new session is opened%s", self._client.handler.failure)
        while self._session.state is not SessionState.CONNECTED:
            await asyncio.sleep(LONGEST_RECONNECT_PAUSE)
            thread = self._client._connection._connection_routine
            if thread is not None and thread.is_alive():
                continue  # it goes on trying; a second start would take its handlers away
            try:
                await asyncio.to_thread(self._client.start_async)
            except Exception as error:  # no descriptor or no thread left, say: there may be again
                _log.warning("no new ZooKeeper session can be begun; it is tried again: %r", error)
        self._restart = None


@dataclass(frozen=True)
class _Watcher:
    """A callback for kazoo, which keeps only one of several equal ones on a node."""

    watch: Watch
    from_any_thread: Callable[..., None] = field(compare=False)

    def __call__(self, _event: object) -> None:
        self.from_any_thread()


def _stat(stat: Any) -> NodeStat:
    return NodeStat(stat.version, stat.czxid, stat.ctime, stat.ephemeralOwner, stat.numChildren)


def _replaced(path: str) -> MetadataReplaced:
    return MetadataReplaced(f"{path} was deleted, and another node has its name")


async def connect_zookeeper(uri: MetadataServiceUri, options: MetadataServiceOptions) -> ZooKeeperTree:
    """Connect. Raises `MetadataUnavailable`, `InvalidConfiguration`; then nothing stays open."""
    if options.token_file is not None:
        raise InvalidConfiguration(
            f"metadataServiceTokenFile={options.token_file}: ZooKeeper takes no token; set zkAuthCredentialsPath"
        )
    tree = ZooKeeperTree(
        uri.connect_string,
        options.timeout,
        auth=options.auth,
        sasl=options.sasl,
        secure=options.secure,
        tls=options.tls,
    )
    await tree.connect()
    return tree
