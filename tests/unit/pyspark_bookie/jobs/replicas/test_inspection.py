"""Looking at ledgers: what is said of each bookie's copies, and what is not."""

from __future__ import annotations

import pytest

from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import BookieTimeout, LedgerStateUnknown, TooManyRequests
from bookie_protocol.keys import master_key
from bookie_protocol.versioned import LedgerLife
from pyspark_bookie.jobs.replicas import deep
from pyspark_bookie.jobs.replicas.deep import BLOCK, ScanLimits
from pyspark_bookie.jobs.replicas.findings import Verdict
from pyspark_bookie.jobs.replicas.inspection import InspectionOptions, Inspector, inspect_again, is_chosen
from tests.unit.bookie_client.replication.cluster import PASSWORD, CountingThrottle, noted_pauses, stored, written

DEEP = InspectionOptions(digests=True)


def inspector(client, options=DEEP, **limits):
    return Inspector(client, options, ScanLimits(limits.pop("throttle", ReplicationThrottle()), **limits))


def found(inspection):
    return {
        (each.bookie, each.verdict.name): sorted(
            (f.first_entry, f.last_entry, f.entries) for f in inspection.findings if (f.bookie, f.verdict) == key
        )
        for each in inspection.findings
        for key in [(each.bookie, each.verdict)]
    }


@pytest.mark.parametrize("digest", list(DigestType))
async def test_a_healthy_ledger_is_read_in_full(served, digest):
    async with served.of(*"abc") as client:
        ledger_id = await written(client, 3000, digest=digest)
        light = await inspector(client, InspectionOptions()).inspect(ledger_id)
        assert (light.findings, light.replicas, light.entries) == ([], 3, 0)
        deep = await inspector(client).inspect(ledger_id)
        assert (deep.findings, deep.replicas, deep.entries) == ([], 3, 9000)
        size = (await client.metadata(ledger_id)).length
        assert deep.nbytes > 3 * size


async def test_striped_ledgers_are_counted_once_for_each_copy(served):
    async with served.of(*"abcd") as client:
        ledger_id = await written(client, 700, ensemble=4, write_quorum=2, ack_quorum=2)
        inspection = await inspector(client, InspectionOptions(digests=True, checksums=True)).inspect(ledger_id)
        assert (inspection.findings, inspection.entries) == ([], 1400)
        places: dict[tuple[int, int], set[tuple[int, int]]] = {}
        for block in inspection.blocks:
            places.setdefault((block.block, block.place), set()).add((block.entries, block.checksum))
        assert len(inspection.blocks) == 4 * 2
        assert len(places) == 4
        assert all(len(sums) == 1 for sums in places.values()), "both copies of a place are the same"


@pytest.mark.parametrize("knows_steps", [True, False])
@pytest.mark.parametrize("write_quorum", [4, 3, 2], ids=["every bookie has all", "striped", "striped wider"])
async def test_few_requests_read_a_replica_in_full_and_each_is_counted(models, write_quorum, knows_steps):
    await models.add(*"abcd")
    for name in "abcd":
        models.model(name).knows_steps = knows_steps
    throttle = CountingThrottle()
    async with models.client() as client:
        ledger_id = await written(client, 1200, ensemble=4, write_quorum=write_quorum, ack_quorum=2)
        before = models.requests()
        inspection = await inspector(client, throttle=throttle).inspect(ledger_id)
        assert (inspection.findings, inspection.entries) == ([], 1200 * write_quorum)
    asked = models.requests() - before
    assert throttle.requests == asked + 4, "each replica's list of entries, which these bookies do not count"
    singly = 1200 * write_quorum
    assert asked > singly if write_quorum < 4 and not knows_steps else asked < 100


async def test_damage_and_gaps_of_a_striped_replica_are_told_entry_by_entry(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 1200, ensemble=4, write_quorum=2, ack_quorum=2)
        bookie = (await client.metadata(ledger_id)).ensemble_for(0)[0]
        held = sorted(models.held_at(bookie, ledger_id))
        for entry_id in held[7], held[300]:
            models.model(bookie).damage(ledger_id, entry_id)
        inspection = await inspector(client, InspectionOptions(digests=True, checksums=True)).inspect(ledger_id)
        assert found(inspection) == {(bookie, "DAMAGED"): [(held[7], held[7], 1), (held[300], held[300], 1)]}
        assert inspection.entries == 2400 - 2


