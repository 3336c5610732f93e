"""Values of topics by their schemas: what they become, and that no stranger's schema or value has an unbounded cost."""

from __future__ import annotations

import io
import json
import struct
from contextlib import suppress

import fastavro
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.errors import MetadataDamaged
from pyspark_bookie.common.errors import DECODE, PodkeeperSparkError, UndecodableEntry
from pyspark_bookie.source.planning import ReadPartition
from pyspark_bookie.source.pulsar import PulsarDecoder, messages
from pyspark_bookie.source.pulsar_schema import stored
from pyspark_bookie.source.pulsar_schema.avro import MAX_TEXT, avro_reader
from pyspark_bookie.source.pulsar_schema.stored import SchemaReader, schema_name
from pyspark_bookie.source.pulsar_schema.types import SchemaType, StoredSchema
from pyspark_bookie.source.pulsar_schema.values import ValueReader, reader_of
from pyspark_bookie.source.reading.arrow import decoded_batches
from pyspark_bookie.source.schema import arrow_schema, full_schema
from tests.support.pulsar_entries import batch, entry
from tests.support.pulsar_metadata import ledger_info, message
from tests.support.pulsar_schemas import locator, native_protobuf, schema_entry, version_field
from tests.unit.pyspark_bookie.source.reads import chunks, looked, options, write

