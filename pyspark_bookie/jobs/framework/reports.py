"""Findings as Parquet files: `<report URI>/run=<start>/part-00000.parquet`, so that one URI serves all runs of a job
and whoever reads it sees them as a partitioned table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark_bookie.common.filesystems import file_system

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs
    from pyspark import RDD
    from pyspark.sql import DataFrame, Row


def write_report(findings: DataFrame | pa.Table, uri: str, started: datetime) -> str:
    """Write them; returns the folder. Raises `PodkeeperSparkError` (OPTION), `OSError`."""
    import pyarrow as pa

    found, path = file_system("--report", uri)
    folder = f"{path}/run={started.strftime('%Y%m%dT%H%M%S.%fZ')}"
    found.create_dir(folder, recursive=True)
    if not isinstance(findings, pa.Table):
        try:
            rows = findings.rdd
        except Exception:  # Spark Connect has none: by way of the driver
            findings = findings.toArrow()
        else:
            _write_parts(rows, findings.schema.json(), f"{uri.rstrip('/')}/{folder.rpartition('/')[2]}")
            return folder
    write_table(findings, found, f"{folder}/part-00000.parquet")
    return folder


def write_table(table: pa.Table, system: pafs.FileSystem, path: str) -> None:
    """One file; another of this name is replaced."""
    import pyarrow.parquet as pq

    pq.write_table(table, path, filesystem=system, compression="zstd")


def _write_parts(rows: RDD[Row], schema: str, folder_uri: str) -> None:
    """Each partition writes a file of its own, named by its number: a second attempt writes over the first one's."""

    def write(number: int, part: Iterable[Row]) -> Iterator[int]:
        import json

        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        arrow = to_arrow_schema(StructType.fromJson(json.loads(schema)))
        table = pa.Table.from_pylist([row.asDict(recursive=True) for row in part], schema=arrow)
        if table.num_rows:
            system, folder = file_system("--report", folder_uri)
            write_table(table, system, f"{folder}/part-{number:05d}.parquet")
        yield table.num_rows

    rows.mapPartitionsWithIndex(write).collect()
