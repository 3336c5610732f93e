"""All nodes of a cluster as one stream in one order, and the writer that makes a tree equal to such a stream.

An entry is a path below the root, empty for the root itself, with the bytes of the node. Entries ascend by their
components (`order`), so a parent comes before its children.

Invariants
- A stream is complete or it raises. A node that goes while it is read is left out; a state of one moment needs
  two readings.
- What belongs to a session ends the reading (`MetadataNotEmpty`), or with `live` is left out and counted.
- The writer deletes what the stream does not have, and may be repeated from any point. It writes in one session or not
  at all: a process that was suspended, while another one came to the end, changes nothing there.
- At most `_AHEAD` requests of `NODES_AT_ONCE` nodes are under way, and the names of one directory for each level are
  held.

Threads: event loop only.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Final

from bookie_protocol.errors import MetadataDamaged, MetadataNotEmpty, MetadataNotFound
from bookie_protocol.ledger_metadata.codec import decode_ledger_metadata, encode_ledger_metadata
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.life_cycle import erase
from bookie_protocol.metadata_service.tree.nodes import NODES_AT_ONCE, Node
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.under_replication import formats
from bookie_protocol.together import read_ahead

Entry = tuple[str, bytes]
Entries = AsyncGenerator[Entry, None]

_AHEAD: Final = 8
_BATCH_NODES: Final = 60
"""A new node may take two of the 128 comparisons that a transaction of etcd may have."""
_BATCH_BYTES: Final = 256 * 1024
_OPEN_TO_ALL: Final = f"/{paths.UNDER_REPLICATION}/{formats.LOST_BOOKIE_RECOVERY_DELAY}"
"""The node that all may change, also where other nodes belong to their creator (docs/internals/metadata-layout.md,
section 13)."""
_NAMED: Final = 5


def order(path: str) -> tuple[str, ...]:
    """Return the key by which entries ascend."""
    return tuple(path.split("/"))


def is_carried(path: str) -> bool:
    """Return whether a stream has this node. The instance id and the generation of ids are written by themselves."""
    top = path.split("/")[1] if path else ""
    return top not in (paths.INSTANCE_ID, paths.HOLDER) and not paths.is_id_generation(top)


class ClusterNodes:
    """The nodes of the cluster at `root`."""

    def __init__(self, tree: RetryingTree, root: str) -> None:
        self._tree = tree
        self._root = root
        self.left_out = 0
        """The number of nodes of sessions that the last reading with `live` left out."""

    async def read(self, *, live: bool = False, times: bool = True) -> Entries:
        """Give everything. `times`: ledgers that keep no time of their creation get the one of their node."""
        self.left_out = 0
        await self._tree.sync(self._root)
        root = await self._tree.get(self._root)
        yield "", root.data or b""
        levels = [self._below("", live)]
        try:
            while levels:
                try:
                    path, node = await anext(levels[-1])
                except StopAsyncIteration:
                    await levels.pop().aclose()
                    continue
                yield path, self._with_time(path, node) if times else node.data or b""
                if node.stat.children:
                    levels.append(self._below(path, live))
        finally:
            for level in reversed(levels):
                await level.aclose()

    async def make_equal(self, wanted: Entries, session_id: int, told: Callable[[int], None]) -> Tally:
        """Write what differs and delete what is too much, in this session or not at all; `told` hears how many entries
        are done. `SessionEnded`."""
        tally, batch = Tally(), _Batch(self._tree, self._root, session_id)
        gone = ""
        async with aclosing(paired(wanted, self.read(times=False))) as pairs:
            async for path, data, found in pairs:
                if data is None:
                    if not (gone and path.startswith(f"{gone}/")):
                        await batch.write()
                        await erase(self._tree, self._root + path, session_id=session_id)
                        gone = path
                    continue
                tally.add(path, data)
                if found is None:
                    await batch.create(path, data)
                elif found != data:
                    await self._tree.overwrite(self._root + path, data, session_id=session_id)
                if tally.nodes % 1000 == 0:
                    told(tally.nodes)
        await batch.write()
        return tally

    # --- inside ----------------------------------------------------------------------------------------------

    async def _below(self, path: str, live: bool) -> AsyncGenerator[tuple[str, Node], None]:
        try:
            names = (await self._tree.children(self._root + path)).names
        except MetadataNotFound:
            return
        below = [each for each in (f"{path}/{name}" for name in sorted(names)) if is_carried(each)]
        parts = [below[first : first + NODES_AT_ONCE] for first in range(0, len(below), NODES_AT_ONCE)]
        async with aclosing(read_ahead(_each(parts), self._nodes, _AHEAD)) as found:
            async for nodes in found:
                for each, node in nodes:
                    if not node.stat.owner:
                        yield each, node
                    elif live:
                        self.left_out += 1
                    else:
                        raise MetadataNotEmpty(
                            f"{self._root}{each} belongs to a process that is connected: stop bookies, auto-recovery"
                            " and clients (the node of one that was killed goes after zkTimeout)"
                        )

    async def _nodes(self, part: Sequence[str]) -> list[tuple[str, Node]]:
        found = await self._tree.get_each([self._root + each for each in part], childless=True)
        nodes: list[tuple[str, Node]] = []
        for path, node in zip(part, found, strict=True):
            if isinstance(node, Node):
                nodes.append((path, node))
            elif not isinstance(node, MetadataNotFound):
                raise node
        return nodes

    def _with_time(self, path: str, node: Node) -> bytes:
        data = node.data or b""
        ledger_id = paths.ledger_id_of(path)
        if ledger_id is None or not self._tree.keeps_times:
            return data
        with suppress(MetadataDamaged):  # it is carried as it is
            metadata = decode_ledger_metadata(ledger_id, data, node.stat.ctime_ms)
            if not metadata.store_ctime and metadata.ctime is not None and metadata.format_version >= 2:
                return encode_ledger_metadata(replace(metadata, store_ctime=True))
        return data


class Tally:
    """A tally counts the entries of a stream and has a digest over all of them."""

    def __init__(self) -> None:
        self.nodes = 0
        self.ledgers = 0
        self._digest = hashlib.sha256()

    def add(self, path: str, data: bytes) -> None:
        self.nodes += 1
        self.ledgers += paths.ledger_id_of(path) is not None
        name = path.encode("utf-8", "surrogatepass")
        self._digest.update(b"%d %d\n%s%s" % (len(name), len(data), name, data))

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


async def paired(left: Entries, right: Entries) -> AsyncGenerator[tuple[str, bytes | None, bytes | None], None]:
    """Give each path that is in one of the two, with its bytes there; None: it is not in that one."""
    async with aclosing(left), aclosing(right):
        one, other = await _next(left), await _next(right)
        while one is not None or other is not None:
            if other is None or (one is not None and order(one[0]) < order(other[0])):
                assert one is not None
                yield one[0], one[1], None
                one = await _next(left)
            elif one is None or order(other[0]) < order(one[0]):
                yield other[0], None, other[1]
                other = await _next(right)
            else:
                yield one[0], one[1], other[1]
                one, other = await _next(left), await _next(right)


async def differences(wanted: Entries, found: Entries) -> tuple[Tally, int, list[str]]:
    """Return the tally of what was wanted, how many paths differ, and some of them."""
    tally, count = Tally(), 0
    some: list[str] = []
    async with aclosing(paired(wanted, found)) as pairs:
        async for path, one, other in pairs:
            if one is not None:
                tally.add(path, one)
            if one != other:
                count += 1
                if len(some) < _NAMED:
                    some.append(path or "/")
    return tally, count, some


async def overlaid(entries: Entries, own: Mapping[str, bytes], default: Mapping[str, bytes]) -> Entries:
    """The entries with those of `own` in their places, and those of `default` where there is none of that path."""
    async with aclosing(paired(entries, _sorted({**default, **own}))) as pairs:
        async for path, there, added in pairs:
            if path in own or there is None:
                assert added is not None
                yield path, added
            else:
                yield path, there


class _Batch:
    """New nodes that are created together, all or none."""

    def __init__(self, tree: RetryingTree, root: str, session_id: int) -> None:
        self._tree = tree
        self._root = root
        self._session_id = session_id
        self._nodes: list[tuple[str, bytes]] = []
        self._bytes = 0

    async def create(self, path: str, data: bytes) -> None:
        if path == _OPEN_TO_ALL:
            await self.write()
            await self._tree.create(self._root + path, data, open_to_all=True, session_id=self._session_id)
            return
        nbytes = len(path) + len(data)
        if len(self._nodes) >= _BATCH_NODES or self._bytes + nbytes > _BATCH_BYTES:
            await self.write()
        self._nodes.append((self._root + path, data))
        self._bytes += nbytes

    async def write(self) -> None:
        nodes, self._nodes, self._bytes = self._nodes, [], 0
        if nodes:
            await self._tree.create_all(nodes, session_id=self._session_id)


async def _next(entries: AsyncIterator[Entry]) -> Entry | None:
    return await anext(entries, None)


async def _each(parts: Sequence[Sequence[str]]) -> AsyncGenerator[Sequence[str], None]:
    for part in parts:
        yield part


async def _sorted(nodes: Mapping[str, bytes]) -> Entries:
    for path in sorted(nodes, key=order):
        yield path, nodes[path]
