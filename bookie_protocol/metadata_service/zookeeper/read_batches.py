"""Reads asked for together, or in one turn of the event loop, sent as one request: ZooKeeper's `multiRead`.

kazoo hands every request from the loop to a thread, and its answer back, which costs more than the read itself. Whoever
walks all ledgers asks for many at once, so most of that cost is shared.

Invariants
- Each read has its own outcome: one node that is missing fails no other read.
- A read alone in its turn is an ordinary request, as all reads are on a server before 3.6, which has no `multiRead`.
- No request asks for more than `NODES_AT_ONCE` nodes.
- Reads that nobody waits for any more are not sent.

Threads: event loop only; answers hop to it.

Sources: ZooKeeper 3.6, `MultiOperationRecord` and `MultiResponse` (operation 22); each record is a header (type, done,
error) and a body, and a header of type -1 with `done` ends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from kazoo.exceptions import EXCEPTIONS, UnimplementedError
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import (
    GetData,
    int_struct,
    multiheader_struct,
    read_buffer,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat

from bookie_protocol.metadata_service.tree.nodes import NODES_AT_ONCE
from bookie_protocol.metadata_service.zookeeper.client import await_result, hop

_ERROR: Final = -1
_END: Final[bytes] = multiheader_struct.pack(-1, True, -1)

Found = tuple[bytes, ZnodeStat]


@dataclass(frozen=True, slots=True)
class MultiRead:
    """A request for kazoo's queue; `paths` with the chroot of the client."""

    type: ClassVar[int] = 22
    paths: Sequence[str]

    def serialize(self) -> bytes:
        header: bytes = multiheader_struct.pack(GetData.type, False, -1)
        return b"".join([header + GetData(path, None).serialize() for path in self.paths]) + _END

    @classmethod
    def deserialize(cls, answer: bytes, offset: int) -> list[Found | Exception]:
        """What was found, or why not, in the order of the paths."""
        outcomes: list[Found | Exception] = []
        while True:
            kind, done, _ = multiheader_struct.unpack_from(answer, offset)
            offset += multiheader_struct.size
            if done:
                return outcomes
            if kind == _ERROR:
                outcomes.append(EXCEPTIONS[int_struct.unpack_from(answer, offset)[0]]())
                offset += int_struct.size
            else:
                data, offset = read_buffer(answer, offset)
                outcomes.append((data, ZnodeStat._make(stat_struct.unpack_from(answer, offset))))
                offset += stat_struct.size


class ReadBatches:
    """Reads of one kazoo client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[str, asyncio.Future[Found]]] = []
        self._single = False

    async def get(self, path: str) -> Found:
        """Data and stat of a node. Raises what kazoo's `get` raises."""
        future: asyncio.Future[Found] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._send)
        self._waiting.append((path, future))
        try:
            return await future
        except UnimplementedError:
            self._single = True
            found: Found = await await_result(self._client.get_async(path))
            return found

    async def get_each(self, paths: Sequence[str]) -> list[Found | BaseException]:
        """What `get` returns or raises for each of at most `NODES_AT_ONCE`. Raises what befalls the whole request."""
        if not self._single:
            try:
                outcomes: list[Found | BaseException] = await await_result(self._multi_read(paths))
                return outcomes
            except UnimplementedError:
                self._single = True
        gets: list[Awaitable[Found]] = [await_result(self._client.get_async(path)) for path in paths]
        return await asyncio.gather(*gets, return_exceptions=True)

    def _multi_read(self, paths: Sequence[str]) -> Any:
        """kazoo's result, whose value are the outcomes."""
        result = self._client.handler.async_result()
        self._client._call(MultiRead([_prefix_root(self._client.chroot, path) for path in paths]), result)
        return result

    def _send(self) -> None:
        waiting = [(path, future) for path, future in self._waiting if not future.done()]
        self._waiting.clear()
        most = 1 if self._single else NODES_AT_ONCE
        for first in range(0, len(waiting), most):
            self._send_batch(waiting[first : first + most])

    def _send_batch(self, reads: Sequence[tuple[str, asyncio.Future[Found]]]) -> None:
        if len(reads) == 1:
            result = self._client.get_async(reads[0][0])
        else:
            result = self._multi_read([path for path, _ in reads])
        futures = [future for _, future in reads]
        result.rawlink(hop(self._loop, lambda _: _settle(futures, result)))


def _settle(futures: Sequence[asyncio.Future[Found]], result: Any) -> None:
    if result.exception is not None:
        outcomes: Sequence[Found | Exception] = [result.exception] * len(futures)
    else:
        outcomes = [result.value] if len(futures) == 1 else result.value
    for future, outcome in zip(futures, outcomes, strict=True):
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
