"""Entries as a writer of DistributedLog makes them, field by field."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa

CONTROL, END_OF_STREAM, RECORD_SET = 1, 2, 4
COMPRESSIONS = {"none": 0, "lz4": 1}


def compressed(data: bytes, compression: str) -> bytes:
    return data if compression == "none" else bytes(pa.Codec("lz4_raw").compress(data, asbytes=True))


def entry(*records: bytes, compression: str = "none") -> bytes:
    """An envelope around records."""
    content = b"".join(records)
    block = compressed(content, compression)
    return struct.pack(">BIII", 1, COMPRESSIONS[compression], len(content), len(block)) + block


def record(transaction_id: int, payload: bytes, position: int = 0, flags: int = 0) -> bytes:
    return struct.pack(">QqI", position << 16 | flags, transaction_id, len(payload)) + payload


def control(transaction_id: int, position: int = 0) -> bytes:
    """As one is written to commit what stands in front of it."""
    return record(transaction_id, b"control", position, CONTROL)


def end_of_stream(position: int = 0) -> bytes:
    return record(2**63 - 1, b"endOfStream", position, END_OF_STREAM)


def record_set(transaction_id: int, values: Sequence[bytes], position: int = 0, compression: str = "none") -> bytes:
    content = b"".join(struct.pack(">I", len(value)) + value for value in values)
    block = compressed(content, compression)
    header = struct.pack(">IIII", 0x1000 | COMPRESSIONS[compression], len(values), len(content), len(block))
    return record(transaction_id, header + block, position, RECORD_SET)
