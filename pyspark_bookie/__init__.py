"""Ledgers in Spark: `spark.read.format("bookkeeper")`.

Spark imports every module whose name begins with `pyspark_` when a Python data source is used for the first time, and
registers its `DefaultSource`. One module that fails there makes the sources of all others vanish without a message. So
this module imports nothing but PySpark's own interface; everything else is imported when it is used.

Spark finds it by itself only in the `python3` of its Java process's PATH. One call works everywhere:

    from pyspark_bookie import register
    register(spark)

Any process: the driver, its planning workers, executors.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource", "register"]


class DefaultSource(DataSource):
    """The format `bookkeeper`: batch and streaming, source and sink. Options: docs/spark.md.

    Every method raises `PodkeeperSparkError` for options that are wrong.
    """

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"

    def schema(self) -> StructType:
        """Return the columns that the options select."""
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


def register(spark: SparkSession) -> None:
    """Make the format `bookkeeper` known to a session, and let its workers on this machine run this Python unless
    PYSPARK_PYTHON names another one. Calling it again has no effect.
    """
    _load("registration", "register")(spark)


def _load(module: str, name: str) -> Any:
    try:
        return getattr(import_module(f"pyspark_bookie.{module}"), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        try:
            from bookie_protocol.extras import install_command

            remedy = install_command("spark", missing)
        except ModuleNotFoundError:  # that Python has nothing of Podkeeper
            remedy = "install Podkeeper with its extra spark there"
        raise ModuleNotFoundError(
            f"{sys.executable}, the Python of Spark's workers, does not have the package {missing}:"
            f" {remedy}; or set PYSPARK_PYTHON to a Python that has it before Spark starts",
            name=error.name,
        ) from error
