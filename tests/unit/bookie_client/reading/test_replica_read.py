"""Reads of one named replica: no fall-over, every answer told as it is. On a virtual clock."""

import asyncio
from contextlib import aclosing

import pytest

from bookie_client.reading import replica_read
from bookie_protocol.errors import BookieUnavailable, DigestMismatch, NoSuchEntry, StorageFault
from tests.unit.bookie_client.reading.rig import Rig, run_virtually, virtually


def scan(rig, bookie, first, last):
    async def main():
        return [answer async for answer in rig.reader().replicas.scan(bookie, first, last)]

    return run_virtually(main)


def test_one_entry_of_one_bookie_and_of_no_other():
    rig = Rig()

    async def main():
        replicas = rig.reader().replicas
        assert (await replicas.read("B", 3)).payload == rig.payloads[3]
        del rig.bookies["B"].entries[4]
        with pytest.raises(NoSuchEntry):
            await replicas.read("B", 4)
        rig.bookies["B"].damage(5)
        with pytest.raises(DigestMismatch, match="entry 5 of ledger 7"):
            await replicas.read("B", 5)
        rig.bookies["B"].error = StorageFault
        with pytest.raises(StorageFault):
            await replicas.read("B", 6)
        assert rig.context.damaged_replicas == {"B": 1}

    run_virtually(main)
    assert rig.asked() == {"A": 0, "B": 4, "C": 0}


def test_all_replicas_of_an_entry_are_told_side_by_side():
    rig = Rig(ensemble=4, write_quorum=3)
    rig.bookies["C"].damage(1)
    del rig.bookies["D"].entries[1]

    async def main():
        return await rig.reader().replicas.read_all(1)

    answers = run_virtually(main)
    assert [answer.bookie for answer in answers] == ["B", "C", "D"]
    assert [type(answer.error) for answer in answers] == [type(None), DigestMismatch, NoSuchEntry]
    assert answers[0].entry.payload == rig.payloads[1]
    assert answers[1].entry is answers[2].entry is None


def test_a_bookie_holds_what_striping_and_segments_say():
    rig = Rig(30, ensemble=3, write_quorum=2)
    rig.metadata = rig.metadata.with_ensemble(12, ("A", "X", "C")).with_ensemble(21, ("B", "X", "C"))

    async def main():
        return rig.reader().replicas

    replicas = run_virtually(main)
    for bookie in "ABCX":
        expected = [e for e in range(5, 25) if bookie in rig.metadata.bookies_for(e)]
        assert list(replicas.held_by(bookie, 5, 24)) == expected
    assert list(replicas.held_by("nobody", 0, 29)) == []


@pytest.mark.parametrize("options", [{}, {"batch_reads": False}, {"batch_read_entries": 7}, {"write_quorum": 2}])
def test_a_scan_tells_every_entry_in_order(options):
    rig = Rig(200, **options)
    held = [e for e in range(10, 190) if "B" in rig.metadata.bookies_for(e)]
    rig.bookies["B"].damage(held[20])
    del rig.bookies["B"].entries[held[30]], rig.bookies["B"].entries[held[31]], rig.bookies["B"].entries[held[-1]]
    answers = scan(rig, "B", 10, 189)
    assert [answer.entry_id for answer in answers] == held
    errors = {answer.entry_id: type(answer.error) for answer in answers if answer.error is not None}
    assert errors == {
        held[20]: DigestMismatch,
        held[30]: NoSuchEntry,
        held[31]: NoSuchEntry,
        held[-1]: NoSuchEntry,
    }
    assert all(a.entry.payload == rig.payloads[a.entry_id] for a in answers if a.error is None)
    assert [rig.asked()[name] + rig.batched()[name] for name in "AC"] == [0, 0]


def test_a_scan_of_a_good_replica_takes_few_requests():
    rig = Rig(1000, batch_read_entries=100)
    assert [answer.error for answer in scan(rig, "A", 0, 999)] == [None] * 1000
    assert (rig.batched(), rig.asked()) == ({"A": 10, "B": 0, "C": 0}, {"A": 0, "B": 0, "C": 0})
    assert rig.most_batches == 4


def test_the_time_of_a_batch_is_the_bookie_s_alone(monkeypatch):
    rig = Rig(100, batch_read_entries=50)
    verify = replica_read.verify_packed

    def slowly(*args):
        asyncio.get_running_loop()._selector.now += 5
        return verify(*args)

    monkeypatch.setattr(replica_read, "verify_packed", slowly)
    rig.bookies["A"].delay = 0.25
    assert {answer.seconds for answer in scan(rig, "A", 0, 49)} == {0.25}


@pytest.mark.parametrize("fault", [{"knows_batches": False}, {"cuts_batches": True}, {"batch_error": StorageFault}])
def test_a_scan_of_a_bookie_whose_batches_are_of_no_use_asks_singly(fault):
    rig = Rig(100)
    vars(rig.bookies["A"]).update(fault)
    assert [answer.error for answer in scan(rig, "A", 0, 99)] == [None] * 100
    assert rig.batched()["A"] == 1


def test_a_dead_bookie_is_told_for_every_entry():
    rig = Rig(1000, batch_read_entries=500, size=10)
    rig.bookies["A"].error = BookieUnavailable
    answers = scan(rig, "A", 0, 999)
    assert [(answer.entry_id, type(answer.error)) for answer in answers] == [
        (e, BookieUnavailable) for e in range(1000)
    ]
    assert rig.asked()["A"] < 1000


@virtually
async def test_a_scan_that_is_given_up_leaves_nothing_behind():
    rig = Rig(1000, batch_read_entries=10)
    async with aclosing(rig.reader().replicas.scan("A", 0, 999)) as answers:
        async for answer in answers:
            if answer.entry_id == 15:
                break
    assert rig.batches_under_way == 0
    assert len(asyncio.all_tasks()) == 1
    assert rig.batched()["A"] <= 6


def test_a_bookie_that_knows_no_batches_is_not_asked_for_them_again_and_again():
    rig = Rig(200, batch_read_entries=10)
    rig.bookies["B"].knows_batches = False
    assert len(scan(rig, "B", 0, 199)) == 200
    assert 1 <= len(rig.bookies["B"].batches) <= replica_read.CHUNKS_AHEAD


def test_one_entry_is_no_batch():
    rig = Rig(200)
    assert [answer.entry_id for answer in scan(rig, "B", 3, 3)] == [3]
    assert (rig.bookies["B"].batches, rig.bookies["B"].reads) == ([], [3])
