"""Streams in the metadata service: read, compare-and-set, watch.

Invariants
- A change is one compare-and-set of the head. Segments are created before it under unused ids, and removed again when
  it is lost; an attempt after a lost one takes new ids.
- Segments that no head names are removed (`drop_unnamed`) only behind a change of the head that was made after they
  were listed: a change that was about to name them has lost by then.
- Versions of a name never come again while any process may remember them: the head of a deleted stream stays for a day,
  empty, and a stream that is made again continues its versions. So a change that was begun before the deletion, by a
  process that slept since, loses its compare-and-set against the next stream of the name. A grave, a record of its own,
  says that the name is free; it counts for what is shown, and for no decision, because a process that slept may dig one
  for a stream that lives.
- A change whose answer was lost is found when the head is read again, because changes are functions of what they find:
  "done already" is one of their results.

Event loop only.

Source: docs/internals/client-protocol.md, section 25.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from bookie_client.streams.encoding import (
    Head,
    LaidOut,
    Loaded,
    decode_head,
    decode_retired,
    decode_segment,
    encode_document,
    encode_head,
    lay_out,
    put_together,
)
from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import AT_ONCE, check_stream_name
from bookie_protocol.aside import Decoding
from bookie_protocol.errors import (
    UNREADABLE,
    MetadataDamaged,
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    MetadataUnavailable,
    MetadataVersionConflict,
    NoSuchStream,
    Refused,
    StreamExists,
)
from bookie_protocol.logs import get_logger
from bookie_protocol.metadata_service.interface import Identity, Versioned
from bookie_protocol.metadata_service.records import STREAM, STREAM_GRAVE, STREAM_SEGMENT
from bookie_protocol.metadata_service.tree.documents import RecordStore
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.pace import doubled
from bookie_protocol.together import bounded

MAX_ATTEMPTS: Final = 100
"""Compare-and-sets lost in a row until a change is given up."""
MAX_HEAD_BYTES: Final = 384 * 1024
CACHED_RECORDS: Final = 256
"""Heads and segments of the streams that were read last, and all of the last one: a part of its list would be of no
use."""
GRAVE_MS: Final = 24 * 3600 * 1000
"""Milliseconds that a process may sleep in the middle of a change."""
LEVELLED_TOGETHER: Final = 16
"""Graves that one deletion looks at: more than it digs, so that they become no more and no more than these are read."""
_RETRY_SECONDS: Final = 0.2
_ROW_BYTES: Final = 24
"""Bytes of JSON of a ledger in a list, which take as long as the ledger takes to be put into a manifest."""
_FIRST_PAUSE: Final = 0.002
_MAX_PAUSE: Final = 0.5

_log = get_logger(__name__)
T = TypeVar("T")

Change = Callable[[Manifest], Manifest | None]
"""The new state of a stream; None: it stays as it is. Raises to refuse. Pure."""
Decision = Callable[[Manifest], Awaitable[Manifest | None]]
"""The same, not pure."""


@dataclass(frozen=True, slots=True)
class StoredStream:
    """A manifest and the records that it was read from."""

    manifest: Manifest
    head: Head
    loaded: Loaded


@dataclass(frozen=True, slots=True)
class _Seen:
    """The bytes of a head, and what they stand for."""

    head: bytes
    stream: StoredStream

    @property
    def records(self) -> int:
        return 1 + len(self.stream.loaded.ledgers) + len(self.stream.loaded.retired)


class ManifestStore:
    """The manifests of a cluster."""

    def __init__(self, service: MetadataService) -> None:
        self._heads: RecordStore = service.records(STREAM)
        self._segments: RecordStore = service.records(STREAM_SEGMENT)
        self._graves: RecordStore = service.records(STREAM_GRAVE)
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._decoding = Decoding()

    # --- reading --------------------------------------------------------------------------------------------

    async def names(self) -> frozenset[str]:
        """Names of all streams, half deleted ones included."""
        graves = await self._graves.names()
        return await self._heads.names() - graves

    async def read(self, name: str, *, even_deleting: bool = False) -> StoredStream:
        """Return the stream now. Raises `NoSuchStream` (also for one that is being deleted, unless
        `even_deleting`), `MetadataDamaged`, `MetadataUnavailable`."""
        check_stream_name(name)
        missing: tuple[Identity, str] | None = None
        while True:
            try:
                stored = await self._heads.read(name)
            except MetadataNotFound as error:
                raise _no_such_stream(name) from error
            try:
                found = await self._load(name, stored)
            except MetadataNotFound as error:
                # Another head may have been stored since, and its segments removed; the same head has lost one.
                if missing == (stored.identity, str(error)):
                    raise MetadataDamaged(f"stream {name}: a segment that its head names is gone: {error}") from error
                missing = (stored.identity, str(error))
                continue
            if found.manifest.is_gone:
                raise _no_such_stream(name)
            if not even_deleting:
                _check_not_deleting(name, found.head)
            return found

    async def head(self, name: str) -> Head:
        """Return the stream without its list. Raises as `read`."""
        try:
            head = decode_head(name, (await self._heads.read(check_stream_name(name))).value)
        except MetadataNotFound as error:
            raise _no_such_stream(name) from error
        _check_not_deleting(name, head)
        return head

    async def listing(self, among: Collection[int] | None) -> dict[int, frozenset[str]]:
        """The streams that have these ledgers (None: any), half deleted ones included. Raises `MetadataUnavailable`,
        and `MetadataDamaged` when one of the lists cannot be read: it might be that one."""
        found: dict[int, frozenset[str]] = {}
        for name in sorted(await self._heads.names()):
            with suppress(NoSuchStream):
                owned = (await self.read(name, even_deleting=True)).manifest.owned_ids
                for each in owned if among is None else owned.intersection(among):
                    found[each] = found.get(each, frozenset()) | {name}
        return found

    async def watch(self, name: str) -> AsyncGenerator[Manifest, None]:
        """Watch a stream: see `Streams.watch`."""
        check_stream_name(name)
        newest: Manifest | None = None
        async with self._heads.watch(name) as snapshots:
            async for snapshot in snapshots:
                if snapshot is None:
                    raise _no_such_stream(name)
                if (newest := await self._ridden_out(name, newest)) is not None:
                    yield newest

    async def _ridden_out(self, name: str, seen: Manifest | None) -> Manifest | None:
        """Return what is stored now; None if it was seen. Waits while the metadata service is away."""
        while True:
            try:
                manifest = (await self.read(name)).manifest
            except MetadataUnavailable:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            return None if seen is not None and seen.identity == manifest.identity else manifest

    # --- changing -------------------------------------------------------------------------------------------

    async def create(self, manifest: Manifest) -> Manifest:
        """Raises `StreamExists`."""
        check_stream_name(manifest.name)
        laid_out = lay_out(manifest, None, Loaded(), _new_id)
        data = encode_head(laid_out.head)
        try:
            identity = await self._heads.create(manifest.name, data)
        except MetadataExists:
            identity = await self._raise_again(manifest.name, data)
        return put_together(manifest.name, identity, laid_out.head, laid_out.loaded)

    async def update(self, name: str, change: Change, *, even_deleting: bool = False) -> tuple[Manifest, bool]:
        """Bring a change into the stream; returns what is stored then, and whether this call changed it.

        Raises what the change raises, `NoSuchStream`, `MetadataUnavailable` (it may have been done or not), and
        `MetadataVersionConflict` after too many lost rounds.
        """

        async def decide(manifest: Manifest) -> Manifest | None:
            return change(manifest)

        return await self.update_by(name, decide, even_deleting=even_deleting)

    async def update_by(self, name: str, decide: Decision, *, even_deleting: bool = False) -> tuple[Manifest, bool]:
        """Update a stream by a decision that depends on more than the stream: it is made after the stream was read."""
        for attempt in range(MAX_ATTEMPTS):
            stored = await self.read(name, even_deleting=even_deleting)
            changed = await decide(stored.manifest)
            if changed is None:
                return stored.manifest, False
            with suppress(MetadataVersionConflict):
                return await self.replace(stored, changed), True
            # The more of them there are, the longer they wait: otherwise one wins, and all others have asked in vain.
            await asyncio.sleep(random.random() * doubled(_FIRST_PAUSE, _MAX_PAUSE, attempt))
        raise MetadataVersionConflict(
            f"stream {name}: lost {MAX_ATTEMPTS} compare-and-set rounds in a row against others; try again"
        )

    async def replace(self, stored: StoredStream, manifest: Manifest) -> Manifest:
        """One compare-and-set. Raises `MetadataVersionConflict`, and as `update`."""
        name = manifest.name
        laid_out = lay_out(manifest, stored.head, stored.loaded, _new_id)
        data = encode_head(laid_out.head)
        if len(data) > MAX_HEAD_BYTES:
            raise Refused(
                f"stream {name}: its record would have {len(data)} bytes, more than {MAX_HEAD_BYTES}: too many ledgers"
                " or applications; truncate it, or begin another one"
            )
        await self._write_segments(name, laid_out)
        try:
            identity = await self._heads.update(name, data, stored.manifest.identity)
        except MetadataVersionConflict:
            await self._drop_unless_named(name, laid_out.new_segments)
            raise
        except MetadataNotFound as error:
            await self._drop(name, laid_out.new_segments)
            raise _no_such_stream(name) from error
        await self._drop(name, stored.head.segment_ids - laid_out.head.segment_ids)
        return put_together(name, identity, laid_out.head, laid_out.loaded)

    # --- deleting -------------------------------------------------------------------------------------------

    async def bury(self, manifest: Manifest, now_ms: int) -> None:
        """End a stream that is being deleted, and of which nothing but the head and its segments is left. Raises
        `MetadataVersionConflict` for one that was changed since."""
        name = manifest.name
        segments = await self.segment_ids(name)
        left = Manifest(
            name, manifest.identity, -1, (), manifest.settings, base_ordinal=manifest.base_ordinal, is_deleting=True
        )
        head = encode_head(lay_out(left, None, Loaded(), _new_id).head)
        try:
            await self._heads.update(name, head, manifest.identity)
        except (MetadataVersionConflict, MetadataNotFound):
            with suppress(NoSuchStream):
                await self.read(name, even_deleting=True)
                raise
        await self._drop(name, segments)  # they were listed before: none is of a stream that was made since
        await self.dig_grave(name, now_ms)
        await self._level(now_ms)

    async def dig_grave(self, name: str, now_ms: int) -> None:
        """Record that there is no stream of a name whose head is left, if that is not recorded yet."""
        with suppress(MetadataNotFound):
            if not decode_head(name, (await self._heads.read(check_stream_name(name))).value).is_gone:
                return
            with suppress(MetadataExists):
                await self._graves.create(name, encode_document({"deleted_ms": now_ms}))
            with suppress(NoSuchStream):
                await self.head(name)
                await self._open_grave(name)  # it was made again in between

    async def _open_grave(self, name: str) -> None:
        with suppress(MetadataNotFound):
            await self._graves.delete(name)

    async def _level(self, now_ms: int) -> None:
        """Remove heads that no process can remember any more, and their graves. A failure here fails no deletion."""
        try:
            names = sorted(await self._graves.names())
            for name in random.sample(names, min(len(names), LEVELLED_TOGETHER)):
                with suppress(MetadataNotFound, MetadataVersionConflict):
                    await self._level_one(name, now_ms)
        except MetadataError as error:
            _log.warning("what deleted streams left stays for now", error=str(error))

    async def _level_one(self, name: str, now_ms: int) -> None:
        grave = await self._graves.read(name)
        if _deleted_ms(name, grave.value) + GRAVE_MS > now_ms:
            return
        with suppress(MetadataNotFound):
            stored = await self._heads.read(name)
            if decode_head(name, stored.value).is_gone:
                await self._heads.delete_this(name, stored.identity)
        await self._graves.delete_this(name, grave.identity)

    async def _raise_again(self, name: str, data: bytes) -> Identity:
        """A stream in place of one that was deleted. Raises `StreamExists`."""
        try:
            stored = await self._heads.read(name)
            if not decode_head(name, stored.value).is_gone:
                raise StreamExists(f"there is a stream {name} already")
            await self._open_grave(name)
            identity = await self._heads.update(name, data, stored.identity)
            await self._open_grave(name)  # a deletion of the former stream may just have dug it
            return identity
        except (MetadataNotFound, MetadataVersionConflict) as error:
            raise StreamExists(f"another client is creating or deleting stream {name}; try again") from error

    # --- segments -------------------------------------------------------------------------------------------

    async def segment_ids(self, name: str) -> frozenset[str]:
        """Ids of all segments of a stream, named by its head or not."""
        prefix = f"{name}:"
        return frozenset(each[len(prefix) :] for each in await self._segments.names() if each.startswith(prefix))

    async def drop_unnamed(self, name: str, listed: Iterable[str]) -> None:
        """Remove those of `listed` that the head does not name. The caller listed them, and changed the head since."""
        named = (await self.read(name, even_deleting=True)).head.segment_ids
        await self._drop(name, frozenset(listed) - named)

    async def drop(self, name: str, listed: Iterable[str]) -> None:
        """Remove segments that were listed before there was seen to be no such stream: a later one's have other ids."""
        await self._drop(name, listed)

    async def _write_segments(self, name: str, laid_out: LaidOut) -> None:
        async def write(segment_id: str) -> None:
            await self._segments.create(_record(name, segment_id), laid_out.new_segments[segment_id])

        await bounded(laid_out.new_segments, write, AT_ONCE)

    async def _drop_unless_named(self, name: str, segments: Mapping[str, bytes]) -> None:
        """A compare-and-set that seems lost may be our own, whose answer was lost."""
        if segments:
            with suppress(MetadataError):
                await self._drop(
                    name, frozenset(segments) - (await self.read(name, even_deleting=True)).head.segment_ids
                )

    async def _drop(self, name: str, segment_ids: Iterable[str]) -> None:
        """Remove segments; those that cannot be removed now are removed by a later writer."""
        for segment_id in segment_ids:
            with suppress(MetadataNotFound):
                try:
                    await self._segments.delete(_record(name, segment_id))
                except MetadataUnavailable as error:
                    _log.warning("segment of a stream stays behind", stream=name, segment=segment_id, error=str(error))
                    return

    # --- inside ---------------------------------------------------------------------------------------------

    async def _load(self, name: str, stored: Versioned[bytes]) -> StoredStream:
        """`MetadataNotFound`: a segment is gone."""
        seen = self._seen.pop(name, None)
        if seen is None or (seen.stream.manifest.identity, seen.head) != (stored.identity, stored.value):
            seen = _Seen(stored.value, await self._put_together(name, stored, seen))
        self._seen[name] = seen
        while len(self._seen) > 1 and sum(each.records for each in self._seen.values()) > CACHED_RECORDS:
            self._seen.popitem(last=False)
        return seen.stream

    async def _put_together(self, name: str, stored: Versioned[bytes], seen: _Seen | None) -> StoredStream:
        head = await self._decoded(decode_head, name, stored.value)
        known = Loaded() if seen is None else seen.stream.loaded
        listed = {each.segment_id: known.ledgers.get(each.segment_id) for each in head.segments}
        retired = {each.segment_id: known.retired.get(each.segment_id) for each in head.retired if each.segment_id}
        loaded = Loaded(
            await self._with_missing(name, listed, decode_segment),
            await self._with_missing(name, retired, decode_retired),
        )
        nbytes = len(stored.value) + sum(map(len, loaded.ledgers.values())) * _ROW_BYTES
        manifest = await self._decoding.run(lambda: put_together(name, stored.identity, head, loaded), nbytes)
        return StoredStream(manifest, head, loaded)

    async def _decoded(self, decode: Callable[[str, bytes], T], name: str, data: bytes) -> T:
        return await self._decoding.run(lambda: decode(name, data), len(data))

    async def _with_missing(
        self, name: str, known: Mapping[str, T | None], decode: Callable[[str, bytes], T]
    ) -> dict[str, T]:
        """Return the content of segments, which never changes; read those that are not known yet."""
        missing = [each for each, held in known.items() if held is None]

        async def read(segment_id: str) -> T:
            record = _record(name, segment_id)
            return await self._decoded(decode, record, (await self._segments.read(record)).value)

        found = dict(zip(missing, await bounded(missing, read, AT_ONCE), strict=True))
        return {each: found[each] if held is None else held for each, held in known.items()}


def _record(name: str, segment_id: str) -> str:
    return f"{name}:{segment_id}"


def _new_id() -> str:
    return secrets.token_hex(8)


def _deleted_ms(name: str, grave: bytes) -> int:
    try:
        return int(json.loads(grave)["deleted_ms"])
    except UNREADABLE as error:
        raise MetadataDamaged(f"the record that stream {name} was deleted cannot be read: {error!r}") from error


def _check_not_deleting(name: str, head: Head) -> None:
    if head.is_gone:
        raise _no_such_stream(name)
    if head.is_deleting:
        raise NoSuchStream(f"stream {name} is being deleted; deleting it again finishes that")


def _no_such_stream(name: str) -> NoSuchStream:
    return NoSuchStream(f"there is no stream {name}")
