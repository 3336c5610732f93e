"""Pieces of a wave, and how far a pass is."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.blocking import BlockingClient
from bookie_protocol.errors import MetadataDamaged
from pyspark_bookie.common.ledger_ids import LedgerIds
from pyspark_bookie.jobs.framework.arguments import UsageError
from pyspark_bookie.jobs.replicas.units import Slice
from pyspark_bookie.jobs.scrub import KIND, PassRecord, ScrubArguments, pass_name, pieces
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_process import ServeProcess

BOOKIES = "abcd"


@st.composite
def waves(draw):
    slices = []
    for ledger_id in sorted(draw(st.sets(st.integers(0, 100), max_size=20))):
        held = tuple((bookie, draw(st.integers(0, 100))) for bookie in sorted(draw(st.sets(st.sampled_from(BOOKIES)))))
        slices.append(Slice(ledger_id, 0, None, sum(nbytes for _, nbytes in held), held))
    return tuple(slices)


@given(waves(), st.integers(1, 300))
def test_every_replica_is_in_one_piece_in_the_order_of_its_disk(wave, piece_bytes):
    made = pieces(wave, piece_bytes)
    assert [unit.number for unit in made] == list(range(len(made)))
    expected = sorted((bookie, each.ledger_id) for each in wave for bookie, _ in each.bookies)
    by_bookie = sorted((unit.bookie, each.ledger_id) for unit in made if unit.bookie for each in unit.slices)
    assert by_bookie == expected
    for bookie in BOOKIES:
        order = [each.ledger_id for unit in made if unit.bookie == bookie for each in unit.slices]
        assert order == sorted(order)
    assert [each.ledger_id for unit in made if unit.bookie is None for each in unit.slices] == [
        each.ledger_id for each in wave if not each.bookies
    ]
    assert all(unit.nbytes <= piece_bytes or len(unit.slices) == 1 for unit in made if unit.bookie)
    # Neighbours are of different bookies as long as several have something left.
    for place, (one, other) in enumerate(pairwise(made)):
        if one.bookie == other.bookie:
            assert {unit.bookie for unit in made[place:]} <= {one.bookie, None}


@pytest.fixture
def client(tmp_path):
    metadata = MetadataProcess(tmp_path)
    metadata.start()
    try:
        assert ServeProcess.command("cluster", "init", metadata.uri()).returncode == 0
        with BlockingClient(metadata.uri()) as made:
            yield made
    finally:
        metadata.stop()


def test_a_pass_is_gone_on_with_and_the_next_one_takes_another_sample(client):
    record = PassRecord(client, "weekly")
    first = record.load(restart=False)
    assert (first.next_ledger, first.seed) == (0, 0)
    record.save(first)

    first = replace(first, next_ledger=17)
    record.save(first)
    another = PassRecord(client, "weekly")
    assert another.load(restart=False) == first
    assert PassRecord(client, "other").load(restart=False).next_ledger == 0
    again = record.load(restart=True)
    assert (again.next_ledger, again.seed) == (0, 1)
    record.save(replace(first, ended_ms=5))
    for other in (another, PassRecord(client, "weekly")):
        with pytest.raises(UsageError, match="weekly"):
            other.save(replace(first, next_ledger=18))
    another.save(replace(first, ended_ms=5))  # as where its own answer was lost
    following = record.load(restart=False)
    assert (following.next_ledger, following.seed, following.ended_ms) == (0, 1, None)


def test_a_choice_of_ledgers_does_not_pass_for_all_of_them():
    def name(**given):
        return pass_name(ScrubArguments(metadata="zk://here:2181/ledgers", **given))

    assert name() == name(all=True) == name(sample=10) == "all"
    assert name(pass_name="weekly") == name(pass_name="weekly", stream=("orders",)) == "weekly"
    for some in ({"stream": ("orders",)}, {"where": "bytes > 1"}, {"older_than": 0.0}, {"ledger_pattern": "a=b"}):
        assert name(**some) is None
    assert name(ledgers=LedgerIds.parse("5")) is None


def test_a_record_that_cannot_be_read_is_told(client):
    client.run(lambda each: each.metadata_service.records(KIND).create("weekly", b"{}"))
    with pytest.raises(MetadataDamaged, match="weekly"):
        PassRecord(client, "weekly").load(restart=False)
    record = PassRecord(client, "weekly")
    record.save(record.load(restart=True))
    assert record.load(restart=False).seed == 0
    assert record.load(restart=False).next_ledger == 0
