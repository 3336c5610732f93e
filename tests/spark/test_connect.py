"""A server of Spark Connect reads ledgers for clients that have nothing of Podkeeper, and runs jobs.

PySpark's own client needs pandas, which is in a folder of its own (`make .venv/connect`), so that nothing on the side
of the server knows of it. Where messages are sent here, they are what that client sends.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyspark
import pytest

from bookie_client import BlockingClient
from tests.spark.ledgers import numbered, write_ledger
from tests.support.spark_environment import spark_environment
from tests.support.until import until_true

SECONDS = 120.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * SECONDS)]

HOME = Path(pyspark.__file__).parent
CLIENT = Path(sys.prefix) / "connect"
"""Packages that only a client of Spark Connect needs."""
_STARTED = re.compile(r"Spark Connect server started at: \S*:(\d+)")


@pytest.fixture(scope="module")
def protocol() -> Any:
    """The messages of Spark Connect. The package around them refuses to be imported without pandas."""
    package = "pyspark.sql.connect"
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(package)}
    around = sys.modules[package] = types.ModuleType(package)
    around.__path__ = [str(HOME / "sql" / "connect")]
    try:
        import pyspark.sql.connect.proto as found

        return found
    finally:
        for name in [name for name in sys.modules if name.startswith(package)]:
            del sys.modules[name]
        sys.modules.update(before)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a server of Spark Connect answers."""
    work = tmp_path_factory.mktemp("connect")
    log = work / "server.log"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(work / "local"),
    }
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    main = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal")
    with open(log, "wb") as written:
        process = subprocess.Popen(
            [HOME / "bin" / "spark-submit", "--master", "local[1]", *words, *main],
            cwd=work,
            env=spark_environment(),
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
        )
    try:
        until_true(lambda: process.poll() is not None or _STARTED.search(log.read_text()), SECONDS)
        found = _STARTED.search(log.read_text())
        assert found is not None, log.read_text()[-3000:]
        yield f"127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.wait(60)


def read(protocol: Any, server: str, options: Mapping[str, str]) -> pa.Table:
    """What `SparkSession.builder.remote(...)` sends for `read.format("bookkeeper").options(...).load().collect()`."""
    source = protocol.Read.DataSource(format="bookkeeper", options=options)
    request = protocol.ExecutePlanRequest(
        session_id=str(uuid.uuid4()),
        user_context=protocol.UserContext(user_id="tests"),
        plan=protocol.Plan(root=protocol.Relation(read=protocol.Read(data_source=source))),
    )
    with grpc.insecure_channel(server) as channel:
        answers = protocol.SparkConnectServiceStub(channel).ExecutePlan(request, timeout=SECONDS)
        parts = [each.arrow_batch.data for each in answers if each.HasField("arrow_batch")]
    return pa.concat_tables(pa.ipc.open_stream(part).read_all() for part in parts)


def test_a_ledger_is_read(protocol: Any, server: str, uri: str, tool: BlockingClient) -> None:
    expected = numbered(200)
    ledger_id = write_ledger(tool, expected)
    found = read(protocol, server, {"metadataServiceUri": uri, "ledgers": str(ledger_id), "minPartitions": "3"})
    assert sorted(found["value"].to_pylist()) == expected
    assert set(found["ledger_id"].to_pylist()) == {ledger_id}


def test_the_client_is_told_what_is_wrong(protocol: Any, server: str, uri: str) -> None:
    with pytest.raises(grpc.RpcError, match=r"\[BOOKIE_OPTION\].* ledgrs: .* ledgers"):
        read(protocol, server, {"metadataServiceUri": uri, "ledgrs": "5"})
    with pytest.raises(grpc.RpcError, match=r"\[BOOKIE_NO_SUCH_LEDGER\]"):
        read(protocol, server, {"metadataServiceUri": uri, "ledgers": "88000000"})


QUERIES = """
import json, sys
from pyspark.sql import SparkSession

server, uri, ledger_id, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(f"sc://{server}").getOrCreate()

def access(made, **options):
    return made.format("bookkeeper").option("metadataServiceUri", uri).options(**options)

rows = access(spark.read, ledgers=ledger_id).load().where("entry_id < 3").orderBy("entry_id").collect()
written = spark.range(0, 50, 1, 2).selectExpr("CAST(id AS string) AS value")
access(written.write, stream="connected").mode("append").save()
source = access(spark.readStream, stream="connected", startingPosition="earliest").load().select("value")
sink = access(source.writeStream, stream="connected-copy").option("checkpointLocation", checkpoint)
query = sink.trigger(availableNow=True).start()
query.awaitTermination()
copied = access(spark.read, stream="connected-copy").load().count()
lag = json.loads(query.lastProgress["sources"][0]["latestOffset"])["behind"]["entries"]
tables = access(spark.read, table="streams").load().where("stream LIKE 'connected%'").count()
print(json.dumps([[bytes(row.value).decode() for row in rows], copied, lag, tables]))
"""


def client_environment() -> dict[str, str]:
    assert (CLIENT / "pandas").is_dir(), "make .venv/connect installs what clients of Spark Connect need"
    return {**os.environ, "PYTHONPATH": str(CLIENT)}


def run_client(*words: str, **variables: str) -> str:
    """Standard output of a process that has what PySpark's client needs."""
    environment = {**client_environment(), **variables}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=2 * SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(4 * SECONDS)
def test_pysparks_client_reads_writes_and_streams(server: str, uri: str, tool: BlockingClient, tmp_path: Path) -> None:
    expected = numbered(20)
    ledger_id = write_ledger(tool, expected)
    output = run_client(sys.executable, "-c", QUERIES, server, uri, str(ledger_id), str(tmp_path / "checkpoint"))
    assert json.loads(output.splitlines()[-1]) == [[each.decode() for each in expected[:3]], 50, 0, 2]


@pytest.mark.timeout(4 * SECONDS)
def test_a_job_runs_on_the_server(server: str, uri: str, tool: BlockingClient, tmp_path: Path) -> None:
    ledger_id = write_ledger(tool, numbered(20))
    words = ("offload", "--metadata", uri, "--ledgers", str(ledger_id), "--target", f"file://{tmp_path}/archive")
    output = run_client(sys.executable, "-m", "pyspark_bookie.jobs", *words, SPARK_REMOTE=f"sc://{server}")
    row = json.loads(output.splitlines()[-1])
    assert (row["status"], row["offloaded"], row["entries"]) == ("ok", 1, 20)
