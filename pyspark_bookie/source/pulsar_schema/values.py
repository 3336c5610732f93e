"""Values of messages as JSON texts, by the version of the schema that each message names.

Avro, JSON, Protobuf (native) and the plain types: texts, truth values and numbers. Others are reported by their names.

Invariants
- A schema is made ready once, when the first message needs it; one that cannot be used is reported with each message.
- Sizes are bounded as in `avro`; Protobuf's parser bounds its own depth.

Pure; any thread.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from pyspark_bookie.common.errors import UndecodableEntry
from pyspark_bookie.source.pulsar_schema.avro import MAX_TEXT, as_json, avro_reader, said
from pyspark_bookie.source.pulsar_schema.types import Schemas, SchemaType, StoredSchema

Read = Callable[[bytes], str]
_NUMBERS: Final = {
    SchemaType.BOOLEAN: struct.Struct("?"),
    SchemaType.INT8: struct.Struct(">b"),
    SchemaType.INT16: struct.Struct(">h"),
    SchemaType.INT32: struct.Struct(">i"),
    SchemaType.INT64: struct.Struct(">q"),
    SchemaType.FLOAT: struct.Struct(">f"),
    SchemaType.DOUBLE: struct.Struct(">d"),
}
_SIGNS: Final = 64
"""Bytes of JSON around a field of Protobuf, beyond its name."""


class ValueReader:
    """The values of one topic."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._ready: dict[int, Read | UndecodableEntry] = {}

    def json(self, value: bytes, version: int) -> str:
        """Return the value by a version of the schema. Raises `UndecodableEntry`."""
        read = self._ready.get(version)
        if read is None:
            read = self._ready[version] = self._made_ready(version)
        if isinstance(read, UndecodableEntry):
            raise UndecodableEntry(str(read))
        return read(value)

    def _made_ready(self, version: int) -> Read | UndecodableEntry:
        schema = self._schemas.get(version)
        if schema is None:
            return UndecodableEntry(f"its topic has no version {version} of a schema, or not any more")
        try:
            return reader_of(schema)
        except UndecodableEntry as error:
            return error


def reader_of(schema: StoredSchema) -> Read:
    """Return the function that makes JSON of a value. Raises `UndecodableEntry` for a schema that cannot be used."""
    try:
        kind = SchemaType(schema.kind)
    except ValueError:
        raise UndecodableEntry(f"its schema is of type {schema.kind}, which is not known") from None
    if kind is SchemaType.AVRO:
        return avro_reader(schema.definition)
    if kind is SchemaType.PROTOBUFNATIVE:
        return _protobuf_reader(schema.definition)
    if kind is SchemaType.JSON:
        return _checked_json
    if kind is SchemaType.STRING:
        return lambda value: json.dumps(_text(value), ensure_ascii=False)
    if kind in _NUMBERS:
        return _number_reader(kind, _NUMBERS[kind])
    raise UndecodableEntry(f"its schema is of type {kind.name}, which is not decoded")


# --- inside -----------------------------------------------------------------------------------------------------


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise UndecodableEntry("its value is not UTF-8") from None


def _checked_json(value: bytes) -> str:
    text = _text(value)
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UndecodableEntry(f"its value is not JSON: {said(error)}") from None
    return text


def _number_reader(kind: SchemaType, layout: struct.Struct) -> Read:
    def read(value: bytes) -> str:
        if len(value) != layout.size:
            raise UndecodableEntry(f"its value of {len(value)} bytes is not of type {kind.name}")
        return as_json(layout.unpack(value)[0])

    return read


def _protobuf_reader(definition: bytes) -> Read:
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
    from google.protobuf.message import DecodeError

    try:
        declared = json.loads(definition)
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(declared["fileDescriptorSet"]))
        pool = descriptor_pool.DescriptorPool()
        for each in _in_order(files.file):
            pool.Add(each)
        made = message_factory.GetMessageClass(pool.FindMessageTypeByName(str(declared["rootMessageTypeName"])))
        longest = max(_names(files.file), default=0) + _SIGNS
    except MemoryError:
        raise
    except Exception as error:  # the library raises what its reading of a stranger's schema runs into
        raise UndecodableEntry(f"its Protobuf schema cannot be used: {said(error)}") from None

    def read(value: bytes) -> str:
        if len(value) * longest > MAX_TEXT:
            raise UndecodableEntry(f"its value of {len(value)} bytes may be more than {MAX_TEXT} bytes of JSON")
        try:
            found = made.FromString(value)
            return json_format.MessageToJson(
                found, indent=None, preserving_proto_field_name=True, ensure_ascii=False, descriptor_pool=pool
            )
        except (DecodeError, json_format.Error, ValueError, TypeError, RecursionError) as error:
            raise UndecodableEntry(f"its value does not fit its Protobuf schema: {said(error)}") from None

    return read


def _in_order(files: Iterable[Any]) -> list[Any]:
    """Return files behind those that they import; what is missing, or imports itself, the pool refuses."""
    waiting, found, names = list(files), [], set[str]()
    while waiting:
        ready = [each for each in waiting if names.issuperset(each.dependency)] or waiting
        names.update(each.name for each in ready)
        found += ready
        waiting = [each for each in waiting if each.name not in names]
    return found


def _names(files: Iterable[Any]) -> Iterable[int]:
    """Lengths of all names that JSON may show."""
    waiting = [message for file in files for message in file.message_type]
    for file in files:
        yield from (len(value.name) for enum in file.enum_type for value in enum.value)
    while waiting:
        message = waiting.pop()
        yield from (len(field.name) for field in message.field)
        yield from (len(value.name) for enum in message.enum_type for value in enum.value)
        waiting += message.nested_type
