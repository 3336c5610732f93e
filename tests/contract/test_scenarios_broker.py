"""Scenario A26: a broker's topic over real bookies, by streams with the limits of a Pulsar broker.

Past 50,000 entries the topic's ledgers roll over; the broker is killed, another one goes on, and so does the consumer
where its cursor was. Retention by size, by position and by age deletes ledgers while writer and consumer are at work.
Another topic lay in the same entry logs and keeps them alive, until compaction gives their space back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_client import Client
from bookie_client.streams import Manifest, StreamPosition, Streams, StreamSettings
from bookie_protocol.errors import NoSuchLedger, NoSuchStream, StreamInUse, StreamPositionGone
from tests.support.broker_program import OPTIONS, SIZE, BrokerProgram, number_of
from tests.support.collected_bookie import CollectedBookie
from tests.support.metadata_process import MetadataProcess
from tests.support.until import until

pytestmark = pytest.mark.slow

TOPIC, NEIGHBOUR = "orders", "audit-trail"
CURSOR = "billing"
FULL = 50_000
"""Entries of a full ledger: the default."""
STEP = 5_000
"""Messages between two notes of the consumer's position."""
PATIENCE_S = 180.0


class Consumer:
    """Follows the topic from its cursor on, and moves the cursor every `STEP` messages; every message must be the one
    behind the last. `until`: stops behind so many messages, as a consumer that dies with messages it did not note."""

    def __init__(self, streams: Streams, until: int | None = None) -> None:
        self.behind = -1
        self._task = asyncio.create_task(self._consume(streams, until))

    async def _consume(self, streams: Streams, until: int | None) -> None:
        start: StreamPosition | str = "earliest"
        try:
            cursor = await streams.cursor(TOPIC, CURSOR)
            self.behind, start = cursor.ordinal, cursor.position
        except NoSuchStream:
            self.behind = 0
        async with aclosing(streams.reader(TOPIC).tail(start)) as entries:
            async for entry in entries:
                assert number_of(entry.payload) == self.behind
                self.behind += 1
                if self.behind % STEP == 0:
                    await streams.move_cursor(TOPIC, CURSOR, StreamPosition(entry.ledger_id, entry.entry_id + 1))
                if self.behind == until:
                    return

    async def reaches(self, count: int) -> None:
        await until(lambda: self._task.done() or self.behind >= count, PATIENCE_S)
        if self._task.done():
            self._task.result()
        assert self.behind >= count

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        assert self._task.cancelled()


@pytest.fixture
def bookies(tmp_path: Path) -> Iterator[list[CollectedBookie]]:
    """Three, with entry logs of which a ledger fills more than one."""
    with ExitStack() as stack:
        metadata = MetadataProcess(tmp_path / "metadata")
        metadata.start()
        stack.callback(metadata.stop)
        settings = {"logSizeLimit": str(4 << 20), "zkTimeout": "30000"}  # none of them dies
        made = [
            stack.enter_context(CollectedBookie(tmp_path / f"b{number}", metadata.uri(), settings))
            for number in (1, 2, 3)
        ]
        for bookie in made:
            bookie.start()
        yield made


@pytest.fixture
async def streams(bookies: list[CollectedBookie]) -> AsyncIterator[Streams]:
    async with Client(bookies[0].uri, OPTIONS) as client:
        streams = Streams(client)
        await streams.create(TOPIC, StreamSettings(write_quorum=3, min_ledger_seconds=0, retention_bytes=FULL * SIZE))
        await streams.create(NEIGHBOUR, StreamSettings(write_quorum=3, min_ledger_seconds=0))
        yield streams


