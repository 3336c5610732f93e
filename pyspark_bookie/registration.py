"""Make the format `bookkeeper` known to a session, wherever its Python was started.

Spark finds a source by itself only through the `python3` that the PATH of its Java process names, and only as a
folder on that Python's search path. A virtual environment that is not activated, a kernel of a notebook and an editable
install are not found in this way. `register` does not depend on any of these.

Invariants
- The source is sent to Spark by value, so a worker that lacks the package runs the first lines of the source and
  reports what is missing, instead of failing to load it.
- The Python of the workers is changed only if none was chosen and they run on this machine.

The driver's main thread.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import pyspark.cloudpickle

import pyspark_bookie

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOT_CHOSEN: Final = "python3"
"""The Python of the workers where PYSPARK_PYTHON is not set."""


def register(spark: SparkSession) -> None:
    """Register the format with a session. Calling it again has no effect."""
    use_this_python(spark)
    cloudpickle: Any = pyspark.cloudpickle
    cloudpickle.register_pickle_by_value(pyspark_bookie)
    try:
        spark.dataSource.register(pyspark_bookie.DefaultSource)
    finally:
        cloudpickle.unregister_pickle_by_value(pyspark_bookie)


def use_this_python(spark: SparkSession) -> None:
    """Let workers on this machine run this process's interpreter, unless PYSPARK_PYTHON named another one."""
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    if context is not None and context.pythonExec == _NOT_CHOSEN and (context.master or "").startswith("local"):
        context.pythonExec = sys.executable
