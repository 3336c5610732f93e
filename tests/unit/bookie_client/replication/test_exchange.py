"""The moment when new copies are named: who holds the lock, and what became of the targets meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_client.replication import replicator
from bookie_client.replication.copying import TargetFailed
from bookie_client.replication.exchange import NewCopies
from bookie_client.replication.lists import LISTS_TO_GIVE_UP
from bookie_client.replication.replicator import FragmentReplicator
from bookie_protocol.errors import (
    BookieTimeout,
    CopyLost,
    MetadataReplaced,
    MetadataVersionConflict,
    NoSuchLedger,
    SessionEnded,
    StorageFault,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.records import DECOMMISSION
from bookie_protocol.wire.availability import decode_availability, encode_availability
from tests.unit.bookie_client.replication.cluster import written
from tests.unit.bookie_client.replication.restoring import fragment_of, is_whole, restored


def before_each_exchange(monkeypatch, act):
    exchange = replicator.exchange_bookies

    async def exchange_bookies(client, stored, fragment, targets, session_id=None):
        await act(targets)
        return await exchange(client, stored, fragment, targets, session_id)

    monkeypatch.setattr(replicator, "exchange_bookies", exchange_bookies)


async def test_nothing_is_exchanged_when_the_session_of_the_lock_has_ended(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 50)
        before = await client.stored_metadata(ledger_id)
        lock = await models.service.under_replication.lock(ledger_id)
        with pytest.raises(SessionEnded):
            await restored(client, ledger_id, [0], session_id=lock.session_id + 1)
        assert await client.stored_metadata(ledger_id) == before
        await restored(client, ledger_id, [0], session_id=lock.session_id)
        await is_whole(client, ledger_id)


@pytest.mark.parametrize("lists", ["unknown", "silent", "denied"])
async def test_copies_that_were_collected_before_they_were_named_are_made_anew_elsewhere(models, monkeypatch, lists):
    async with models.of(*"abcde") as client:
        ledger_id = await written(client, 50)
        before = (await fragment_of(client, ledger_id)).ensemble
        collected = []

        async def collect(targets):
            if not collected:
                collected.extend(targets.values())
                del models.model(collected[0]).ledgers[ledger_id]

        async def silent(bookie, ledger_id):
            raise BookieTimeout("no answer")

        async def denied(bookie, ledger_id):
            if not models.held_at(bookie, ledger_id):
                raise NoSuchLedger("it was collected")
            return decode_availability(encode_availability(sorted(models.held_at(bookie, ledger_id))))

        if lists != "unknown":
            monkeypatch.setattr(client.operations, "entries_of_ledger", silent if lists == "silent" else denied)
        before_each_exchange(monkeypatch, collect)
        result = await restored(client, ledger_id, [0])
        assert collected
        assert result.ensemble[0] not in (*collected, before[0])
        assert (await fragment_of(client, ledger_id)).ensemble == result.ensemble
        await is_whole(client, ledger_id)


async def test_without_another_target_the_exchange_is_taken_back(models, monkeypatch):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 50)
        before = (await fragment_of(client, ledger_id)).ensemble

        async def collect(targets):
            for bookie in targets.values():
                if bookie not in before:
                    models.model(bookie).ledgers[ledger_id].entries.pop(7)

        async def lists(bookie, ledger_id):
            return decode_availability(encode_availability(sorted(models.held_at(bookie, ledger_id))))

        monkeypatch.setattr(client.operations, "entries_of_ledger", lists)
        before_each_exchange(monkeypatch, collect)
        with pytest.raises(CopyLost, match="entry 7 on "):
            await restored(client, ledger_id, [0])
        assert (await fragment_of(client, ledger_id)).ensemble == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda metadata: metadata.closed(30, 100), r"\bend\b"),
        (lambda metadata: replace(metadata, ensembles={0: metadata.ensembles[0]}), "exists"),
    ],
    ids=["end", "segment"],
)
async def test_a_segment_that_is_not_what_it_was_keeps_its_bookies(models, monkeypatch, change, words):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 50)

        async def changed(change):
            found = await client.stored_metadata(ledger_id)
            return await models.service.ledgers.write(change(found.value), found.identity)

        await changed(lambda metadata: metadata.with_ensemble(25, metadata.ensembles[0]))
        fragment, stored = await fragment_of(client, ledger_id, 1), []

        async def change_first(targets):
            stored.append(await changed(change))

        before_each_exchange(monkeypatch, change_first)
        with pytest.raises(MetadataVersionConflict, match=words):
            await FragmentReplicator(client).replicate(fragment, {0: fragment.ensemble[0]})
        assert [await client.stored_metadata(ledger_id)] == stored


@pytest.mark.parametrize("error", [BookieTimeout, StorageFault])
async def test_a_target_that_tells_nothing_has_its_copies(models, error):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 5)
        fragment = await fragment_of(client, ledger_id)
        models.model(fragment.ensemble[0]).fail_reads = error
        await FragmentReplicator(client)._copies.check(fragment, 0, fragment.ensemble[0])


@pytest.mark.parametrize("lists_once", [False, True])
async def test_a_bookie_that_lists_nothing_is_not_asked_for_ever(models, monkeypatch, lists_once):
    await models.add(*"abcdefgh")
    asked = []

    async def silent(bookie, ledger_id):
        asked.append(bookie)
        if lists_once and len(asked) == LISTS_TO_GIVE_UP:
            return decode_availability(encode_availability(sorted(models.held_at(bookie, ledger_id))))
        raise BookieTimeout("no answer")

    async with models.client() as client:
        ledger_id = await written(client, 5, ensemble=7, write_quorum=7, ack_quorum=7)
        monkeypatch.setattr(client.operations, "entries_of_ledger", silent)
        copies = FragmentReplicator(client)._copies
        fragment = await fragment_of(client, ledger_id)
        for _ in range(2 * LISTS_TO_GIVE_UP + 3):
            await copies.check(fragment, 0, fragment.ensemble[0])
        assert len(asked) == LISTS_TO_GIVE_UP * (2 if lists_once else 1)


async def test_a_target_that_is_being_decommissioned_by_now_is_not_named(models, monkeypatch):
    async with models.of(*"abcde") as client:
        ledger_id = await written(client, 50)
        read_back, left = FragmentReplicator._read_back, []

        async def leaves(self, fragment, sources, receivers):
            await read_back(self, fragment, sources, receivers)
            if not left:
                left.extend(receivers.values())
                await models.service.records(DECOMMISSION).create(left[0], b"{}")

        monkeypatch.setattr(FragmentReplicator, "_read_back", leaves)
        result = await restored(client, ledger_id, [0])
        assert left
        assert left[0] not in result.ensemble
        await is_whole(client, ledger_id)


async def test_a_target_that_is_gone_when_it_is_named_is_marked(models, monkeypatch):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 50)
        gone = []

        async def lose(targets):
            gone.extend(targets.values())
            await models.unregister(gone[0])

        before_each_exchange(monkeypatch, lose)
        await restored(client, ledger_id, [0])
        mark = await models.service.under_replication.read(ledger_id)
        assert mark is not None
        assert list(mark.replicas) == gone


async def test_a_target_that_says_no_such_ledger_does_not_make_the_ledger_deleted(models, monkeypatch):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 50)
        ensemble = (await fragment_of(client, ledger_id)).ensemble
        (spare,) = set("abcd") - set(ensemble)
        monkeypatch.setattr(models.model(spare), "fail_reads", NoSuchLedger)
        with pytest.raises(CopyLost):
            await restored(client, ledger_id, [0])


async def make_again(models, ledger_id):
    """The ledger is deleted, and made again on the same bookies, and closed. Returns what is stored."""
    ledgers = models.service.ledgers
    first = (await ledgers.read(ledger_id)).value
    await ledgers.delete(ledger_id)
    made = await ledgers.create(replace(first, state=LedgerState.OPEN, last_entry_id=-1, length=0))
    return await ledgers.write(made.value.closed(first.last_entry_id, first.length), made.identity)


async def test_an_exchange_is_not_taken_back_in_another_ledger_of_the_id(models, monkeypatch):
    """New copies are found to be gone behind the exchange; meanwhile the ledger was made again on the same bookies."""
    async with models.of(*"abcd") as client:
        ledger_id, second = await written(client, 50), []

        async def check(self, fragment, position, bookie):
            second.append(await make_again(models, ledger_id))
            raise TargetFailed(bookie, CopyLost("it has gone again"))

        monkeypatch.setattr(NewCopies, "check", check)
        with pytest.raises(MetadataReplaced):
            await restored(client, ledger_id, [0])
        assert [(await client.stored_metadata(ledger_id)).identity] == [each.identity for each in second]


@pytest.mark.parametrize("changes", [0, 1], ids=["same version", "other version"])
async def test_copies_of_a_ledger_are_not_named_in_another_one_of_its_id(models, monkeypatch, changes):
    """It is deleted and made again while it is copied, on the same bookies, and closed, which is version 1 again."""
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 50)
        second = []

        async def make_another(targets):
            stored = await make_again(models, ledger_id)
            for _ in range(changes):
                stored = await models.service.ledgers.write(stored.value, stored.identity)
            second.append(stored.identity)

        before_each_exchange(monkeypatch, make_another)
        with pytest.raises(MetadataReplaced):
            await restored(client, ledger_id, [0])
        assert [(await client.stored_metadata(ledger_id)).identity] == second
