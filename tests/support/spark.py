"""A SparkSession for tests: one Java process per test process, started when the first test asks.

    from tests.support.spark import SparkSessions

    sessions = SparkSessions(folder)
    spark = sessions.get()          # alive, whatever tests did to it before
    sessions.stop()

The repository is on the Python path that the Java process is started with, so the sources of `pyspark_*` packages
register by themselves, and tasks find the tests' own modules.

One thread uses a `SparkSessions`; whoever makes one stops it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.support.spark_environment import spark_variables

LOCAL = "local[2]"


class SparkSessions:
    """`settings` in addition to the usual ones, such as `spark.master`."""

    def __init__(self, work: Path, settings: Mapping[str, str] | None = None) -> None:
        self._work = work
        self._settings = {
            "spark.master": LOCAL,
            "spark.app.name": "podkeeper tests",
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            # Code for a query of ten rows costs more than it saves; programs that tests start keep it.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.local.dir": str(work / "local"),
            "spark.sql.warehouse.dir": str(work / "warehouse"),
            **(settings or {}),
        }
        self._environment = pytest.MonkeyPatch()
        self._session: SparkSession | None = None

    def get(self) -> SparkSession:
        """The session; a new one if a test stopped it."""
        if self._session is None or self._session.sparkContext._jsc is None:
            self._session = self._started()
        return self._session

    def stop(self, patience_s: float = 30.0) -> None:
        """End the session and the Java process, which may take so long for it."""
        session, self._session = self._session, None
        if session is not None:
            with kept_interrupts(), suppress(Exception):  # a test may have killed the Java process
                session.stop()
            _end_java(patience_s)
        self._environment.undo()

    def _started(self) -> SparkSession:
        for name, value in spark_variables().items():
            self._environment.setenv(name, value)
        with kept_interrupts():
            return SparkSession.builder.config(map=dict(self._settings)).getOrCreate()


@contextmanager
def kept_interrupts() -> Iterator[None]:
    """PySpark takes SIGINT for itself, to cancel jobs; tests want it as it was."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_java(patience_s: float) -> None:
    """PySpark keeps the Java process for the next session; it ends when its standard input does."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    process = gateway.proc
    with suppress(Exception):
        gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(patience_s)
    finally:
        process.kill()
        process.wait()
    SparkContext._gateway = SparkContext._jvm = None
