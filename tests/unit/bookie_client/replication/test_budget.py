"""What copies may take: bytes in flight over all fragments of one replicator, and bytes a second."""

import asyncio

import pytest

from bookie_client.replication import replicator
from bookie_client.replication.copying import CopyLimits, FragmentCopy
from bookie_client.replication.replicator import FragmentReplicator, ReplicationOptions
from bookie_client.replication.source_reads import SourceReads
from bookie_client.replication.throttle import ReplicationThrottle, YieldingThrottle
from tests.unit.bookie_client.replication.cluster import equal_entries, watched_pieces, watched_windows
from tests.unit.bookie_client.replication.restoring import fragment_of


@pytest.fixture
def peaks(monkeypatch):
    return watched_windows(monkeypatch)


@pytest.mark.parametrize("write_quorum", [3, 2], ids=["every bookie has all", "striped"])
async def test_bytes_in_flight_are_bounded_over_all_fragments(models, peaks, write_quorum):
    async with models.of(*"abcde") as client:
        ids = [
            await equal_entries(client, 150, 1_000, write_quorum=write_quorum, ack_quorum=write_quorum)
            for _ in range(4)
        ]
        copier = FragmentReplicator(client, ReplicationOptions(max_bytes_in_flight=200_000))
        parts = [await fragment_of(client, ledger_id) for ledger_id in ids]
        await asyncio.gather(*(copier.replicate(part, {0: part.ensemble[0]}) for part in parts))
        assert 100_000 < peaks["bytes"] <= 200_000
        limits = copier._limits
        assert (limits.window.nbytes, limits.window.entries) == (0, 0)


async def test_who_is_given_up_while_the_throttle_holds_it_leaves_the_budget_to_others(models):
    reached = asyncio.Event()

    class Slow(ReplicationThrottle):
        async def read(self, nbytes, operations=1):
            reached.set()
            await asyncio.sleep(3600)

    async with models.of(*"abcd") as client:
        part = await fragment_of(client, await equal_entries(client, 5, 1_000))
        copier = FragmentReplicator(client, ReplicationOptions(throttle=Slow()))
        copying = asyncio.create_task(copier.replicate(part, {0: part.ensemble[0]}))
        await reached.wait()
        window = copier._limits.window
        assert window.nbytes > 0
        copying.cancel()
        await asyncio.wait([copying])
        assert (window.nbytes, window.entries) == (0, 0)


async def test_an_entry_larger_than_the_budget_passes_alone(models, peaks):
    async with models.of(*"abcd") as client:
        ledger_id = await equal_entries(client, 5, 300_000)
        part = await fragment_of(client, ledger_id)
        copier = FragmentReplicator(client, ReplicationOptions(max_bytes_in_flight=10_000))
        assert (await copier.replicate(part, {0: part.ensemble[0]})).entries == 5
        assert peaks["pieces"] == 1


@pytest.mark.parametrize("known", [True, False])
async def test_how_large_entries_are_is_known_before_many_are_read(models, monkeypatch, known):
    """Of a closed ledger at once, of another one from its first piece."""
    ended, ended_before, read = 0, [], SourceReads.read

    async def noted(self, ids, *of):
        nonlocal ended
        ended_before.append(ended)
        found = await read(self, ids, *of)
        ended += 1
        return found

    class Noted(FragmentCopy):
        def __init__(self, *of):
            *others, average, told = of
            super().__init__(*others, average if known else None, told)

    monkeypatch.setattr(replicator, "FragmentCopy", Noted)
    async with models.of(*"abcd") as client:
        part = await fragment_of(client, await equal_entries(client, 100, 100))
        monkeypatch.setattr(SourceReads, "read", noted)
        await FragmentReplicator(client, ReplicationOptions(entry_batch_size=16)).replicate(part, {0: part.ensemble[0]})
    assert ended_before[:3] == ([0, 0, 0] if known else [0, 1, 1])


@pytest.mark.parametrize("write_quorum", [3, 2], ids=["every bookie has all", "striped"])
async def test_no_piece_has_more_entries_than_asked_for(models, monkeypatch, write_quorum):
    async with models.of(*"abcd") as client:
        ledger_id = await equal_entries(client, 300, 100, write_quorum=write_quorum, ack_quorum=write_quorum)
        part = await fragment_of(client, ledger_id)
        seen = watched_pieces(monkeypatch)
        copier = FragmentReplicator(client, ReplicationOptions(entry_batch_size=23))
        result = await copier.replicate(part, {0: part.ensemble[0]})
        assert (sum(seen["adds"]), max(seen["adds"])) == (result.entries, 23)
        # Of a striped ledger each of the two other bookies has some, and is asked for those that go together.
        assert max(seen["reads"]) == 23 if write_quorum == 3 else 1 < max(seen["reads"]) <= 12


async def test_copies_keep_to_the_throttle(models):
    async with models.of(*"abcd") as client:
        ledger_id = await equal_entries(client, 300, 1_000)
        part = await fragment_of(client, ledger_id)
        options = ReplicationOptions(throttle=ReplicationThrottle(bytes_per_second=600_000))
        loop = asyncio.get_running_loop()
        began = loop.time()
        result = await FragmentReplicator(client, options).replicate(part, {0: part.ensemble[0]})
        # The last piece need not be waited for.
        assert loop.time() - began >= (result.nbytes - 150_000) / 600_000


@pytest.mark.parametrize(
    ("kind", "rate"), [(ReplicationThrottle, 3_200_000), (YieldingThrottle, 320_000_000)], ids=["steady", "yielding"]
)
async def test_under_a_throttle_copies_come_in_small_pieces_and_not_in_bursts(models, kind, rate):
    pieces = []

    class Watched(kind):
        async def write(self, nbytes, operations=1):
            pieces.append(nbytes)
            await super().write(nbytes, operations)

    async with models.of(*"abcd") as client:
        ledger_id = await equal_entries(client, 500, 1_000)
        part = await fragment_of(client, ledger_id)
        throttle = Watched(3_200_000)
        throttle.bytes_per_second = rate  # whatever the rate is at present
        result = await FragmentReplicator(client, ReplicationOptions(throttle=throttle)).replicate(
            part, {0: part.ensemble[0]}
        )
        assert sum(pieces) == result.nbytes
        assert max(pieces) <= 100_000  # what the budget gives in a 32nd of a second


def test_small_pieces_are_as_many_as_keep_the_disks_busy():
    throttle = ReplicationThrottle()
    assert CopyLimits.of(1, throttle, 10, True).window._max_entries == 819
    assert CopyLimits.of(1, throttle, 2_000, True).window._max_entries == 16
