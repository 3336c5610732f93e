"""Pulsar's managed ledgers, to be read only: which ledgers a topic consists of, and what Pulsar stores of them.

    topic = await managed_ledger(client, "persistent://public/default/orders")
    for span in topic.manifest.spans(topic.manifest.earliest):
        print(span.ledger.ledger_id, span.first, span.last)

What is stored are protobuf messages, plain or compressed. Compressed: the bytes 0x47 0x78, a length of 4 bytes
(big-endian), so many bytes of protobuf {`compressionType` 1, `uncompressedSize` 2}, then the compressed message. LZ4
and Snappy are raw blocks.

| message | fields that are read |
|---|---|
| `ManagedLedgerInfo` | `ledgerInfo` 1, `terminatedPosition` 2 {as `PositionInfo`}, `properties` 3 {key 1, value 2} |
| `LedgerInfo` | `ledgerId` 1, `entries` 2, `size` 3, `timestamp` 4, `offloadContext` 5 |
| `OffloadContext` | `uidMsb` 1, `uidLsb` 2, `complete` 3, `bookkeeperDeleted` 4 |
| `ManagedCursorInfo` | `cursorsLedgerId` 1, `markDeleteLedgerId` 2, `markDeleteEntryId` 3 |
| `PositionInfo` (last entry of a cursor's ledger) | `ledgerId` 1, `entryId` 2 |

Invariants
- Nothing of Pulsar's is ever changed, and no ledger is fenced: a topic's open ledger has a living broker.

The decoding is pure; the rest belongs to the event loop.

Source: docs/internals/metadata-layout.md, section 15; docs/internals/client-protocol.md, section 25, item 5.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final
from urllib.parse import quote_plus, unquote_plus
from uuid import UUID

from bookie_client.client import Client
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.handle import LedgerReader
from bookie_client.streams.encoding import Row, with_ordinals
from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import AT_ONCE, StreamPosition, StreamSettings
from bookie_protocol.compression import decompressed
from bookie_protocol.errors import (
    BadRequest,
    CouldNotTell,
    MetadataDamaged,
    MetadataNotFound,
    NoSuchStream,
    NotThere,
    PodkeeperError,
    fresh,
)
from bookie_protocol.metadata_service.managed_ledgers import ROOT
from bookie_protocol.metadata_service.tree.documents import TreeManagedLedgers
from bookie_protocol.together import bounded
from bookie_protocol.wire.varint import decode_uint64, varint_size

_LEVELS: Final = 4
"""Tenant, namespace, domain, topic."""
_DOMAIN: Final = "persistent"
_UNCONFIRMED: Final = 100
"""Entries at most that are looked for behind the last add confirmed of a cursor's ledger: more than a broker has under
way."""
_MAGIC: Final = b"\x47\x78"
_LENGTH: Final = struct.Struct(">I")
MAX_UNCOMPRESSED: Final = 256 * 1024 * 1024
"""Bytes; a greater size in the header is damage."""


@dataclass(frozen=True, slots=True)
class ManagedLedger:
    """A topic's ledgers as Pulsar lists them."""

    name: str
    manifest: Manifest
    """The ledgers as a stream's: positions, spans and ordinals work as there. The last one is open unless Pulsar has
    recorded its end. Ordinals count from the oldest ledger that is listed."""
    offloaded: Mapping[int, OffloadedLedger]
    """Offloaded ledgers by id. Those that are `is_deleted` cannot be read from BookKeeper."""
    properties: Mapping[str, str]
    terminated: StreamPosition | None
    """Position behind the last entry of a terminated topic; None if it is not terminated."""


def stored_name(name: str) -> str:
    """Return the name under which Pulsar stores a topic. "tenant/namespace/persistent/topic" is one already; of
    "persistent://tenant/namespace/topic" the topic's own name is encoded. Raises `BadRequest`."""
    domain, separator, rest = name.partition("://")
    if separator:
        tenant, _, rest = rest.partition("/")
        namespace, _, topic = rest.partition("/")
        name = f"{tenant}/{namespace}/{domain}/{quote_plus(topic)}"
    if len(name.split("/")) != _LEVELS or not all(name.split("/")):
        raise BadRequest(
            f"{name[:200]!r} is not a managed ledger: it looks like tenant/namespace/persistent/topic, or"
            " persistent://tenant/namespace/topic"
        )
    return name


async def managed_ledger(client: Client, name: str, *, root: str = ROOT) -> ManagedLedger:
    """A topic's managed ledger; `name` as in `stored_name`. Of a partitioned topic each partition is one, with a name
    that ends in "-partition-0" and so on.

    Raises `NoSuchStream`, `MetadataDamaged` (also for a compression that needs pyarrow where that is not installed),
    `MetadataUnavailable`. No bookie is asked, and no cursor is read: see `managed_cursors`.
    """
    name = stored_name(name)
    nodes = client.metadata_service.managed_ledgers(root)
    try:
        node = await nodes.read(name)
    except MetadataNotFound as error:
        raise NoSuchStream(f"there is no managed ledger {name} below {root}") from error
    stored = decode_managed_ledger(name, node.value)
    manifest = Manifest(
        name=name,
        identity=node.identity,
        generation=0,
        ledgers=with_ordinals(_rows(stored.ledgers), 0),
        settings=StreamSettings(),
    )
    offloaded = {each.ledger_id: each.offloaded for each in stored.ledgers if each.offloaded is not None}
    return ManagedLedger(name, manifest, offloaded, stored.properties, stored.terminated)


