"""What would be lost if bookies went now."""

import pytest

from bookie_client.replication import safety
from bookie_client.replication.replicator import FragmentReplicator
from bookie_client.replication.safety import Risk, safety_check
from bookie_protocol.errors import MetadataNotFound, MetadataUnavailable
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.unit.bookie_client.replication.cluster import PASSWORD, written
from tests.unit.bookie_client.replication.restoring import fragment_of


async def members(client, ledger_id):
    return (await client.metadata(ledger_id)).ensemble_for(0)


def seen(report):
    return {each.ledger_id: (each.risk, each.copies_left) for each in report.listed}


async def test_a_ledger_with_a_copy_to_spare_is_safe(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 10)
        (stays_away,) = set("abcd") - set(await members(client, ledger_id))
        one, two, three = await members(client, ledger_id)
        report = await safety_check(client, [one])
        assert report.is_safe
        assert (report.ledgers_seen, report.ledgers_concerned) == (1, 1)
        assert (await safety_check(client, [stays_away])).ledgers_concerned == 0
        report = await safety_check(client, [one, two])
        assert seen(report) == {ledger_id: (Risk.BELOW_ACK_QUORUM, 1)}
        report = await safety_check(client, [one, two, three])
        assert seen(report) == {ledger_id: (Risk.NO_COPY, 0)}
        assert (report.no_copy, report.below_ack_quorum, report.unknown) == (1, 0, 0)


async def test_striping_is_looked_at(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 1, ensemble=4, write_quorum=2, ack_quorum=1)
        ensemble = await members(client, ledger_id)
        assert (await safety_check(client, ensemble[2:])).is_safe  # they hold nothing of it
        assert seen(await safety_check(client, ensemble[:2])) == {ledger_id: (Risk.NO_COPY, 0)}
        many = await written(client, 4, ensemble=4, write_quorum=2, ack_quorum=1)
        ensemble = await members(client, many)
        assert many not in seen(await safety_check(client, [ensemble[0], ensemble[2]]))
        assert seen(await safety_check(client, [ensemble[0], ensemble[1]]))[many] == (Risk.NO_COPY, 0)


async def test_copies_that_others_lack_are_not_the_fault_of_those_that_go(models):
    async with models.of(*"abcde") as client:
        ledger_id = await written(client, 5, ensemble=5, write_quorum=2, ack_quorum=1)
        ensemble = await members(client, ledger_id)
        for name in ensemble[2:4]:
            await models.lose(client, name)
        assert (await safety_check(client, [ensemble[0]])).is_safe
        assert seen(await safety_check(client, [ensemble[1]])) == {ledger_id: (Risk.NO_COPY, 0)}


@pytest.mark.parametrize("first_is_worse", [True, False])
async def test_a_ledger_counts_as_the_worst_of_its_segments(models, first_is_worse):
    await models.add(*"ab")
    bad, worse = ("a", "b", "x"), ("a", "x", "y")
    segments = {0: worse, 5: bad} if first_is_worse else {0: bad, 5: worse}
    made = LedgerMetadata(7, 3, 3, 2, segments).closed(9, 100)
    async with models.client() as client:
        await models.service.ledgers.create(made)
        (found,) = (await safety_check(client, ["a"])).listed
        assert (found.risk, found.copies_left, found.first_entry) == (Risk.NO_COPY, 0, 0 if first_is_worse else 5)
        await models.service.under_replication.mark(7, ["b"], ctime_ms=None)
        (found,) = (await safety_check(client, ["a"])).listed
        assert (found.risk, found.copies_left) == (Risk.NO_COPY, 0)


async def test_bookies_that_are_gone_silent_or_marked_do_not_count(models, monkeypatch):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 10)
        one, two, three = await members(client, ledger_id)
        assert (await safety_check(client, [one])).is_safe
        await models.service.under_replication.mark(ledger_id, [two], ctime_ms=None)
        report = await safety_check(client, [one])
        assert seen(report) == {ledger_id: (Risk.BELOW_ACK_QUORUM, 1)}
        assert f"{two} is marked as missing" in report.listed[0].detail
        await models.service.under_replication.unmark(ledger_id)
        assert (await safety_check(client, [one])).is_safe
        models.bookies[three].silent = True  # with its connection and its registration, as a process that was stopped
        report = await safety_check(client, [one])
        assert seen(report) == {ledger_id: (Risk.UNKNOWN, 1)}
        models.bookies[three].silent = False
        await models.stop(three)
        report = await safety_check(client, [one])
        assert seen(report) == {ledger_id: (Risk.UNKNOWN, 1)}
        assert f"{three} does not answer" in report.listed[0].detail
        await models.unregister(three)
        report = await safety_check(client, [one])
        assert seen(report) == {ledger_id: (Risk.BELOW_ACK_QUORUM, 1)}
        assert f"{three} is down" in report.listed[0].detail

        async def nobody_can_tell(registry, bookie, group):
            raise MetadataUnavailable("no answer")

        monkeypatch.setattr(type(models.service.bookies), "is_registered", nobody_can_tell)
        report = await safety_check(client, [one])
        assert seen(report) == {ledger_id: (Risk.UNKNOWN, 1)}


