"""The SparkSession of a job.

A session that is there already is used: a notebook's, or the one that spark-submit configures. Else one is made: as the
arguments of spark-submit in `PYSPARK_SUBMIT_ARGS` tell, as everywhere in PySpark; without them on this machine, without
the web page and the bar that Spark draws over other output.

What is begun here is a child of this process, which gets its signals itself: with spark-submit Java is the parent.

Driver only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULT_MASTER: Final = "local[*]"
_SUBMITTED: Final = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""Set where somebody else has begun Spark."""
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
"""A job's work is done in Python, and Java passes results on: to optimise that costs a short job more of the processors
than it brings. BookieJobs have it too."""
_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
"""Where and how it is to be begun here."""


def open_session(name: str, master: str | None) -> tuple[SparkSession, bool]:
    """The session, and whether it is ours to stop. `master` None: see the module."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active, False
    builder = SparkSession.builder.appName(name)
    submitted = any(variable in os.environ for variable in _SUBMITTED)
    decided = submitted or _ARGUMENTS in os.environ
    if master is not None or not decided:
        builder = builder.master(master or _DEFAULT_MASTER)
    if not submitted:
        _show_workers_this_python()
    if not decided:
        if (master or _DEFAULT_MASTER).startswith("local["):  # nobody else has to reach the driver
            builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        for key, value in {
            "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "8",
        }.items():
            builder = builder.config(key, value)
    session = builder.getOrCreate()
    if not decided:
        session.sparkContext.setLogLevel("ERROR")
    return session, True


def _show_workers_this_python() -> None:
    """Spark's Python workers begin with the environment of the JVM: neither with this interpreter, nor with this
    process's search path."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).resolve().parents[3])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])


def parallelism(session: SparkSession) -> int:
    """Tasks that can run at the same time, as far as Spark tells now (`spark.default.parallelism`); through Spark
    Connect, which does not tell, the number of shuffle partitions."""
    try:
        return max(1, session.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context, and says so by errors of several types
        return max(1, int(session.conf.get("spark.sql.shuffle.partitions") or 1))