async def managed_cursors(
    client: Client, name: str, *, root: str = ROOT
) -> Mapping[str, StreamPosition | PodkeeperError]:
    """Return the position of each subscription of a topic: behind the last entry marked deleted, even if the broker
    does not know yet that bookies have stored it. `name` as in `stored_name`.

    A cursor that cannot be read has its error in place of its position; one whose ledger is gone is left out. Most
    cursors of a living broker lie in ledgers of their own, so this asks bookies several times for each subscription.
    Raises `MetadataUnavailable` if the metadata service cannot list the subscriptions.
    """
    name = stored_name(name)
    nodes = client.metadata_service.managed_ledgers(root)
    subscriptions = await nodes.children(name)
    found = await bounded(subscriptions, partial(_cursor, client, nodes, name), AT_ONCE)
    places = zip(subscriptions, found, strict=True)
    return {unquote_plus(child): place for child, place in places if place is not None}


async def managed_ledger_names(client: Client, under: str = "", *, root: str = ROOT) -> tuple[str, ...]:
    """The names of all managed ledgers, sorted, or of those of a tenant or "tenant/namespace". Raises `BadRequest`,
    `MetadataUnavailable`."""
    nodes = client.metadata_service.managed_ledgers(root)
    names = [under]
    for level in range(len(under.split("/")) if under else 0, _LEVELS):
        below = await bounded(names, nodes.children, AT_ONCE)
        names = [
            f"{name}/{child}" if name else child
            for name, children in zip(names, below, strict=True)
            for child in children
            if level != 2 or child == _DOMAIN
        ]
    return tuple(sorted(names))


def _rows(ledgers: tuple[ListedLedger, ...]) -> list[Row]:
    rows: list[Row] = []
    for index, each in enumerate(ledgers):
        if index == len(ledgers) - 1 and not each.entries:
            rows.append((each.ledger_id, None, None, None, None))
        else:
            rows.append((each.ledger_id, each.entries, each.nbytes, each.closed_ms, None))
    return rows


async def _cursor(
    client: Client, nodes: TreeManagedLedgers, name: str, child: str
) -> StreamPosition | PodkeeperError | None:
    what = f"{unquote_plus(child)} of {name}"
    try:
        stored = decode_cursor(what, (await nodes.read(f"{name}/{child}")).value)
        if stored.cursors_ledger_id < 0:
            return stored.position
        async with client.open(stored.cursors_ledger_id, password=None) as ledger:
            newest = await _newest(ledger)
        return stored.position if newest is None else decode_position(what, newest.payload)
    except NotThere:  # deleted meanwhile, or its ledger
        return None
    except PodkeeperError as error:
        return fresh(error)


async def _newest(ledger: LedgerReader) -> LedgerEntry | None:
    """Return the last entry of a cursor's ledger. While a broker has it open, that is one which only the next one would
    confirm, and a subscription at rest makes no next one: so what follows the last add confirmed counts, where the
    bookies can tell."""
    newest = None
    if (last := ledger.last_add_confirmed) >= 0:
        (newest,) = await ledger.read(last, last)
    with suppress(NotThere, CouldNotTell):
        for entry_id in range(last + 1, last + 1 + _UNCONFIRMED):
            if ledger.is_closed and entry_id > ledger.last_add_confirmed:
                break
            (newest,) = await ledger.read_unconfirmed(entry_id, entry_id)
    return newest


assert _LENGTH.size == 4


