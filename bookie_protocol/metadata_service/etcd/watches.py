"""The watches of one process: they share a stream, and each fires once.

Invariants
- A watch begins right behind the revision at which its reader read: no change is missed between the two, however late
  etcd hears of the watch.
- When the stream breaks, the watches that have not fired are set again at their revisions, and none fires for that. A
  watch whose revision etcd has compacted meanwhile fires, so that its reader reads again.
- Where etcd cancels a watch for another reason, such as a token that is too old, all of them get a new stream.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from bookie_protocol.metadata_service.etcd import etcd_pb2 as messages
from bookie_protocol.metadata_service.etcd.connection import EtcdConnection
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost, Watch

_CREATED: Final = 1
"""The version of a key that has just been created."""
_Requests = asyncio.Queue[messages.WatchRequest | None]
"""None: there will be no more."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A key, or with `end` a range of keys. `names`: only what is created and deleted counts."""

    key: bytes
    end: bytes = b""
    names: bool = False


@dataclass(slots=True)
class _Standing:
    watched: Watched
    revision: int
    fire: Watch
    ids: tuple[int, ...]
    """The ids of all watches that fire together."""


class Watches:
    """The watches of a session. `listen` runs as long as it lasts."""

    def __init__(self, connection: EtcdConnection) -> None:
        self._connection = connection
        self._standing: dict[int, _Standing] = {}
        self._ids = itertools.count(1)
        self._to_send: _Requests = asyncio.Queue()
        """Requests for the current stream."""

    def __len__(self) -> int:
        return len(self._standing)

    def add(self, watched: Sequence[Watched], revision: int, fire: Watch) -> None:
        """Call `fire` once, after a change behind this revision."""
        ids = tuple(next(self._ids) for _ in watched)
        for number, each in zip(ids, watched, strict=True):
            self._standing[number] = _Standing(each, revision, fire, ids)
            self._send(_creation(number, self._standing[number]))

    def fire_all(self) -> None:
        for number in list(self._standing):
            self._fire(number)

    async def listen(self, timeout: float) -> None:
        """Fire watches until the stream breaks. Raises `MetadataUnavailable`."""
        to_send: _Requests = asyncio.Queue()
        self._to_send = to_send
        for number, each in self._standing.items():
            to_send.put_nowait(_creation(number, each))
        try:
            async with aclosing(self._connection.watch(_taken(to_send), timeout)) as responses:
                async for response in responses:
                    self._hear(response)
        finally:
            to_send.put_nowait(None)  # gRPC would wait for more, also when the stream has ended

    def _hear(self, response: messages.WatchResponse) -> None:
        number = response.watch_id
        standing = self._standing.get(number)
        was_refused = response.canceled and not response.compact_revision
        if was_refused and (standing is not None or number < 0):  # from 3.5 on, a refusal does not say which watch
            raise ConnectionLost(f"etcd has cancelled a watch: {response.cancel_reason}")
        if standing is None:
            return
        if response.canceled:
            self._fire(number, is_set=False)
        elif any(_counts(event, standing.watched) for event in response.events):
            self._fire(number)
        elif response.events:
            standing.revision = max(event.kv.mod_revision for event in response.events)  # so much has been heard

    def _fire(self, number: int, *, is_set: bool = True) -> None:
        standing = self._standing.get(number)
        if standing is None:
            return
        for each in standing.ids:
            del self._standing[each]
            if is_set or each != number:
                self._send(messages.WatchRequest(cancel_request=messages.WatchCancelRequest(watch_id=each)))
        standing.fire()

    def _send(self, request: messages.WatchRequest) -> None:
        self._to_send.put_nowait(request)


async def _taken(requests: _Requests) -> AsyncIterator[messages.WatchRequest]:
    while (request := await requests.get()) is not None:
        yield request


def _creation(number: int, standing: _Standing) -> messages.WatchRequest:
    watched = standing.watched
    return messages.WatchRequest(
        create_request=messages.WatchCreateRequest(
            key=watched.key, range_end=watched.end, start_revision=standing.revision + 1, watch_id=number
        )
    )


def _counts(event: messages.Event, watched: Watched) -> bool:
    return not watched.names or event.type == messages.Event.DELETE or event.kv.version == _CREATED
