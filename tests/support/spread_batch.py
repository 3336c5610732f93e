"""A batch read and batch writes, on one master after the other, whose tasks die where a test wants it.

    python -m tests.support.spread_batch FOLDER

FOLDER/run.json says what to run (`SpreadRun`). The rows that were read, a list for each master, go to FOLDER/rows.json.
Then the last master writes them to a stream, once for each of `kills`, always as the same batch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_bookie import DefaultSource
from pyspark_bookie.sink.writers import BatchWriter
from tests.support.dying_query import FOLDER_VARIABLE, Kill, dying, session
from tests.support.spark_environment import REPOSITORY, spark_environment

PATIENCE_S = 400.0


@dataclass(frozen=True)
class SpreadRun:
    """`kills`: who dies in each write."""

    uri: str
    ledgers: str
    sink: str
    masters: Sequence[str]
    kills: Sequence[str]
    partitions: int = 4


class DyingBatchWriter(BatchWriter):
    def write(self, iterator: Iterator[Any]):
        return super().write(dying(iterator))


class DyingBatch(DefaultSource):
    """The format `dying-batch`."""

    @classmethod
    def name(cls) -> str:
        return "dying-batch"

    def writer(self, schema, overwrite):
        return DyingBatchWriter(self.options, schema, overwrite)


def spread(folder: Path, run: SpreadRun) -> list[list[list[Any]]]:
    """Run the program in a process of its own; the rows that each master read."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(asdict(run)))
    environment = {**spark_environment(), FOLDER_VARIABLE: str(folder)}
    command = [sys.executable, "-m", "tests.support.spread_batch", str(folder)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[list[list[Any]]] = json.loads((folder / "rows.json").read_text())
    return found


def main(folder: Path) -> None:
    run = SpreadRun(**json.loads((folder / "run.json").read_text()))
    found = []
    for master in run.masters:
        spark = session(folder, master)
        assert spark.sparkContext.master == master
        frame = _frame(spark, run)
        found.append([[row.ledger_id, row.entry_id, bytes(row.value).hex(), row.length] for row in frame.collect()])
        if master == run.masters[-1]:
            _write(folder, run, spark, frame.select("value"))
        spark.stop()
    (folder / "rows.json").write_text(json.dumps(found))


def _frame(spark: SparkSession, run: SpreadRun) -> DataFrame:
    reader = spark.read.format("bookkeeper").option("metadataServiceUri", run.uri).option("ledgers", run.ledgers)
    return reader.option("minPartitions", run.partitions).load()


def _write(folder: Path, run: SpreadRun, spark: SparkSession, frame: DataFrame) -> None:
    spark.dataSource.register(DyingBatch)
    writer = frame.write.format("dying-batch").mode("append").option("metadataServiceUri", run.uri)
    writer = writer.option("stream", run.sink).option("txnAppId", "spread").option("txnVersion", 1)
    for who in run.kills:
        Kill("write", who, 1).arm(folder)
        writer.save()
        assert (folder / "killed").exists(), f"no {who} came to its place"


if __name__ == "__main__":
    # Under its own name, so that workers find the classes.
    from tests.support.spread_batch import main as named

    named(Path(sys.argv[1]))
