"""A streaming query from one stream of ledgers to another that dies where a test wants it.

    python -m tests.support.dying_query FOLDER

FOLDER/run.json says what to run (`RunSettings`). The query goes on until FOLDER/stop appears; when it fails it begins
again from its checkpoint, in the same session, and FOLDER/failures gets the reason. FOLDER/kill.json says where to die
(`Kill`); it is renamed to FOLDER/killed by the process that did it.

Places: `latest`, `partitions` and `source-commit` in the planning process; `write-begin`, `write` (the first rows are
taken) and `write-end` (all ledgers are closed) in a task; `commit-before` and `commit-after` (the sink's manifest is
changed) in the process that commits.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from pyspark_bookie import DefaultSource
from pyspark_bookie.sink.writers import StreamingWriter
from pyspark_bookie.source.streaming.reader import StreamingReader
from tests.support.warm_spark import STARTED_BY

FOLDER_VARIABLE = "PODKEEPER_DYING_QUERY"
PLACES = ("latest", "partitions", "write-begin", "write", "write-end", "commit-before", "commit-after")
DRIVER, PROCESS, EXECUTOR = "driver", "process", "executor"


@dataclass(frozen=True)
class Kill:
    """`who`: the driver (Java and Python), the process that comes to the place, or the executor that this one works
    for. It may be passed `skip` times."""

    place: str
    who: str = DRIVER
    skip: int = 0

    def arm(self, folder: Path) -> None:
        (folder / "killed").unlink(missing_ok=True)
        (folder / "passed").write_text("0")
        (folder / "kill.new").write_text(json.dumps(asdict(self)))
        os.replace(folder / "kill.new", folder / "kill.json")

    @staticmethod
    def disarm(folder: Path) -> None:
        (folder / "kill.json").unlink(missing_ok=True)


@dataclass(frozen=True)
class RunSettings:
    """One run of the program."""

    uri: str
    source: str
    sink: str
    entries_per_trigger: int
    partitions: int
    master: str = "local[2,4]"


class DyingReader(StreamingReader):
    def latestOffset(self, start, limit):
        come_to("latest")
        return super().latestOffset(start, limit)

    def partitions(self, start, end) -> Sequence[InputPartition]:
        come_to("partitions")
        return super().partitions(start, end)


class DyingWriter(StreamingWriter):
    def write(self, iterator: Iterator[Any]):
        come_to("write-begin")
        message = super().write(dying(iterator))
        come_to("write-end")
        return message

    def commit(self, messages, batchId: int) -> None:  # noqa: N803
        come_to("commit-before")
        super().commit(messages, batchId)
        come_to("commit-after")


class DyingSource(DefaultSource):
    """The format `dying`."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamReader(self, schema):
        return DyingReader(self.options, schema)

    def streamWriter(self, schema, overwrite):
        return DyingWriter(self.options, schema, overwrite)


def come_to(place: str) -> None:
    """Die here, if that is wanted. A task whose driver is killed goes on as long as it lives."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    try:
        kill = Kill(**json.loads((folder / "kill.json").read_text()))
    except FileNotFoundError:
        return
    if kill.place != place or not _is_its_turn(folder, kill.skip):
        return
    try:
        os.rename(folder / "kill.json", folder / "killed")
    except FileNotFoundError:
        return  # another task was faster
    if kill.who == EXECUTOR:
        os.kill(int(os.environ[STARTED_BY]), signal.SIGKILL)
    if kill.who in (PROCESS, EXECUTOR):
        os.kill(os.getpid(), signal.SIGKILL)
    for pid in (folder / "pids").read_text().split():
        os.kill(int(pid), signal.SIGKILL)


def dying(batches: Iterator[Any]) -> Iterator[Any]:
    """The rows of a task, which comes to `write` when they are taken."""
    for batch in batches:
        yield batch
        come_to("write")


def _is_its_turn(folder: Path, skip: int) -> bool:
    with open(folder / "passed", "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        passed = int(file.read())
        file.seek(0)
        file.write(str(passed + 1))
    return passed >= skip


def main(folder: Path) -> None:
    run = RunSettings(**json.loads((folder / "run.json").read_text()))
    spark = session(folder, run.master)
    (folder / "pids.new").write_text(f"{spark.sparkContext._gateway.proc.pid} {os.getpid()}")
    os.replace(folder / "pids.new", folder / "pids")
    spark.dataSource.register(DyingSource)
    reader = spark.readStream.format("dying").option("metadataServiceUri", run.uri).option("stream", run.source)
    reader = reader.option("startingPosition", "earliest").option("maxEntriesPerTrigger", run.entries_per_trigger)
    frame = reader.option("minPartitions", run.partitions).load()
    writer = frame.writeStream.format("dying").option("metadataServiceUri", run.uri).option("stream", run.sink)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    while not (folder / "stop").exists():
        query = writer.start()
        while query.isActive and not (folder / "stop").exists():
            time.sleep(0.02)
        failure = query.exception()
        if failure is not None:
            with open(folder / "failures", "a") as file:
                file.write(f"{failure}\n")
        query.stop()
    spark.stop()


def session(folder: Path, master: str) -> SparkSession:
    """A small one, which is silent."""
    settings = {
        "spark.master": master,
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    return SparkSession.builder.config(map=settings).getOrCreate()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
