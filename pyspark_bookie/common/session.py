"""How parallel the SparkSession of the driver is.

Driver only: planning and tasks run in worker processes that have no session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parallelism(session: SparkSession) -> int:
    """Tasks that can run at the same time, as far as Spark tells now (`spark.default.parallelism`); through Spark
    Connect, which does not tell, the number of shuffle partitions."""
    try:
        return max(1, session.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context, and says so by errors of several types
        return max(1, int(session.conf.get("spark.sql.shuffle.partitions") or 1))
