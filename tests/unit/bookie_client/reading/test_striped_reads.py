"""Ledgers whose bookies have only some of the entries each: all of them are asked for their own, in few requests."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie_client.reading.sources import Fetched, interleaved
from bookie_protocol.errors import DigestMismatch, NoSuchEntry, PodkeeperError, StorageFault
from tests.unit.bookie_client.reading.rig import LEDGER, Rig, read_range, run_virtually

STRIPED = {"ensemble": 5, "write_quorum": 2}


def read(rig, first=0, last=None):
    last = len(rig.payloads) - 1 if last is None else last
    return run_virtually(lambda: read_range(rig.reader(), first, last))


def test_a_range_takes_few_requests_and_all_bookies_share_them():
    rig = Rig(2000, **STRIPED)
    assert [entry.payload for entry in read(rig)] == rig.payloads
    unstriped = Rig(2000)
    read(unstriped)
    assert sum(rig.asked().values()) == 0
    assert sum(rig.batched().values()) <= 5 * sum(unstriped.batched().values())
    assert max(rig.batched().values()) == min(rig.batched().values())
    assert rig.bytes_brought <= 1.1 * unstriped.bytes_brought  # nothing comes twice


def test_the_entries_of_a_bookie_that_fails_come_from_others():
    rig = Rig(1000, **STRIPED)
    rig.bookies["B"].error = StorageFault
    assert [entry.payload for entry in read(rig, 3, 977)] == rig.payloads[3:978]
    assert sum(rig.asked().values()) == 0


def test_a_damaged_entry_is_read_elsewhere_alone():
    rig = Rig(1000, **STRIPED)
    rig.bookies["C"].damage(502)
    assert [entry.payload for entry in read(rig)] == rig.payloads
    assert rig.context.damaged_replicas == {"C": 1}
    assert sum(rig.asked().values()) == 1


def test_the_first_entry_that_nobody_has_ends_the_range():
    rig = Rig(1000, **STRIPED)
    for name in rig.metadata.bookies_for(614):
        del rig.bookies[name].entries[614]
    found = []

    async def main():
        with pytest.raises(NoSuchEntry):
            await rig.reader().read_into(found, 0, 999, list, bound=999)

    run_virtually(main)
    assert [entry.payload for entry in found] == rig.payloads[:614]


@pytest.mark.parametrize("old", ["ABCDE", "BC"])
def test_bookies_that_know_no_step_are_asked_singly_and_remembered(old):
    rig = Rig(1000, **STRIPED)
    for name in old:
        rig.bookies[name].knows_steps = False

    async def main():
        reader = rig.reader()
        first = await read_range(reader, 0, 999)
        batches = sum(len(rig.bookies[name].batches) for name in old)
        assert batches <= 2 * len(old)  # for each copy that it holds of the first entries, once
        assert await read_range(reader, 0, 999) == first
        assert sum(len(rig.bookies[name].batches) for name in old) == batches
        assert all(rig.context.batch_support.may_ask(name, 0) for name in old)  # without a step they may be
        return first

    assert [entry.payload for entry in run_virtually(main)] == rig.payloads


def test_entries_that_are_too_large_for_batches_are_read_singly():
    rig = Rig(40, size=10_000, batch_read_bytes=20_000, **STRIPED)
    assert [entry.payload for entry in read(rig)] == rig.payloads
    assert sum(rig.batched().values()) == 0


@settings(max_examples=60, deadline=None)
@given(
    quorums=st.sampled_from([(2, 1), (3, 2), (4, 2), (5, 3), (7, 2)]),
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=300),
    damaged=st.sets(st.tuples(st.integers(0, 299), st.integers(0, 6))),
    missing=st.sets(st.tuples(st.integers(0, 299), st.integers(0, 6)), max_size=20),
    limit=st.sampled_from([5_000, 20_000, 1 << 20]),
)
def test_what_is_read_by_batch_is_what_single_reads_find(quorums, sizes, damaged, missing, limit):
    ensemble, write_quorum = quorums

    def found(**options):
        rig = Rig(len(sizes), sizes=sizes, ensemble=ensemble, write_quorum=write_quorum, **options)
        for entry_id, position in damaged:
            if entry_id in (entries := rig.bookies[rig.names[position % ensemble]].entries):
                entries[entry_id] = entries[entry_id][:-1] + bytes([entries[entry_id][-1] ^ 1])
        for entry_id, position in missing:
            rig.bookies[rig.names[position % ensemble]].entries.pop(entry_id, None)
        entries = []

        async def main():
            try:
                await rig.reader().read_into(entries, 0, len(sizes) - 1, list, bound=len(sizes) - 1)
            except PodkeeperError as error:
                return type(error)

        return run_virtually(main), entries

    assert found(batch_read_bytes=limit) == found(batch_reads=False)


def test_columns_are_put_together_up_to_the_first_gap():
    error = DigestMismatch("it")
    columns = [Fetched([0, 3, 6], 3, None), Fetched([1], 1, error), Fetched([2, 5, 8], 3, None)]
    entries = [[type("Entry", (), {"payload": b"x", "entry_id": each})() for each in column[0]] for column in columns]
    columns = [Fetched(mine, *column[1:]) for mine, column in zip(entries, columns, strict=True)]
    merged = interleaved(columns, 9)
    assert ([entry.entry_id for entry in merged.entries], merged.nbytes, merged.error) == ([0, 1, 2, 3], 4, error)


def test_a_scan_of_one_bookie_takes_few_requests():
    rig = Rig(2000, **STRIPED)

    async def main():
        return [answer async for answer in rig.reader().replicas.scan("B", 0, 1999)]

    answers = run_virtually(main)
    held = [e for e in range(2000) if "B" in rig.metadata.bookies_for(e)]
    assert [(answer.entry_id, answer.error) for answer in answers] == [(e, None) for e in held]
    assert all(answer.entry.payload == rig.payloads[answer.entry_id] for answer in answers)
    assert sum(rig.asked().values()) == 0
    assert len(rig.bookies["B"].batches) <= 20


def test_nothing_is_left_behind_when_it_is_given_up():
    rig = Rig(2000, **STRIPED)
    rig.bookies["D"].delay = None

    async def main():
        reading = asyncio.create_task(read_range(rig.reader(), 0, 1999))
        await asyncio.sleep(0.01)
        reading.cancel()
        await asyncio.wait([reading])
        assert rig.batches_under_way == 0

    run_virtually(main)
    assert rig.metadata.ledger_id == LEDGER
