"""`NodeTree` over etcd, and a metadata service on it.

Invariants
- A request is one transaction of etcd, which compares what it depends on: the creation and version of a node (etcd's
  create revision, and its count of puts), that the parent is there, that no child is, and that the session lasts. What
  does not hold is read in the same transaction, so the error is the one of that moment.
- A session is a lease, and a key that has it: as long as the key is there, whatever the session holds is there, for
  etcd deletes all keys of a lease in one step. A lease that ended is never used again.
- Reads are answered by a majority (linearizable): `sync` has nothing to do.
- A listing is read page by page at one revision. If that is compacted meanwhile the listing fails and is repeated.
- Answers of another etcd cluster than the one that answered first count as a service that was put back: what proves
  deletions by the metadata stops (`Session.went_back_to`).

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

from bookie_protocol.addresses import is_loopback
from bookie_protocol.errors import (
    BadRequest,
    InvalidConfiguration,
    MetadataDamaged,
    MetadataError,
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataReplaced,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.etcd import etcd_pb2 as messages
from bookie_protocol.metadata_service.etcd.connection import CREDENTIALS_KEY, EtcdConnection
from bookie_protocol.metadata_service.etcd.keys import Keys
from bookie_protocol.metadata_service.etcd.operations import (
    deleted,
    has_version,
    is_absent,
    is_present,
    is_this,
    put,
    ranged,
)
from bookie_protocol.metadata_service.etcd.watches import Watched, Watches
from bookie_protocol.metadata_service.grpc_channel import grpc_target
from bookie_protocol.metadata_service.interface import Identity
from bookie_protocol.metadata_service.options import MetadataServiceOptions, MetadataServiceUri
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
from bookie_protocol.metadata_service.tree.service import MetadataService

PAGE: Final = 2000
_NODES_IN_TRANSACTION: Final = 32
"""Maximum number of nodes in a transaction: each takes two of its 128 operations."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


_ABOVE: Final = NodeStat(0, 0, None, 0, 1)
"""The state of all nodes above a cluster's root: they exist and need not be made."""


