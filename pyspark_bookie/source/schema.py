"""The columns of the source, and which of them a read asks for.

A schema of the user's own (`spark.read.schema("ledger_id long, entry_id long")`) selects columns by name: Spark does
not tell a Python source which columns a query needs, and what is not asked for is not copied.

Invariants
- The Arrow schema of a read is exactly the one that PySpark derives from the Spark schema: same order, `binary`, and
  every field nullable; otherwise the first batch is refused.

Pure; any process. PySpark is imported, pyarrow only where Arrow is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_bookie.common.errors import SCHEMA, PodkeeperSparkError
from pyspark_bookie.common.options import parse
from pyspark_bookie.source.options import Decode, EitherOptions, SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_COLUMN: Final = "_metadata"
CORRUPT_COLUMN: Final = "_corrupt"
VALUE_JSON: Final = "value_json"
SCHEMA_VERSION: Final = "schema_version"

_RAW: Final[Mapping[str, DataType]] = {
    "ledger_id": LongType(),
    "entry_id": LongType(),
    "value": BinaryType(),
    "length": IntegerType(),
    "lac": LongType(),
    "stream": StringType(),
}
_PULSAR: Final[Mapping[str, DataType]] = {
    "key": StringType(),
    "value": BinaryType(),
    "topic": StringType(),
    "publish_time": TimestampType(),
    "event_time": TimestampType(),
    "properties": MapType(StringType(), StringType()),
    "ledger_id": LongType(),
    "entry_id": LongType(),
    "batch_index": IntegerType(),
    "key_bytes": BinaryType(),
}
_OF_SCHEMA: Final[Mapping[str, DataType]] = {VALUE_JSON: StringType(), SCHEMA_VERSION: LongType()}
_DLOG: Final[Mapping[str, DataType]] = {
    "transaction_id": LongType(),
    "value": BinaryType(),
    "stream": StringType(),
    "ledger_id": LongType(),
    "entry_id": LongType(),
    "slot_id": IntegerType(),
    "position": LongType(),
}
_OF_DECODER: Final[Mapping[Decode, Mapping[str, DataType]]] = {
    Decode.RAW: _RAW,
    Decode.PULSAR: _PULSAR,
    Decode.DLOG: _DLOG,
}
METADATA_TYPE: Final = StructType(
    [
        StructField("bookie", StringType()),
        StructField("fragment", LongType()),
        StructField("replica_index", IntegerType()),
        StructField("digest_type", StringType()),
        StructField("read_latency_us", LongType()),
    ]
)


def schema_for(raw: Mapping[str, str]) -> StructType:
    """Return the schema that these options of a user give. Raises `PodkeeperSparkError`."""
    options = parse(raw, EitherOptions)
    if options.table is not None:
        from pyspark_bookie.source.tables.schemas import SCHEMAS

        return SCHEMAS[options.table]
    return full_schema(options)


def full_schema(options: SourceOptions) -> StructType:
    """Every column that a read with these options can give."""
    return StructType([StructField(name, kind) for name, kind in _columns(options).items()])


def check_schema(schema: StructType, options: SourceOptions) -> StructType:
    """A user's schema, or the full one; as it is read. Raises `PodkeeperSparkError` (SCHEMA)."""
    known = _columns(options)
    for found in schema.fields:
        kind = known.get(found.name)
        if kind is None:
            raise PodkeeperSparkError(SCHEMA, f"there is no column {found.name}: there are {', '.join(known)}")
        if kind != found.dataType:
            wanted, is_now = kind.simpleString(), found.dataType.simpleString()
            raise PodkeeperSparkError(SCHEMA, f"column {found.name} is {wanted}, not {is_now}")
        if not found.nullable:
            raise PodkeeperSparkError(SCHEMA, f"column {found.name} cannot be declared NOT NULL")
    return schema


def needs_schemas(schema: StructType) -> bool:
    """Return True if a column is made by the schema of a topic."""
    return VALUE_JSON in schema.fieldNames()


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that PySpark compares with the first batch."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _columns(options: SourceOptions) -> dict[str, DataType]:
    columns = dict(_OF_DECODER[options.decode])
    if options.applies_schema:
        columns |= _OF_SCHEMA
    if options.has_metadata_column:
        columns[METADATA_COLUMN] = METADATA_TYPE
    if options.has_corrupt_column:
        columns[CORRUPT_COLUMN] = StringType()
    return columns