@pytest.mark.timeout(600)
async def test_a_topic_rolls_over_fails_over_and_is_kept_by_its_retention(
    bookies: list[CollectedBookie], streams: Streams, tmp_path: Path
) -> None:
    uri = bookies[0].uri
    consumer = Consumer(streams, until=4 * STEP + STEP // 2)
    with BrokerProgram(uri, tmp_path / "first", TOPIC, NEIGHBOUR, limit=10 * FULL) as first:
        await asyncio.to_thread(first.wait_for, TOPIC, (FULL + FULL // 5) // 100)
        await consumer.reaches(4 * STEP + STEP // 2)
        first.kill()
    cursor = await streams.cursor(TOPIC, CURSOR)
    assert cursor.ordinal == 4 * STEP

    with BrokerProgram(uri, tmp_path / "second", TOPIC, NEIGHBOUR, limit=0) as second:
        found = int((await asyncio.to_thread(second.wait_for, "active"))[0][0])
        assert found >= first.acknowledged_messages() > FULL
        second.produce_up_to(found + FULL // 2)
        ids = await _list_while_it_is_written(uri, streams, found)
        await _nothing_goes_that_the_cursor_has_not_passed(streams, ids)
        assert await streams.cursor(TOPIC, CURSOR) == cursor
        consumer = Consumer(streams)
        await consumer.reaches(found + FULL // 2)

        await _retention_by_size_as_the_writer_rolls_over(streams, second, found, ids)
        await _truncation_to_a_position(streams, consumer, found)
        await consumer.reaches(found + FULL + STEP)
        gone = await _retention_by_age(streams, ids)
        second.kill()
    end = (await streams.seal(TOPIC)).end_ordinal
    assert end >= second.acknowledged_messages() > found + FULL
    await consumer.reaches(end)
    assert consumer.behind == end
    await consumer.stop()

    neighbour = await streams.seal(NEIGHBOUR)
    await _whole(streams, neighbour)
    await asyncio.to_thread(_space_comes_back, bookies, gone, {each.ledger_id for each in neighbour.ledgers})
    await _whole(streams, neighbour)
    await _whole(streams, await streams.manifest(TOPIC))


async def _list_while_it_is_written(uri: str, streams: Streams, found: int) -> list[int]:
    """What an administrator sees: full ledgers, that of the dead broker as far as it came, the open one. Their ids."""
    listed = json.loads(await _bookie("stream", "info", TOPIC, "--json", "--metadata", uri))
    assert (listed["state"], listed["entries"], listed["bytes"]) == ("open", found, found * SIZE)
    ledgers = listed["ledgers"]
    assert [(each["state"], each["entries"], each["bytes"]) for each in ledgers] == [
        ("closed", FULL, FULL * SIZE),
        ("closed", found - FULL, (found - FULL) * SIZE),
        ("open", None, None),
    ]
    assert not any(each["under_replicated"] for each in ledgers)
    assert [each["first_ordinal"] for each in ledgers] == [0, FULL, found]
    assert listed["earliest"] == f"{ledgers[0]['ledger_id']}:0"
    assert int(listed["end"].partition(":")[0]) == ledgers[-1]["ledger_id"]
    (cursor,) = listed["cursors"]
    assert (cursor["cursor"], cursor["position"]) == (CURSOR, f"{ledgers[0]['ledger_id']}:{4 * STEP}")
    assert cursor["behind"] >= found - 4 * STEP
    return [each["ledger_id"] for each in ledgers]


async def _nothing_goes_that_the_cursor_has_not_passed(streams: Streams, ids: list[int]) -> None:
    settings = (await streams.manifest(TOPIC)).settings
    await streams.configure(TOPIC, replace(settings, retention_bytes=0))
    assert await streams.apply_retention(TOPIC) == ()
    await streams.configure(TOPIC, settings)
    with pytest.raises(StreamInUse, match=f"{FULL - 4 * STEP} entries"):
        await streams.truncate(TOPIC, StreamPosition(ids[1], 0))
    assert [each.ledger_id for each in (await streams.manifest(TOPIC)).ledgers] == ids


async def _retention_by_size_as_the_writer_rolls_over(
    streams: Streams, broker: BrokerProgram, found: int, ids: list[int]
) -> None:
    """The broker's next ledger makes the full one in front of it all that has to be kept."""
    broker.produce_up_to(found + FULL + 2 * STEP)
    async with asyncio.timeout(PATIENCE_S), aclosing(streams.watch(TOPIC)) as manifests:
        async for manifest in manifests:
            if ids[1] not in manifest and not manifest.retired:
                break
    assert [each.ledger_id for each in manifest.closed] == [ids[2]]
    assert manifest.nbytes == FULL * SIZE
    assert manifest.open_ledger is not None
    await _deleted(streams, ids[:2])


async def _truncation_to_a_position(streams: Streams, consumer: Consumer, found: int) -> None:
    """What is in front of the position is gone; its ledger stays for the rest."""
    manifest = await streams.manifest(TOPIC)
    assert consumer.behind > found + STEP
    position = manifest.position_at(found + STEP)
    assert await streams.truncate(TOPIC, position) == ()
    cut = await streams.manifest(TOPIC)
    assert (cut.earliest, cut.ledgers) == (position, manifest.ledgers)
    with pytest.raises(StreamPositionGone):
        await anext(streams.reader(TOPIC).entries(StreamPosition(position.ledger_id, position.entry_id - 1)))
    assert number_of((await anext(streams.reader(TOPIC).entries())).payload) == found + STEP


async def _retention_by_age(streams: Streams, ids: list[int]) -> list[int]:
    """Nothing is an hour old; what was closed goes when no age is kept, the open ledger stays. All that went so far."""
    settings = (await streams.manifest(TOPIC)).settings
    await streams.configure(TOPIC, replace(settings, retention_bytes=None, retention_seconds=3600.0))
    assert await streams.apply_retention(TOPIC) == ()
    await streams.configure(TOPIC, replace(settings, retention_bytes=None, retention_seconds=0.0))
    assert await streams.apply_retention(TOPIC) == (ids[2],)
    manifest = await streams.manifest(TOPIC)
    assert (manifest.closed, manifest.open_ledger is not None) == ((), True)
    await _deleted(streams, ids)
    return ids


def _space_comes_back(bookies: list[CollectedBookie], gone: list[int], neighbours: set[int]) -> None:
    """As for one ledger of ten that keeps an entry log alive: the pass keeps it, minor compaction takes it."""
    for bookie in bookies:
        done = bookie.collect()
        assert done["ledgersDeleted"] == len(gone)
        kept = [name for name in bookie.logs() if neighbours.issuperset(bookie.owners(name) or gone)]
        assert len(kept) > 2
        for name in kept:
            why = bookie.why(name)
            assert 0 < why["usage"] < 0.2
            assert "the next minor compaction takes it" in why["reason"]
        before = sum(bookie.logs().values())
        done = bookie.collect(minor=True)
        assert (done["compaction"], done["errors"]) == ("minor", [])
        assert done["logsCompacted"] >= len(kept)
        assert not set(kept) & set(bookie.logs())
        assert before - sum(bookie.logs().values()) == pytest.approx(done["reclaimedBytes"], rel=0.02)
        assert bookie.details()["minorCompactionCounter"] == 1


async def _deleted(streams: Streams, ids: list[int]) -> None:
    for ledger_id in ids:
        with pytest.raises(NoSuchLedger):
            await streams._client.metadata(ledger_id)


async def _whole(streams: Streams, manifest: Manifest) -> None:
    """Everything that is listed can be read, and is what was appended."""
    numbers = [number_of(entry.payload) async for entry in streams.reader(manifest.name).entries()]
    assert numbers == list(range(manifest.first_ordinal, manifest.end_ordinal))


async def _bookie(*arguments: str) -> str:
    done = await asyncio.to_thread(CollectedBookie.command, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout
