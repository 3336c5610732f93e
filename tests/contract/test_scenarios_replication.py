"""Where entries lie, what happens when a bookie dies or hangs, and who is asked for entries."""

from __future__ import annotations

import asyncio
import time

import pytest

from bookie_client import Client, ClientOptions
from bookie_client.reading.maintenance import replicas
from bookie_protocol.errors import NoSuchEntry, NoSuchLedger
from tests.support.auto_recovery import AutoRecoveryProcess, healed
from tests.support.batch_answers import note_batches
from tests.support.cluster_fixtures import all_writable, metadata_service
from tests.support.cluster_fixtures import bookies as cluster
from tests.support.until import until

__all__ = ["cluster", "metadata_service"]

BOOKIES = 6
PASSWORD = b"pw"
STRIPES = {
    (3, 2, 2): [(0, 1), (1, 2), (2, 0)] * 2,
    (5, 3, 2): [(0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1)] * 3,
}
"""Positions of the ensemble that hold entry 0, 1, 2 and so on."""


def payload(entry_id):
    return b"entry %d " % entry_id * (1 + entry_id % 40)


def create(client, ensemble, write_quorum, ack_quorum):
    return client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, password=PASSWORD)


async def held(client, bookie, ledger_id):
    return list(await client.context.operations.entries_of_ledger(bookie, ledger_id))


# --- striping ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quorums", STRIPES, ids=str)
async def test_each_bookie_holds_its_stripes_of_a_ledger_and_nothing_else(cluster, quorums):
    table = STRIPES[quorums]
    async with Client(cluster.uri) as client:
        async with create(client, *quorums) as ledger:
            await ledger.append_many(payload(i) for i in range(len(table)))
            ensemble = ledger.metadata.last_ensemble
        for position, bookie in enumerate(ensemble):
            mine = [entry for entry, positions in enumerate(table) if position in positions]
            await until_held(client, bookie, ledger.ledger_id, mine)
        for bookie in set(cluster.bookies).difference(ensemble):
            with pytest.raises(NoSuchLedger):
                await held(client, bookie, ledger.ledger_id)


async def until_held(client, bookie, ledger_id, entry_ids):
    """An acknowledged entry has its ack quorum; the rest of its write set follows."""
    async with asyncio.timeout(20):
        while (found := await held(client, bookie, ledger_id)) != entry_ids:
            assert set(found) < set(entry_ids)
            await asyncio.sleep(0.01)


# --- bookies that die ----------------------------------------------------------------------------------------------


class Load:
    """Appends without a pause until it is stopped."""

    def __init__(self, ledger):
        self._ledger = ledger
        self._going = True
        self._count = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self):
        while self._going:
            await self._ledger.submit(payload(self._count))
            self._count += 1

    async def reach(self, further):
        """Wait until so many further entries are acknowledged."""
        end = self._ledger.last_add_confirmed + further
        await until(lambda: self._ledger.last_add_confirmed >= end or self._task.done(), 60)

    async def stop(self):
        """The number of entries that readers see, once all are acknowledged; raises what a failed append raised."""
        self._going = False
        await self._task
        await self._ledger.flush()
        assert self._ledger.last_add_confirmed == self._count - 1
        assert await self._ledger.append(payload(self._count)) == self._count
        return self._count


async def read_all(client, ledger_id, count):
    async with client.open(ledger_id, password=PASSWORD) as reader:
        expected = 0
        async for entry in reader.entries(0, count - 1):
            assert entry.payload == payload(expected)
            expected += 1
        assert expected == count
        return set(reader.served_by)


async def test_a_bookie_that_dies_under_load_is_replaced_and_serves_its_old_entries_when_it_is_back(cluster):
    async with Client(cluster.uri, ClientOptions(write_window_entries=500)) as client:
        await all_writable(client, cluster)
        ledger = await create(client, 5, 3, 2)
        before = ledger.metadata.last_ensemble
        fifth, (sixth,) = before[4], set(cluster.bookies).difference(before)
        load = Load(ledger)
        await load.reach(1000)
        cluster.kill(fifth)
        await load.reach(1000)
        count = await load.stop()
        segments = ledger.metadata.ensembles
        change = max(segments)
        assert segments == {0: before, change: (*before[:4], sixth)}
        assert 1000 <= change <= count
        async with Client(cluster.uri) as reading:
            assert await read_all(reading, ledger.ledger_id, count) == set(cluster.bookies) - {fifth}

        await asyncio.to_thread(cluster.start, [fifth])
        kept = await held(client, fifth, ledger.ledger_id)
        mine = [e for e in range(change) if (4 - e) % 5 < 3]
        # Of the last ones it may lack some, which had their ack quorum without it; what it stored behind the change
        # nobody asks it for.
        stored = [e for e in mine if e in set(kept)]
        assert {e for e in kept if e < change} == set(stored)
        assert stored
        async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
            answers = [answer async for answer in replicas(reader).scan(fifth, 0, change - 1)]
            assert [a.entry_id for a in answers] == mine
            served = {a.entry_id: a.entry.payload for a in answers if a.entry is not None}
            assert served == {e: payload(e) for e in stored}
            assert all(isinstance(a.error, NoSuchEntry) for a in answers if a.entry is None)
        await ledger.append_many(payload(i) for i in range(count + 1, count + 500))
        assert ledger.metadata.ensembles == segments
        await ledger.close()
        assert await held(client, fifth, ledger.ledger_id) == kept
        async with Client(cluster.uri) as reading:
            assert await read_all(reading, ledger.ledger_id, count + 500) == set(cluster.bookies)