async def test_each_kind_of_fault_has_its_own_verdict(models):
    async with models.of(*"abcde") as client:
        ledger_id = await written(client, 30, ensemble=5, write_quorum=5)
        gone, silent, missing, damaged, _ = (await client.metadata(ledger_id)).ensemble_for(0)
        for entry_id in (7, 8, 9, 29):
            models.model(missing).ledgers[ledger_id].entries.pop(entry_id)
        for entry_id in (0, 12):
            models.model(damaged).damage(ledger_id, entry_id)
        await models.lose(client, gone)
        await models.stop(silent)
        inspection = await inspector(client).inspect(ledger_id)
        assert found(inspection) == {
            (gone, "LOST"): [(0, 29, 30)],
            (silent, "UNREACHABLE"): [(0, 29, 30)],
            (missing, "MISSING"): [(7, 9, 3), (29, 29, 1)],
            (damaged, "DAMAGED"): [(0, 0, 1), (12, 12, 1)],
        }


async def test_the_light_form_reads_nothing_and_sees_what_is_missing(served):
    async with served.of(*"abcd") as client:
        ledger_id = await written(client, 50)
        ensemble = (await client.metadata(ledger_id)).ensemble_for(0)
        await served.empty(client, ensemble[1])
        throttle = ReplicationThrottle()
        inspection = await inspector(client, InspectionOptions(), throttle=throttle).inspect(ledger_id)
        assert found(inspection) == {(ensemble[1], "MISSING"): [(0, 49, 50)]}
        assert throttle.bytes_read == 0


async def test_extra_copies_are_told_only_if_asked_for(served):
    async with served.of(*"abc") as client:
        ledger_id = await written(client, 20)
        bookie = (await client.metadata(ledger_id)).ensemble_for(0)[0]
        beyond = digest_manager(DigestType.CRC32C, PASSWORD).encode(ledger_id, 20, 19, 1, b"behind the end")
        key = master_key(PASSWORD)
        await client.operations.add_entry(bookie, LedgerLife(ledger_id, 0), 20, beyond, key, recovery=True)
        assert (await inspector(client).inspect(ledger_id)).findings == []
        inspection = await inspector(client, InspectionOptions(extra=True)).inspect(ledger_id)
        assert [(each.bookie, each.verdict, each.entries) for each in inspection.findings] == [
            (bookie, Verdict.EXTRA, 1)
        ]
        assert not Verdict.EXTRA.counts


async def test_an_open_ledger_is_looked_at_up_to_what_is_confirmed(served):
    await served.add(*"abc")
    async with served.client() as client, client.create(ensemble=3, write_quorum=3, password=PASSWORD) as ledger:
        await ledger.append_many(b"%d" % i for i in range(10))
        await ledger.append(b"this one carries the confirmation of those before it")
        for bookie in (await client.metadata(ledger.ledger_id)).last_ensemble:
            await stored(client, bookie, ledger.ledger_id, 10)
        inspection = await inspector(client).inspect(ledger.ledger_id)
        assert inspection.findings == []
        assert inspection.last_entry in (9, 10)
        assert inspection.metadata is not None
        assert not inspection.metadata.is_closed


async def test_a_ledger_that_is_gone_or_of_which_nobody_can_tell(models):
    async with models.of(*"abc") as client:
        inspection = await inspector(client).inspect(999)
        assert inspection.is_deleted
        ledger = await client.create(ensemble=3, write_quorum=3, password=PASSWORD)
        for bookie in "abc":
            await models.stop(bookie)
        inspection = await inspector(client).inspect(ledger.ledger_id)
        assert [each.verdict for each in inspection.findings] == [Verdict.UNKNOWN]
        assert "end is not known" in inspection.findings[0].detail


async def test_a_busy_bookie_is_asked_again(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 40)
        refused = 0

        def busy(ledger, entry):
            nonlocal refused
            refused += 1
            return TooManyRequests if refused <= 3 else None

        model = models.model("a")
        read, batch = model.read, model.read_batch
        model.read = lambda *a, **k: _raise(busy(*a[:2])) or read(*a, **k)
        model.read_batch = lambda *a, **k: _raise(busy(*a[:2])) or batch(*a, **k)
        inspection = await inspector(client).inspect(ledger_id)
        assert refused > 3
        assert (inspection.findings, inspection.entries) == ([], 120)