class Compression(IntEnum):
    """`compressionType`."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


@dataclass(frozen=True, slots=True)
class OffloadedLedger:
    """A ledger that Pulsar puts, or has put, into tiered storage."""

    ledger_id: int
    uuid: str
    is_complete: bool
    is_deleted: bool
    """True if it is no longer in BookKeeper: it cannot be read from here."""


@dataclass(frozen=True, slots=True)
class ListedLedger:
    """`LedgerInfo`; entries, bytes and time are 0 of a ledger that is being written."""

    ledger_id: int
    entries: int
    nbytes: int
    closed_ms: int
    offloaded: OffloadedLedger | None


@dataclass(frozen=True, slots=True)
class StoredManagedLedger:
    """`ManagedLedgerInfo`."""

    ledgers: tuple[ListedLedger, ...]
    terminated: StreamPosition | None
    """Position behind the last entry, if the topic is terminated."""
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StoredCursor:
    """`ManagedCursorInfo`. `position`: behind the last entry marked deleted, as far as the node tells."""

    cursors_ledger_id: int
    """Id of the ledger that holds the position; -1: it is in the node itself."""
    position: StreamPosition


def decode_managed_ledger(name: str, data: bytes) -> StoredManagedLedger:
    """Raises `MetadataDamaged`."""
    message = _Message(f"managed ledger {name}", uncompressed(f"managed ledger {name}", data))
    properties = {each.text(1): each.text(2) for each in message.messages(3)}
    terminated = [_behind(each) for each in message.messages(2)]
    return StoredManagedLedger(
        tuple(_listed(each) for each in message.messages(1)), terminated[-1] if terminated else None, properties
    )


def decode_cursor(name: str, data: bytes) -> StoredCursor:
    """Raises `MetadataDamaged`."""
    message = _Message(f"cursor {name}", uncompressed(f"cursor {name}", data))
    position = StreamPosition(message.integer(2, -1), message.integer(3, -1) + 1)
    return StoredCursor(message.integer(1, -1), position)


def decode_position(name: str, data: bytes) -> StreamPosition:
    """Decode an entry of a cursor's ledger: return the position behind the last entry marked deleted. Raises
    `MetadataDamaged`."""
    return _behind(_Message(f"cursor {name}", uncompressed(f"cursor {name}", data)))


def uncompressed(what: str, data: bytes) -> bytes:
    """Return the message itself. Raises `MetadataDamaged`, also when pyarrow is needed and not installed."""
    if not data.startswith(_MAGIC):
        return data
    try:
        (length,) = _LENGTH.unpack_from(data, len(_MAGIC))
        start = len(_MAGIC) + _LENGTH.size
        header = _Message(what, data[start : start + length])
        compression = Compression(header.integer(1))
        size = header.integer(2)
        if not 0 <= size <= MAX_UNCOMPRESSED:
            raise ValueError(f"an uncompressed size of {size} bytes")
        plain = _decompress(what, compression, data[start + length :], size)
        if len(plain) != size:
            raise ValueError(f"{len(plain)} bytes instead of {size}")
    except (ValueError, OSError, struct.error, zlib.error) as error:
        raise MetadataDamaged(f"{what}: its compressed metadata cannot be read: {error}") from error
    return plain


def _decompress(what: str, compression: Compression, data: bytes, size: int) -> bytes:
    if compression is Compression.NONE:
        return data
    if compression is Compression.ZLIB:
        return zlib.decompressobj().decompress(data, size + 1)
    codec = "lz4_raw" if compression is Compression.LZ4 else compression.name.lower()
    try:
        return decompressed(codec, data, size)
    except ImportError as error:
        raise MetadataDamaged(
            f"{what}: its metadata are compressed with {compression.name}, and reading that needs the Python package"
            f" pyarrow, which is not installed: {sys.executable} -m pip install pyarrow"
        ) from error


def _listed(message: _Message) -> ListedLedger:
    ledger_id = message.integer(1)
    contexts = message.messages(5)
    offloaded = _offloaded(ledger_id, contexts[-1]) if contexts else None
    return ListedLedger(ledger_id, message.integer(2), message.integer(3), message.integer(4), offloaded)


def _offloaded(ledger_id: int, context: _Message) -> OffloadedLedger:
    bits = 1 << 64
    uuid = UUID(int=(context.integer(1) % bits) * bits + context.integer(2) % bits)
    return OffloadedLedger(ledger_id, str(uuid), bool(context.integer(3)), bool(context.integer(4)))


def _behind(message: _Message) -> StreamPosition:
    return StreamPosition(message.integer(1), message.integer(2) + 1)


class _Message:
    """The fields of a protobuf message by number, each as often as it comes: integers, and bytes."""

    def __init__(self, what: str, data: bytes) -> None:
        self._what = what
        self._integers: dict[int, int] = {}
        self._bytes: dict[int, list[bytes]] = {}
        at = 0
        while at < len(data):
            tag, at = self._varint(data, at)
            number, wire_type = tag >> 3, tag & 7
            if wire_type == 0:
                self._integers[number], at = self._varint(data, at)
            elif wire_type == 2:
                length, at = self._varint(data, at)
                self._bytes.setdefault(number, []).append(self._take(data, at, length))
                at += length
            elif wire_type in (1, 5):
                size = 8 if wire_type == 1 else 4
                self._take(data, at, size)
                at += size
            else:
                raise self._damaged(f"wire type {wire_type}")

    def integer(self, number: int, default: int = 0) -> int:
        """Return an int64."""
        value = self._integers.get(number, default)
        return value - (1 << 64) if value >= 1 << 63 else value

    def text(self, number: int) -> str:
        return self._bytes.get(number, [b""])[-1].decode(errors="replace")

    def messages(self, number: int) -> list[_Message]:
        return [_Message(self._what, each) for each in self._bytes.get(number, [])]

    def _take(self, data: bytes, at: int, length: int) -> bytes:
        if at + length > len(data):
            raise self._damaged("it ends within a field")
        return data[at : at + length]

    def _varint(self, data: bytes, at: int) -> tuple[int, int]:
        size = varint_size(data, at)
        if not size:
            raise self._damaged("a number that does not end")
        return decode_uint64(data[at : at + size]), at + size

    def _damaged(self, why: str) -> MetadataDamaged:
        return MetadataDamaged(f"{self._what}: its metadata cannot be read: {why}")
