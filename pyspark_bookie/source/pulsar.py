"""The messages in the entries of a Pulsar topic, as rows (`decode=pulsar`).

Layout of an entry (big-endian; `?`: may be missing):

    0e 02  size u32  BrokerEntryMetadata                       ?
    0e 01  CRC32C u32 of everything behind it                  ?
    size u32  MessageMetadata  payload

The payload is compressed as a whole (`MessageMetadata.compression`). With `num_messages_in_batch` it holds so many times
`size u32  SingleMessageMetadata  value`, without that it is the value of one message.

| message | fields that are read |
|---|---|
| `MessageMetadata` | `publish_time` 3, `properties` 4, `partition_key` 6, `compression` 8, `uncompressed_size` 9, `num_messages_in_batch` 11, `event_time` 12, `encryption_keys` 13, `schema_version` 16, `partition_key_b64_encoded` 17, `marker_type` 20, `null_value` 25, `num_chunks_from_msg` 27, `chunk_id` 29, `null_partition_key` 30 |
| `SingleMessageMetadata` | `properties` 1, `partition_key` 2, `payload_size` 3, `compacted_out` 4, `event_time` 5, `partition_key_b64_encoded` 6, `null_value` 9, `null_partition_key` 10 |

Invariants
- The checksum, where there is one, was right, or nothing is returned.
- Entries for other readers are not messages: markers of transactions and of replication, and what compaction took out
  of a batch.

A key of bytes is base64 in the metadata, with a flag. Clients in other languages than Java put any bytes into keys and
properties. Such keys are in `key_bytes` as they are; where text is asked for, bytes that are not UTF-8 become U+FFFD.

Encrypted messages and chunks of large messages cannot be decoded, and are reported as such. Messages of transactions
are there whether they were committed or not: an entry does not say.

Pure; any thread. Source: the binary protocol of Apache Pulsar.
"""  # noqa: E501 - a table

from __future__ import annotations

import struct
import zlib
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import google_crc32c

from bookie_protocol.compression import decompressed
from pyspark_bookie.common.errors import UndecodableEntry
from pyspark_bookie.source.planning import LedgerSnapshot
from pyspark_bookie.source.schema import CORRUPT_COLUMN, SCHEMA_VERSION, VALUE_JSON

if TYPE_CHECKING:
    from pyspark_bookie.source.pulsar_schema.values import ValueReader

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_SHIFT: Final = 63
_BROKER_METADATA: Final = b"\x0e\x02"
_BROKER_TIMESTAMP: Final = 1
"""Number of `broker_timestamp` in `BrokerEntryMetadata`."""
_CHECKSUM: Final = b"\x0e\x01"
_WORD: Final = struct.Struct(">I")
_VERSION_BYTES: Final = 8
_CODECS: Final = {1: "lz4_raw", 3: "zstd", 4: "snappy"}
_ZLIB: Final = 2
MAX_MESSAGES: Final = 100_000
"""Maximum messages in one batch: some hundred times as many as producers send together. Each costs memory,
whatever its size.
"""
MAX_TIME: Final = (1 << 63) // 1000 - 1
"""Maximum milliseconds that a timestamp of Spark's can hold."""
MAX_UNCOMPRESSED: Final = 256 * 1024 * 1024
"""Bytes; a greater size in the metadata is damage."""


class Fields:
    """Integers and byte strings; raises `ValueError` for bytes that are no such message."""

    def __init__(self, data: bytes) -> None:
        self._integers: dict[int, int] = {}
        self._bytes: dict[int, list[bytes]] = {}
        at = 0
        while at < len(data):
            tag, at = _varint(data, at)
            number, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                self._integers[number], at = _varint(data, at)
                continue
            if kind == _BYTES:
                size, at = _varint(data, at)
            elif kind in (_FIXED32, _FIXED64):
                size = 4 if kind == _FIXED32 else 8
            else:
                raise ValueError(f"wire type {kind}")
            if at + size > len(data):
                raise ValueError(f"field {number} ends behind the message")
            if kind == _BYTES:
                self._bytes.setdefault(number, []).append(data[at : at + size])
            at += size

    def __contains__(self, number: int) -> bool:
        return number in self._integers or number in self._bytes

    def integer(self, number: int, default: int = 0) -> int:
        """An unsigned integer or an enumeration."""
        return self._integers.get(number, default)

    def text(self, number: int) -> str | None:
        """The last one; None: the field is not there."""
        found = self.last(number)
        return None if found is None else found.decode(errors="replace")

    def last(self, number: int) -> bytes | None:
        """The last one, as it is; None: the field is not there."""
        found = self._bytes.get(number)
        return found[-1] if found else None

    def all(self, number: int) -> list[bytes]:
        """A repeated field."""
        return self._bytes.get(number, [])


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > _MAX_SHIFT:
            raise ValueError("a number that does not end")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