class EtcdTree(KeptSession):
    """One session with etcd. `root` is the cluster's: there are no nodes but it and what is below it. `timeout` of the
    session in seconds; etcd counts whole ones, and makes them two at least."""

    keeps_times: Final = False
    removes_directories: Final = True

    def __init__(self, connection: EtcdConnection, root: str, timeout: float) -> None:
        super().__init__(timeout)
        self._connection = connection
        self._keys = Keys(root)
        self._watches = Watches(connection)
        self._lease = NO_SESSION
        self._cluster_id: int | None = None
        self._numbers: dict[str, int] = {}
        """The next of sequential names, as far as is known, by their parents."""
        self._numbering = asyncio.Lock()

    @property
    def session_id(self) -> int:
        return self._lease

    # --- NodeTree: reads -------------------------------------------------------------------------------------

    async def get(self, path: str, *, watch: Watch | None = None, timeout: float) -> Node:
        self._check_place(path)
        answer = await self._read(path, [path], timeout)
        node = self._node_of(path, answer.responses)
        if node is None:
            raise MetadataNotFound(f"{path} does not exist")
        self._watch((Watched(self._keys.node(path)),), answer, watch)
        return node

    async def get_each(
        self, paths: Sequence[str], *, childless: bool = False, timeout: float
    ) -> list[Node | MetadataError]:
        parts = [paths[at : at + _NODES_IN_TRANSACTION] for at in range(0, len(paths), _NODES_IN_TRANSACTION)]
        answers = await asyncio.gather(*(self._read(part[0], part, timeout) for part in parts))
        found: list[Node | MetadataError] = []
        for part, answer in zip(parts, answers, strict=True):
            for number, path in enumerate(part):
                node = self._node_of(path, answer.responses[2 * number : 2 * number + 2])
                found.append(MetadataNotFound(f"{path} does not exist") if node is None else node)
        return found

    async def exists(self, path: str, *, watch: Watch | None = None, timeout: float) -> NodeStat | None:
        if not self._keys.holds(path):
            return _ABOVE if self._keys.is_below(path) else None
        answer = await self._read(path, [path], timeout, keys_only=True)
        node = self._node_of(path, answer.responses)
        self._watch((Watched(self._keys.node(path)),), answer, watch)
        return None if node is None else node.stat

    async def children(self, path: str, *, watch: Watch | None = None, timeout: float) -> Children:
        self._check_place(path)
        deadline = asyncio.get_running_loop().time() + timeout
        first, end = self._keys.children(path)
        key = self._keys.node(path)
        page = messages.RangeRequest(key=first, range_end=end, limit=PAGE, keys_only=True)
        request = messages.TxnRequest(success=[ranged(key, count_only=True), messages.RequestOp(request_range=page)])
        answer = await self._transaction(path, request, timeout)
        if not answer.responses[0].response_range.count:
            raise MetadataNotFound(f"{path} does not exist")
        revision, found = answer.header.revision, answer.responses[1].response_range
        keys = [each.key for each in found.kvs]
        page.revision = revision
        while found.more:
            page.key = keys[-1] + b"\0"
            found = await self._page(path, page, deadline)
            keys += [each.key for each in found.kvs]
        self._watch((Watched(key, names=True), Watched(first, end, names=True)), answer, watch)
        try:
            return Children(tuple(self._keys.names(path, keys)), revision)
        except UnicodeDecodeError as error:
            raise MetadataDamaged(f"{path} has a child whose name is not text: {error}") from error

    async def sync(self, path: str, *, timeout: float) -> None:
        if self._closing:
            raise MetadataUnavailable(f"{path}: the metadata service was closed")

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
        if not sequential:
            return await self._create(path, data, ephemeral, session_id, timeout)
        async with _deadline(path, self._where, timeout) as left, self._numbering:
            return await self._create_next(path, data, ephemeral, session_id, left)

    async def create_all(
        self, nodes: Sequence[tuple[str, bytes]], *, session_id: int | None = None, timeout: float
    ) -> None:
        made = {path for path, _ in nodes}
        parents = [path for path, _ in nodes if parent_of(path) not in made]
        request = messages.TxnRequest()
        for path, data in nodes:
            self._check_path(path)
            request.compare.append(is_absent(self._keys.node(path)))
            request.success.append(put(self._keys.node(path), data))
            request.failure.append(ranged(self._keys.node(path), count_only=True))
        for path in parents:
            request.compare.extend(self._parent_is_there(path))
        answer = await self._in_session(nodes[0][0], request, session_id, timeout)
        if answer.succeeded:
            return
        for (path, _), found in zip(nodes, answer.responses, strict=False):  # the session may come last
            if found.response_range.count:
                raise MetadataExists(f"{path} exists already")
        raise MetadataNotFound(f"the parent of one of {', '.join(parents)} does not exist")

    async def take_number(self, prefix: str, *, timeout: float) -> tuple[int, str | None]:
        self._check_path(prefix)
        parent = parent_of(prefix)
        put = messages.PutRequest(key=self._keys.counter(parent), prev_kv=True)
        request = messages.TxnRequest(
            compare=self._parent_is_there(prefix), success=[messages.RequestOp(request_put=put)]
        )
        answer = await self._transaction(prefix, request, timeout)
        if not answer.succeeded:
            raise MetadataNotFound(f"{parent} does not exist")
        return answer.responses[0].response_put.prev_kv.version, None

    async def set(
        self, path: str, data: bytes, this: Identity | None, *, session_id: int | None = None, timeout: float
    ) -> NodeStat:
        self._check_place(path)
        key = self._keys.node(path)
        put = messages.RequestOp(request_put=messages.PutRequest(key=key, value=data, ignore_lease=True))
        request = messages.TxnRequest(
            compare=is_this(key, this), success=[put, *self._look(path)], failure=self._look(path)
        )
        answer = await self._in_session(path, request, session_id, timeout)
        if not answer.succeeded:
            raise self._why_not(path, answer, this)
        written = self._node_of(path, answer.responses[1:])
        assert written is not None
        return written.stat

    async def delete(self, path: str, this: Identity | None, *, session_id: int | None = None, timeout: float) -> None:
        self._check_place(path)
        key, (first, end) = self._keys.node(path), self._keys.children(path)
        request = messages.TxnRequest(
            compare=[*is_this(key, this), is_absent(first, end)],
            success=[deleted(key), deleted(self._keys.counter(path))],
            failure=self._look(path),
        )
        answer = await self._in_session(path, request, session_id, timeout)
        if not answer.succeeded:
            raise self._why_not(path, answer, this)

    # --- creation --------------------------------------------------------------------------------------------

    async def _create(self, path: str, data: bytes, ephemeral: bool, session_id: int | None, timeout: float) -> Created:
        self._check_path(path)
        key = self._keys.node(path)
        request = messages.TxnRequest(
            compare=[is_absent(key), *self._parent_is_there(path)],
            success=[put(key, data)],
            failure=[ranged(key, count_only=True)],
        )
        answer = await self._in_session(path, request, session_id, timeout, leased=ephemeral)
        if answer.succeeded:
            return Created(path, answer.header.revision)
        if answer.responses[0].response_range.count:
            raise MetadataExists(f"{path} exists already")
        raise MetadataNotFound(f"{parent_of(path)} does not exist")

    async def _create_next(
        self, prefix: str, data: bytes, ephemeral: bool, session_id: int | None, left: Callable[[], float]
    ) -> Created:
        """Name and node in one step: a node that is made later has a later name."""
        self._check_path(prefix)
        parent = parent_of(prefix)
        counter = self._keys.counter(parent)
        while True:
            number = self._numbers.get(parent, 0)
            path = f"{prefix}{number:010d}"
            key = self._keys.node(path)
            request = messages.TxnRequest(
                compare=[has_version(counter, number), is_absent(key), *self._parent_is_there(path)],
                success=[put(counter, b""), put(key, data)],
                failure=[ranged(counter, keys_only=True), ranged(key, count_only=True)],
            )
            answer = await self._in_session(prefix, request, session_id, left(), leased=ephemeral)
            if answer.succeeded:
                self._numbers[parent] = number + 1
                return Created(path, answer.header.revision)
            found, taken = (response.response_range for response in answer.responses[:2])
            self._numbers[parent] = found.kvs[0].version if found.kvs else 0
            if self._numbers[parent] != number:
                continue  # others have taken numbers
            if not taken.count:
                raise MetadataNotFound(f"{parent} does not exist")
            self._numbers[parent] = (await self.take_number(prefix, timeout=left()))[0] + 1  # a name given by hand

    def _parent_is_there(self, path: str) -> list[messages.Compare]:
        return [] if path == self._keys.root else [is_present(self._keys.node(parent_of(path)))]

    def _check_place(self, path: str) -> None:
        """Raise `MetadataNotFound` for a path that can have no node (`_check_path`)."""
        if self._closing:
            raise MetadataUnavailable("the metadata service was closed")
        if not self._keys.holds(path):
            raise MetadataNotFound(f"{path} does not exist")

    def _check_path(self, path: str) -> None:
        if self._keys.is_below(path):
            raise MetadataExists(f"{path} exists already")
        if not self._keys.holds(path):
            raise BadRequest(f"{path}: in etcd there is nothing but what is below {self._keys.root}")

    # --- answers ---------------------------------------------------------------------------------------------

    def _look(self, path: str) -> list[messages.RequestOp]:
        """Two operations, as `_node_of` reads them."""
        first, end = self._keys.children(path)
        return [ranged(self._keys.node(path)), ranged(first, end, count_only=True)]

    def _node_of(self, path: str, responses: Sequence[messages.ResponseOp]) -> Node | None:
        found, children = responses[0].response_range.kvs, responses[1].response_range.count
        if not found:
            return None
        (each,) = found
        return Node(each.value, NodeStat(each.version - 1, each.create_revision, None, each.lease, children))

    def _why_not(self, path: str, answer: messages.TxnResponse, this: Identity | None) -> MetadataError:
        node = self._node_of(path, answer.responses)
        if node is None:
            return MetadataNotFound(f"{path} does not exist")
        if this is not None and node.stat.creation != this.creation:
            return MetadataReplaced(f"{path} was deleted, and another node has its name")
        if this is not None and node.stat.version != this.version:
            return MetadataVersionConflict(f"{path} has version {node.stat.version}, not {this.version}")
        return MetadataNotEmpty(f"{path} has children")

    def _watch(self, watched: Sequence[Watched], answer: messages.TxnResponse, watch: Watch | None) -> None:
        if watch is not None:
            self._watches.add(watched, answer.header.revision, watch)

    # --- requests --------------------------------------------------------------------------------------------

    async def _read(
        self, path: str, paths: Sequence[str], timeout: float, *, keys_only: bool = False
    ) -> messages.TxnResponse:
        looks = [look for each in paths for look in self._look(each)]
        for look in looks[::2]:
            look.request_range.keys_only = keys_only
        return await self._transaction(path, messages.TxnRequest(success=looks), timeout)

    async def _in_session(
        self,
        path: str,
        request: messages.TxnRequest,
        session_id: int | None,
        timeout: float,
        *,
        leased: bool = False,
    ) -> messages.TxnResponse:
        """Carry out a write: in this session or not at all, and with `leased` in the one of now."""
        async with _deadline(path, self._where, timeout) as left:
            await self._connected()
            check_session(path, session_id, self._lease)
            if not leased and session_id is None:
                return await self._send(request, left())
            lease = self._lease
            alive = self._keys.session(lease)
            request.compare.append(is_present(alive))
            request.failure.append(ranged(alive, count_only=True))
            if leased:
                request.success[-1].request_put.lease = lease  # what is made comes last
            answer = await self._send(request, left())
            if not answer.succeeded and not answer.responses[-1].response_range.count:
                self._in_doubt.set()
                check_session(path, session_id, NO_SESSION)
                raise ConnectionLost(f"{path}: the session {lease:#x} with {self._where} has ended")
            return answer

    async def _transaction(self, path: str, request: messages.TxnRequest, timeout: float) -> messages.TxnResponse:
        async with _deadline(path, self._where, timeout) as left:
            await self._connected()
            return await self._send(request, left())

    async def _page(self, path: str, page: messages.RangeRequest, deadline: float) -> messages.RangeResponse:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise MetadataUnavailable(f"{path}: the listing was not complete in time")
        asked = self._session.asks()
        found = await self._heard(self._connection.range(page, left))
        self._note(found.header, asked)
        return found

    async def _connected(self) -> None:
        if self._closing:
            raise MetadataUnavailable("the metadata service was closed")
        await self._session.wait_connected()

    async def _send(self, request: messages.TxnRequest, timeout: float) -> messages.TxnResponse:
        asked = self._session.asks()
        answer = await self._heard(self._connection.txn(request, timeout))
        self._note(answer.header, asked)
        return answer

    async def _heard(self, asking: Awaitable[T]) -> T:
        try:
            return await asking
        except ConnectionLost:
            self._in_doubt.set()
            raise

    def _note(self, header: messages.Header, asked: tuple[int, int]) -> None:
        """Note the position of an answer that is not older than its request."""
        known = self._session.went_back_to
        self._session.answered(header.revision, asked)
        if self._cluster_id not in (None, header.cluster_id):
            _log.error(
                "another etcd cluster answers than before: %x at %s, and not %x; it counts as one that was put back",
                *(header.cluster_id, self._where, self._cluster_id),
            )
            self._session.went_back_to = header.revision
        self._cluster_id = header.cluster_id
        if self._session.went_back_to != known:
            self._fire_all()  # they wait for revisions that are far away now

    # --- session ---------------------------------------------------------------------------------------------

    async def _open_session(self) -> None:
        within = self._session.default_timeout / (len(self._connection.targets) + 1)
        asked = self._session.asks()
        lease = await self._connection.grant(max(1, math.ceil(self._session.default_timeout)), within)
        self._note(lease.header, asked)
        put = messages.PutRequest(key=self._keys.session(lease.ID), lease=lease.ID)
        await self._send(messages.TxnRequest(success=[messages.RequestOp(request_put=put)]), within)
        self._session.expires_after = lease.TTL
        self._lease = lease.ID

    async def _renew(self, within: float) -> bool:
        deadline = asyncio.get_running_loop().time() + within
        if (await self._connection.keep_alive(self._lease, within)).TTL <= 0:
            return False
        # That answer may be older than others. This one is not: it shows a service that was put back, and a session
        # whose key was deleted.
        look = messages.TxnRequest(success=[ranged(self._keys.session(self._lease), count_only=True)])
        answer = await self._send(look, max(0.001, deadline - asyncio.get_running_loop().time()))
        return bool(answer.responses[0].response_range.count)

    async def _end_session(self) -> None:
        await self._connection.revoke(self._lease, self._session.default_timeout)

    async def _reconnect(self) -> None:
        await self._connection.reconnect()

    async def _close_connection(self) -> None:
        await self._connection.close()

    async def _listen(self) -> None:
        while True:
            with suppress(MetadataUnavailable):
                await self._watches.listen(self._session.default_timeout)
            self._in_doubt.set()
            await asyncio.sleep(self._pause())

    def _fire_all(self) -> None:
        self._watches.fire_all()

    @property
    def _where(self) -> str:
        return f"etcd at {','.join(self._connection.targets)}"

    def _no_answer(self, timeout: float) -> str:
        return (
            f"{self._where} did not answer within {timeout:g} s: check metadataServiceUri, metadataServiceTlsEnable,"
            " and that more than half of its members run"
        )


