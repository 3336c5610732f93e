"""Both tiers as one: ledgers that are gone from the cluster are read from their archive."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bookie_client.streams import StreamPosition, Streams
from bookie_client.streams.model import STREAM_KEY
from bookie_protocol.archive import KIND, OffloadState
from bookie_protocol.errors import LedgerNotClosed, MetadataDamaged, MetadataUnavailable, StreamPositionGone
from pyspark_bookie.archive.manifest import manifest_file
from pyspark_bookie.archive.reading import ArchiveUnavailable
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.common.options import parse
from pyspark_bookie.source import selection
from pyspark_bookie.source.archived import holds_listed
from pyspark_bookie.source.options import StreamingOptions
from pyspark_bookie.source.planning import PlanLimits, plan
from pyspark_bookie.source.positions import EARLIEST, Positions
from pyspark_bookie.source.reading.arrow import batches
from pyspark_bookie.source.schema import arrow_schema, full_schema
from pyspark_bookie.source.snapshots import listed_snapshot
from pyspark_bookie.source.streaming import ledgers
from tests.support.archiving import archive, move
from tests.unit.pyspark_bookie.source.reads import chunks, looked, options, rows, rows_of, write
from tests.unit.pyspark_bookie.source.streams import stream


@pytest.fixture
def target(tmp_path):
    return f"file://{tmp_path}/archive"


def payloads(ledger, count=10):
    return [b"%d/%d" % (ledger, number) for number in range(count)]


def of(ledger_id, expected):
    return [(ledger_id, number, payload, None) for number, payload in enumerate(expected)]


async def table(client, **raw):
    """As Spark gets it."""
    wanted = options(**raw)
    made = await chunks(client, (await looked(client, wanted)).ranges, wanted)
    return pa.Table.from_batches(batches(made, arrow_schema(full_schema(wanted)), 1 << 20))


async def test_the_rows_are_the_same_as_before(client, target):
    ledger_id = await write(client, [b"", b"x" * 1000, *payloads(1)])
    before = (await table(client, ledgers=ledger_id)).to_pylist()
    assert {row["lac"] for row in before} != {None}
    await move(client, ledger_id, target)
    assert (await table(client, ledgers=ledger_id)).to_pylist() == before
    (told,) = {
        tuple(row["_metadata"].values())
        for row in (await table(client, ledgers=ledger_id, includeMetadata="true")).to_pylist()
    }
    assert told == (f"archive:{target}", None, None, None, None)


@pytest.mark.parametrize("probed", [0, 1000])
async def test_selections_of_ledgers_find_what_is_gone(client, target, monkeypatch, probed):
    monkeypatch.setattr(selection, "PROBED_IDS", probed)
    ids = [await write(client, payloads(n), metadata={"owner": b"us" if n % 2 else b"them"}) for n in range(6)]
    for place in (1, 2, 3):
        await move(client, ids[place], target)
    await archive(client, ids[5], target)
    await client.delete(ids[4])
    there = [of(ids[n], payloads(n)) for n in (0, 1, 2, 3, 5)]
    assert await rows(client, ledgers=f"{ids[0]}-{ids[5]}") == [row for each in there for row in each]
    assert await rows(client, ledgers=f"{ids[1]},{ids[5]}") == there[1] + there[4]
    assert await rows(client, ledgerPattern="owner=us") == there[1] + there[3] + there[4]
    assert await rows(client, scope="all") == [row for each in there for row in each]
    assert await rows(client, ledgers=f"{ids[0]}-{ids[5]}", tiers="bookies") == there[0] + there[4]
    assert await rows(client, scope="all", tiers="bookies") == there[0] + there[4]
    assert await rows(client, ledgerPattern="owner=us", tiers="bookies") == there[4]
    with pytest.raises(PodkeeperSparkError, match=f"ledger {ids[4]}"):
        await rows(client, ledgers=f"{ids[1]},{ids[4]}")
    with pytest.raises(PodkeeperSparkError, match=f"ledger {ids[1]}"):
        await rows(client, ledgers=ids[1], tiers="bookies")
    with pytest.raises(PodkeeperSparkError, match=f"ledger {ids[1]}"):
        await rows(client, ledgers=ids[1], readMode="replica")
    with pytest.raises(PodkeeperSparkError, match="tiers=both: "):
        options(ledgers=ids[1], tiers="both")


async def test_a_stream_is_read_in_its_order_from_position_to_position(client, target):
    ids = await stream(client, "orders", payloads(0), payloads(1), payloads(2))
    await move(client, ids[0], target)
    await move(client, ids[2], target)
    everything = of(ids[0], payloads(0)) + of(ids[1], payloads(1)) + of(ids[2], payloads(2))
    assert await rows(client, stream="orders") == everything
    first, last = f'{{"{ids[0]}": 7}}', f'{{"{ids[2]}": 2}}'
    assert await rows(client, stream="orders", startingPosition=first, endingPosition=last) == everything[7:22]
    assert {row["stream"] for row in (await table(client, stream="orders")).to_pylist()} == {"orders"}
    await Streams(client).truncate("orders", StreamPosition(ids[1], 0))
    assert await rows(client, streamPattern="ord.*") == everything[10:]
    with pytest.raises(PodkeeperSparkError, match=f"ledger {ids[2]}, .*orders"):
        await rows(client, stream="orders", tiers="bookies")


@pytest.mark.parametrize("state", [OffloadState.PREPARED, OffloadState.UPLOADED, OffloadState.VERIFIED])
async def test_what_is_not_complete_is_not_in_the_archive(client, target, state):
    ledger_id = await write(client, payloads(1))
    await archive(client, ledger_id, target, state)
    await client.delete(ledger_id)
    with pytest.raises(PodkeeperSparkError, match=f"ledger {ledger_id}"):
        await rows(client, ledgers=ledger_id)
    assert await rows(client, ledgers=f"{ledger_id}-{ledger_id + 1}") == []


async def test_a_metadata_service_that_is_away_is_neither_loss_nor_archive(client, target, monkeypatch):
    ledger_id = await write(client, payloads(1))
    await move(client, ledger_id, target)

    async def away(*_, **__):
        raise MetadataUnavailable("it is away")

    records = client.metadata_service.records(KIND)
    monkeypatch.setattr(type(records), "read", away)
    for more in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(MetadataUnavailable):
            await rows(client, ledgers=ledger_id, **more)
        with pytest.raises(MetadataUnavailable):
            await rows(client, scope="all", **more)


async def test_long_ledgers_are_split_and_every_entry_is_read_once(client, target):
    ledger_id = await write(client, payloads(1, 500))
    await move(client, ledger_id, target)
    wanted = options(ledgers=ledger_id, arrowBatchBytes=100)
    parts = plan((await looked(client, wanted)).ranges, PlanLimits(max_bytes=1 << 20, min_partitions=7))
    assert len(parts) >= 7
    found = [row for part in parts for row in rows_of(await chunks(client, part.ranges, wanted))]
    assert found == of(ledger_id, payloads(1, 500))


@pytest.mark.parametrize("recorded", ["false", "true"])
async def test_a_ledger_that_is_deleted_between_planning_and_reading(client, three, target, recorded):
    ids = [await write(client, payloads(n, 40)) for n in range(3)]
    wanted = options(ledgers=",".join(map(str, ids)), recordedPasswords=recorded)
    ranges = (await looked(client, wanted)).ranges
    for each in ids[:2]:
        await move(client, each, target)
        for bookie in ("b1", "b2", "b3"):
            del three.bookie(bookie).ledgers[each]
    expected = [row for n, each in enumerate(ids) for row in of(each, payloads(n, 40))]
    assert rows_of(await chunks(client, ranges, wanted)) == expected
    only = options(ledgers=",".join(map(str, ids)), tiers="bookies", recordedPasswords=recorded)
    with pytest.raises(PodkeeperSparkError, match=rf"\[BOOKIE_DATA_LOSS\] entries 0 to 39 of ledger {ids[0]}: lost"):
        await chunks(client, ranges, only)


async def test_a_ledger_that_is_deleted_while_it_is_read_is_read_on(client, three, target):
    """What bookies gave is not given again."""
    ledger_id = await write(client, payloads(1, 400))
    wanted = options(ledgers=ledger_id)
    ranges = (await looked(client, wanted)).ranges
    await move(client, ledger_id, target)
    for bookie in ("b1", "b2", "b3"):
        for entry in range(123, 400):
            del three.bookie(bookie).ledgers[ledger_id].entries[entry]
    made = await chunks(client, ranges, wanted)
    assert rows_of(made) == of(ledger_id, payloads(1, 400))
    assert sum(len(each.entries) for each in made if each.ledger.archive is not None) == 277


async def test_another_ledger_of_the_same_id_is_not_the_one_that_was_archived(client, three, target):
    """A stream, or the plan, knows how long its ledger was."""
    ids = await stream(client, "orders", payloads(0, 9))
    wanted = options(stream="orders")
    ranges = (await looked(client, wanted)).ranges
    other = await write(client, payloads(1, 10))
    record = await archive(client, other, target)
    await client.delete(ids[0])
    for bookie in ("b1", "b2", "b3"):
        del three.bookie(bookie).ledgers[ids[0]]
    taken = replace(record, ledger_id=ids[0])
    await client.metadata_service.records(KIND).create(taken.key, taken.encode())
    with pytest.raises(PodkeeperSparkError, match=f"ledger {ids[0]}, .*orders"):
        await looked(client, wanted)
    with pytest.raises(PodkeeperSparkError, match=rf"\[BOOKIE_DATA_LOSS\] entries 0 to 8 of ledger {ids[0]}: lost"):
        await chunks(client, ranges, wanted)


async def test_an_entry_that_bookies_have_lost_is_lost_though_the_archive_has_it(client, three, target):
    """The ledger is not gone: that its copies are is to be known."""
    ledger_id = await write(client, payloads(1))
    await archive(client, ledger_id, target)
    for bookie in ("b1", "b2", "b3"):
        del three.bookie(bookie).ledgers[ledger_id].entries[5]
    with pytest.raises(PodkeeperSparkError, match=f"entry 5 of ledger {ledger_id}: lost"):
        await rows(client, ledgers=ledger_id)


async def test_damage_is_told_with_ledger_and_file(client, target):
    ledger_id = await write(client, payloads(1))
    record = await move(client, ledger_id, target)
    path = Path(target.removeprefix("file://")) / record.files[0].path
    data = bytearray(path.read_bytes())
    values = pq.read_metadata(path).row_group(0).column(3)
    data[values.data_page_offset + values.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        PodkeeperSparkError, match=rf"\[BOOKIE_DATA_LOSS\] entries 0 to 9 of ledger {ledger_id}: lost: {path}"
    ):
        await rows(client, ledgers=ledger_id)
    ((_, entry, _, text),) = await rows(client, ledgers=ledger_id, failOnDataLoss="false")
    assert (entry, text.partition(":")[0]) == (0, f"[BOOKIE_ARCHIVE_DAMAGED] entries 0 to 9 of ledger {ledger_id}")


async def test_an_archive_that_is_not_there_is_an_error_whatever_is_said_of_losses(client, target):
    ledger_id = await write(client, payloads(1), metadata={"owner": b"us"})
    record = await move(client, ledger_id, target)
    folder = target.removeprefix("file://")
    os.rename(folder, f"{folder}-elsewhere")
    missing = rf"\[BOOKIE_ARCHIVED_FILE_MISSING\] ledger {ledger_id}: .*{folder}/{record.files[0].path}"
    for more in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(PodkeeperSparkError, match=missing):
            await rows(client, ledgers=ledger_id, **more)
    with pytest.raises(Exception, match=f"ledger {ledger_id} in {target} is") as caught:
        await rows(client, ledgerPattern="owner=us")
    assert "tiers=bookies" in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (lambda path: path.write_bytes(b"{"), MetadataDamaged, ": .*; tiers=bookies .*"),
        (
            lambda path: (path.unlink(), path.mkdir()),
            ArchiveUnavailable,
            ": .*archive: .*; tiers=bookies .*",
        ),
    ],
    ids=["damaged", "out of reach"],
)
async def test_a_manifest_that_tells_nothing_is_told_with_the_way_round_it(client, target, spoil, error, words):
    ledger_id = await write(client, payloads(1), metadata={"owner": b"us"})
    record = await move(client, ledger_id, target)
    spoil(Path(target.removeprefix("file://")) / manifest_file(ledger_id, record.archived.uuid))
    with pytest.raises(error, match=f"ledger {ledger_id} in {target}{words}$"):
        await rows(client, ledgerPattern="owner=us")
    assert await rows(client, ledgerPattern="owner=us", tiers="bookies") == []


# --- streaming ------------------------------------------------------------------------------------------------------


def following(**raw):
    wanted = parse({"metadataServiceUri": "memory://", **raw}, StreamingOptions)
    return ledgers.SelectedLedgers(wanted)


async def view(tails, client, discover=True):
    found = await tails._view_now(client, discover)
    return {each.ledger_id: (each.entries, each.is_closed) for each in found.extents}


async def test_a_query_over_ledgers_finds_archived_ones_and_keeps_what_leaves(client, target):
    ids = [await write(client, payloads(n, 5 + n), metadata={"owner": b"us" if n < 4 else b"them"}) for n in range(6)]
    await move(client, ids[0], target)
    await move(client, ids[5], target)
    every, ours, bookies = (
        following(scope="all"),
        following(ledgerPattern="owner=us"),
        following(scope="all", tiers="bookies"),
    )
    extents = {ids[n]: (5 + n, True) for n in range(6)}
    assert await view(every, client) == extents
    assert await view(ours, client) == {ids[n]: (5 + n, True) for n in range(4)}
    await move(client, ids[1], target)
    await client.delete(ids[2])
    del extents[ids[2]]
    assert await view(every, client) == extents
    assert await view(every, client) == extents
    assert await view(ours, client) == {ids[n]: (5 + n, True) for n in (0, 1, 3)}
    assert await view(bookies, client) == {ids[3]: (8, True), ids[4]: (9, True)}


@pytest.mark.parametrize("open_ledgers", ["lac", "skip"])
async def test_a_query_that_follows_an_open_ledger_goes_on_when_it_is_closed_archived_and_deleted(
    client, three, target, open_ledgers
):
    async with client.create(ensemble=3, write_quorum=3, ack_quorum=3) as ledger:
        for each in payloads(1):
            await ledger.append(each)
        tails = following(ledgers=str(ledger.ledger_id), openLedgers=open_ledgers)
        bookies = following(ledgers=str(ledger.ledger_id), openLedgers="skip", tiers="bookies")
        assert await view(bookies, client) == {ledger.ledger_id: (0, False)}
        ((entries, is_closed),) = (await view(tails, client)).values()
        assert (entries > 0, is_closed) == (open_ledgers == "lac", False)
        await ledger.append_many(payloads(1))
    await move(client, ledger.ledger_id, target)
    for bookie in ("b1", "b2", "b3"):
        del three.bookie(bookie).ledgers[ledger.ledger_id]
    assert await view(tails, client, discover=False) == {ledger.ledger_id: (20, True)}
    assert await view(bookies, client, discover=False) == {}
    assert await view(tails, client) == {ledger.ledger_id: (20, True)}
    anew = await following(ledgers=str(ledger.ledger_id), tiers="bookies")._view_now(client, True)
    with pytest.raises(PodkeeperSparkError, match=f"ledger {ledger.ledger_id}"):
        anew.begin(Positions(EARLIEST))


# --- a list is held against what there is -----------------------------------------------------------------------


async def again(client, ledger_id, payloads, *, closed):
    """A ledger of the number, as `restore --keep-ids` makes it, or somebody else."""
    quorums = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 3}
    writer = await client.create(**quorums, ledger_id=ledger_id, metadata={STREAM_KEY: b"orders"})
    await writer.append_many(payloads)
    if closed:
        await writer.close()
    return writer


async def replaced(client, three, target, payloads, *, closed, archived):
    """Stream "orders" of two ledgers, the second of which the cluster has otherwise than listed."""
    ids = await stream(client, "orders", [b"first"], [b"%d" % n for n in range(10)])
    if archived:
        await move(client, ids[1], target)
    else:
        await client.delete(ids[1])
    for bookie in ("b1", "b2", "b3"):
        three.bookie(bookie).ledgers.pop(ids[1], None)
    return ids, await again(client, ids[1], payloads, closed=closed)


@pytest.mark.parametrize("closed", [False, True])
async def test_a_listed_ledger_is_read_as_it_is_listed_from_wherever_that_is(client, three, target, closed):
    """The cluster has a part of it, or another one."""
    ids, writer = await replaced(client, three, target, [b"0", b"1", b"2"], closed=closed, archived=True)
    expected = [(ids[0], 0, b"first", None), *of(ids[1], [b"%d" % n for n in range(10)])]
    for more in ({}, {"openLedgers": "skip"}):
        assert await rows(client, stream="orders", **more) == expected
    await writer.close()


async def test_a_listed_ledger_that_is_still_being_restored_is_an_error_and_no_loss(client, three, target):
    _, writer = await replaced(client, three, target, [b"0", b"1", b"2"], closed=False, archived=False)
    for more in ({}, {"openLedgers": "skip"}, {"failOnDataLoss": "false"}):
        with pytest.raises(PodkeeperSparkError, match=r"10 entries: .*restored"):
            await rows(client, stream="orders", **more)
    with pytest.raises(LedgerNotClosed, match="restored"):
        _ = [entry async for entry in Streams(client).reader("orders").entries()]
    await writer.close()


async def test_another_ledger_of_a_listed_number_is_a_loss(client, three, target):
    ids, _ = await replaced(client, three, target, [b"0", b"1", b"2"], closed=True, archived=False)
    with pytest.raises(PodkeeperSparkError, match=f"ledger {ids[1]} .*orders"):
        await rows(client, stream="orders")
    assert await rows(client, stream="orders", failOnDataLoss="false") == [(ids[0], 0, b"first", None)]
    with pytest.raises(StreamPositionGone, match="number"):
        _ = [entry async for entry in Streams(client).reader("orders").entries()]


@pytest.mark.parametrize(("closed", "archived"), [(False, True), (True, True), (True, False)])
async def test_a_batch_of_a_stream_holds_the_list_against_what_there_is(client, three, target, closed, archived):
    ids, writer = await replaced(client, three, target, [b"0", b"1", b"2"], closed=closed, archived=archived)
    wanted = parse({"metadataServiceUri": "memory://", "stream": "orders"}, StreamingOptions)
    listed = (await Streams(client).manifest("orders")).ledger(ids[1])
    found = await listed_snapshot(client, ids[1], wanted, "orders", listed)
    assert (None if found is None else found.archive is not None) is (True if archived else None)
    await writer.close()


async def test_what_the_archive_has_of_another_content_is_not_what_is_listed(client, target):
    (ledger_id,) = await stream(client, "orders", [b"fri", b"day"])
    record = await move(client, ledger_id, target)
    listed = (await Streams(client).manifest("orders")).ledgers[0]
    there = record.archived
    assert holds_listed(there, replace(listed, crc=there.counts.payload_crc))
    assert not holds_listed(there, replace(listed, crc=there.counts.payload_crc ^ 1))
