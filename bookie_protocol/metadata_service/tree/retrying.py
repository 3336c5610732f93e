"""A tree that waits out short losses of the connection, so that a leader change of the service causes no errors.

Invariants
- A call ends by its deadline, with an answer or with `MetadataUnavailable`; with `SessionEnded` or `MetadataRefused`
  also where a connection was lost before.
- A repeated write recognises the effect of its first try: a node that we created, a value that we set, a
  node that we deleted. A sequential node cannot be recognised: a lost answer may leave a second one behind
  until the session ends.
- What is too large for the service is refused here: a server that hangs up on it breaks the connection that all callers
  in this process share. A large write whose connection broke is tried `LARGE_TRIES` times at most.
- A node of our own that was not deleted is never reported as deleted: the caller hears `MetadataUnavailable`, and what
  must not stay is `abandon`ed: deleted as soon as the connection is back.

Threads: event loop only.

Sources: docs/internals/metadata-layout.md, sections 9.1 and 12.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from bookie_protocol.errors import (
    BadRequest,
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    MetadataReplaced,
    MetadataUnavailable,
    MetadataVersionConflict,
    SessionEnded,
)
from bookie_protocol.metadata_service.interface import Identity, Session, SessionState, Versioned
from bookie_protocol.metadata_service.options import DEFAULT_MAX_NODE_BYTES
from bookie_protocol.metadata_service.tree.nodes import (
    NODES_AT_ONCE,
    Children,
    ConnectionLost,
    Created,
    Node,
    NodeStat,
    NodeTree,
    Watch,
)
from bookie_protocol.pace import Pace
from bookie_protocol.versioned import may_be_one_life

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
LARGE_BYTES: Final = 64 * 1024
LARGE_TRIES: Final = 3
_LARGEST_REQUEST: Final = "jute.maxbuffer of ZooKeeper's servers, or --max-request-bytes of etcd's"
"""Name of the setting that limits the size of a request, for messages."""
_REQUEST_BYTES: Final = 256
"""Maximum bytes of a request besides path and data."""
SETTLE_SECONDS: Final = 1.0
"""Seconds between two attempts of work in the background."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class RetryingTree:
    """The calls of `NodeTree`, with `timeout=None` for the session's default, over a driver's tree. Writes of more than
    `max_node_bytes` are a `BadRequest`.

    `requests_per_second` 0: no limit.
    """

    def __init__(
        self, tree: NodeTree, requests_per_second: float = 0.0, max_node_bytes: int = DEFAULT_MAX_NODE_BYTES
    ) -> None:
        self._tree = tree
        self._max_node_bytes = max_node_bytes
        self._limit = Pace(requests_per_second, burst_s=1.0)
        self._settling: set[asyncio.Task[None]] = set()

    @property
    def keeps_times(self) -> bool:
        return self._tree.keeps_times

    @property
    def removes_directories(self) -> bool:
        return self._tree.removes_directories

    @property
    def session(self) -> Session:
        return self._tree.session

    @property
    def session_id(self) -> int:
        return self._tree.session_id

    async def get(self, path: str, *, watch: Watch | None = None, timeout: float | None = None) -> Node:
        return await self._repeat(
            f"read {path}", lambda left, _: self._tree.get(path, watch=watch, timeout=left), timeout
        )

    async def get_each(
        self, paths: Sequence[str], *, childless: bool = False, timeout: float | None = None
    ) -> list[Node | MetadataError]:
        """Return any number of nodes: each `NODES_AT_ONCE` of them are one request for `requests_per_second`."""
        parts = [paths[first : first + NODES_AT_ONCE] for first in range(0, len(paths), NODES_AT_ONCE)]
        found = await asyncio.gather(*(self._get_part(part, childless, timeout) for part in parts))
        return [each for part in found for each in part]

    async def _get_part(
        self, paths: Sequence[str], childless: bool, timeout: float | None
    ) -> list[Node | MetadataError]:
        return await self._repeat(
            f"read {len(paths)} nodes",
            lambda left, _: self._tree.get_each(paths, childless=childless, timeout=left),
            timeout,
        )

    async def read(self, path: str, *, timeout: float | None = None) -> Versioned[bytes]:
        """Return data and identity of a node, for a later write or deletion."""
        session_id = self._tree.session_id
        node = await self.get(path, timeout=timeout)
        return Versioned(node.data, node.stat.identity(session_id))

    async def exists(self, path: str, *, watch: Watch | None = None, timeout: float | None = None) -> NodeStat | None:
        return await self._repeat(
            f"look for {path}", lambda left, _: self._tree.exists(path, watch=watch, timeout=left), timeout
        )

    async def children(self, path: str, *, watch: Watch | None = None, timeout: float | None = None) -> Children:
        return await self._repeat(
            f"list {path}", lambda left, _: self._tree.children(path, watch=watch, timeout=left), timeout
        )

    async def sync(self, path: str, *, timeout: float | None = None) -> None:
        await self._repeat(f"sync {path}", lambda left, _: self._tree.sync(path, timeout=left), timeout)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        open_to_all: bool = False,
        recognise: bool = True,
        session_id: int | None = None,
        timeout: float | None = None,
    ) -> Created:
        """`recognise=False`: after a lost answer, leave it to the caller to tell whose node it is. `session_id`: as for
        `set`."""

        async def attempt(left: float, repeated: bool) -> Created:
            try:
                return await self._tree.create(
                    path,
                    data,
                    ephemeral=ephemeral,
                    sequential=sequential,
                    open_to_all=open_to_all,
                    session_id=session_id,
                    timeout=left,
                )
            except MetadataExists:
                found = await self._find_ours(path, data, ephemeral, left) if repeated and recognise else None
                if found is None:
                    raise
                return Created(path, found.creation)

        nbytes = self._checked(path, len(path) + len(data) + _REQUEST_BYTES)
        return await self._repeat(f"create {path}", attempt, timeout, nbytes)

    async def take_number(self, prefix: str, *, timeout: float | None = None) -> tuple[int, str | None]:
        """A lost answer wastes a number."""
        return await self._repeat(
            f"take a number of {prefix}", lambda left, _: self._tree.take_number(prefix, timeout=left), timeout
        )

    async def create_all(
        self, nodes: Sequence[tuple[str, bytes]], *, session_id: int | None = None, timeout: float | None = None
    ) -> None:
        """`session_id`: as for `set`."""

        async def attempt(left: float, repeated: bool) -> None:
            try:
                await self._tree.create_all(nodes, session_id=session_id, timeout=left)
            except MetadataExists:
                if not repeated:
                    raise
                for path, data in nodes:
                    if await self._find_ours(path, data, False, left) is None:
                        raise

        nbytes = self._checked(nodes[0][0], sum(len(path) + len(data) + _REQUEST_BYTES for path, data in nodes))
        await self._repeat(f"create {nodes[0][0]}", attempt, timeout, nbytes)

    async def set(
        self, path: str, data: bytes, this: Identity, *, session_id: int | None = None, timeout: float | None = None
    ) -> Identity:
        """Replace what was read or written so. `session_id`: carried out in this session of ours or not at all
        (`SessionEnded`), also where it is sent again. So what the session holds, such as a lock, is held at that very
        moment."""
        return await self._set(path, data, this, session_id, timeout)

    async def overwrite(
        self, path: str, data: bytes, *, session_id: int | None = None, timeout: float | None = None
    ) -> Identity:
        """Replace whatever is there. `session_id`: as for `set`."""
        return await self._set(path, data, None, session_id, timeout)

    async def _set(
        self, path: str, data: bytes, this: Identity | None, session_id: int | None, timeout: float | None
    ) -> Identity:
        async def attempt(left: float, repeated: bool) -> Identity:
            session = self._tree.session_id
            try:
                stat = await self._tree.set(path, data, this, session_id=session_id, timeout=left)
            except MetadataReplaced:
                raise
            except MetadataVersionConflict:
                if this is None or not repeated:
                    raise
                node = await self._tree.get(path, timeout=left)
                is_next = node.stat.version == this.version + 1 and may_be_one_life(node.stat.creation, this.creation)
                if not is_next or node.data != data:
                    raise
                stat = node.stat
            return stat.identity(session)

        return await self._repeat(
            f"write {path}", attempt, timeout, self._checked(path, len(path) + len(data) + _REQUEST_BYTES)
        )

    async def delete(self, path: str, *, session_id: int | None = None, timeout: float | None = None) -> None:
        """Delete whatever is there. `session_id`: as for `set`."""
        await self._delete(path, None, session_id, timeout)

    async def delete_this(
        self, path: str, this: Identity, *, session_id: int | None = None, timeout: float | None = None
    ) -> None:
        """Delete what was read or written so, and nothing that was made under its name since, also where a lost answer
        is asked for again. `session_id`: as for `set`."""
        await self._delete(path, this, session_id, timeout)

    async def _delete(self, path: str, this: Identity | None, session_id: int | None, timeout: float | None) -> None:
        async def attempt(left: float, repeated: bool) -> None:
            if this is not None and repeated:
                await self._tree.sync(path, timeout=left)  # the server of now may know less than that of then
            try:
                await self._tree.delete(path, this, session_id=session_id, timeout=left)
            except (MetadataNotFound, MetadataReplaced):
                if not repeated:  # else the request before this one may have done it
                    raise

        await self._repeat(f"delete {path}", attempt, timeout)

    async def delete_own(self, path: str, session_id: int, *, timeout: float | None = None) -> bool:
        """Delete an ephemeral node that this session of ours made, and no other; whether it was there.

        `session_id`: the session of then. Once it has ended, its node is gone, and one of this name is another's.
        """

        async def attempt(left: float, _: bool) -> bool:
            stat = await self._tree.exists(path, timeout=left)
            if stat is None or stat.owner != session_id or self._tree.session_id != session_id:
                return False
            try:
                await self._tree.delete(path, None, session_id=session_id, timeout=left)
            except (MetadataNotFound, SessionEnded):
                return False
            return True

        return await self._repeat(f"delete {path}", attempt, timeout)

    def abandon(self, path: str, session_id: int) -> asyncio.Task[None]:
        """Delete an ephemeral node of ours in the background, however long the connection is away."""
        return self.settle(lambda: self.delete_own(path, session_id))

    def settle(self, step: Callable[[], Awaitable[object]], *, times: int = 1) -> asyncio.Task[None]:
        """Repeat a step in the background, a second apart, until it was carried out so often or the tree is closed.

        Two times where a request whose effect is to be undone may still be under way at the first.
        """
        task = asyncio.get_running_loop().create_task(self._settle(step, times))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def _settle(self, step: Callable[[], Awaitable[object]], times: int) -> None:
        while self.session.state is not SessionState.CLOSED:
            try:
                await step()
                times -= 1
            except MetadataUnavailable:
                pass
            except MetadataError as error:
                _log.warning("a node of this session stays until the session ends: %s", error)
                return
            if times == 0:
                return
            await asyncio.sleep(SETTLE_SECONDS)

    async def ensure(self, path: str, *, open_to_all: bool = False, timeout: float | None = None) -> None:
        """Create an empty persistent node unless it is there. `MetadataNotFound`: its parent is missing."""
        try:
            await self.create(path, open_to_all=open_to_all, timeout=timeout)
        except MetadataExists:
            return

    async def close(self) -> None:
        for task in self._settling:  # what they have to delete goes with the session
            task.cancel()
        await self._tree.close()

    async def _find_ours(self, path: str, data: bytes, ephemeral: bool, timeout: float) -> NodeStat | None:
        try:
            node = await self._tree.get(path, timeout=timeout)
        except MetadataNotFound:
            return None
        if ephemeral:
            is_ours = node.stat.owner == self._tree.session_id
        else:
            is_ours = node.data == data and node.stat.version == 0
        return node.stat if is_ours else None

    def _checked(self, path: str, nbytes: int) -> int:
        """Return the size of a request as it is; `BadRequest` if it is too large."""
        if nbytes > self._max_node_bytes:
            raise BadRequest(
                f"{path}: {nbytes} bytes are more than the metadata service takes at once ({self._max_node_bytes}):"
                f" raise {_LARGEST_REQUEST}"
            )
        return nbytes

    async def _repeat(
        self, what: str, attempt: Callable[[float, bool], Awaitable[T]], timeout: float | None, nbytes: int = 0
    ) -> T:
        """`nbytes`: how much is sent."""
        budget = self.session.default_timeout if timeout is None else timeout
        loop = asyncio.get_running_loop()
        deadline = loop.time() + budget
        pause, repeated = _FIRST_PAUSE, False
        lost = ""
        tries_left = LARGE_TRIES if nbytes > LARGE_BYTES else None
        while True:
            await self._turn(what, budget, deadline)
            try:
                return await attempt(max(0.0, deadline - loop.time()), repeated)
            except ConnectionLost as error:
                if loop.time() + pause >= deadline:
                    raise MetadataUnavailable(f"could not {what} within {budget:g} s: {error}") from error
                if tries_left is not None:
                    tries_left -= 1
                    if not tries_left:
                        raise MetadataUnavailable(
                            f"could not {what}: the connection broke each time behind {nbytes} bytes, which may be more"
                            f" than the servers take: raise {_LARGEST_REQUEST}: {error}"
                        ) from error
                lost = str(error)
            except MetadataUnavailable as error:
                if not repeated:
                    raise
                told = f"could not {what} within {budget:g} s: {lost}; then: {error}"
                raise type(error)(told) from error
            repeated = True
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _turn(self, what: str, budget: float, deadline: float) -> None:
        try:
            await self._limit.turn(deadline)
        except TimeoutError:
            raise MetadataUnavailable(f"could not {what} within {budget:g} s: zkRequestRateLimit is used up") from None
