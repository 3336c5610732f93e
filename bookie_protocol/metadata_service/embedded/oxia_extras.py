"""The attributes of a record besides its value: its writer, the time of writing, and its secondary keys. Pure.

A row has the version id of the state that it belongs to and the time of its writing in ms, both as numbers, and the
rest as a `PutRequest` without key and value. It counts for that state only: releases that do not know these rows leave
them behind.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bookie_protocol.metadata_service.embedded.oxia_keys import encoded
from bookie_protocol.metadata_service.oxia import oxia_pb2 as oxia

_HEAD: Final = struct.Struct(">qq")
_LENGTH: Final = struct.Struct(">I")
EXTRAS: Final = b"x"


@dataclass(frozen=True, slots=True)
class Extras:
    """The attributes of one state of a record. `said` has the client identity and the secondary indexes of a put."""

    version_id: int
    mtime_ms: int
    said: oxia.PutRequest

    def encode(self) -> bytes:
        return _HEAD.pack(self.version_id, self.mtime_ms) + self.said.SerializeToString()

    @staticmethod
    def decode(raw: bytes) -> Extras:
        version_id, mtime_ms = _HEAD.unpack_from(raw)
        return Extras(version_id, mtime_ms, oxia.PutRequest.FromString(raw[_HEAD.size :]))


def extras_row(path: str) -> bytes:
    return EXTRAS + path.encode()


def index_prefix(index: str) -> bytes:
    """Return the prefix of the rows of an index, whose name has no NUL. Secondary keys have the order of keys."""
    return b"i" + index.encode() + b"\0"


def index_row(path: str, entry: oxia.SecondaryIndex) -> bytes:
    return index_prefix(entry.index_name) + encoded(entry.secondary_key) + b"\1" + path.encode()


def index_rows(path: str, raw: bytes) -> Iterator[bytes]:
    """Return the index rows that belong to a row of extras."""
    return (index_row(path, entry) for entry in Extras.decode(raw).said.secondary_indexes)


def index_value(key: str, secondary: str) -> bytes:
    coded = secondary.encode()
    return _LENGTH.pack(len(coded)) + coded + key.encode()


def decode_index_value(raw: bytes) -> tuple[str, str]:
    """Return the record's key, and its secondary key."""
    end = _LENGTH.size + _LENGTH.unpack_from(raw)[0]
    return raw[end:].decode(), raw[_LENGTH.size : end].decode()
