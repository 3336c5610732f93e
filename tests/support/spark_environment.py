"""The environment of a process that starts Spark: on this machine alone, with the Java of the tests and a warm Python.

Reads what this process was started with and changes nothing. Any thread may call it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.java import SHORT_LIVED, java_home
from tests.support.warm_spark import spark_python

REPOSITORY = Path(__file__).parents[2]
CLASSES = Path(sys.prefix) / "spark.jsa"
"""The classes of Spark as Java has them in memory, if `tests.support.spark_classes` has made it: half of a start."""
_USED = (f"-XX:SharedArchiveFile={CLASSES}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""Java goes without it, and says nothing, where it is of another Java or has other folders in front of the jars."""


def spark_variables() -> dict[str, str]:
    """What Spark needs to be told: its Java, its address, and the Python of its tasks, which find the sources and the
    tests' own modules. Raises `MissingToolError`."""
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    options = (*SHORT_LIVED, *(_USED if CLASSES.exists() else ()))
    return {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": spark_python(),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys((str(REPOSITORY), *others))),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LAUNCHER_OPTS": " ".join(SHORT_LIVED),
        "SPARK_SUBMIT_OPTS": " ".join(options),
    }


def spark_environment(*, python: bool = True, **more: str) -> dict[str, str]:
    """This process's variables with Spark's, and `more` over them. `python` is false for a program that is itself to
    choose the Python of its tasks. Raises `MissingToolError`."""
    variables = {**os.environ, **spark_variables()}
    if not python:
        del variables["PYSPARK_PYTHON"]
    return variables | more