TOPIC = "public/default/persistent/orders"
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "bytes"}, {"name": "price", "type": "double"}]}}},
        {"name": "first", "type": ["null", "Line"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip


def avro(declared, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(declared), value)
    return out.getvalue()


def record(*kinds, name="r"):
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": kind} for n, kind in enumerate(kinds)]}


def test_an_avro_record_becomes_json():
    value = {"id": 7, "note": "ü", "lines": [{"sku": b"\xff", "price": float("inf")}], "first": None, "at": 0}
    read = avro_reader(json.dumps(ORDER).encode())
    assert json.loads(read(avro(ORDER, value))) == {
        "id": 7,
        "note": "ü",
        "lines": [{"sku": "/w==", "price": "inf"}],
        "first": None,
        "at": "1970-01-01T00:00:00+00:00",
    }


NULLS = record(*["null"] * 50)
TREE = record("int", ["null", "tree"], name="tree")
DEEP = "int"
for _ in range(200):
    DEEP = {"type": "array", "items": DEEP}


def nested(levels):
    """Each level has two of the one before: as many values as 2 to the power of the levels."""
    made = "null"
    for level in range(levels):
        made = record(made, f"r{level - 1}" if level else "null", name=f"r{level}")
    return made


@pytest.mark.parametrize(
    "definition",
    [
        json.dumps({"type": "array", "items": "null"}),
        json.dumps({"type": "array", "items": NULLS}),
        json.dumps({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}),
        json.dumps({"type": "array", "items": {"type": "fixed", "name": "f", "size": -5}}),
        json.dumps(TREE),
        json.dumps(nested(40)),
        json.dumps(DEEP),
        "[" * 200_000,
        json.dumps("unknown"),
        json.dumps([]),
        json.dumps({"type": "enum", "name": "e", "symbols": []}),
        json.dumps({"__fastavro_parsed__": True, "__named_schemas": {"x": TREE}, **record("x")}),
        "{}",
        "null",
        "",
        "\xff",
    ],
    ids=range(16),
)
def test_an_avro_schema_that_could_cost_anything_is_refused(definition):
    with pytest.raises(UndecodableEntry, match="Avro") as refused:
        avro_reader(definition.encode())
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_value_may_not_become_more_than_the_bound():
    """A symbol of 100 KB for each byte."""
    symbols = {"type": "array", "items": {"type": "enum", "name": "e", "symbols": ["A" * 100_000]}}
    read = avro_reader(json.dumps(symbols).encode())
    assert json.loads(read(avro(symbols, ["A" * 100_000] * 3))) == ["A" * 100_000] * 3
    with pytest.raises(UndecodableEntry, match=f"than {MAX_TEXT} bytes"):
        read(b"\x00" * (MAX_TEXT // 100_000 + 10))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_are_refused(value):
    read = avro_reader(json.dumps(ORDER).encode())
    with suppress(UndecodableEntry):
        json.loads(read(value))


PROTO = descriptor_pb2.FileDescriptorProto(
    name="order.proto",
    package="shop",
    syntax="proto3",
    dependency=["google/protobuf/timestamp.proto"],
    message_type=[
        descriptor_pb2.DescriptorProto(
            name="Order",
            field=[
                FieldDescriptorProto(name="order_id", number=1, type=3, label=1),
                FieldDescriptorProto(name="at", number=2, type=11, label=1, type_name=".google.protobuf.Timestamp"),
                FieldDescriptorProto(name="parts", number=3, type=11, label=3, type_name=".shop.Order"),
            ],
        )
    ],
)
TIMESTAMP = descriptor_pb2.FileDescriptorProto()
timestamp_pb2.DESCRIPTOR.CopyToProto(TIMESTAMP)


def protobuf(definition):
    return reader_of(StoredSchema(SchemaType.PROTOBUFNATIVE, definition))


def test_native_protobuf_becomes_json():
    """Files are listed in any order."""
    read = protobuf(native_protobuf(PROTO, TIMESTAMP, root="shop.Order"))
    value = message((1, 7), (2, message((1, 5))), (3, message((1, 8))))
    assert json.loads(read(value)) == {"order_id": "7", "at": "1970-01-01T00:00:05Z", "parts": [{"order_id": "8"}]}
    deep = b""
    for _ in range(2_000):
        deep = message((3, deep))
    for hostile in (b"\xff", deep, message((2, message((1, 1 << 62))))):
        with pytest.raises(UndecodableEntry, match=r"fit.*Protobuf"):
            read(hostile)


@pytest.mark.parametrize(
    "definition",
    [
        native_protobuf(PROTO, root="shop.Order"),
        native_protobuf(TIMESTAMP, root="shop.Order"),
        native_protobuf(root="x"),
        b'{"fileDescriptorSet": "/w==", "rootMessageTypeName": "x"}',
        b"{}",
        b"[",
    ],
    ids=["without what it imports", "without the root", "empty", "no descriptors", "no members", "no JSON"],
)
def test_a_protobuf_schema_that_cannot_be_used_is_refused(definition):
    with pytest.raises(UndecodableEntry, match=r"Protobuf.*used"):
        protobuf(definition)


def test_a_name_of_protobuf_may_not_become_more_than_the_bound():
    long = descriptor_pb2.FileDescriptorProto()
    long.CopyFrom(PROTO)
    long.message_type[0].field[0].name = "n" * 200_000
    read = protobuf(native_protobuf(long, TIMESTAMP, root="shop.Order"))
    with pytest.raises(UndecodableEntry, match="be more"):
        read(b"\x1a\x00" * 1_000)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (SchemaType.JSON, b'{"a": 1}', '{"a": 1}'),
        (SchemaType.STRING, 'say "ü"'.encode(), '"say \\"ü\\""'),
        (SchemaType.BOOLEAN, b"\x01", "true"),
        (SchemaType.INT32, b"\xff\xff\xff\xff", "-1"),
        (SchemaType.DOUBLE, struct.pack(">d", 1.5), "1.5"),
        (SchemaType.FLOAT, struct.pack(">f", float("nan")), '"nan"'),
    ],
)
def test_texts_and_numbers(kind, value, found):
    assert reader_of(StoredSchema(kind, b""))(value) == found


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        (StoredSchema(SchemaType.JSON, b""), b"{", "is not JSON"),
        (StoredSchema(SchemaType.JSON, b""), b"\xff", "is not UTF-8"),
        (StoredSchema(SchemaType.JSON, b""), b"[" * 100_000, "is not JSON"),
        (StoredSchema(SchemaType.INT64, b""), b"x", "type INT64"),
        (StoredSchema(SchemaType.KEYVALUE, b""), b"x", "type KEYVALUE"),
        (StoredSchema(99, b""), b"x", "type 99"),
    ],
)
def test_what_does_not_fit_is_told(schema, value, why):
    with pytest.raises(UndecodableEntry, match=why):
        ValueReader({3: schema}).json(value, 3)


def test_a_version_that_is_not_there():
    with pytest.raises(UndecodableEntry, match="no version 4"):
        ValueReader({}).json(b"x", 4)


def test_partitions_of_a_topic_have_the_schemas_of_the_topic():
    assert schema_name("public/default/persistent/a-partition-12") == "public/default/a"
    assert schema_name("persistent://public/default/a b-partition-x") == "public/default/a+b-partition-x"


