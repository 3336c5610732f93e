"""Passwords of ledgers are in none of what Spark and its workers write down, whether they are right or wrong."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest

from bookie_client import BlockingClient
from tests.spark.ledgers import numbered
from tests.spark.streams import append, create
from tests.support.spark_environment import spark_environment

SECONDS = 240.0
pytestmark = pytest.mark.timeout(SECONDS + 60)

ENTRIES = 50
RIGHT, WRONG = b"right-5e8c1f", b"wrong-d07a92"
PROGRAM = """
import sys, traceback
from pathlib import Path
from pyspark.sql import SparkSession

uri, stream, target, passwords, work = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
shared = {"metadataServiceUri": uri}

def batch(password):
    frame = spark.read.format("bookkeeper").options(**shared, stream=stream, passwordFile=password).load()
    frame.explain("extended")
    return frame.count()

def streaming(password):
    source = spark.readStream.format("bookkeeper").options(**shared, stream=stream, passwordFile=password)
    frame = source.option("startingPosition", "earliest").load()
    writer = frame.select("value").writeStream.format("bookkeeper").trigger(availableNow=True)
    writer = writer.options(**shared, stream=target, passwordFile=password)
    query = writer.option("checkpointLocation", f"{work}/checkpoint-{Path(password).name}").start()
    query.awaitTermination()
    query.explain(True)
    return sum(each.numInputRows for each in query.recentProgress)

for password in ("right", "wrong"):
    for read in (batch, streaming):
        try:
            print(read.__name__, password, read(f"{passwords}/{password}"))
        except Exception as error:
            print(read.__name__, password, "[BOOKIE_UNAUTHORIZED]" in str(error))
            traceback.print_exc(file=sys.stdout)
for row in spark.tvf.python_worker_logs().collect():
    print("worker log", row)
"""
SETTINGS = """
spark.master local[2]
spark.ui.enabled false
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.log.level INFO
spark.sql.pyspark.worker.logging.enabled true
spark.eventLog.enabled true
spark.eventLog.compress false
spark.eventLog.dir {events}
"""


@pytest.fixture
def written(uri: str, tool: BlockingClient, tmp_path: Path) -> tuple[Path, str]:
    """A folder with everything that the program and its Spark wrote, and what it said of its work."""
    append(tool, "guarded", numbered(ENTRIES), password=RIGHT)
    create(tool, "guarded-copy")
    passwords, work = tmp_path / "passwords", tmp_path / "work"
    for folder in (passwords, work, work / "events"):
        folder.mkdir()
    (passwords / "right").write_bytes(RIGHT)
    (passwords / "wrong").write_bytes(WRONG)
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(SETTINGS.format(events=(work / "events").as_uri()))
    with (work / "out").open("wb") as out, (work / "err").open("wb") as err:
        subprocess.run(
            [sys.executable, "-c", PROGRAM, uri, "guarded", "guarded-copy", str(passwords), str(work)],
            cwd=tmp_path,
            env=spark_environment(SPARK_CONF_DIR=str(conf)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            timeout=SECONDS,
            check=True,
        )
    return work, (work / "out").read_text()


def test_passwords_stand_in_no_log_plan_event_error_or_checkpoint(written: tuple[Path, str]) -> None:
    work, said = written
    for line in (f"batch right {ENTRIES}", f"streaming right {ENTRIES}", "batch wrong True", "streaming wrong True"):
        assert line in said.splitlines(), said[-3000:]
    texts = {file: file.read_bytes() for file in work.rglob("*") if file.is_file()}
    assert any("events" in file.parts for file in texts)
    assert any("offsets" in file.parts for file in texts)
    assert sum(map(len, texts.values())) > 10_000
    for secret in (RIGHT, WRONG):
        for form in (secret, base64.b64encode(secret), secret.hex().encode()):
            assert [str(file) for file, text in texts.items() if form in text] == []