async def test_a_bookie_that_is_gone_for_good_has_exactly_its_entries_copied_and_readers_notice_nothing(
    cluster, tmp_path
):
    async with Client(cluster.uri, ClientOptions(write_window_entries=500)) as client:
        await all_writable(client, cluster)
        for other in [ledger_id async for ledger_id in client.list()]:
            await client.delete(other)
        ledger = await create(client, 5, 3, 2)
        before = ledger.metadata.last_ensemble
        fifth, (sixth,) = before[4], set(cluster.bookies).difference(before)
        with AutoRecoveryProcess(tmp_path / "auto-recovery", cluster.uri) as healing:
            await healing.ready()
            load = Load(ledger)
            await load.reach(1000)
            async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
                reading = asyncio.create_task(read_again_and_again(reader, 1000))
                cluster.kill(fifth)
                await load.reach(1000)
                await healed(client, [fifth])
                await load.reach(500)
                count = await load.stop()
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
            (change,) = set(ledger.metadata.ensembles) - {0}
            after = (*before[:4], sixth)
            assert (await client.metadata(ledger.ledger_id)).ensembles == {0: after, change: after}
            copied = sum((4 - e) % 5 < 3 for e in range(change))
            assert healing.metric("replication_worker_NUM_ENTRIES_WRITTEN") == copied
            await ledger.close()
        for position, bookie in enumerate(after):
            mine = [e for e in range(count + 1) if (position - e) % 5 < 3]
            await until_held(client, bookie, ledger.ledger_id, mine)
        async with Client(cluster.uri) as another:
            assert await read_all(another, ledger.ledger_id, count) == set(after)
    # For this ledger it was gone for good; the cluster is the next test's too.
    await asyncio.to_thread(cluster.start, [fifth])


async def read_again_and_again(reader, count):
    """Until cancelled. A handle from before the death goes on, whatever becomes of the copies."""
    while True:
        found = await reader.read(0, count - 1)
        assert [entry.payload for entry in found] == [payload(i) for i in range(count)]
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("fault", ["dies", "hangs"])
async def test_a_bookie_that_fails_behind_the_ack_quorum_is_replaced_with_the_next_append(cluster, fault):
    async with Client(cluster.uri, ClientOptions(add_timeout=1.0)) as client:
        await all_writable(client, cluster)
        ledger = await create(client, 3, 3, 2)
        before = ledger.metadata.last_ensemble
        late = before[2]
        with cluster.paused([late]):
            assert await ledger.append(payload(0)) == 0
            if fault == "dies":
                cluster.kill(late)
            await until(lambda: ledger._state.late_failures, 10)
            assert ledger.ensemble_changes == 0
            assert (await client.metadata(ledger.ledger_id)).ensembles == {0: before}
            assert await ledger.append(payload(1)) == 1
        after = (await client.metadata(ledger.ledger_id)).ensembles
        assert list(after) == [0, 1]
        assert (after[1][:2], late in after[1]) == (before[:2], False)
        if fault == "dies":
            await asyncio.to_thread(cluster.start, [late])
        await ledger.close()
        assert await read_all(client, ledger.ledger_id, 2)


# --- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("speculation", [0.2, None], ids=["after 0.2 s", "adaptive"])
@pytest.mark.parametrize("quorums", [(3, 3, 3), (3, 2, 2)], ids=str)
async def test_a_bookie_that_hangs_costs_a_reader_the_speculative_time_out_and_not_its_answer(
    cluster, quorums, speculation
):
    options = ClientOptions(
        read_timeout=10.0, first_speculative_read_timeout=speculation, max_speculative_read_timeout=1.0
    )
    async with Client(cluster.uri, options) as client:
        await all_writable(client, cluster)
        async with create(client, *quorums) as ledger:
            await ledger.append_many(payload(i) for i in range(300))

    async def seconds():
        """Of a client that knows nothing about its bookies."""
        async with Client(cluster.uri, options) as client:
            began = time.monotonic()
            async with client.open(ledger.ledger_id, password=PASSWORD) as reader:
                found = [e.payload async for e in reader.entries()]
                took = time.monotonic() - began
                assert hung not in reader.served_by
            assert found == [payload(i) for i in range(300)]
            return took

    hung = None
    undisturbed = await seconds()
    delay = speculation or options.max_speculative_read_timeout
    limit = delay + 1.0 + 10 * undisturbed
    for hung in ledger.metadata.last_ensemble:
        tries: list[float] = []
        # One look may fall into a moment when the machine is busy elsewhere; two of three do not.
        while sum(one <= limit for one in tries) < (len(tries) or 1) and len(tries) < 3:
            async with Client(cluster.uri) as client:
                await all_writable(client, cluster)  # a bookie that is not registered is asked last
            with cluster.paused([hung]):
                tries.append(await seconds())
        assert sum(one <= limit for one in tries) > len(tries) / 2, (tries, limit)


@pytest.mark.parametrize("version", [2, 3])
async def test_ranges_come_by_batch_whether_every_bookie_has_every_entry_or_not(cluster, monkeypatch, version):
    noted = note_batches(monkeypatch)
    options = ClientOptions(protocol_version=version, batch_read_entries=100)
    async with Client(cluster.uri, options) as client:
        for quorums in [(3, 3, 2), (3, 2, 2)]:
            async with create(client, *quorums) as ledger:
                await ledger.append_many(payload(i) for i in range(1000))
            await read_all(client, ledger.ledger_id, 1000)
            batches = sum(ledger_id == ledger.ledger_id for ledger_id, _ in noted)
            if quorums[0] == quorums[1]:
                assert 10 <= batches <= 15
            else:
                assert 10 <= batches <= 24  # each bookie is asked for its own entries, by batches with a step
