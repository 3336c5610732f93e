"""Cursors: the positions of the consumers of a stream.

A cursor is a record of its own, kind "stream-cursor", so that consumers do not disturb writers: JSON, `format` 1, with
`position`, its `ordinal`, and `moved_ms`; `announced`, false, while its stream may not know of it.

Invariants
- A cursor only goes forwards, by its ordinal; of concurrent moves the farthest stays.
- A new cursor counts for every truncation and retention that comes to its decision later: the stream's head is changed
  after the record was made, so that a decision that did not see it loses its compare-and-set. No move of a cursor
  returns before that: a client that finds an unannounced cursor announces it.

Event loop only.

Source: docs/internals/client-protocol.md, section 25, item 5; a cursor here is metadata, and not a ledger of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from bookie_client.streams.encoding import decode_document, encode_document
from bookie_client.streams.ledgers import StreamLedgers
from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import AT_ONCE, StreamPosition, check_stream_name
from bookie_client.streams.store import MAX_ATTEMPTS, ManifestStore
from bookie_protocol.errors import (
    UNREADABLE,
    BadRequest,
    MetadataDamaged,
    MetadataExists,
    MetadataNotFound,
    MetadataVersionConflict,
    NoSuchLedger,
    NoSuchStream,
    PodkeeperError,
    StreamPositionGone,
)
from bookie_protocol.metadata_service.interface import Versioned
from bookie_protocol.metadata_service.records import STREAM_CURSOR
from bookie_protocol.metadata_service.tree.documents import RecordStore
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.together import bounded

FORMAT: Final = 1
_MEMBERS: Final = frozenset({"format", "position", "ordinal", "moved_ms", "announced"})


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """The position of a consumer: everything before `position` has been processed."""

    stream: str
    cursor_id: str
    position: StreamPosition
    ordinal: int
    """`Manifest.ordinal` of the position when it was stored."""
    moved_ms: int
    """Time of storing it, in ms since 1970."""
    announced: bool = True
    """True if every decision about its stream that was made without it has lost by now."""


class StreamCursors:
    """The cursors of a cluster's streams. `ledgers` are asked how far the open one is written; None: nothing moves."""

    def __init__(
        self,
        service: MetadataService,
        store: ManifestStore,
        now_ms: Callable[[], int],
        ledgers: StreamLedgers | None = None,
    ) -> None:
        self._records: RecordStore = service.records(STREAM_CURSOR)
        self._store = store
        self._now_ms = now_ms
        self._ledgers = ledgers

    async def read(self, name: str, cursor_id: str) -> StreamCursor:
        """Raises `NoSuchStream`."""
        try:
            return (await self._read(name, cursor_id)).value
        except MetadataNotFound as error:
            raise NoSuchStream(f"stream {name} has no cursor {cursor_id}") from error

    async def of(self, name: str) -> dict[str, StreamCursor]:
        """Return all cursors of a stream, by id."""
        found = await bounded(await self._ids(name), partial(self._read_if_there, name), AT_ONCE)
        return {cursor.cursor_id: cursor for cursor in found if cursor is not None}

    async def move(self, name: str, cursor_id: str, position: StreamPosition) -> StreamCursor:
        """Move a cursor: see `Streams.move_cursor`."""
        for _ in range(MAX_ATTEMPTS):
            with suppress(MetadataExists, MetadataVersionConflict, MetadataNotFound):
                # The cursor first: it goes with its stream, so what the stream says holds as long as the cursor exists.
                found = await self._find(name, cursor_id)
                wanted = await self._wanted(name, cursor_id, position)
                stored = found or await self._make(wanted)
                farthest = max(stored.value, wanted, key=lambda each: each.ordinal)
                if stored.value.announced and farthest is stored.value:
                    return farthest
                if not stored.value.announced:
                    await self._announce(stored)
                farthest = replace(farthest, announced=True)
                await self._records.update(_record(name, cursor_id), _encode(farthest), stored.identity)
                return farthest
        raise MetadataVersionConflict(f"cursor {cursor_id} of stream {name}: lost {MAX_ATTEMPTS} rounds; try again")

    async def delete(self, name: str, cursor_id: str) -> None:
        """One that does not exist is fine."""
        with suppress(MetadataNotFound):
            await self._records.delete(_record(name, cursor_id))

    async def delete_all(self, name: str) -> None:
        """Delete the cursors of a stream that is being deleted; those of a later one of its name are left alone."""
        for each in await self._ids(name):
            while True:  # as often as a move that began before is quicker
                with suppress(MetadataVersionConflict):
                    if not await self._delete_of_deleted(name, each):
                        return
                    break

    # --- inside ---------------------------------------------------------------------------------------------

    async def _check_written(self, manifest: Manifest, position: StreamPosition) -> None:
        """Check a position in the open ledger. A cursor that is ahead of the end would let retention take entries
        that no consumer has read. Raises as `Streams.move_cursor`."""
        index, entry = manifest.resolve(position)
        if entry == 0 or self._ledgers is None or not manifest.ledgers[index].is_open:
            return
        ledger_id = manifest.ledgers[index].ledger_id
        try:
            await self._ledgers.check_written(ledger_id, entry, manifest.settings)
        except NoSuchLedger as error:
            raise StreamPositionGone(f"ledger {ledger_id} of stream {manifest.name} was deleted") from error
        except BadRequest as error:
            raise BadRequest(f"position {position} of stream {manifest.name} cannot be a cursor's: {error}") from None

    async def _ids(self, name: str) -> list[str]:
        prefix = f"{check_stream_name(name)}:"
        return sorted(each[len(prefix) :] for each in await self._records.names() if each.startswith(prefix))

    async def _delete_of_deleted(self, name: str, cursor_id: str) -> bool:
        """False: the stream is another one by now. Raises `MetadataVersionConflict`."""
        with suppress(MetadataNotFound):
            found = await self._records.read(_record(name, cursor_id))
            if not (await self._store.read(name, even_deleting=True)).manifest.is_deleting:
                return False
            await self._records.delete_this(_record(name, cursor_id), found.identity)
        return True

    async def _wanted(self, name: str, cursor_id: str, position: StreamPosition) -> StreamCursor:
        manifest = (await self._store.read(name)).manifest
        await self._check_written(manifest, position)
        return StreamCursor(name, cursor_id, position, manifest.ordinal(position), self._now_ms())

    async def _make(self, wanted: StreamCursor) -> Versioned[StreamCursor]:
        made = replace(wanted, announced=False)
        return Versioned(made, await self._records.create(_record(wanted.stream, wanted.cursor_id), _encode(made)))

    async def _announce(self, stored: Versioned[StreamCursor]) -> None:
        cursor = stored.value

        def announced(manifest: Manifest) -> Manifest:
            manifest.resolve(cursor.position)
            return replace(manifest, epoch=manifest.epoch + 1)

        try:
            await self._store.update(cursor.stream, announced)
        except PodkeeperError:
            # The position went while the cursor was made, or may have: a cursor that holds nothing is useless.
            with suppress(PodkeeperError):
                await self._delete_read(stored)
            raise

    async def _delete_read(self, stored: Versioned[StreamCursor]) -> None:
        """Delete the cursor as it was read or made, but not one that was moved or made again since."""
        name = _record(stored.value.stream, stored.value.cursor_id)
        found = await self._records.read(name)
        decoded = _decode(stored.value.stream, stored.value.cursor_id, found.value)
        if Versioned(decoded, found.identity) == stored:
            await self._records.delete_this(name, found.identity)

    async def _read_if_there(self, name: str, cursor_id: str) -> StreamCursor | None:
        found = await self._find(name, cursor_id)
        return None if found is None else found.value

    async def _find(self, name: str, cursor_id: str) -> Versioned[StreamCursor] | None:
        try:
            return await self._read(name, cursor_id)
        except MetadataNotFound:
            return None

    async def _read(self, name: str, cursor_id: str) -> Versioned[StreamCursor]:
        stored = await self._records.read(_record(name, cursor_id))
        return Versioned(_decode(name, cursor_id, stored.value), stored.identity)


def _record(name: str, cursor_id: str) -> str:
    return f"{check_stream_name(name)}:{check_stream_name(cursor_id)}"


def _encode(cursor: StreamCursor) -> bytes:
    document = {
        "format": FORMAT,
        "position": str(cursor.position),
        "ordinal": cursor.ordinal,
        "moved_ms": cursor.moved_ms,
    }
    if not cursor.announced:
        document["announced"] = False
    return encode_document(document)


def _decode(name: str, cursor_id: str, data: bytes) -> StreamCursor:
    try:
        document = decode_document(data, FORMAT, _MEMBERS)
        position = StreamPosition.parse(document["position"])
        announced = bool(document.get("announced", True))
        return StreamCursor(name, cursor_id, position, int(document["ordinal"]), int(document["moved_ms"]), announced)
    except (*UNREADABLE, PodkeeperError) as error:
        raise MetadataDamaged(f"cursor {cursor_id} of stream {name} cannot be read: {error!r}") from error
