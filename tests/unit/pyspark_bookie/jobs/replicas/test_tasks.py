"""One piece of work of an audit: two inspections, marks, counts."""

from __future__ import annotations

import pytest

from bookie_protocol.metadata_service.findings import Reason, all_of
from pyspark_bookie.jobs.replicas.findings import (
    Finding,
    FindingsSpool,
    Verdict,
    clusters,
    confirmed,
    finding_of,
    of_ledger,
    row_of,
)
from pyspark_bookie.jobs.replicas.inspection import InspectionOptions
from pyspark_bookie.jobs.replicas.tasks import Marked, UnitOptions, inspect_ledgers, mark, mark_findings
from pyspark_bookie.jobs.replicas.units import Slice, Unit
from tests.unit.bookie_client.replication.cluster import written

DEEP = InspectionOptions(digests=True)


def unit(*ledger_ids):
    return Unit(3, tuple(Slice(ledger_id, 0, None, 0) for ledger_id in ledger_ids))


@pytest.mark.parametrize("marks", [False, True])
async def test_only_what_bookies_say_or_give_themselves_is_marked(models, marks):
    async with models.of(*"abcdef") as client:
        ledger_id = await written(client, 20, ensemble=5, write_quorum=5)
        gone, silent, missing, damaged, _ = (await client.metadata(ledger_id)).ensemble_for(0)
        del models.model(missing).ledgers[ledger_id].entries[3]
        models.model(damaged).damage(ledger_id, 4)
        await models.lose(client, gone)
        await models.stop(silent)
        options = UnitOptions(inspection=DEEP, recheck_seconds=0.0, mark=marks)
        result = await inspect_ledgers(client, options, unit(ledger_id, 999), None)
        assert {(each.bookie, each.verdict.name) for each in result.findings} == {
            (gone, "LOST"),
            (silent, "UNREACHABLE"),
            (missing, "MISSING"),
            (damaged, "DAMAGED"),
        }
        assert (result.number, result.ledgers, result.deleted, result.replicas) == (3, 1, 1, 5)
        stored = await models.service.under_replication.read(ledger_id)
        assert (None if stored is None else {(each.bookie, each.reason, each.runs) for each in stored.findings}) == (
            {(missing, Reason.MISSING, ((3, 3),)), (damaged, Reason.DAMAGED, ((4, 4),))} if marks else None
        )
        assert result.marks == ({Marked.NEW.value: 1} if marks else {})


async def test_what_was_in_order_at_the_second_look_is_withdrawn(models):
    async with models.of(*"abc") as client:
        ledgers = [await written(client, 20) for _ in range(3)]
        model = models.model("a")
        model.damage(ledgers[1], 4)
        rereads = 0
        read_batch = model.read_batch

        def healing(ledger_id, *more):
            nonlocal rereads
            answer = read_batch(ledger_id, *more)
            if ledger_id == ledgers[1]:
                rereads += 1
                model.damage(ledger_id, 4)  # the bit flips back
            return answer

        model.read_batch = healing
        result = await inspect_ledgers(client, UnitOptions(inspection=DEEP, recheck_seconds=0.0), unit(*ledgers), None)
        assert rereads == 1, "the second one read entry 4 alone"
        assert (result.findings, result.withdrawn, result.ledgers) == ([], 1, 3)
        assert result.entries == 3 * 3 * 20 - 1, "the second inspection does not count"


async def test_marks_join_and_what_is_found_while_a_worker_is_at_it_outlives_its_round(models):
    await models.add(*"abc")
    marks = models.service.under_replication
    assert await mark(models.service, 7, all_of(["a"])) is Marked.NEW
    assert await mark(models.service, 7, all_of(["a"])) is Marked.ALREADY
    assert await mark(models.service, 7, all_of(["a", "b"])) is Marked.NEW
    lock = await marks.lock(7)
    assert await mark(models.service, 7, all_of(["c"])) is Marked.NEW
    await marks.mark_replicated(lock)
    stored = await marks.read(7)
    assert stored is not None
    assert set(stored.replicas) == {"a", "b", "c"}
    assert stored.ctime_ms
    nothing = [finding(8, Verdict.LOST), finding(8, Verdict.UNREACHABLE), of_ledger(8, Verdict.UNKNOWN, "why")]
    assert await mark_findings(models.service, nothing) == {}
    assert await mark_findings(models.service, [finding(9, Verdict.MISPLACED)]) == {9: Marked.NEW}
    misplaced = await marks.read(9)
    assert misplaced is not None
    assert misplaced.replicas == ()


def finding(ledger_id=1, verdict=Verdict.MISSING, first=0, last=0, bookie="a", fragment=0):
    return Finding(ledger_id, fragment, first, last, last - first + 1, bookie, 0, verdict, "it\nsays  so")


def test_accusations_need_two_looks_at_the_same_place():
    once = finding(verdict=Verdict.DAMAGED)
    assert confirmed([once], [once]) == [once]
    assert confirmed([finding(first=5, last=9)], [finding(first=4, last=4)]) == [finding(first=4, last=4)]
    assert [each.verdict for each in confirmed([finding()], [once])] == [Verdict.UNREACHABLE]
    assert [each.verdict for each in confirmed([finding(bookie="b")], [once])] == [Verdict.UNREACHABLE]
    assert confirmed([finding(fragment=3)], [once])[0].verdict is Verdict.UNREACHABLE
    silent = finding(verdict=Verdict.UNREACHABLE)
    assert confirmed([finding()], [silent]) == [silent], "nobody can tell any more"
    assert confirmed([once], []) == []


def test_the_second_look_is_no_wider_than_need_be():
    far = finding(first=50_000, last=50_010)
    assert clusters([finding(first=0, last=10), finding(first=30, last=40), far]) == [(0, 40), (50_000, 50_010)]
    assert clusters([of_ledger(1, Verdict.UNKNOWN, "")]) == []


def test_findings_come_back_from_their_rows_and_are_spooled_to_a_file():
    rows = [finding(n, verdict) for n, verdict in enumerate(Verdict)]
    assert [finding_of(row_of(each)).key for each in rows] == [each.key for each in rows]
    assert row_of(rows[0])["detail"] == "it says so"
    with FindingsSpool() as spool:
        spool.add(rows)
        spool.add([])
        spool.add([finding(99), finding(99)])
        assert spool.counts[Verdict.MISSING] == 3
        assert spool.ledgers[Verdict.MISSING] == 2
        assert spool.has_faults
        table = spool.table()
    assert table.num_rows == len(Verdict) + 2
    assert table.column("verdict").to_pylist()[-1] == "MISSING"
    with FindingsSpool() as harmless:
        harmless.add([finding(1, Verdict.EXTRA)])
        assert not harmless.has_faults
        assert harmless.table().num_rows == 1


async def test_a_mark_that_stands_outlives_the_round_of_a_worker_that_looked_before(models):
    marks = models.service.under_replication
    await marks.mark(7, ["a"], ctime_ms=1)
    lock = await marks.lock(7)
    assert await mark(models.service, 7, all_of("a")) is Marked.ALREADY
    await marks.mark_replicated(lock)
    assert (await marks.read(7)).replicas == ("a",)
