"""Ranges as rows: order, losses, replicas, many tiny ledgers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bookie_protocol.archive import ArchivedLedger, Counts
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable, StorageFault, Unauthorized
from bookie_protocol.versioned import UNSTORED
from pyspark_bookie.common.errors import DATA_LOSS, PodkeeperSparkError
from pyspark_bookie.source.planning import LedgerSnapshot, Range
from pyspark_bookie.source.reading import ranges as reading_ranges
from pyspark_bookie.source.reading.ranges import _groups, range_chunks
from tests.unit.pyspark_bookie.source.reads import chunks, looked, options, rows, rows_of, write


@pytest.mark.parametrize("write_quorum", [3, 2])
async def test_many_tiny_ledgers_come_in_order(client, write_quorum):
    arguments = {"write_quorum": write_quorum, "ack_quorum": 2}
    ids = [await write(client, [b"%d" % number] * (number % 4), **arguments) for number in range(120)]
    found = await rows(client, scope="all")
    expected = [(ledger, entry, b"%d" % n, None) for n, ledger in enumerate(ids) for entry in range(n % 4)]
    assert sorted(found) == sorted(expected)
    wanted = options(scope="all")
    ranges = (await looked(client, wanted)).ranges
    assert rows_of(await chunks(client, ranges[::-1], wanted)) == [
        row for each in ranges[::-1] for row in expected if row[0] == each.ledger_id
    ]


async def test_leaving_early_leaves_nothing_behind(client):
    for _ in range(20):
        await write(client, [b"x"] * 10)
    wanted = options(scope="all")
    ranges = (await looked(client, wanted)).ranges
    before = asyncio.all_tasks()
    read = range_chunks(client, ranges, wanted)
    await anext(read)
    await read.aclose()
    assert {task for task in asyncio.all_tasks() - before if task.get_name().startswith("Task")} == set()


async def test_of_ranges_that_are_read_ahead_the_first_error_counts_and_all_have_ended(client, monkeypatch):
    ended = []

    async def reading(_, wanted, *__):
        if wanted.first == 0:
            await asyncio.sleep(0)
            raise PodkeeperSparkError("FIRST", "of the first")
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(wanted.first):
                await asyncio.sleep(0)
            ended.append(wanted.first)
            if wanted.first == 1:
                raise PodkeeperSparkError("OTHER", "of another one")

    monkeypatch.setattr(reading_ranges, "_all_of", reading)
    ranges = [Range(_ledger(1000, 1000), first, first) for first in range(3)]
    with pytest.raises(PodkeeperSparkError, match="first"):
        await chunks(client, ranges, options(scope="all"))
    assert ended == [1, 2]


async def test_a_damaged_copy_costs_nothing_and_is_told_as_a_replica(client, three):
    ledger_id = await write(client, [b"%d" % number for number in range(20)])
    three.bookie("b2").damage(ledger_id, 7)
    del three.bookie("b3").ledgers[ledger_id].entries[8]
    found = await rows(client, ledgers=ledger_id)
    assert [payload for _, _, payload, _ in found] == [b"%d" % number for number in range(20)]

    wanted = options(ledgers=ledger_id, readMode="replica")
    made = await chunks(client, (await looked(client, wanted)).ranges, wanted)
    bad = {
        (origin.bookie, entry.entry_id): text.partition(":")[0]
        for chunk in made
        for entry, origin, text in zip(chunk.entries, chunk.origins, chunk.corrupt, strict=True)
        if text is not None
    }
    assert bad == {("b2", 7): "DAMAGED", ("b3", 8): "MISSING"}
    assert sum(len(chunk.entries) for chunk in made) == 60

    with pytest.raises(PodkeeperSparkError, match=rf"\[BOOKIE_DATA_LOSS\] entry 7 of ledger {ledger_id}: DAMAGED"):
        await rows(client, ledgers=ledger_id, readMode="bookie:b2")
    one = await rows(client, ledgers=ledger_id, readMode="bookie:b3", failOnDataLoss="false")
    assert [entry for _, entry, _, text in one if text is not None] == [8]


async def test_an_entry_that_nobody_has_any_more(client, three):
    ledger_id = await write(client, [b"%d" % number for number in range(20)])
    for bookie in ("b1", "b2", "b3"):
        three.bookie(bookie).damage(ledger_id, 5)
        del three.bookie(bookie).ledgers[ledger_id].entries[12]
    with pytest.raises(PodkeeperSparkError, match=rf"\[BOOKIE_DATA_LOSS\] entry 5 of ledger {ledger_id}: lost: "):
        await rows(client, ledgers=ledger_id)

    found = await rows(client, ledgers=ledger_id, failOnDataLoss="false")
    assert [entry for _, entry, _, _ in found] == list(range(20))
    lost = {entry: text for _, entry, _, text in found if text is not None}
    assert set(lost) == {5, 12}
    assert lost[5].startswith(f"[BOOKIE_DIGEST_MISMATCH] entry 5 of ledger {ledger_id}: lost:")
    assert lost[12].startswith(f"[BOOKIE_NO_SUCH_ENTRY] entry 12 of ledger {ledger_id}: lost:")


async def test_a_ledger_that_was_deleted_and_collected_is_one_row(client, three):
    ledger_id = await write(client, [b"x"] * 50)
    wanted = options(ledgers=ledger_id, failOnDataLoss="false")
    ranges = (await looked(client, wanted)).ranges
    await client.delete(ledger_id)
    for bookie in ("b1", "b2", "b3"):
        del three.bookie(bookie).ledgers[ledger_id]
    ((ledger, entry, payload, text),) = rows_of(await chunks(client, ranges, wanted))
    assert (ledger, entry, payload) == (ledger_id, 0, b"")
    assert text.startswith(f"[BOOKIE_NO_SUCH_LEDGER] entries 0 to 49 of ledger {ledger_id}: lost: ledger {ledger_id}")


@pytest.mark.parametrize(("rows", "nbytes"), [(3, 1 << 20), (1000, 3)])
@pytest.mark.parametrize("away", [False, True])
async def test_copies_come_a_few_at_a_time(client, three, monkeypatch, rows, nbytes, away):
    monkeypatch.setattr(reading_ranges, "ROWS", rows)
    monkeypatch.setattr(reading_ranges, "BYTES", nbytes)
    ledger_id = await write(client, [b"x"] * 8)
    if away:
        await three.servers["b1"].stop()
    wanted = options(ledgers=ledger_id, readMode="bookie:b1", failOnDataLoss="false")
    made = await chunks(client, (await looked(client, wanted)).ranges, wanted)
    sizes = [8] if away and rows > 8 else [3, 3, 2]
    assert [len(chunk.entries) for chunk in made] == sizes
    assert [entry for _, entry, _, _ in rows_of(made)] == list(range(8))


async def test_what_nobody_can_tell_is_an_error_whatever_the_options_say(client, three):
    ledger_id = await write(client, [b"x"] * 5)
    for name in ("b1", "b2", "b3"):
        three.servers[name].silent = True
    async with three.client(read_timeout=0.01) as hasty:
        with pytest.raises(PodkeeperSparkError, match=rf"\[BOOKIE_BOOKIE_TIMEOUT\] .*ledger {ledger_id}"):
            await rows(hasty, ledgers=ledger_id, failOnDataLoss="false")
        found = await rows(hasty, ledgers=ledger_id, readMode="replica")
    assert [text.partition(":")[0] for _, _, _, text in found] == ["UNREACHABLE"] * 15


async def test_disks_that_cannot_be_read_are_damage_of_one_copy(client, three):
    ledger_id = await write(client, [b"x"] * 3)
    three.bookie("b1").fail_reads = StorageFault
    assert len(await rows(client, ledgers=ledger_id)) == 3
    found = await rows(client, ledgers=ledger_id, readMode="bookie:b1", failOnDataLoss="false")
    assert [text.partition(":")[0] for _, _, _, text in found] == ["DAMAGED"] * 3


@pytest.mark.parametrize("mode", ["replica", "bookie:b1"])
async def test_what_a_bookie_refuses_says_nothing_of_its_copies(client, three, mode):
    ledger_id = await write(client, [b"x"] * 3)
    three.bookie("b1").fail_reads = Unauthorized
    with pytest.raises(PodkeeperSparkError, match=r"\[BOOKIE_UNAUTHORIZED\] bookie b1 .* entry 0 of"):
        await rows(client, ledgers=ledger_id, readMode=mode, failOnDataLoss="false")


async def test_recorded_passwords_are_read_by_the_task_and_travel_in_no_range(client):
    ledger_id = await write(client, [b"x"] * 3, password=b"s3cret")
    wanted = options(ledgers=ledger_id, recordedPasswords="true")
    found = await looked(client, wanted)
    assert "s3cret" not in repr(found)
    assert len(await chunks(client, found.ranges, wanted)) == 1
    with pytest.raises(PodkeeperSparkError, match=rf"\[BOOKIE_UNAUTHORIZED\] ledger {ledger_id}"):
        await looked(client, options(ledgers=ledger_id))


async def test_a_part_of_a_ledger(client):
    ledger_id = await write(client, [b"%d" % number for number in range(100)])
    wanted = options(ledgers=ledger_id, includeMetadata="true")
    (whole,) = (await looked(client, wanted)).ranges
    made = await chunks(client, [Range(whole.ledger, 10, 19), Range(whole.ledger, 90, 99)], wanted)
    assert [entry for _, entry, _, _ in rows_of(made)] == [*range(10, 20), *range(90, 100)]
    assert all(origin.bookie in ("b1", "b2", "b3") for chunk in made for origin in chunk.origins)


async def test_a_ledger_that_was_deleted_is_lost_for_administration_too(client):
    ledger_id = await write(client, [b"x"] * 3, password=b"s3cret")
    wanted = options(ledgers=ledger_id, recordedPasswords="true", failOnDataLoss="false")
    ranges = (await looked(client, wanted)).ranges
    await client.delete(ledger_id)
    ((_, entry, _, text),) = rows_of(await chunks(client, ranges, wanted))
    assert (entry, text.partition(" ")[0]) == (0, "[BOOKIE_NO_SUCH_LEDGER]")


async def test_a_metadata_service_that_is_away_is_no_loss(client, three, monkeypatch):
    """The bookies have collected the ledger, and whether it is in an archive cannot be told."""
    ledger_id = await write(client, [b"x"] * 3)
    wanted = options(ledgers=ledger_id, failOnDataLoss="false")
    ranges = (await looked(client, wanted)).ranges
    for bookie in ("b1", "b2", "b3"):
        del three.bookie(bookie).ledgers[ledger_id]

    async def away(*_, **__):
        raise MetadataUnavailable("it is away")

    monkeypatch.setattr(client, "metadata", away)
    with pytest.raises(PodkeeperSparkError, match=r"\[BOOKIE_METADATA_UNAVAILABLE\]"):
        await chunks(client, ranges, wanted)


async def test_a_ledger_whose_metadata_are_damaged_has_lost_its_entry_all_the_same(client, three, monkeypatch):
    """What bookies said of it counts."""
    ledger_id = await write(client, [b"x"] * 3)
    wanted = options(ledgers=ledger_id, failOnDataLoss="false")
    ranges = (await looked(client, wanted)).ranges
    for bookie in ("b1", "b2", "b3"):
        del three.bookie(bookie).ledgers[ledger_id].entries[1]

    async def damaged(*_, **__):
        raise MetadataDamaged("it is damaged")

    monkeypatch.setattr(client, "metadata", damaged)
    found = rows_of(await chunks(client, ranges, wanted))
    assert [(entry, text and text.partition(" ")[0]) for _, entry, _, text in found] == [
        (0, None),
        (1, "[BOOKIE_NO_SUCH_ENTRY]"),
        (2, None),
    ]


def test_only_live_ranges_are_grouped_by_what_is_wanted_of_them():
    """Of an archived ledger whole row groups are held, whatever is wanted."""
    long = _ledger(1_000_000, 1 << 30)
    short = _ledger(1000, 1000)
    archived = [
        replace(each, archive=ArchivedLedger(7, "file:///a", "u", (), Counts(0, 0, 0, 0))) for each in (long, short)
    ]
    found = _groups([Range(each, 0, 0) for each in (long, short, *archived, short)])
    assert [len(group) for group in found] == [2, 1, 2]


def _ledger(entries, length):
    return LedgerSnapshot(7, UNSTORED, 3, 3, 2, ((0, ("a", "b", "c")),), True, entries - 1, length, DigestType.CRC32C)


def forget(three, ledger_id):
    """As garbage collection does on every bookie."""
    for server in three.servers.values():
        server.bookie.ledgers.pop(ledger_id, None)


@pytest.mark.parametrize("many", [1, 3])
async def test_a_batch_that_was_planned_on_one_ledger_reads_no_other_one_of_its_number(client, three, many):
    ids = range(5, 5 + many)
    for each in ids:
        await write(client, [b"old"] * 10, ledger_id=each)
    strict = options(ledgers=f"5-{4 + many}")
    ranges = (await looked(client, strict)).ranges
    await client.delete(5)
    forget(three, 5)
    await write(client, [b"new"] * 25, ledger_id=5)
    with pytest.raises(PodkeeperSparkError) as told:
        await chunks(client, ranges, strict)
    assert told.value.code == DATA_LOSS
    lenient = options(ledgers=f"5-{4 + many}", failOnDataLoss=False)
    found = rows_of(await chunks(client, ranges, lenient))
    assert {payload for _, _, payload, corrupt in found if corrupt is None} <= {b"old"}
    assert [ledger_id for ledger_id, _, _, corrupt in found if corrupt is not None] == [5]
    assert sum(ledger_id != 5 for ledger_id, *_ in found) == 10 * (many - 1)


async def test_a_ledger_that_is_replaced_while_a_range_is_read_fails_the_task(client, three, monkeypatch):
    await write(client, [b"old"] * 3000, ledger_id=5)
    wanted = options(ledgers=5, failOnDataLoss=False)
    ranges = (await looked(client, wanted)).ranges
    read, given = range_chunks(client, ranges, wanted), [b"old"]
    monkeypatch.setattr(reading_ranges, "TINY_BYTES", 0)
    given += (entry.payload for entry in (await anext(read)).entries)
    await client.delete(5)
    await write(client, [b"new"] * 3000, ledger_id=5)
    with pytest.raises(PodkeeperSparkError) as told:
        async for _ in read:
            pass
    assert (told.value.code, set(given)) == (DATA_LOSS, {b"old"})
