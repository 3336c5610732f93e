"""Which ledgers a read is about."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bookie_client.streams import StreamPosition, Streams
from bookie_client.streams.store import ManifestStore
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable, NoSuchStream
from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError
from pyspark_bookie.common.options import parse
from pyspark_bookie.source import selection
from pyspark_bookie.source.options import StreamingOptions
from pyspark_bookie.source.pulsar import PulsarDecoder
from pyspark_bookie.source.reading.arrow import decoded_batches
from pyspark_bookie.source.schema import arrow_schema, full_schema
from pyspark_bookie.source.streaming.offsets import Start
from pyspark_bookie.source.streaming.progress import TriggerLimit
from pyspark_bookie.source.streaming.streams import StreamsProgress, StreamTails
from tests.support.pulsar_entries import batch, entry
from tests.support.pulsar_metadata import ledger_info, message
from tests.unit.pyspark_bookie.source.reads import chunks, looked, options, rows, write
from tests.unit.pyspark_bookie.source.streams import TOPIC, stream


async def places(client, **raw):
    return [(ledger_id, entry_id) for ledger_id, entry_id, _, _ in await rows(client, **raw)]


@pytest.mark.parametrize("probed", [0, 1000])
async def test_ids_are_probed_or_listed_with_the_same_result(client, monkeypatch, probed):
    monkeypatch.setattr(selection, "PROBED_IDS", probed)
    ids = [await write(client, [b"x"]) for _ in range(5)]
    await client.delete(ids[2])
    wanted = options(ledgers=f"{ids[0]}-{ids[3]},{ids[3] + 100}")
    found = await selection.choose(client, wanted)
    assert [each.ledger_id for each in found] == [ids[0], ids[1], ids[3], ids[3] + 100]
    assert [each.stored is None for each in found] == [False, False, False, True]


async def test_the_digest_type_counts_for_ledgers_that_recorded_none(client):
    """Those of old clients; their password cannot be checked either."""
    ledgers = client.metadata_service.ledgers
    ids = [await write(client, [b"x", b"y"], digest=DigestType.CRC32, password=b"old") for _ in range(2)]
    stored = await ledgers.read(ids[0])
    await ledgers.write(replace(stored.value, digest_type=None, password=None, format_version=1), stored.identity)
    found = await rows(client, ledgers=ids[0], digestType="CRC32")
    assert [payload for _, _, payload, _ in found] == [b"x", b"y"]
    with pytest.raises(PodkeeperSparkError, match=r"\[BOOKIE_DATA_LOSS\].*DIGEST_MISMATCH"):
        await rows(client, ledgers=ids[0], digestType="CRC32C")
    recorded = await rows(client, ledgers=ids[1], digestType="CRC32C", recordedPasswords="true")
    assert [payload for _, _, payload, _ in recorded] == [b"x", b"y"], "what is recorded counts more"


async def test_a_stream_is_read_in_its_order_and_from_position_to_position(client):
    first = await write(client, [b"of nobody"])
    ids = await stream(client, "orders", [b"a"] * 3, [b"b"] * 3, [b"c"] * 3)
    found = await looked(client, options(stream="orders"))
    assert [(each.ledger_id, each.ledger.stream) for each in found.ranges] == [(each, "orders") for each in ids]
    assert first not in ids

    start, end = f'{{"{ids[1]}": 1}}', f'{{"{ids[2]}": 2}}'
    assert await places(client, stream="orders", startingPosition=start, endingPosition=end) == [
        (ids[1], 1),
        (ids[1], 2),
        (ids[2], 0),
        (ids[2], 1),
    ]
    assert len(await places(client, stream="orders", startingPosition=f'{{"{ids[1]}": -1}}')) == 3
    assert await places(client, stream="orders", startingPosition="latest") == []
    assert await places(client, stream="orders", endingPosition="earliest") == []
    with pytest.raises(PodkeeperSparkError, match="position"):
        await rows(client, stream="orders", startingPosition=f'{{"{ids[1]}": 1, "{ids[2]}": 1}}')


async def test_what_was_truncated_is_not_read(client):
    ids = await stream(client, "orders", [b"a"] * 3, [b"b"] * 3)
    await Streams(client).truncate("orders", StreamPosition(ids[1], 1))
    assert await places(client, stream="orders") == [(ids[1], 1), (ids[1], 2)]


async def test_several_streams(client):
    a, b = [await stream(client, name, [name.encode()]) for name in ("eu-1", "us-1")]
    assert await places(client, streams="us-1, eu-1") == [(*b, 0), (*a, 0)]
    assert await places(client, streamPattern="eu-.*") == [(*a, 0)]
    assert await places(client, streamPattern="nothing") == []
    with pytest.raises(NoSuchStream):
        await rows(client, stream="nobody")


async def test_a_topic_of_pulsar_is_decoded(client, three):
    payloads = [entry(b"single", (6, "k")), entry(batch([b"one", b"two"]), (11, 2))]
    ledger_id = await write(client, payloads)
    three.metadata.pulsar.nodes[TOPIC] = message((1, ledger_info(ledger_id, 2, 100, 1)))
    wanted = options(managedLedger=TOPIC, decode="pulsar")
    found = await looked(client, wanted)
    made = await chunks(client, found.ranges, wanted)
    (decoded,) = decoded_batches(made, PulsarDecoder(), arrow_schema(full_schema(wanted)), 10_000, strict=True)
    assert [(row["key"], row["value"], row["batch_index"]) for row in decoded.to_pylist()] == [
        ("k", b"single", None),
        (None, b"one", 0),
        (None, b"two", 1),
    ]
    assert {row["topic"] for row in decoded.to_pylist()} == {"persistent://public/default/orders"}


async def test_ledgers_that_pulsar_has_offloaded_are_told(client, three):
    there = await write(client, [b"x"])
    gone = message((1, -1), (2, 2), (3, 1), (4, 1))
    three.metadata.pulsar.nodes[TOPIC] = message(
        (1, ledger_info(900, 5, 50, 1, gone)), (1, ledger_info(there, 1, 1, 1))
    )
    told = f"ledger 900, which {TOPIC} lists"
    with pytest.raises(PodkeeperSparkError, match=re.escape(told)):
        await rows(client, managedLedger=TOPIC)
    found = await looked(client, options(managedLedger=TOPIC, failOnDataLoss="false"))
    assert [told in lost.text for lost in found.lost] == [True]
    assert [each.ledger_id for each in found.ranges] == [there]


async def test_a_metadata_service_that_does_not_answer_is_no_missing_ledger(client, three, monkeypatch):
    ledger_id = await write(client, [b"x"])

    async def away(*_, **__):
        raise MetadataUnavailable("no answer")

    monkeypatch.setattr(three.metadata.ledgers, "read", away)
    with pytest.raises(MetadataUnavailable):
        await rows(client, ledgers=ledger_id, failOnDataLoss="false")


async def test_a_pattern_leaves_out_what_is_deleted_or_half_deleted(client):
    ids = await stream(client, "orders", [b"a"])
    await stream(client, "old", [b"b"])
    store = ManifestStore(client.metadata_service)
    await store.update("old", lambda each: replace(each, is_deleting=True))
    assert await places(client, streamPattern="o.*") == [(ids[0], 0)]
    with pytest.raises(NoSuchStream, match="deleted"):
        await places(client, streams="orders,old")


async def test_a_list_that_changes_while_its_ledgers_are_looked_at_is_read_again(client, monkeypatch):
    """As by retention: what it took is no loss."""
    ids = await stream(client, "orders", [b"a"], [b"b"])
    read, seen = selection.manifests, []

    async def truncated_behind_it(*arguments):
        found = await read(*arguments)
        if not seen:
            await Streams(client).truncate("orders", StreamPosition(ids[1], 0))
        seen.append(found)
        return found

    monkeypatch.setattr(selection, "manifests", truncated_behind_it)
    assert await places(client, stream="orders") == [(ids[1], 0)]
    assert len(seen) == 2
    await client.delete(ids[1])
    with pytest.raises(PodkeeperSparkError, match=f"ledger {ids[1]}, .*orders"):
        await places(client, stream="orders")
    assert len(seen) == 4


@pytest.mark.parametrize("which", ["startingPosition", "endingPosition"])
async def test_a_position_in_a_ledger_that_no_selected_stream_lists_is_refused(client, which):
    ids = await stream(client, "orders", [b"a"] * 3, [b"b"] * 3)
    await stream(client, "other", [b"c"])
    await Streams(client).truncate("orders", StreamPosition(ids[1], 0))
    for ledger_id in (ids[0], 4711):
        for selected in ({"stream": "orders"}, {"streamPattern": "o.*"}, {"ledgers": str(ids[1])}):
            with pytest.raises(PodkeeperSparkError) as told:
                await selection.choose(client, options(**{**selected, which: f'{{"{ledger_id}": 1}}'}))
            assert told.value.code == OPTION
    both = options(streams="orders,other", **{which: f'{{"{ids[1]}": 1}}'})
    assert {each.stream for each in await selection.choose(client, both)} == {"orders", "other"}


async def test_a_new_query_does_not_begin_at_a_ledger_that_no_selected_stream_lists(client):
    ids = await stream(client, "orders", [b"a"] * 3, [b"b"] * 3)
    given = parse({"metadataServiceUri": "x://y", "stream": "orders"}, StreamingOptions)
    tails = StreamTails(given)
    views = await tails._all_now(client)
    tails.views = lambda **_: views
    progress = StreamsProgress(given, tails, lambda listed: {})
    begin, _ = progress._from(Start(f'{{"{ids[1]}": 1}}'), views)
    assert begin["orders"].ordinal == 4
    with pytest.raises(PodkeeperSparkError) as told:
        progress.latest(Start('{"4711": 1}'), TriggerLimit())
    assert told.value.code == OPTION


@pytest.mark.parametrize("selected", [{"scope": "all"}, {"ledgers": "0-9"}, {"stream": "orders"}])
async def test_one_ledger_with_damaged_metadata_is_lost_and_ends_no_query_that_goes_on(client, three, selected):
    good, bad = await stream(client, "orders", [b"good"], [b"bad"])
    read = three.metadata.ledgers.read

    async def reading(ledger_id, **more):
        if ledger_id == bad:
            raise MetadataDamaged(f"ledger {bad}: its metadata cannot be read")
        return await read(ledger_id, **more)

    three.metadata.ledgers.read = reading
    with pytest.raises(PodkeeperSparkError) as told:
        await looked(client, options(**selected))
    assert told.value.code == "METADATA_DAMAGED"
    found = await looked(client, options(**selected, failOnDataLoss=False))
    assert [each.ledger_id for each in found.ranges] == [good]
    assert [each.ledger_id for each in found.lost] == [bad]
