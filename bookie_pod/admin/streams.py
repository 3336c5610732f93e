"""Streams of ledgers and the lag of their consumers: a page at a time, each at a bounded cost.

Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from bookie_pod.admin.client import ClusterClient
from bookie_pod.admin.ledger_weights import Window
from bookie_pod.admin.turns import Turns
from bookie_pod.roles import NOBODY, Caller, Role
from bookie_pod.server.http.api.call import Call, Json, Reply
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Answer, Operation, Resource
from bookie_protocol.admin_api import streams as streams_api
from bookie_protocol.admin_api.streams import (
    MOST_CURSORS,
    MOST_LEDGERS,
    CursorState,
    FoundStreams,
    ListedLedger,
    StreamQuery,
    StreamsQuery,
    StreamState,
)
from bookie_protocol.aside import STEPS, Aside
from bookie_protocol.errors import MetadataDamaged, NoSuchStream
from bookie_protocol.metadata_service.records import STREAM_CURSOR
from bookie_protocol.shown import one_line
from bookie_protocol.together import bounded

if TYPE_CHECKING:
    from bookie_client.streams import Manifest, StreamCursor, Streams

_CURSORS_IN_LISTS: Final = 20
"""Cursors that are read of each stream of a list."""
MOST_ROWS: Final = 20_000
"""Ledgers of all streams that were read for a page, after which it ends: each costs time and memory."""
_CURSORS_AT_A_TIME: Final = 16


class StreamsView:
    """Through the client."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._turns = Turns()
        self._aside = Aside()

    async def page(self, asked: StreamsQuery, caller: Caller = NOBODY) -> FoundStreams:
        """Raises `TooManyRequests`, `MetadataUnavailable`."""
        streams = await self._streams()
        async with self._turns.turn(caller):
            names = sorted(name for name in await streams.names() if name.startswith(asked.prefix))
            behind = [name for name in names if name > asked.after]
            cursors = await self._cursor_ids(behind[: asked.limit])
            found: list[StreamState | None] = []
            rows, window = 0, Window()
            while len(found) < min(asked.limit, len(behind)) and rows <= MOST_ROWS:
                group = behind[len(found) : min(asked.limit, len(found) + window.size)]
                states = await bounded(group, lambda name: self._state(name, cursors[name]), window.size)
                sizes = [each.ledgers + each.waiting_ledgers for each in states if each is not None]
                rows += sum(sizes)
                window.seen(max(sizes, default=0))
                found += states
        return FoundStreams(
            streams=[each for each in found if each is not None],
            total=len(names),
            next=behind[len(found) - 1] if found and len(behind) > len(found) else None,
        )

    async def _state(self, name: str, cursor_ids: Sequence[str]) -> StreamState | None:
        """None: it was deleted meanwhile. A stream that cannot be read does not hide the others."""
        streams = await self._streams()  # which keep what they have read; each stream may be large
        try:
            manifest = await streams.manifest(name)
            cursors = await _cursors(streams, name, cursor_ids[:_CURSORS_IN_LISTS])
        except NoSuchStream:
            return None
        except MetadataDamaged as error:
            return StreamState(name, 0, 0, 0, None, 0, 0, [], len(cursor_ids), problem=one_line(error))
        return await self._made(lambda: _state_of(manifest, cursors, len(cursor_ids), None), manifest)

    async def _made(self, make: Callable[[], StreamState], manifest: Manifest) -> StreamState:
        """Return the result of `make` for the manifest; compute it on a thread if the stream has many ledgers."""
        return make() if len(manifest.ledgers) <= STEPS else await self._aside.run(make)

    async def one(self, name: str, caller: Caller = NOBODY) -> StreamState:
        """Raises `NoSuchStream`, `BadRequest`, and as `page`."""
        streams = await self._streams()
        async with self._turns.turn(caller):
            manifest = await streams.manifest(name)
            cursor_ids = (await self._cursor_ids([name]))[name]
            cursors = await _cursors(streams, name, cursor_ids[:MOST_CURSORS])
        newest = [
            ListedLedger(each.ledger_id, each.first_ordinal, each.entries, each.nbytes, each.closed_ms)
            for each in reversed(manifest.ledgers[-MOST_LEDGERS:])
        ]
        return await self._made(lambda: _state_of(manifest, cursors, len(cursor_ids), newest), manifest)

    async def _streams(self) -> Streams:
        client = await self._client.get()
        from bookie_client.streams import Streams

        return Streams(client, password=None)

    async def _cursor_ids(self, names: Sequence[str]) -> dict[str, list[str]]:
        """The ids of the cursors of these streams, by one listing."""
        found: dict[str, list[str]] = {name: [] for name in names}
        for record in await self._client.metadata.records(STREAM_CURSOR).names():
            name, _, cursor_id = record.partition(":")
            if name in found:
                found[name].append(cursor_id)
        return {name: sorted(ids) for name, ids in found.items()}


async def _cursors(streams: Streams, name: str, cursor_ids: Sequence[str]) -> list[StreamCursor]:
    found = await bounded(cursor_ids, partial(_cursor, streams, name), _CURSORS_AT_A_TIME)
    return [each for each in found if each is not None]


async def _cursor(streams: Streams, name: str, cursor_id: str) -> StreamCursor | None:
    try:
        return await streams.cursor(name, cursor_id)
    except NoSuchStream:
        return None


def _state_of(
    manifest: Manifest, cursors: Sequence[StreamCursor], cursors_total: int, listed: list[ListedLedger] | None
) -> StreamState:
    end = manifest.end_ordinal
    states = [
        CursorState(each.cursor_id, str(each.position), max(0, end - each.ordinal), each.moved_ms) for each in cursors
    ]
    return StreamState(
        name=manifest.name,
        ledgers=len(manifest.ledgers),
        entries=manifest.entries,
        bytes=manifest.nbytes,
        open_ledger=manifest.open_ledger.ledger_id if manifest.open_ledger is not None else None,
        waiting_ledgers=len(manifest.retired_ids),
        created_time=manifest.created_ms,
        cursors=sorted(states, key=lambda each: (-each.lag, each.cursor_id)),
        cursors_total=cursors_total,
        listed=listed,
    )


async def _list(context: Context, call: Call) -> Reply:
    return Json(await context.room(StreamsView).page(call.asked(StreamsQuery), call.caller))


async def _one(context: Context, call: Call) -> Reply:
    return Json(await context.room(StreamsView).one(call.asked(StreamQuery).name, call.caller))


RESOURCES: Final = (
    Resource(
        (
            Operation(
                streams_api.LIST,
                Role.VIEWER,
                "Streams of ledgers and the lag of their consumers, a page at a time",
                _list,
                "One page.",
            ),
        ),
    ),
    Resource(
        (
            Operation(
                streams_api.STREAM,
                Role.VIEWER,
                "One stream: its newest ledgers and its consumers",
                _one,
                "The stream.",
                (Answer("There is no such stream.", 404),),
            ),
        ),
    ),
)
