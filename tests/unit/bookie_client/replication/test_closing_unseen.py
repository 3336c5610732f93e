"""Closing ledgers on behalf of healing: what a look did not see, or saw in part, is neither believed nor doubted for
good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_client.replication import replica_reads
from bookie_client.replication.check import LedgerChecker, ReplicaVerdict
from bookie_protocol.digest import DigestType
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import BadRequest, BookieTimeout, RecoveryFailed, ResourcesShort, Unauthorized
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.findings import Reason, distrusted
from tests.support.until import until
from tests.unit.bookie_client.replication.cluster import (
    PASSWORD,
    LookThen,
    close_now,
    emptied_in_two_segments,
    half_acknowledged,
    marked,
    noted_pauses,
    payload,
    stored,
    written,
)


@pytest.mark.parametrize("how", ["gone", "silent"])
async def test_a_bookie_that_was_not_seen_in_an_earlier_segment_is_not_believed(models, how):
    """Only what it denies there would have shown that it lost its disk. It is back when the ledger is fenced, and the
    first bookie, with which it acknowledged the last entry, is away."""
    async with models.of(*"abcde", read_timeout=0.3) as client:
        ledger_id, first, second = await emptied_in_two_segments(models, client)
        if how == "gone":
            await models.lose(client, second)
        else:
            models.bookies[second].silent = True

        async def back(report):
            if how == "gone":
                await models.add(second)
            else:
                models.bookies[second].silent = False
            await models.stop(first)

        for checker in (LookThen(client, back), LedgerChecker(client)):
            with pytest.raises(RecoveryFailed):
                await close_now(client, checker, ledger_id)


async def test_one_time_out_at_the_look_is_no_reason_to_believe_a_bookie_no_more(models, monkeypatch):
    """The second bookie was away, and has everything. The first one is gone for good, so only the second one can tell
    the end."""
    async with models.of(*"abc") as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        for i in range(5):
            await ledger.append(payload(i))
        first, second, third = ledger.metadata.last_ensemble
        for bookie in (second, third):
            await stored(client, bookie, ledger.ledger_id, 4)
        await marked(models, ledger.ledger_id, second, Reason.ABSENT)
        await models.lose(client, first)
        checker = LedgerChecker(client)
        read = checker._reads.read

        async def times_out(look, bookie, ids):
            if bookie == second:
                return {}, {each: BookieTimeout(f"bookie {bookie} does not answer") for each in ids}
            return await read(look, bookie, ids)

        monkeypatch.setattr(checker._reads, "read", times_out)
        with pytest.raises(RecoveryFailed):
            await close_now(client, checker, ledger.ledger_id)
        mark = await models.service.under_replication.read(ledger.ledger_id)
        assert second not in distrusted(mark.doubts)
        assert (await client.metadata(ledger.ledger_id)).state is LedgerState.OPEN
        assert (await close_now(client, LedgerChecker(client), ledger.ledger_id)).last_entry_id == 4


@pytest.mark.parametrize("spare", [False, True])
async def test_a_silent_bookie_gets_nothing_of_a_recovery_that_the_others_end(models, spare):
    """What it got would vouch for it at the next attempt. It may have everything, so it is not doubted for good."""
    await models.add(*"abc")
    async with models.client(read_timeout=0.1) as client, models.client() as other:
        ledger_id, (first, second, third) = await half_acknowledged(models, client)
        await marked(models, ledger_id, second, Reason.ABSENT)
        if spare:
            await models.add("d")
            await until(lambda: "d" in other.bookies.known_writable)
        models.bookies[second].silent = True

        async def back(report):
            models.bookies[second].silent = False
            models.model(second).ledgers.clear()

        closed = await close_now(other, LookThen(client, back), ledger_id)
        assert closed.last_entry_id == 10
        assert closed.last_ensemble == (first, "d" if spare else second, third)
        assert models.held_at(second, ledger_id) == set()
        assert models.held_at(third, ledger_id) == set(range(11))
        mark = await models.service.under_replication.read(ledger_id)
        assert second not in distrusted(mark.doubts)


async def test_a_bookie_that_refuses_always_is_not_waited_for_without_a_way_out(models, monkeypatch):
    """It refuses to tell its last entry, and the first bookie is gone. A reader's recovery does not ask in this way."""
    async with models.of(*"abc") as client:
        ledger_id, first, second = await unconfirmed_end(models, client)
        await models.lose(client, first)
        read = client.operations.read_entry

        async def read_entry(bookie, ledger_id, entry_id, **options):
            if bookie == second and entry_id == LAST_ENTRY and not options:
                raise BadRequest(f"bookie {bookie} does not take this request")
            return await read(bookie, ledger_id, entry_id, **options)

        monkeypatch.setattr(client.operations, "read_entry", read_entry)
        with pytest.raises(RecoveryFailed, match=f"recover {ledger_id}`"):
            await close_now(client, LedgerChecker(client), ledger_id)
        assert (await client.metadata(ledger_id)).state is LedgerState.OPEN
        assert (await client.recover(ledger_id, password=PASSWORD)).last_entry_id == 2


