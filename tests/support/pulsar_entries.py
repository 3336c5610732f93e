"""Entries as a Pulsar producer and broker make them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence

import google_crc32c
import pyarrow as pa

from tests.support.pulsar_metadata import message

COMPRESSIONS = {"none": 0, "lz4": 1, "zlib": 2, "zstd": 3, "snappy": 4}
_ARROW = {"lz4": "lz4_raw", "zstd": "zstd", "snappy": "snappy"}
_WORD = struct.Struct(">I")


def properties(number: int, values: Mapping[str, str]) -> list[tuple[int, bytes]]:
    return [(number, message((1, key), (2, value))) for key, value in values.items()]


def compressed(data: bytes, compression: str) -> bytes:
    if compression == "none":
        return data
    if compression == "zlib":
        return zlib.compress(data)
    return bytes(pa.Codec(_ARROW[compression]).compress(data, asbytes=True))


def entry(
    payload: bytes,
    *metadata: tuple[int, int | bytes | str],
    compression: str = "none",
    checksum: bool = True,
    broker_metadata: bytes | None = None,
) -> bytes:
    """`metadata`: fields of MessageMetadata beyond producer, sequence id and publish time (1700000000000)."""
    common: list[tuple[int, int | bytes | str]] = [(1, "producer-1"), (2, 7), (3, 1_700_000_000_000)]
    sizes = [] if compression == "none" else [(8, COMPRESSIONS[compression]), (9, len(payload))]
    made = message(*common, *sizes, *metadata)
    body = _WORD.pack(len(made)) + made + compressed(payload, compression)
    if checksum:
        body = b"\x0e\x01" + _WORD.pack(google_crc32c.value(body)) + body
    if broker_metadata is not None:
        body = b"\x0e\x02" + _WORD.pack(len(broker_metadata)) + broker_metadata + body
    return body


def batch(values: Sequence[bytes], *singles: Sequence[tuple[int, int | bytes | str]]) -> bytes:
    """The payload of a batch. `singles`: further fields of SingleMessageMetadata, for the first messages."""
    found = b""
    for place, value in enumerate(values):
        made = message((3, len(value)), *(singles[place] if place < len(singles) else ()))
        found += _WORD.pack(len(made)) + made + value
    return found
