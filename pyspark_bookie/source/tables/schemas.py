"""The columns of the metadata tables. docs/spark.md tells what they mean.

Pure; any process.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_bookie.common.errors import SCHEMA, PodkeeperSparkError
from pyspark_bookie.source.options import Table

_LONG, _INT, _TEXT, _TIME = LongType(), IntegerType(), StringType(), TimestampType()
_TEXTS: Final = ArrayType(_TEXT)
_PROPERTIES: Final = MapType(_TEXT, _TEXT)


def _schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


SCHEMAS: Final[dict[Table, StructType]] = {
    Table.LEDGERS: _schema(
        ledger_id=_LONG,
        state=_TEXT,
        entries=_LONG,
        bytes=_LONG,
        last_entry_id=_LONG,
        ensemble_size=_INT,
        write_quorum_size=_INT,
        ack_quorum_size=_INT,
        digest_type=_TEXT,
        created=_TIME,
        fragments=_INT,
        bookies=_TEXTS,
        custom_metadata=_PROPERTIES,
        metadata_format=_INT,
    ),
    Table.FRAGMENTS: _schema(
        ledger_id=_LONG,
        fragment=_LONG,
        last_entry_id=_LONG,
        entries=_LONG,
        bytes=_LONG,
        is_last=BooleanType(),
        state=_TEXT,
        bookies=_TEXTS,
    ),
    Table.REPLICAS: _schema(
        ledger_id=_LONG,
        fragment=_LONG,
        last_entry_id=_LONG,
        position=_INT,
        bookie=_TEXT,
        bookie_state=_TEXT,
        entries=_LONG,
        bytes=_LONG,
    ),
    Table.BOOKIES: _schema(
        bookie=_TEXT,
        state=_TEXT,
        address=_TEXT,
        endpoints=_PROPERTIES,
        properties=_PROPERTIES,
        total_bytes=_LONG,
        free_bytes=_LONG,
        error=_TEXT,
    ),
    Table.UNDERREPLICATED: _schema(ledger_id=_LONG, missing=_TEXTS, marked=_TIME, locked_by=_TEXT),
    Table.COOKIES: _schema(bookie=_TEXT, cookie=_TEXT, instance_id=_TEXT, version=_LONG),
    Table.ENTRYLOGS: _schema(
        bookie=_TEXT,
        directory=_TEXT,
        entry_log=_TEXT,
        entry_log_id=_LONG,
        bytes=_LONG,
        usage=DoubleType(),
        live_bytes=_LONG,
        in_doubt_bytes=_LONG,
        owners=MapType(_LONG, _LONG),
        reason=_TEXT,
        error=_TEXT,
    ),
    Table.STREAMS: _schema(
        stream=_TEXT,
        generation=_LONG,
        ledgers=_INT,
        entries=_LONG,
        bytes=_LONG,
        first_ledger=_LONG,
        last_ledger=_LONG,
        open_ledger=_LONG,
        created=_TIME,
        transactions=MapType(_TEXT, _LONG),
    ),
}


def check_table_schema(schema: StructType, table: Table) -> StructType:
    """A table is read with its own columns. Raises `PodkeeperSparkError` (SCHEMA) for any others."""
    known = {field.name: field.dataType for field in SCHEMAS[table].fields}
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            text = f"table {table.value} has no column {field.name} {field.dataType.simpleString()}"
            raise PodkeeperSparkError(SCHEMA, f"{text}: there are {', '.join(known)}")
    return schema
