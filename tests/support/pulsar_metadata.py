"""What Pulsar would store of a managed ledger, built by hand: a few protobuf fields."""

from __future__ import annotations

import struct
import zlib

import pyarrow as pa

KINDS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(*fields: tuple[int, int | bytes | str]) -> bytes:
    """Fields in order: integers as varints, anything else with its length."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            body = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(body)) + body
    return out


def ledger_info(ledger_id: int, entries: int = 0, nbytes: int = 0, closed_ms: int = 0, offload: bytes = b"") -> bytes:
    end: list[tuple[int, int | bytes | str]] = [(2, entries), (3, nbytes)] if closed_ms else []
    return message((1, ledger_id), *end, (4, closed_ms), *([(5, offload)] if offload else []))


def compressed(data: bytes, kind: str) -> bytes:
    packed = {
        "NONE": lambda: data,
        "ZLIB": lambda: zlib.compress(data),
        "LZ4": lambda: pa.Codec("lz4_raw").compress(data, asbytes=True),
        "ZSTD": lambda: pa.Codec("zstd").compress(data, asbytes=True),
        "SNAPPY": lambda: pa.Codec("snappy").compress(data, asbytes=True),
    }[kind]()
    header = message((1, KINDS.index(kind)), (2, len(data)))
    return b"\x47\x78" + struct.pack(">I", len(header)) + header + packed