assert _WORD.size == 4


class Message(NamedTuple):
    """`batch_index` None: not sent in a batch. Times in ms since 1970; `event_time` None: not set."""

    key: str | None
    value: bytes | None
    publish_time: int
    event_time: int | None
    properties: dict[str, str]
    batch_index: int | None
    key_bytes: bytes | None = None
    """The key, if it is not text; `key` is its base64 then, as the Java client shows it, or what of it is text."""
    schema_version: int | None = None
    """Version of the topic's schema that the value was made by; None: it was made by none."""


def messages(entry: bytes) -> list[Message]:
    """Return the messages of an entry; none for a marker. Raises `UndecodableEntry`."""
    try:
        metadata, payload = _split(entry)
        if 20 in metadata:
            return []
        if 13 in metadata:
            raise UndecodableEntry("the message is encrypted")
        if metadata.integer(27, 1) > 1:
            chunk, chunks = metadata.integer(29) + 1, metadata.integer(27)
            raise UndecodableEntry(f"it is chunk {chunk} of {chunks} of a large message")
        plain = _decompressed(payload, metadata.integer(8), metadata.integer(9))
        if 11 in metadata:
            return list(_batch(plain, metadata))
        return [_message(metadata, plain, metadata, None, _OF_MESSAGE)]
    except UndecodableEntry:
        raise
    except (ValueError, struct.error, zlib.error) as error:
        raise UndecodableEntry(f"it is not an entry of a Pulsar topic: {error}") from None


def entry_time(entry: bytes) -> int:
    """Return the time of an entry in ms since 1970, as Pulsar's own searches take it: the broker's if it recorded one,
    else the time at which the producer published it. Raises `UndecodableEntry`."""
    try:
        if entry.startswith(_BROKER_METADATA):
            broker, _ = _sized(entry, len(_BROKER_METADATA))
            if recorded := Fields(broker).integer(_BROKER_TIMESTAMP):
                return recorded
        metadata, _ = _split(entry)
    except (ValueError, struct.error) as error:
        raise UndecodableEntry(f"it is not an entry of a Pulsar topic: {error}") from None
    if not (published := metadata.integer(3)):
        raise UndecodableEntry("its producer gave no time")
    return published


# --- inside -----------------------------------------------------------------------------------------------------


class _Numbers(NamedTuple):
    properties: int
    key: int
    event_time: int
    null_value: int
    null_key: int
    key_is_base64: int


_OF_MESSAGE: Final = _Numbers(properties=4, key=6, event_time=12, null_value=25, null_key=30, key_is_base64=17)
_OF_SINGLE: Final = _Numbers(properties=1, key=2, event_time=5, null_value=9, null_key=10, key_is_base64=6)


def _split(entry: bytes) -> tuple[Fields, bytes]:
    at = 0
    if entry.startswith(_BROKER_METADATA):
        at = len(_BROKER_METADATA) + _WORD.size + _WORD.unpack_from(entry, len(_BROKER_METADATA))[0]
    if entry.startswith(_CHECKSUM, at):
        at += len(_CHECKSUM)
        (expected,) = _WORD.unpack_from(entry, at)
        at += _WORD.size
        if google_crc32c.value(entry[at:]) != expected:
            raise ValueError("its checksum is wrong")
    metadata, end = _sized(entry, at)
    return Fields(metadata), entry[end:]


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _WORD.unpack_from(data, at)
    at += _WORD.size
    if at + size > len(data):
        raise ValueError(f"metadata of {size} bytes, where {len(data) - at} are left")
    return data[at : at + size], at + size