async def unconfirmed_end(models, client):
    """An open ledger of three entries on all its bookies, none confirmed; its second bookie was away, by its mark."""
    ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
    await ledger.append_many(payload(i) for i in range(3))
    first, second, third = ledger.metadata.last_ensemble
    for bookie in (first, second, third):
        await stored(client, bookie, ledger.ledger_id, 2)
    await marked(models, ledger.ledger_id, second, Reason.ABSENT)
    return ledger.ledger_id, first, second


@pytest.mark.parametrize("others", ["tell the end", "are silent"])
async def test_a_wrong_password_damages_no_copy(models, others):
    """The ledger recorded neither its password nor its digest type, so only what the caller gives can verify copies."""
    async with models.of(*"abc") as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD, digest=DigestType.MAC)
        await ledger.append(payload(0))
        ensemble = first, second, _ = ledger.metadata.last_ensemble
        for bookie in ensemble:
            await stored(client, bookie, ledger.ledger_id, 0)
        await marked(models, ledger.ledger_id, second, Reason.ABSENT)
        if others == "are silent":
            await models.lose(client, first)
        stored_now = await client.metadata_service.ledgers.read(ledger.ledger_id)
        bare = replace(stored_now.value, digest_type=None, password=None)
        await client.metadata_service.ledgers.write(bare, stored_now.identity)
        with pytest.raises(Unauthorized):
            await close_now(client, LedgerChecker(client), ledger.ledger_id, b"another")
        mark = await models.service.under_replication.read(ledger.ledger_id)
        assert {each.reason for each in mark.doubts} == {Reason.ABSENT}
        assert (await client.metadata(ledger.ledger_id)).state is LedgerState.OPEN


async def test_a_machine_that_is_short_of_something_has_no_damaged_copies(models, monkeypatch):
    noted_pauses(monkeypatch, replica_reads)
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 10)
        models.model("b").fail_reads = ResourcesShort
        (segment,) = (await LedgerChecker(client).check(ledger_id)).fragments
        assert {each.verdict for each in segment.findings if each.bookie == "b"} == {ReplicaVerdict.UNREACHABLE}
        assert not segment.bad


async def went_on(models, client, lost):
    """An open ledger of six entries, none confirmed. The second bookie lost the first ones, and got those behind them
    from the writer afterwards; the third bookie got none. The second one is marked as absent, and the first one is
    gone."""
    ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
    await ledger.append_many(payload(i) for i in range(6))
    first, second, third = ledger.metadata.last_ensemble
    for bookie, upto in ((second, lost), (third, 6)):
        await stored(client, bookie, ledger.ledger_id, 5)
        for entry_id in range(upto):
            del models.model(bookie).ledgers[ledger.ledger_id].entries[entry_id]
    await marked(models, ledger.ledger_id, second, Reason.ABSENT)
    await models.lose(client, first)
    return ledger.ledger_id, second


async def test_a_bookie_that_has_a_gap_is_not_believed_because_its_writer_went_on(models):
    async with models.of(*"abc") as client:
        ledger_id, second = await went_on(models, client, lost=4)
        for _ in range(2):
            with pytest.raises(RecoveryFailed):
                await close_now(client, LedgerChecker(client), ledger_id)
        mark = await models.service.under_replication.read(ledger_id)
        assert second in distrusted(mark.doubts)


async def test_a_bookie_that_gives_no_list_shows_no_gap(models):
    async with models.of(*"abc") as client:
        ledger_id, second = await went_on(models, client, lost=0)
        models.model(second).lists = False
        assert (await close_now(client, LedgerChecker(client), ledger_id)).last_entry_id == 5
