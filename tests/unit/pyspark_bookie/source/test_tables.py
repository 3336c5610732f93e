"""How tables of ledgers are cut into tasks. What is in them is asked of a whole cluster, by tests/spark."""

from __future__ import annotations

import pytest

from bookie_client import BlockingClient
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from pyspark_bookie.source.options import SourceOptions, Table
from pyspark_bookie.source.tables import reader
from pyspark_bookie.source.tables.reader import TableReader
from pyspark_bookie.source.tables.schemas import SCHEMAS
from tests.support.memory_metadata import MemoryMetadata
from tests.unit.pyspark_bookie.source.reads import options


@pytest.mark.parametrize(
    ("count", "least", "sizes"),
    [
        (0, 1, []),
        (3, 5, [1, 1, 1]),
        (5, 2, [3, 2]),
        (9, 1, [4, 4, 1]),
    ],
)
def test_every_ledger_is_in_one_task_and_there_are_as_many_as_asked_for(monkeypatch, count, least, sizes):
    monkeypatch.setattr(reader, "LEDGERS_PER_PARTITION", 4)
    with BlockingClient(MemoryMetadata()) as client:
        monkeypatch.setattr(SourceOptions, "client", lambda self: client)
        for number in range(count):
            made = LedgerMetadata(number, 1, 1, 1, {0: ("b1",)})
            client.run(lambda each, made=made: each.metadata_service.ledgers.create(made))
        wanted = options(table="ledgers", minPartitions=least)
        parts = TableReader(wanted, Table.LEDGERS, SCHEMAS[Table.LEDGERS]).partitions()
    assert [len(part.ledger_ids) for part in parts] == sizes
    assert [ledger_id for part in parts for ledger_id in part.ledger_ids] == list(range(count))
