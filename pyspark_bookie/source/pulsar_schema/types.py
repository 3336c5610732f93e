"""Schemas as values: the versions of a topic, each of a type and with its definition.

Pure; any process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class SchemaType(IntEnum):
    """`SchemaInfo.SchemaType`."""

    NONE = 1
    STRING = 2
    JSON = 3
    PROTOBUF = 4
    AVRO = 5
    BOOLEAN = 6
    INT8 = 7
    INT16 = 8
    INT32 = 9
    INT64 = 10
    FLOAT = 11
    DOUBLE = 12
    DATE = 13
    TIME = 14
    TIMESTAMP = 15
    KEYVALUE = 16
    INSTANT = 17
    LOCALDATE = 18
    LOCALTIME = 19
    LOCALDATETIME = 20
    PROTOBUFNATIVE = 21


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a topic's schema. `kind` is a number of `SchemaType`, or one that is not known here."""

    kind: int
    definition: bytes


Schemas = Mapping[int, StoredSchema]
"""The versions of a topic's schema, by number."""