@asynccontextmanager
async def _deadline(path: str, where: str, timeout: float) -> AsyncIterator[Callable[[], float]]:
    """Yields how many seconds are left. `MetadataUnavailable` when none are."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    try:
        async with asyncio.timeout_at(deadline):
            yield lambda: max(0.001, deadline - loop.time())
    except TimeoutError:
        raise MetadataUnavailable(f"{path}: no answer from {where} within {timeout:g} s") from None


async def open_etcd(uri: MetadataServiceUri, options: MetadataServiceOptions) -> MetadataService:
    """Connect and settle the layout.

    Raises `MetadataUnavailable`, `InvalidConfiguration`, `MetadataDamaged`; then nothing stays open.
    """
    if options.token_file is not None:
        raise InvalidConfiguration(
            f"metadataServiceTokenFile={options.token_file}: etcd gives tokens itself; set {CREDENTIALS_KEY}"
        )
    if options.secure:
        raise InvalidConfiguration("zkEnableSecurity=true: etcd knows no access lists of keys; give roles to its users")
    login = options.login
    if login is not None and options.tls is None:
        far = [host for host, _ in uri.hosts if not is_loopback(host.strip("[]"))]
        if far:
            raise InvalidConfiguration(
                f"{CREDENTIALS_KEY}: the password would go to {', '.join(far)} in plain text;"
                " set metadataServiceTlsEnable=true"
            )
    targets = [grpc_target(host, port) for host, port in uri.hosts]
    random.SystemRandom().shuffle(targets)  # so that not all processes ask one member
    tree = EtcdTree(EtcdConnection(targets, options.tls, login, uri.root), uri.root, options.timeout)
    await tree.connect()
    return await MetadataService(tree, uri.root, uri.layout, options).open()