async def topic(client, three, entries, *versions):
    """A topic of these entries, whose schemas have these versions."""
    ledger_id = await write(client, entries)
    three.metadata.pulsar.nodes[TOPIC] = message((1, ledger_info(ledger_id, len(entries), 100, 1)))
    schemas = await write(client, versions)
    places = [(version, schemas, version) for version in range(len(versions))]
    three.metadata.pulsar.nodes["public/default/orders"] = locator(*places)
    return ledger_id


async def rows(client, *, strict=True):
    wanted = options(managedLedger=TOPIC, decode="pulsar", pulsarSchema="json", failOnDataLoss=strict)
    found = await looked(client, wanted)
    made = await chunks(client, found.ranges, wanted)
    decoder = PulsarDecoder(ValueReader(await SchemaReader(TOPIC).read(client)))
    batches = decoded_batches(made, decoder, arrow_schema(full_schema(wanted)), 10_000, strict=strict)
    return [row for each in batches for row in each.to_pylist()]


async def test_each_message_is_read_by_its_own_version(client, three):
    entries = [
        entry(avro(ORDER["fields"][0]["type"], 7), version_field(0)),
        entry(batch([b'{"a":1}', b'{"a":2}']), (11, 2), version_field(1)),
        entry(b"without a schema"),
        entry(b"", (25, 1), version_field(0)),
    ]
    await topic(client, three, entries, schema_entry(SchemaType.AVRO, b'"long"'), schema_entry(SchemaType.JSON, b""))
    found = [(row["schema_version"], row["value_json"]) for row in await rows(client)]
    assert found == [(0, "7"), (1, '{"a":1}'), (1, '{"a":2}'), (None, None), (0, None)]


async def test_a_value_that_does_not_fit_ends_the_query_or_is_a_row(client, three):
    bad = entry(batch([b"[1]", b"?"]), (11, 2), version_field(0))
    await topic(client, three, [bad], schema_entry(SchemaType.JSON, b""))
    with pytest.raises(PodkeeperSparkError, match=r"message 1: .*JSON") as refused:
        await rows(client)
    assert refused.value.code == DECODE
    good, row = await rows(client, strict=False)
    assert (good["value_json"], good["_corrupt"]) == ("[1]", None)
    assert (row["value"], row["value_json"]) == (b"?", None)
    assert "[BOOKIE_DECODE] entry 0 of ledger" in row["_corrupt"]


async def test_versions_are_read_once_and_deleted_ones_are_none(client, three, monkeypatch):
    versions = [schema_entry(SchemaType.JSON, b""), schema_entry(SchemaType.JSON, b"", deleted=True)]
    await topic(client, three, [entry(b"x")], *versions)
    reader = SchemaReader(TOPIC)
    first = await reader.read(client)
    assert set(first) == {0}
    monkeypatch.setattr(stored, "decode_entry", None)
    assert await reader.read(client) == first
    assert await SchemaReader("public/default/persistent/none").read(client) == {}


async def test_what_strangers_store_is_bounded(client, three, monkeypatch):
    await topic(client, three, [entry(b"x")], *(schema_entry(SchemaType.JSON, b"x" * 100) for _ in range(3)))
    for bound, most in (("MAX_VERSIONS", 2), ("MAX_SCHEMA_BYTES", 50), ("MAX_TOTAL_BYTES", 250)):
        with monkeypatch.context() as patched:
            patched.setattr(stored, bound, most)
            with pytest.raises(PodkeeperSparkError, match=f"than {most}"):
                await SchemaReader(TOPIC).read(client)
    three.metadata.pulsar.nodes["public/default/orders"] = b"\xff"
    with pytest.raises(MetadataDamaged):
        await SchemaReader(TOPIC).read(client)


def test_the_version_of_old_clients_is_none():
    (found,) = messages(entry(b"x", (16, b"12")))
    assert found.schema_version is None


@pytest.mark.parametrize("given", [{"stream": "s", "decode": "pulsar"}, {"managedLedger": TOPIC}])
def test_a_schema_needs_a_topic_and_its_messages(given):
    with pytest.raises(PodkeeperSparkError, match=r"pulsarSchema=json .*managedLedger .*decode=pulsar"):
        options(**given, pulsarSchema="json")
    assert ReadPartition(()).schemas is None
