"""`NodeTree` over kazoo, and a metadata service on it.

Invariants
- A request is handed to kazoo only while the connection stands, so that nothing piles up in kazoo's queue
  and nothing is carried out long after its caller gave up. At most `MAX_IN_FLIGHT` requests are under way.
- Losing the connection fails what is under way with `ConnectionLost`; kazoo then fires all watches, and so
  do we.
- After an expired session kazoo opens a new one by itself. Should its connection thread end for another
  reason, it is started again, as a new session, until one stands: of a second end in a row kazoo tells nobody.
- Only ZooKeeper's own NONODE becomes `MetadataNotFound`.
- The session has its id from the moment it is CONNECTED until the next one is, whatever the connection does meanwhile:
  the id says whose a node is, not whether anybody can be asked.
- A write is handed over only in the session that the loop knows of. kazoo's thread may be a session ahead: after a
  pause of the process it has a new one before the loop hears of the old one's end.

Threads: event loop only, but for the two listeners, which hop.

Source: reference metadata layout, sections 1.2, 12 and 13.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from kazoo.client import KazooState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
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
from kazoo.security import OPEN_ACL_UNSAFE

from bookie_protocol.errors import (
    InvalidConfiguration,
    MetadataError,
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataRefused,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.interface import ANY_VERSION, MetadataService, Session, SessionState
from bookie_protocol.metadata_service.options import MetadataServiceOptions, MetadataServiceUri, MetadataTls, SaslLogin
from bookie_protocol.metadata_service.tree.nodes import (
    NO_SESSION,
    Children,
    ConnectionLost,
    Node,
    NodeStat,
    Watch,
    check_session,
)
from bookie_protocol.metadata_service.tree.service import TreeMetadataService
from bookie_protocol.metadata_service.zookeeper.client import (
    LONGEST_RECONNECT_PAUSE,
    Found,
    ReadBatches,
    await_result,
    hop,
    make_client,
)

MAX_IN_FLIGHT: Final = 1024
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
}

_log = logging.getLogger(__name__)


class ZooKeeperTree:
    """One ZooKeeper session. `hosts` is a connect string, `timeout` the session time-out in seconds.

    `auth` holds (scheme, credential) pairs, `sasl` a login; with `secure` new nodes belong to their creator
    alone (`zkEnableSecurity`). Raises `InvalidConfiguration` if the login needs a package that is missing, or a file of
    TLS cannot be used.
    """

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
        timeout: float,
    ) -> str:
        def request() -> Any:
            self._check_session(path)
            acl = OPEN_ACL_UNSAFE if open_to_all else None
            return self._client.create_async(path, data, acl=acl, ephemeral=ephemeral, sequence=sequential)

        return str(await self._call(path, request, timeout))

    async def create_all(self, nodes: Sequence[tuple[str, bytes]], *, timeout: float) -> None:
        def request() -> Any:
            self._check_session(nodes[0][0])
            transaction = self._client.transaction()
            for path, data in nodes:
                transaction.create(path, data)
            return transaction.commit_async()

        results = await self._call(nodes[0][0], request, timeout)
        for (path, _), outcome in zip(nodes, results, strict=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, RolledBackError | RuntimeInconsistency):
                raise self._translate(path, outcome)

    async def get(self, path: str, *, watch: Watch | None = None, timeout: float) -> Node:
        def request() -> Awaitable[Any]:
            if watch is None:
                return self._reads.get(path)
            return await_result(self._client.get_async(path, watch=self._watcher(watch)))

        data, stat = await self._answer(path, request, timeout)
        return Node(data, _stat(stat))

    async def get_each(self, paths: Sequence[str], *, timeout: float) -> list[Node | MetadataError]:
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
        return Children(tuple(names), stat.cversion, stat.ctime)

    async def set(self, path: str, data: bytes, version: int, *, session_id: int | None = None, timeout: float) -> int:
        def request() -> Any:
            self._check_session(path, session_id)
            return self._client.set_async(path, data, version)

        return int((await self._call(path, request, timeout)).version)

    async def delete(
        self, path: str, version: int = ANY_VERSION, *, session_id: int | None = None, timeout: float
    ) -> None:
        def request() -> Any:
            self._check_session(path, session_id)
            return self._client.delete_async(path, version)

        await self._call(path, request, timeout)

    async def sync(self, path: str, *, timeout: float) -> None:
        await self._call(path, lambda: self._client.sync_async(path), timeout)

    async def close(self) -> None:
        """End the session, if a server can be told within its time-out; its ephemeral nodes go with it."""
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
        """What kazoo's result will hold."""
        return await self._answer(path, lambda: await_result(request()), timeout)

    async def _answer(self, path: str, request: Callable[[], Awaitable[Any]], timeout: float) -> Any:
        if self._closing:
            raise MetadataUnavailable(f"{path}: the metadata service was closed")
        try:
            async with asyncio.timeout(timeout), self._places:
                await self._session.wait_connected()
                return await request()
        except TimeoutError:
            raise MetadataUnavailable(
                f"{path}: no answer from ZooKeeper at {self._hosts} within {timeout:g} s"
            ) from None
        except KazooException as error:
            raise self._translate(path, error) from error

    def _check_session(self, path: str, wanted: int | None = None) -> None:
        """To be called right before a write is handed to kazoo, which fails what it holds when its session ends."""
        check_session(path, wanted, self.session_id)
        identity = self._client.client_id
        if identity is None or identity[0] != self.session_id:
            raise ConnectionLost(f"{path}: the session with ZooKeeper at {self._hosts} is another one by now, or rests")

    def _translate(self, path: str, error: Exception) -> MetadataError:
        for kind, (ours, meaning) in _DEFINITE.items():
            if isinstance(error, kind):
                return ours(f"{path} {meaning}")
        if isinstance(error, _LOST):
            return ConnectionLost(f"{path}: connection to ZooKeeper at {self._hosts} lost ({type(error).__name__})")
        if isinstance(error, NoAuthError | AuthFailedError | SessionClosedRequireSaslError):
            return MetadataRefused(
                f"{path}: ZooKeeper at {self._hosts} refuses access; check the credentials and zkEnableSecurity"
            )
        return MetadataUnavailable(f"{path}: ZooKeeper at {self._hosts} failed: {type(error).__name__} {error}")

    def _watcher(self, watch: Watch | None) -> Callable[..., None] | None:
        if watch is None:
            return None
        from_any_thread = hop(self._loop, watch)
        return lambda _event: from_any_thread()

    # --- session ------------------------------------------------------------------------------------------

    def _agreed(self, seconds: float) -> None:
        """On kazoo's connection thread."""
        self._session.expires_after = seconds

    def _on_kazoo_state(self, state: str) -> None:
        """On kazoo's connection thread."""
        identity = self._client.client_id  # none while the connection is down, though the session lives on
        self._tell_loop(
            state, self._client.client_state, None if identity is None else (int(identity[0]), bytes(identity[1]))
        )

    def _on_state(self, state: str, keeper_state: str, identity: tuple[int, bytes] | None) -> None:
        if self._closing:
            return
        if identity is not None:
            self._identity = identity
        if state == KazooState.CONNECTED:
            self._session.move(SessionState.CONNECTED)
        elif state == KazooState.SUSPENDED:
            self._session.move(SessionState.SUSPENDED)
        else:
            self._session.move(SessionState.EXPIRED)
            if keeper_state != KeeperState.EXPIRED_SESSION and self._restart is None:
                self._restart = self._loop.create_task(self._start_again())

    async def _start_again(self) -> None:
        _log.warning("the ZooKeeper connection ended; opening a new session")
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


def _stat(stat: Any) -> NodeStat:
    return NodeStat(stat.version, stat.cversion, stat.ctime, stat.ephemeralOwner, stat.numChildren)


async def open_zookeeper(uri: MetadataServiceUri, options: MetadataServiceOptions) -> MetadataService:
    """Connect and settle the layout.

    Raises `MetadataUnavailable`, `InvalidConfiguration`, `MetadataDamaged`; then nothing stays open.
    """
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
    service = TreeMetadataService(tree, uri.root, uri.layout, options)
    try:
        await service.prepare()
    except BaseException:
        await service.close()
        raise
    return service
