"""Reads that begin at a time: which entry that is, what is unknown, and what cannot be meant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyspark_bookie.common.errors import DECODE, OPTION, PodkeeperSparkError, UndecodableEntry
from pyspark_bookie.common.options import parse
from pyspark_bookie.source.options import StreamingOptions
from pyspark_bookie.source.positions import LATEST, Positions
from pyspark_bookie.source.pulsar import entry_time
from pyspark_bookie.source.starting_times import NoMatch, StartingTimes, begins_at_end, start_of
from pyspark_bookie.source.streaming.offsets import Start
from pyspark_bookie.source.streaming.progress import TriggerLimit
from pyspark_bookie.source.time_search import DatedLedger, positions_in_ledgers, positions_in_streams
from tests.support.pulsar_entries import entry
from tests.support.pulsar_metadata import ledger_info, message
from tests.unit.pyspark_bookie.source.reads import options, rows, write
from tests.unit.pyspark_bookie.source.streaming.checkpoints import again
from tests.unit.pyspark_bookie.source.streaming.made_up_streams import entries_of, progress, view
from tests.unit.pyspark_bookie.source.streams import TOPIC, stream

NOW = 10_000.0
NEVER = 1 << 50


def closed_at(*times, tail=None):
    """The manifest of `orders`: ledgers 100, 99 and so on, closed at these times."""
    made = view([5] * len(times), tail).manifest
    dated = [replace(ledger, closed_ms=at) for ledger, at in zip(made.ledgers[: len(times)], times, strict=True)]
    return replace(made, ledgers=(*dated, *made.ledgers[len(times) :]))


async def begin(times, *manifests, **raw):
    wanted = options(stream="orders", **raw)
    return (await positions_in_streams(None, manifests, times, wanted, lambda: NOW / 1000)).ledgers


@pytest.mark.parametrize(
    ("at", "closed", "tail", "begun"),
    [
        (15, (10, 20, 30), None, {99: 0}),
        (20, (10, 20, 30), None, {99: 0}),
        (5, (10, 20), None, {100: 0}),
        (25, (10, 20), 3, {98: 0}),
        (15, (10, 0, 20), None, {99: 0}),
    ],
    ids=["between", "at the very time", "before all", "in the open one", "an unknown time may be any"],
)
async def test_a_stream_begins_with_the_first_ledger_that_can_have_what_is_so_new(at, closed, tail, begun):
    assert await begin(StartingTimes(at), closed_at(*closed, tail=tail)) == begun


@pytest.mark.parametrize("tail", [None, 3], ids=["closed", "with an open ledger, in the future"])
async def test_nothing_so_new_is_refused_or_means_the_end(tail):
    listed = closed_at(10, 20, tail=tail)
    last = 100 - len(listed.ledgers) + 1
    with pytest.raises(PodkeeperSparkError, match="startingOffsetsByTimestampStrategy=latest") as refused:
        await begin(StartingTimes(NEVER), listed)
    assert refused.value.code == OPTION
    assert await begin(StartingTimes(NEVER, otherwise=NoMatch.LATEST), listed) == {last: LATEST}


async def test_times_by_name_count_for_what_they_name():
    times = StartingTimes(named={"orders": 15})
    other = replace(closed_at(10), name="other")
    assert await begin(times, closed_at(10, 20), other) == {99: 0}
    assert await begin(StartingTimes(15), replace(closed_at(), name="empty")) == {}
    with pytest.raises(PodkeeperSparkError, match=r"orders,.*selected"):
        await begin(times, other)


async def test_ledgers_by_themselves_have_the_time_of_their_creation():
    ledgers = [DatedLedger(1, 10, 5), DatedLedger(2, 20, 5), DatedLedger(3, None, None), DatedLedger(4, 5, 0)]
    wanted = options(scope="all")
    with pytest.raises(PodkeeperSparkError, match=r"ledger 1 .*before"):
        await positions_in_ledgers(None, ledgers, StartingTimes(20), wanted)
    found = await positions_in_ledgers(None, ledgers, StartingTimes(20, otherwise=NoMatch.LATEST), wanted)
    assert found == Positions(None, {1: LATEST, 3: LATEST}), "an unknown time is not an old one, nor a new one"
    with pytest.raises(PodkeeperSparkError, match=r"ledger 3 .*unknown"):
        await positions_in_ledgers(None, ledgers[1:], StartingTimes(20), wanted)
    assert not (await positions_in_ledgers(None, ledgers, StartingTimes(named={"2": 15}), wanted)).ledgers
    with pytest.raises(PodkeeperSparkError, match="names 7"):
        await positions_in_ledgers(None, ledgers, StartingTimes(named={"7": 15}), wanted)


@pytest.mark.parametrize("times", [StartingTimes(5), StartingTimes(named={"b": 2, "a": 1}, otherwise=NoMatch.LATEST)])
def test_the_first_offset_tells_the_times(times):
    assert start_of(times.text()) == times
    assert begins_at_end(times.text())
    assert start_of("earliest") == Positions(-2)


async def test_a_batch_read_of_ledgers_and_streams(client):
    ledger_id = await write(client, [b"a", b"b"])
    with pytest.raises(PodkeeperSparkError, match="unknown"):
        await rows(client, ledgers=ledger_id, startingTimestamp=1)
    late = {"startingTimestamp": NEVER, "startingOffsetsByTimestampStrategy": "latest"}
    assert await rows(client, ledgers=ledger_id, **late) == []
    await stream(client, "orders", [b"a"], [b"b", b"c"])
    assert len(await rows(client, stream="orders", startingTimestamp=1)) == 3
    assert await rows(client, stream="orders", **late) == []
    with pytest.raises(PodkeeperSparkError, match="so new"):
        await rows(client, stream="orders", startingTimestamp=NEVER)


async def timed(client, *times):
    """A closed ledger with an entry of each time."""
    return await write(client, [entry(b"%d" % at, (3, at)) for at in times])


@pytest.mark.parametrize("at", range(9, 32))
async def test_a_topic_begins_with_the_first_entry_of_the_time(client, three, at):
    times = (10, 12, 12, 15, 20), (20, 21, 30)
    ids = [await timed(client, *each) for each in times]
    listed = [ledger_info(ids[0], 5, 50, 20), ledger_info(ids[1], 3, 30, 31)]
    three.metadata.pulsar.nodes[TOPIC] = message(*((1, each) for each in listed))
    raw = {"managedLedger": TOPIC, "startingTimestamp": at, "startingOffsetsByTimestampStrategy": "latest"}
    found = [entry_time(payload) for _, _, payload, _ in await rows(client, **raw)]
    assert found == [each for ledger in times for each in ledger if each >= at]


async def test_entries_without_times_cannot_be_searched(client, three):
    ledger_id = await write(client, [b"no message at all"])
    three.metadata.pulsar.nodes[TOPIC] = message((1, ledger_info(ledger_id, 1, 10, 20)))
    with pytest.raises(PodkeeperSparkError, match="time") as refused:
        await rows(client, managedLedger=TOPIC, startingTimestamp=5)
    assert refused.value.code == DECODE


async def test_messages_in_ledgers_by_themselves_are_searched_too(client):
    ledger_id = await timed(client, 10, 20, 30)
    created = {"ledgers": ledger_id, "decode": "pulsar"}
    assert [
        each[1]
        for each in await rows(client, startingTimestamp=NEVER, startingOffsetsByTimestampStrategy="latest", **created)
    ] == []
    with pytest.raises(PodkeeperSparkError, match="so new"):
        await rows(client, startingTimestamp=NEVER, **created)


def test_the_time_of_an_entry_is_the_brokers_or_the_producers():
    assert entry_time(entry(b"x", (3, 7))) == 7
    assert entry_time(entry(b"x", (3, 7), broker_metadata=message((1, 9), (2, 4)))) == 9
    assert entry_time(entry(b"x", (3, 7), broker_metadata=message((2, 4)))) == 7
    for damaged in (b"", b"\x0e\x02\xff\xff\xff\xff", entry(b"x", (3, 0))):
        with pytest.raises(UndecodableEntry):
            entry_time(damaged)


def test_a_query_writes_down_where_its_time_was():
    """Also if nothing is there yet, so that what comes next is not left out after a crash."""
    followed, tails = progress(view([5, 5]), startingTimestamp="7")
    tails.positions = lambda times, _: Positions(None, {99: 2}) if times == StartingTimes(7) else None
    start = Start(StartingTimes(7).text())
    end = again(followed.latest(start, TriggerLimit(least=50)))
    assert entries_of(followed.ranges(start, end)) == []
    assert end.places["orders"].ordinal == 7
    tails.positions = None
    assert entries_of(followed.ranges(end, again(followed.latest(end, TriggerLimit())))) == [(99, 2), (99, 3), (99, 4)]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"startingTimestamp": "5", "startingPosition": "earliest"}, "startingTimestamp"),
        ({"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"s": 5}'}, "exclude"),
        ({"startingTimestamp": "2026-11-29"}, "1970"),
        ({"startingTimestamp": "-1"}, "1970"),
        ({"startingTimestamp": "9" * 30}, "1970"),
        ({"startingOffsetsByTimestamp": '{"s": {"0": 5}}'}, "1970 by stream"),
        ({"startingOffsetsByTimestamp": "[" * 100_000}, "1970 by stream"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "latest"),
        ({"endingTimestamp": "5"}, "by time"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, why):
    with pytest.raises(PodkeeperSparkError, match=why) as refused:
        parse({"metadataServiceUri": "zk://nowhere/ledgers", "stream": "s", **given}, StreamingOptions)
    assert refused.value.code == OPTION
    assert "\n" not in str(refused.value)


def test_a_topic_is_named_in_either_way():
    raw = {"managedLedger": TOPIC, "startingOffsetsByTimestamp": '{"persistent://public/default/orders": 5}'}
    assert options(**raw).starting_times.of(TOPIC) == 5
