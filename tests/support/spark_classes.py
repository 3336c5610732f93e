"""`python -m tests.support.spark_classes` keeps Spark's classes for every later start of its Java (`CLASSES`).

Once for an environment, since it takes twice as long as a start. One query of each kind loads what tests need.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support import spark
from tests.support.spark_environment import CLASSES, spark_variables

_PATIENCE_S = 300.0


def main() -> None:
    new = CLASSES.with_suffix(".new")
    CLASSES.unlink(missing_ok=True)
    variables = spark_variables()
    variables["SPARK_SUBMIT_OPTS"] += f" -XX:ArchiveClassesAtExit={new} -Xlog:cds=off -Xlog:cds+dynamic=off"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark, "spark_variables", lambda: variables)
        sessions = spark.SparkSessions(Path(folder))
        try:
            _query(sessions, folder)
        finally:
            sessions.stop(_PATIENCE_S)
    new.rename(CLASSES)


def _query(sessions: spark.SparkSessions, folder: str) -> None:
    session = sessions.get()
    session.sparkContext.parallelize(range(2), 2).map(str).collect()
    frame = session.range(4).selectExpr("id", "cast(id as string) as value").repartition(2).orderBy("id")
    frame.write.parquet(f"{folder}/frame")
    assert session.read.parquet(f"{folder}/frame").groupBy("value").count().count() == 4
    stream = session.readStream.schema(frame.schema).parquet(f"{folder}/frame").writeStream
    query = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    query.format("parquet").start(f"{folder}/copied").awaitTermination()
    assert session.read.parquet(f"{folder}/copied").count() == 4


if __name__ == "__main__":
    main()
