"""What names some bookies, from metadata alone."""

from __future__ import annotations

import pytest

from bookie_client.client import Client
from bookie_client.distribution import Quorums
from bookie_client.replication.fragments import Fragment
from bookie_protocol.errors import MetadataUnavailable
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.jobs.replicas.findings import Verdict
from pyspark_bookie.jobs.replicas.placement import PlacementCheck, placement_check
from pyspark_bookie.jobs.replicas.units import Slice, Unit
from pyspark_bookie.jobs.replication_check import Question, check_ledgers, copies_left
from tests.unit.bookie_client.replication.cluster import written


def unit(*ledger_ids):
    return Unit(0, tuple(Slice(ledger_id, 0, None, 0) for ledger_id in ledger_ids))


@pytest.mark.parametrize("mark", [False, True])
async def test_only_segments_with_entries_on_the_bookie_are_told(models, mark):
    async with models.of(*"abc") as client:
        full, empty = await written(client, 30), await written(client, 0)
        elsewhere = await written(client, 10, ensemble=1, write_quorum=1, ack_quorum=1)
        still_open = await client.create(ensemble=3, write_quorum=3)
        asked = frozenset("ab") - {(await client.metadata(elsewhere)).ensemble_for(0)[0]}
        everything = unit(full, empty, elsewhere, still_open.ledger_id, 999)
        before = {name: len(models.model(name).ledgers) for name in "abc"}
        result = await check_ledgers(client, Question(asked, None, mark), everything)
        assert {(f.ledger_id, f.bookie) for f in result.findings} == {
            (ledger_id, bookie) for ledger_id in (full, still_open.ledger_id) for bookie in asked
        }
        assert {f.verdict for f in result.findings} == {Verdict.NAMED}
        assert (result.ledgers, result.deleted, result.open) == (4, 1, 1)
        assert result.nbytes == len(asked) * (await client.metadata(full)).length
        assert before == {name: len(models.model(name).ledgers) for name in "abc"}
        mark_of = await models.service.under_replication.read(full)
        assert (mark_of is not None and set(mark_of.replicas) == asked) is mark
        assert await models.service.under_replication.read(empty) is None


async def test_ensembles_that_could_be_better_are_told(models):
    models.locations |= {"a": "/one", "b": "/one", "c": "/two"}
    async with models.of("a", "b") as client:
        ledger_id = await written(client, 5, ensemble=2, write_quorum=2)
        check = await PlacementCheck.of(client)
        metadata = await client.metadata(ledger_id)
        assert list(check.findings(metadata)) == []
        assert check.without_remedy == 1, "there is no other rack"
    async with models.of("c") as client:
        result = await check_ledgers(
            client, Question(frozenset(), "rack-aware", True), unit(ledger_id), await PlacementCheck.of(client)
        )
        assert [f.verdict for f in result.findings] == [Verdict.MISPLACED]
        mark = await models.service.under_replication.read(ledger_id)
        assert mark is not None
        assert mark.replicas == ()


async def test_a_metadata_service_that_does_not_answer_is_told_as_that(models, monkeypatch):
    async def metadata(self, ledger_id):
        raise MetadataUnavailable("no answer")

    async with models.of("a") as client:
        monkeypatch.setattr(Client, "metadata", metadata)
        with pytest.raises(MetadataUnavailable, match="no answer"):
            await check_ledgers(client, Question(frozenset("a"), None, False), unit(1, 2, 3))


def test_the_worst_entry_counts():
    striped = Fragment(1, 0, 99, ("a", "b", "c", "d"), Quorums(4, 2, 2), True)
    assert copies_left(striped, {"a"}, set("abcd")) == 1
    assert copies_left(striped, {"a", "b"}, set("abcd")) == 0
    assert copies_left(striped, {"a"}, {"a", "c", "d"}) == 0
    assert copies_left(Fragment(1, 0, 0, ("a", "b", "c", "d"), Quorums(4, 2, 2), True), {"c"}, set("abcd")) == 2


@pytest.mark.parametrize(
    ("policy", "own"), [(None, "rack-aware"), ("rack-aware", "rack-aware"), ("zone-aware", "zone-aware")]
)
async def test_the_clients_own_policy_needs_no_other_client(models, policy, own):
    await models.add("a", "b")
    access = AccessOptions(metadata_service_uri="embedded://nobody-asks-there:1/ledgers", placement=own)
    async with models.client(placement=own) as client, placement_check(client, policy, access) as check:
        assert (None if check is None else check._client.placement.name) == policy


async def test_another_policy_is_checked_by_a_client_that_has_the_other_options_of_placement(models, monkeypatch):
    made = []

    class Fake(Client):
        def __init__(self, uri, options, *, placement):
            made.append(placement)
            super().__init__(models.service, options, placement=placement)

    monkeypatch.setattr("pyspark_bookie.jobs.replicas.placement.Client", Fake)
    await models.add("a", "b")
    settings = {"minracks": "3", "minzones": "3"}
    access = AccessOptions(metadata_service_uri="x", placement="zone-aware", placement_settings=settings)
    async with models.client() as client, placement_check(client, "rack-aware", access) as check:
        assert check is not None
        assert check._client.placement.rule.startswith("rack-aware: write sets on at least 3 racks")
    assert [(each.policy, each.min_zones) for each in made] == [("rack-aware", 3)]