async def test_of_a_ledger_without_slack_no_bookie_can_be_stopped_and_its_other_copies_have_to_stay(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 10, ensemble=3, write_quorum=3, ack_quorum=3)
        one, two, _ = await members(client, ledger_id)
        report = await safety_check(client, [one])
        assert seen(report) == {ledger_id: (Risk.NO_SLACK, 2)}
        assert (report.no_slack, report.below_ack_quorum, report.is_safe) == (1, 0, False)
        assert seen(await safety_check(client, [one, two])) == {ledger_id: (Risk.BELOW_ACK_QUORUM, 1)}
        await models.service.under_replication.mark(ledger_id, [two], ctime_ms=None)
        assert seen(await safety_check(client, [one])) == {ledger_id: (Risk.BELOW_ACK_QUORUM, 1)}


async def test_a_read_only_bookie_keeps_what_it_has(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 10)
        one, two, _ = await members(client, ledger_id)
        await models.read_only(two)
        assert (await safety_check(client, [one])).is_safe


async def test_an_open_ledger_counts_even_while_it_is_empty(models):
    async with models.of(*"abc") as client:
        async with client.create(ensemble=2, write_quorum=2, ack_quorum=2, password=PASSWORD) as ledger:
            one = (await members(client, ledger.ledger_id))[0]
            assert seen(await safety_check(client, [one])) == {ledger.ledger_id: (Risk.NO_SLACK, 1)}
        assert (await safety_check(client, [one])).is_safe  # closed without an entry


async def test_what_cannot_be_read_is_unsafe(models, monkeypatch):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 10)
        broken, deleted = [await written(client, 10) for _ in range(2)]
        ledgers, original = models.service.ledgers, models.service.ledgers.read

        async def read(asked, **options):
            if asked == broken:
                raise MetadataUnavailable("no answer")
            if asked == deleted:
                raise MetadataNotFound("since it was listed")
            return await original(asked, **options)

        monkeypatch.setattr(ledgers, "read", read)
        report = await safety_check(client, ["nobody:3181"])
        assert seen(report) == {broken: (Risk.UNKNOWN, 0)}
        assert (report.ledgers_seen, report.ledgers_concerned, report.is_safe) == (2, 1, False)
        monkeypatch.undo()

        async def unreadable(asked, **options):
            raise MetadataUnavailable("no answer")

        monkeypatch.setattr(models.service.under_replication, "read", unreadable)
        one = (await members(client, ledger_id))[0]
        report = await safety_check(client, [one])
        assert report.unknown == report.ledgers_concerned >= 1


async def test_the_list_is_bounded_and_progress_is_told(models, monkeypatch):
    async with models.of(*"ab") as client:
        for _ in range(12):
            await written(client, 1, ensemble=2, write_quorum=2, ack_quorum=2)
        told = []
        report = await safety_check(client, ["a"], progress=lambda *state: told.append(state), max_listed=5)
        assert (report.no_slack, len(report.listed), told) == (12, 5, [(12, 12)])
        told.clear()
        monkeypatch.setattr(safety, "CONCURRENT_READS", 4)
        monkeypatch.setattr(safety, "PROGRESS_EVERY", 6)
        await safety_check(client, ["a"], progress=lambda *state: told.append(state))
        assert told == [(8, 8), (12, 12), (12, 12)]


async def test_what_was_unsafe_is_safe_once_it_was_copied(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 20, ensemble=1, write_quorum=1, ack_quorum=1)
        fragment = await fragment_of(client, ledger_id)
        (old,) = fragment.ensemble
        assert not (await safety_check(client, [old])).is_safe
        await FragmentReplicator(client).replicate(fragment, {0: old})
        assert (await safety_check(client, [old])).is_safe


@pytest.mark.parametrize("going", [[], ["nobody:3181"]])
async def test_nobody_goes(models, going):
    async with models.of(*"abc") as client:
        await written(client, 10)
        report = await safety_check(client, going)
        assert report.is_safe
        assert report.ledgers_concerned == 0