def _decompressed(payload: bytes, compression: int, size: int) -> bytes:
    if compression == 0:
        return payload
    if size > MAX_UNCOMPRESSED:
        raise ValueError(f"an uncompressed size of {size} bytes")
    if compression == _ZLIB:
        plain = zlib.decompressobj().decompress(payload, size + 1)
        if len(plain) != size:
            raise ValueError(f"{len(plain)} uncompressed bytes instead of {size}")
        return plain
    if compression not in _CODECS:
        raise UndecodableEntry(f"compression {compression} is not known")
    return decompressed(_CODECS[compression], payload, size) if size else b""


def _batch(plain: bytes, metadata: Fields) -> Iterator[Message]:
    at = 0
    if metadata.integer(11) > MAX_MESSAGES:
        raise UndecodableEntry(f"it is a batch of {metadata.integer(11)} messages, more than {MAX_MESSAGES}")
    for index in range(metadata.integer(11)):
        single, at = _sized(plain, at)
        fields = Fields(single)
        end = at + fields.integer(3)
        if end > len(plain):
            raise ValueError(f"message {index} of a batch ends behind it")
        if not fields.integer(4):
            yield _message(fields, plain[at:end], metadata, index, _OF_SINGLE)
        at = end


def _message(fields: Fields, value: bytes, metadata: Fields, index: int | None, numbers: _Numbers) -> Message:
    """`metadata`: of the entry."""
    pairs = [Fields(pair) for pair in fields.all(numbers.properties)]
    publish_time = metadata.integer(3)
    event_time = fields.integer(numbers.event_time)
    if max(event_time, publish_time) > MAX_TIME:
        raise UndecodableEntry(f"a time of {max(event_time, publish_time)} ms since 1970 is more than Spark can hold")
    has_key = not fields.integer(numbers.null_key)
    return Message(
        fields.text(numbers.key) if has_key else None,
        None if fields.integer(numbers.null_value) else value,
        publish_time,
        event_time or None,
        {pair.text(1) or "": pair.text(2) or "" for pair in pairs},
        index,
        _key_bytes(fields, numbers) if has_key else None,
        _schema_version(metadata),
    )


def _schema_version(metadata: Fields) -> int | None:
    """Return the number of the version; clients of Pulsar 2.4 and later send it as 8 bytes."""
    version = metadata.last(16)
    return (
        int.from_bytes(version, "big", signed=True) if version is not None and len(version) == _VERSION_BYTES else None
    )


def _key_bytes(fields: Fields, numbers: _Numbers) -> bytes | None:
    key = fields.last(numbers.key)
    if key is None:
        return None
    if fields.integer(numbers.key_is_base64):
        with suppress(ValueError):
            return b64decode(key, validate=True)
    try:
        key.decode()
    except UnicodeDecodeError:
        return key
    return None


class PulsarDecoder:
    """`decode=pulsar`. Columns: `pyspark_bookie.source.schema`. `values` None: they are not decoded."""

    def __init__(self, values: ValueReader | None = None) -> None:
        self._values = values

    def records(self, entry: bytes) -> Sequence[Message]:
        """Raises `UndecodableEntry`."""
        return messages(entry)

    def columns(self, record: Message) -> Mapping[str, Any]:
        columns: dict[str, Any] = {
            "key": record.key,
            "value": record.value,
            "publish_time": record.publish_time * 1000,
            "event_time": None if record.event_time is None else record.event_time * 1000,
            "properties": list(record.properties.items()),
            "batch_index": record.batch_index,
            "key_bytes": record.key_bytes,
            SCHEMA_VERSION: record.schema_version,
        }
        if self._values is not None and record.value is not None and record.schema_version is not None:
            try:
                columns[VALUE_JSON] = self._values.json(record.value, record.schema_version)
            except UndecodableEntry as error:
                at = "" if record.batch_index is None else f"message {record.batch_index}: "
                columns[CORRUPT_COLUMN] = f"{at}{error}"
        return columns

    def ledger_columns(self, ledger: LedgerSnapshot) -> Mapping[str, Any]:
        return {"topic": topic_of(ledger.stream)}


def topic_of(stream: str | None) -> str | None:
    """`persistent://tenant/namespace/topic` of the managed ledger `tenant/namespace/persistent/topic`."""
    parts = stream.split("/") if stream is not None else []
    if len(parts) != 4:
        return stream
    tenant, namespace, domain, topic = parts
    return f"{domain}://{tenant}/{namespace}/{topic}"
