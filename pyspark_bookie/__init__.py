"""Ledgers in Spark: `spark.read.format("bookkeeper")`.

Spark imports every module whose name begins with `pyspark_` when a Python data source is used for the first time, and
registers its `DefaultSource`. One module that fails there makes the sources of all others vanish without a message. So
this module imports nothing but PySpark's own interface; everything else is imported when it is used.

Where the package does not lie on the Python path that the JVM was started with, register it:

    from pyspark_bookie import DefaultSource
    spark.dataSource.register(DefaultSource)

Any process: the driver, its planning workers, executors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The format `bookkeeper`: batch and streaming, source and sink. Options: docs/spark.md.

    Every method raises `PodkeeperSparkError` for options that are wrong.
    """

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"

    def schema(self) -> StructType:
        """What the options select."""
        schema: StructType = _load("source.schema", "schema_for")(self.options)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Batch reads of entries, and of metadata tables."""
        reader: DataSourceReader = _load("source.batch", "batch_reader")(self.options, schema)
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        """Streaming reads."""
        reader: DataSourceStreamReader = _load("source.streaming.reader", "StreamingReader")(self.options, schema)
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Batch writes."""
        writer: DataSourceWriter = _load("sink.writers", "BatchWriter")(self.options, schema, overwrite)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - PySpark's name
        """Streaming writes."""
        writer: DataSourceStreamWriter = _load("sink.writers", "StreamingWriter")(self.options, schema, overwrite)
        return writer


def _load(module: str, name: str) -> Any:
    return getattr(import_module(f"{__name__}.{module}"), name)
