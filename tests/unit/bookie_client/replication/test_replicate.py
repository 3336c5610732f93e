"""Fragments are restored, or left as they were: what is copied, and from where when sources fail."""

import time

import pytest

from bookie_client.access import replica_access
from bookie_client.replication.check import LedgerChecker
from bookie_client.replication.replicator import FragmentReplicator, ReplicationOptions
from bookie_client.replication.source_reads import BUSY_SECONDS, Outcome, SourceReads
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import (
    BadRequest,
    BookieUnavailable,
    DigestMismatch,
    EntriesUnreadable,
    LedgerStateUnknown,
    TooManyRequests,
)
from tests.unit.bookie_client.replication.cluster import PASSWORD, CountingThrottle, payload, written
from tests.unit.bookie_client.replication.restoring import FULL, fragment_of, is_whole, restored


@pytest.mark.parametrize(
    ("quorums", "version"), [((3, 3), 3), ((3, 2), 2), ((3, 2), 3), ((5, 3), 3), ((4, 1), 3), ((2, 2), 2)]
)
async def test_only_what_striping_puts_there_is_copied(models, version, quorums):
    await models.add(*"abcdefg")
    ensemble, write = quorums
    async with models.client(protocol_version=version) as client:
        ledger_id = await written(client, 60, ensemble=ensemble, write_quorum=write, ack_quorum=1)
        before = await fragment_of(client, ledger_id)
        await FragmentReplicator(client).replicate(before, {0: before.ensemble[0], 1: before.ensemble[1]})
        after = await fragment_of(client, ledger_id)
        assert set(before.ensemble[:2]).isdisjoint(after.ensemble)
        for position in (0, 1):
            assert models.held_at(after.ensemble[position], ledger_id) == set(after.entries_of(position))
        # The copies are the bytes that the writer sent.
        new, old = (models.model(f.ensemble[0]).ledgers[ledger_id] for f in (after, before))
        assert (new.entries, new.key) == (old.entries, old.key)
        await is_whole(client, ledger_id)


async def test_two_lost_bookies_of_three(models, version):
    async with models.of(*"abcde", protocol_version=version) as client:
        ledger_id = await written(client, 100)
        lost = (await fragment_of(client, ledger_id)).ensemble[:2]
        await models.lose(client, *lost)
        result = await restored(client, ledger_id)
        assert result.entries == 100
        assert set(lost).isdisjoint(result.ensemble)
        await is_whole(client, ledger_id)


async def test_an_empty_segment_only_changes_the_metadata(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 0)
        result = await restored(client, ledger_id, [1])
        assert (result.entries, result.nbytes) == (0, 0)
        assert (await fragment_of(client, ledger_id)).ensemble == result.ensemble
        assert all(not models.held_at(name, ledger_id) for name in "abcd")


async def test_entries_of_every_size_within_few_bytes_in_flight(models, version):
    async with models.of(*"abcd", protocol_version=version, batch_read_bytes=20_000) as client:
        async with client.create(ensemble=3, write_quorum=3, ack_quorum=3, password=PASSWORD) as ledger:
            await ledger.append_many([bytes(10)] * 200 + [bytes(300_000)] + [bytes(3_000)] * 60 + [b""])
        throttle = ReplicationThrottle()
        options = ReplicationOptions(max_bytes_in_flight=100_000, entry_batch_size=70, throttle=throttle)
        result = await restored(client, ledger.ledger_id, [2], options)
        assert result.entries == 262
        assert throttle.bytes_written == result.nbytes <= throttle.bytes_read
        assert (await LedgerChecker(client, FULL).check(ledger.ledger_id)).is_healthy


async def test_damaged_and_missing_entries_come_from_other_replicas(models, version):
    async with models.of(*"abcd", protocol_version=version) as client:
        ledger_id = await written(client, 90)
        bad, first, second = (await fragment_of(client, ledger_id)).ensemble
        for entry_id in range(0, 90, 3):
            models.model(first).damage(ledger_id, entry_id)
        for entry_id in range(1, 90, 3):
            del models.model(second).ledgers[ledger_id].entries[entry_id]
        models.model(bad).ledgers.clear()
        result = await restored(client, ledger_id, [0])
        assert set(models.model(result.ensemble[0]).ledgers[ledger_id].entries) == set(range(90))
        async with client.open(ledger_id, password=PASSWORD) as reader:
            assert [e.payload async for e in reader.entries()] == [payload(i) for i in range(90)]


async def test_bookies_without_batch_reads_are_read_singly(models, version):
    await models.add(*"abcd")
    for name in "abcd":
        models.model(name).knows_batch_reads = False
    async with models.client(protocol_version=version) as client:
        ledger_id = await written(client, 150)
        await restored(client, ledger_id, [1])
        await is_whole(client, ledger_id)


@pytest.mark.parametrize("knows_steps", [True, False])
async def test_of_a_striped_ledger_each_bookie_is_asked_for_its_own_in_few_requests(models, knows_steps):
    await models.add(*"abcde")
    for name in "abcde":
        models.model(name).knows_steps = knows_steps

    throttle = CountingThrottle()
    async with models.client() as client:
        ledger_id = await written(client, 400, ensemble=4, write_quorum=2, ack_quorum=2)
        before = models.requests()
        await restored(client, ledger_id, [1], ReplicationOptions(throttle=throttle))
        asked = models.requests() - before
        assert asked < 60 if knows_steps else asked > 200  # half of all entries were there
        assert throttle.requests == asked + 1, "and the list of entries, which these bookies do not count"
        await is_whole(client, ledger_id)


async def test_batches_are_used_where_every_bookie_holds_every_entry(models):
    await models.add(*"abcd")

    def reads():
        return sum(models.model(name).reads for name in "abcd")

    async with models.client() as client:
        ledger_id = await written(client, 200)
        before = reads()
        await restored(client, ledger_id, [1])
        assert sum(models.model(name).batch_reads for name in "abcd") >= 1
        assert reads() == before + 1  # the copy that is read back; once it is named the bookie lists it
        await restored(client, ledger_id, [2], ReplicationOptions(batch_reads=False))
        assert reads() == before + 202


async def test_the_bookie_to_be_replaced_gives_what_nobody_else_has(models, version):
    """As in a drain, where it holds the only copies."""
    async with models.of(*"ab", protocol_version=version) as client:
        ledger_id = await written(client, 60, ensemble=1, write_quorum=1, ack_quorum=1)
        old = (await fragment_of(client, ledger_id)).ensemble[0]
        result = await restored(client, ledger_id, [0])
        assert result.ensemble != (old,)
        await is_whole(client, ledger_id)


async def test_a_busy_source_is_asked_again_after_pauses_that_grow(models):
    async with models.of(*"ab") as client:
        ledger_id = await written(client, 50, ensemble=1, write_quorum=1, ack_quorum=1)
        source = models.model((await fragment_of(client, ledger_id)).ensemble[0])
        singly, times = source.reads, []

        def busy(text):
            assert source.reads == singly, "it is not asked for each entry because it has no time for all"
            times.append(time.monotonic())
            if len(times) == 2:
                source.fail_reads = None
            return TooManyRequests(text)

        source.fail_reads = busy
        await restored(client, ledger_id, [0])
        assert times[1] - times[0] >= BUSY_SECONDS
        assert time.monotonic() - times[1] >= 2 * BUSY_SECONDS
        await is_whole(client, ledger_id)


async def test_entries_that_nobody_has_are_named_and_nothing_is_exchanged(models, version):
    async with models.of(*"abcd", protocol_version=version) as client:
        ledger_id = await written(client, 60)
        before = await client.stored_metadata(ledger_id)
        for entry_id in (17, 18, 59):
            for name in before.value.ensemble_for(0):
                del models.model(name).ledgers[ledger_id].entries[entry_id]
        with pytest.raises(EntriesUnreadable) as failure:
            await restored(client, ledger_id, [0])
        assert failure.value.entries == (17, 18, 59)
        assert await client.stored_metadata(ledger_id) == before
        fragment = await fragment_of(client, ledger_id)
        replicator = FragmentReplicator(client)
        with pytest.raises(EntriesUnreadable) as failure:
            await replicator.ask_for(fragment, [5, 18, 59, 1000])
        assert (failure.value.entries, failure.value.silent) == ((18, 59), frozenset())
        models.bookies[fragment.ensemble[1]].silent = True
        with pytest.raises(EntriesUnreadable) as failure:
            await replicator.ask_for(fragment, [18])
        assert failure.value.silent == {fragment.ensemble[1]}
        models.bookies[fragment.ensemble[1]].silent = False
        keeper = models.model(fragment.ensemble[1]).ledgers[ledger_id].entries
        other = await written(client, 60)
        assert set(keeper).isdisjoint({17, 18, 59})
        await replicator.ask_for(await fragment_of(client, other), [17, 18])


async def test_what_is_read_to_see_whether_entries_are_there_counts_for_the_throttle(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 20)
        fragment, throttle = await fragment_of(client, ledger_id), CountingThrottle()
        replicator = FragmentReplicator(client, ReplicationOptions(throttle=throttle))
        before = models.requests()
        await replicator.ask_for(fragment, [3, 4, 7])
        held = models.model("a").ledgers[ledger_id].entries
        assert throttle.bytes_read == sum(len(held[each]) for each in (3, 4, 7))
        assert throttle.requests == models.requests() - before


async def test_an_entry_whose_replicas_are_unreachable_is_not_given_up_as_lost(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 20, ensemble=2, write_quorum=2)
        ensemble = (await fragment_of(client, ledger_id)).ensemble
        await models.stop(ensemble[0])
        models.model(ensemble[1]).fail_reads = LedgerStateUnknown
        with pytest.raises(EntriesUnreadable) as failure:
            await restored(client, ledger_id, [0])
        assert len(failure.value.entries) == 20
        assert "does not have it" not in str(failure.value)


async def test_a_bookie_that_cannot_be_reached_is_not_asked_for_the_rest(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 6)
        fragment = await fragment_of(client, ledger_id)
        access = replica_access(await client.metadata(ledger_id), None, PASSWORD)
        await models.stop(fragment.ensemble[0])
        outcome = Outcome()
        reads = SourceReads(client.context, fragment, access, (), batch_reads=False)
        await reads.read_from(fragment.ensemble[0], range(6), 1 << 20, outcome, at_once=2)
        assert outcome.requests == 2
        said = [outcome.errors[entry_id][fragment.ensemble[0]] for entry_id in range(6)]
        assert all(isinstance(error, BookieUnavailable) for error in said)


def test_options_make_sense():
    for bad in ({"entry_batch_size": 0}, {"max_bytes_in_flight": 0}):
        with pytest.raises(BadRequest):
            ReplicationOptions(**bad)


@pytest.mark.parametrize("entry", [b"", b"abc", bytes(32), bytes(36)], ids=len)
async def test_what_is_too_short_to_be_an_entry_is_a_damaged_copy(models, entry):
    async with models.of(*"abc") as client:
        stored = await client.stored_metadata(await written(client, 1))
        fragment = await fragment_of(client, stored.value.ledger_id)
        access = replica_access(stored.value, None, b"")
        outcome = Outcome()
        SourceReads(client.context, fragment, access, (), batch_reads=True)._take("a", (0,), (entry,), outcome)
        assert (outcome.found, type(outcome.errors[0]["a"])) == ({}, DigestMismatch)
        assert client.context.damaged_replicas == {"a": 1}
