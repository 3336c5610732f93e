"""Attempts beside each other, of a task as Spark's speculation makes them, or of a batch: only one of them is seen.

`local-cluster` begins no speculative attempts, because all its executors are on one host. So the sink is called here as
Spark calls it: by writers of their own for tasks, commit and abort.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructType

from pyspark_bookie.common.clients import close_clients
from pyspark_bookie.sink.writers import BatchWriter, StreamingWriter
from tests.spark.ledgers import numbered
from tests.spark.streams import manifest, payloads

SCHEMA = StructType().add("value", BinaryType())
BATCH = 4


@pytest.fixture(autouse=True)
def clients():
    yield
    close_clients()


@pytest.fixture
def task(monkeypatch):
    """`task(attempt)`: from now on this thread is that attempt of the only task of a batch of query "q"."""
    here = threading.local()
    monkeypatch.setattr(TaskContext, "get", lambda: getattr(here, "task", None))
    properties = {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(BATCH), "spark.jobGroup.id": "run"}

    def begin(attempt):
        here.task = SimpleNamespace(
            partitionId=lambda: 0,
            attemptNumber=lambda: attempt,
            taskAttemptId=lambda: 100 + attempt,
            getLocalProperty=properties.get,
        )

    return begin


def column(values):
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def tagged(client, name):
    """All ledgers that exist and were made for a stream."""
    tags = {each: client.metadata(each).custom_metadata.get("podkeeper/stream") for each in client.list()}
    return {each for each, tag in tags.items() if tag == name.encode()}


def streaming(uri, name):
    return StreamingWriter({"metadataServiceUri": uri, "stream": name, "checkpointLocation": "/c"}, SCHEMA, False)


def test_of_two_attempts_that_both_end_well_one_is_seen(uri, tool, task):
    """The other one's ledger stays, carries its tags, and is nobody's."""
    messages = []
    for attempt in (0, 1):
        task(attempt)
        messages.append(streaming(uri, "twice").write(iter([column(numbered(20))])))
    loser, winner = messages
    streaming(uri, "twice").commit([winner], BATCH)
    assert payloads(tool, "twice") == numbered(20)
    assert [each.ledger_id for each in manifest(tool, "twice").ledgers] == [each.ledger_id for each in winner.ledgers]
    (lost,) = (each.ledger_id for each in loser.ledgers)
    assert tagged(tool, "twice") == {lost, winner.ledgers[0].ledger_id}
    tags = tool.metadata(lost).custom_metadata
    assert (tags["podkeeper/query-id"], tags["podkeeper/attempt"]) == (b"q", b"0")
    streaming(uri, "twice").commit([loser], BATCH)
    assert payloads(tool, "twice") == numbered(20), "the same batch by the other attempt is done already"
    assert tagged(tool, "twice") == {winner.ledgers[0].ledger_id}
    streaming(uri, "twice").abort([winner], BATCH)
    assert payloads(tool, "twice") == numbered(20), "and what is listed stays, whoever aborts"


def test_two_drivers_on_one_checkpoint_publish_a_batch_once(uri, tool, task):
    """Somebody has started a query that runs already."""
    start = threading.Barrier(2)

    def drive(message, number):
        writer = streaming(uri, "driven")
        start.wait(60)
        writer.commit([message], number)

    for number in range(5):
        task(0)
        made = [streaming(uri, "driven").write(iter([column([b"%d" % number])])) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            for ended in [pool.submit(drive, message, number) for message in made]:
                ended.result()
    assert payloads(tool, "driven") == [b"0", b"1", b"2", b"3", b"4"]
    listed = {each.ledger_id for each in manifest(tool, "driven").ledgers}
    assert tagged(tool, "driven") == listed, "what lost is deleted"


@pytest.mark.parametrize("kind", ["streaming", "batch"])
def test_an_abort_beside_an_attempt_that_writes_leaves_it_alone(uri, tool, task, kind):
    """Spark calls it with empty slots for the tasks that have not ended; they go on for a while."""
    name = f"abort-{kind}"
    options = {"metadataServiceUri": uri, "stream": name}
    writer = streaming(uri, name) if kind == "streaming" else BatchWriter(options, SCHEMA, False)
    more = (BATCH,) if kind == "streaming" else ()
    task(0)
    ended = writer.write(iter([column(numbered(5))]))
    begun, aborted = threading.Event(), threading.Event()

    def rows():
        yield column(numbered(10))
        begun.set()
        assert aborted.wait(60)
        yield column(numbered(20)[10:])

    written = []

    def run():
        task(1)
        written.append(writer.write(rows()))

    living = threading.Thread(target=run)
    living.start()
    assert begun.wait(60)
    (others,) = (tagged(tool, name) - {each.ledger_id for each in ended.ledgers},)
    writer.abort([ended, None], *more)
    assert tagged(tool, name) == others, "what has ended is deleted, what is being written is not"
    aborted.set()
    living.join(60)
    (message,) = written
    assert (message.rows, payloads(tool, name)) == (20, [])
    assert {each.ledger_id for each in message.ledgers} == others