@pytest.mark.parametrize("write_quorum", [2, 3], ids=["one by one", "by batch"])
async def test_nobody_waits_for_a_busy_bookie_behind_its_last_answer(models, monkeypatch, write_quorum):
    slept = noted_pauses(monkeypatch, deep)
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 40, ensemble=3, write_quorum=write_quorum)
        models.model("a").fail_reads, models.model("a").lists = TooManyRequests, False
        inspection = await inspector(client).inspect(ledger_id)
        assert {(each.bookie, each.verdict) for each in inspection.findings} == {("a", Verdict.UNREACHABLE)}
    assert slept == [2**each for each in range(deep.BUSY_TRIES - 1)]


@pytest.mark.parametrize("lists", [True, False])
async def test_a_bookie_that_cannot_tell_what_it_holds_is_not_accused(models, lists):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 40)
        models.model("a").fail_reads, models.model("a").lists = LedgerStateUnknown, lists
        inspection = await inspector(client).inspect(ledger_id)
        assert found(inspection) == {("a", "UNREACHABLE"): [(0, 39, 40)]}


def _raise(error):
    if error is not None:
        raise error("busy")


async def test_nobody_is_accused_by_one_look(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 30)
        kept = models.model("a").ledgers[ledger_id].entries
        lost = {entry_id: kept.pop(entry_id) for entry_id in (3, 4)}
        models.model("b").damage(ledger_id, 5)
        each = inspector(client)
        first = await each.inspect(ledger_id)
        assert {finding.bookie for finding in first.findings} == {"a", "b"}
        kept.update(lost)
        (settled,) = await inspect_again(each, [first], 0.0)
        assert found(settled) == {("b", "DAMAGED"): [(5, 5, 1)]}


async def test_what_one_look_alone_saw_stays_in_doubt(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 30)
        models.model("a").damage(ledger_id, 5)
        each = inspector(client)
        first = await each.inspect(ledger_id)
        del models.model("a").ledgers[ledger_id].entries[5]
        (settled,) = await inspect_again(each, [first], 0.0)
        assert [(f.bookie, f.verdict) for f in settled.findings] == [("a", Verdict.UNREACHABLE)]
        assert "seen once only" in settled.findings[0].detail


async def test_slices_and_single_bookies(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 100)
        models.model("a").damage(ledger_id, 70)
        each = inspector(client)
        assert (await each.inspect(ledger_id, first=0, last=69)).findings == []
        assert (await each.inspect(ledger_id, first=0, last=69)).entries == 210
        assert (await each.inspect(ledger_id, bookies={"b"})).entries == 100
        assert found(await each.inspect(ledger_id, first=60)) == {("a", "DAMAGED"): [(70, 70, 1)]}


async def test_a_sample_takes_the_same_blocks_everywhere(served):
    async with served.of(*"ab") as client:
        count = 12 * BLOCK
        ledger_id = await written(client, count, ensemble=2, write_quorum=2)
        options = InspectionOptions(digests=True, checksums=True, sample=40, seed=3)
        inspection = await inspector(client, options).inspect(ledger_id)
        chosen = {block for block in range(12) if is_chosen(ledger_id, block, 40, 3)}
        assert 0 < len(chosen) < 12
        assert inspection.entries == 2 * BLOCK * len(chosen)
        seen = {(block.block, block.bookie) for block in inspection.blocks}
        assert seen == {(b, name) for b in chosen for name in "ab"}
        assert {block for block in range(12) if is_chosen(ledger_id, block, 40, 4)} != chosen


async def test_a_bookie_that_never_lists_is_asked_for_entries_instead(models, monkeypatch):
    async with models.of(*"abc") as client:
        ledgers = [await written(client, 20) for _ in range(5)]
        asked = 0
        ask = client.operations.entries_of_ledger

        async def silent(bookie, ledger_id):
            nonlocal asked
            if bookie != "a":
                return await ask(bookie, ledger_id)
            asked += 1
            raise BookieTimeout("it never answers")

        monkeypatch.setattr(client.operations, "entries_of_ledger", silent)
        models.model("a").ledgers[ledgers[4]].entries.pop(19)
        for ledger_id in ledgers[:4]:
            inspection = await inspector(client, InspectionOptions()).inspect(ledger_id)
            assert inspection.findings == []
        assert asked == 3, "all pieces of work know of it"
        inspection = await inspector(client, InspectionOptions()).inspect(ledgers[4])
        assert found(inspection) == {("a", "MISSING"): [(19, 19, 1)]}
