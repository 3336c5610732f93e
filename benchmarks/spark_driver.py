"""One Spark application that measures: `python -m benchmarks.spark_driver STAGE --metadata URI ...`.

The last line of standard output is a JSON object with the seconds of each repetition. Every stage runs a
few times before it is measured, so that the Java process has compiled what is hot, and planner and workers are there.

    source    all entries of some ledgers into nothing (Spark's `noop` sink)
    parquet   the same rows out of Parquet files into nothing
    sink      the rows of Parquet files into a stream of ledgers
    to-parquet  the rows of Parquet files into other Parquet files
    prepare   the entries of the ledgers as Parquet files, for the stages above
    client    all entries by the client alone, without Spark: one process for each slot
    client-write  the same bytes by the client alone
    plan      the partitions of very many small ledgers, without reading one
    audit     the job `audit --digests`
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.drivers import printed_object
from bookie_client import BlockingClient, ClientOptions, TrafficClass

REPOSITORY: Final = Path(__file__).parent.parent
_BULK: Final = 1000
_LONGEST_S: Final = 1800
WARM_UPS: Final = 3


def drive_spark(stage: str, *arguments: str) -> dict[str, Any]:
    """Run a stage in a process of its own; returns the object it printed. Raises `DriverError`."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "benchmarks.spark_driver", stage, *arguments]
    return printed_object(command, [stage, *arguments], _LONGEST_S, environment=environment, folder=REPOSITORY)


@contextmanager
def _session(slots: int) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    settings: dict[str, Any] = {
        "spark.master": f"local[{slots}]",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.parquet.compression.codec": "uncompressed",
    }
    spark = SparkSession.builder.config(map=settings).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _repeated(times: int, run: Callable[[], None]) -> list[float]:
    for _ in range(WARM_UPS):
        run()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return seconds


class Stages:
    """The stages that need Spark."""

    def __init__(
        self, spark: Any, metadata: str, ledgers: str, parquet: str, times: int, traffic_class: TrafficClass
    ) -> None:
        self._spark = spark
        self._metadata = metadata
        self._ledgers = ledgers
        self._parquet = parquet
        self._times = times
        self._traffic_class = traffic_class

    def _frame(self, ledgers: str) -> Any:
        reader = self._spark.read.format("bookkeeper").option("metadataServiceUri", self._metadata)
        return reader.option("ledgers", ledgers).option("trafficClass", self._traffic_class.value).load()

    def _rows(self) -> Any:
        return self._spark.read.parquet(self._parquet)

    def source(self) -> list[float]:
        """A `load()` for each repetition: planning counts."""
        return _repeated(self._times, lambda: _to_nothing(self._frame(self._ledgers)))

    def parquet(self) -> list[float]:
        return _repeated(self._times, lambda: _to_nothing(self._rows()))

    def prepare(self) -> list[float]:
        self._frame(self._ledgers).select("ledger_id", "entry_id", "value").write.parquet(self._parquet)
        return []

    def sink(self) -> list[float]:
        def write() -> None:
            writer = self._rows().select("value").write.format("bookkeeper").mode("append")
            name = f"bench-{time.monotonic_ns()}"
            writer.option("metadataServiceUri", self._metadata).option("stream", name).save()

        return _repeated(self._times, write)

    def to_parquet(self) -> list[float]:
        target = self._parquet + "-copy"

        def write() -> None:
            shutil.rmtree(target, ignore_errors=True)
            self._rows().select("value").write.parquet(target)

        return _repeated(self._times, write)

    def plan(self) -> list[float]:
        return _repeated(self._times, lambda: self._planned(self._frame(self._ledgers)))

    def _planned(self, frame: Any) -> None:
        count = frame.rdd.getNumPartitions()
        if count < 1:
            raise RuntimeError("no partition was planned")

    def audit(self) -> list[float]:
        from pyspark_bookie.jobs.audit import AuditArguments, AuditJob
        from pyspark_bookie.jobs.framework.arguments import parse
        from pyspark_bookie.jobs.framework.context import JobContext

        words = ["--metadata", self._metadata, "--digests", "--placement", "none", "--ledgers", self._ledgers]
        words += ["--max-bytes-per-second", "none"]
        arguments = parse(AuditArguments, "audit", "", words)

        def audit() -> None:
            with JobContext("audit", arguments, spark=self._spark) as context:
                result = AuditJob().run(context)
            if result.exit != 0:
                raise RuntimeError(f"audit: {result.counters}")

        return _repeated(self._times, audit)


def _to_nothing(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


# --- the client alone -----------------------------------------------------------------------------------------


def _read_alone(metadata: str, ledgers: Sequence[int], traffic_class: TrafficClass) -> int:
    found = 0
    with BlockingClient(metadata, ClientOptions(traffic_class=traffic_class)) as client:
        for ledger_id in ledgers:
            with client.open(ledger_id, password=b"") as reader:
                for batch in reader.batches():
                    found += sum([len(entry.payload) for entry in batch])
    return found


def _write_alone(metadata: str, nbytes: int, entry_bytes: int) -> int:
    payload = os.urandom(entry_bytes)
    with BlockingClient(metadata) as client, client.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
        left = nbytes // entry_bytes
        while left > 0:
            ledger.append_many([payload] * min(left, _BULK))
            left -= _BULK
    return 0


def _alone(slots: int, times: int, work: Callable[..., int], shares: Sequence[tuple[Any, ...]]) -> list[float]:
    with ProcessPoolExecutor(slots, mp_context=get_context("spawn")) as pool:

        def run() -> None:
            for future in [pool.submit(work, *share) for share in shares]:
                future.result()

        return _repeated(times, run)


@click.command()
@click.argument("stage")
@click.option("--metadata", required=True)
@click.option("--ledgers", default="", help="Ids and ranges, as the source takes them.")
@click.option("--parquet", default="")
@click.option("--slots", type=click.IntRange(1, 64), default=1)
@click.option("--times", type=click.IntRange(1, 100), default=3)
@click.option("--bytes", "nbytes", type=int, default=0)
@click.option("--entry-bytes", type=int, default=1024)
@click.option("--traffic-class", type=click.Choice([each.value for each in TrafficClass]), default="batch")
def main(
    stage: str,
    metadata: str,
    ledgers: str,
    parquet: str,
    slots: int,
    times: int,
    nbytes: int,
    entry_bytes: int,
    traffic_class: str,
) -> None:
    """Run a stage."""
    if stage == "client":
        ids = [int(each) for each in ledgers.split(",")]
        shares = [(metadata, ids[slot::slots], TrafficClass(traffic_class)) for slot in range(slots)]
        seconds = _alone(slots, times, _read_alone, shares)
    elif stage == "client-write":
        seconds = _alone(slots, times, _write_alone, [(metadata, nbytes // slots, entry_bytes)] * slots)
    else:
        with _session(slots) as spark:
            stages = Stages(spark, metadata, ledgers, parquet, times, TrafficClass(traffic_class))
            seconds = getattr(stages, stage.replace("-", "_"))()
    click.echo(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
