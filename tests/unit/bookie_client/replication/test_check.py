"""Verdicts on replicas: what bookies say, what they do not say, and who is there."""

import asyncio
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client import patience
from bookie_client.access import replica_access
from bookie_client.bookies import Registration, Registrations
from bookie_client.replication import check, lists, replica_reads
from bookie_client.replication.check import (
    BUSY_TRIES,
    CheckOptions,
    LedgerChecker,
    ReplicaVerdict,
    sampled,
    verdict_of,
)
from bookie_client.replication.fragments import StripedEntries, fragments
from bookie_client.replication.lists import LISTS_TO_GIVE_UP
from bookie_client.replication.replicator import FragmentReplicator
from bookie_client.replication.source_reads import SourceReads
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol import errors
from bookie_protocol.entry import read_header
from bookie_protocol.errors import (
    BadRequest,
    BookieTimeout,
    BookieUnavailable,
    MetadataUnavailable,
    NoSuchLedger,
    NotThere,
    PodkeeperError,
    StorageFault,
)
from bookie_protocol.metadata_service.findings import Finding, Reason, absences, all_of
from bookie_protocol.wire.availability import decode_availability, encode_availability
from tests.support.until import until
from tests.unit.bookie_client.replication.cluster import (
    PASSWORD,
    CountingThrottle,
    noted_pauses,
    payload,
    stored,
    written,
)

ERRORS = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, PodkeeperError)]


def verdicts(report, fragment=0):
    return {found.bookie: found.verdict.name for found in report.fragments[fragment].findings}


@pytest.mark.parametrize("error", ERRORS)
def test_only_denials_and_damage_make_a_replica_bad(error):
    more = ("/ledgers",) if error is errors.DirectoryFault else ()
    verdict = verdict_of(error("as it was answered", *more))
    if issubclass(error, errors.NotThere):
        assert verdict is ReplicaVerdict.MISSING
    elif issubclass(error, errors.DigestMismatch | errors.StorageFault):
        assert verdict is ReplicaVerdict.DAMAGED
    elif issubclass(error, errors.LedgerStateUnknown):
        assert verdict is ReplicaVerdict.UNTOLD
    else:
        assert verdict is ReplicaVerdict.UNREACHABLE
    assert not (issubclass(error, BookieUnavailable) and verdict.is_bad)


@given(st.integers(0, 30), st.integers(-1, 300), st.integers(0, 100), st.integers(0, 9))
def test_samples_ascend_hold_both_ends_and_as_many_as_asked_for(first, more, percentage, seed):
    entries = StripedEntries(first, first + more, 0, 3, 2)
    ids = list(sampled(entries, percentage, Random(seed)))
    assert ids == sorted(set(ids))
    assert set(ids) <= set(entries)
    if len(entries):
        assert (ids[0], ids[-1]) == (entries[0], entries[-1])
    parts = len(entries) * percentage // 100
    assert parts - 2 <= len(ids) <= max(parts, 0) + 2
    if percentage == 100:
        assert ids == list(entries)


async def test_a_healthy_ledger(models, version):
    async with models.of(*"abc", protocol_version=version) as client:
        for count in (0, 1, 2, 50):
            report = await LedgerChecker(client).check(await written(client, count))
            assert report.is_healthy
            assert set(verdicts(report).values()) == ({"GOOD"} if count else {"EMPTY"})
        with pytest.raises(NoSuchLedger):
            await LedgerChecker(client).check(999)


async def test_what_is_wrong_with_each_replica(models, version):
    async with models.of(*"abcde", protocol_version=version) as client:
        ledger_id = await written(client, 30, ensemble=5, write_quorum=5)
        ensemble = (await client.metadata(ledger_id)).ensemble_for(0)
        gone, silent, missing, damaged, good = ensemble
        models.model(missing).ledgers[ledger_id].entries.pop(29)
        models.model(damaged).damage(ledger_id, 0)
        await models.lose(client, gone)
        await models.stop(silent)
        report = await LedgerChecker(client).check(ledger_id)
        assert verdicts(report) == {
            gone: "LOST",
            silent: "UNREACHABLE",
            missing: "MISSING",
            damaged: "DAMAGED",
            good: "GOOD",
        }
        assert [found.entry_id for found in report.fragments[0].findings] == [None, 0, 29, 0, None]
        assert report.fragments[0].bad == {0: gone, 2: missing, 3: damaged}
        assert report.fragments[0].unknown == {1: silent}
        assert report.cannot_tell
        assert not report.is_healthy


async def test_a_bookie_that_cannot_tell_is_never_bad(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 5)
        models.model("a").fail_reads = errors.LedgerStateUnknown
        report = await LedgerChecker(client).check(ledger_id)
        assert verdicts(report) == {"a": "UNTOLD", "b": "GOOD", "c": "GOOD"}
        assert report.cannot_tell
        assert not report.bad_fragments


@pytest.mark.parametrize(
    ("refusals", "verdict", "pauses"), [(2, "GOOD", [1, 2]), (BUSY_TRIES, "UNREACHABLE", [1, 2, 4])]
)
async def test_a_busy_bookie_is_asked_again_a_few_times(models, monkeypatch, refusals, verdict, pauses):
    slept = noted_pauses(monkeypatch, replica_reads)
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 1)
        model, asked = models.model("b"), []

        def busy(text):
            asked.append(text)
            if len(asked) == refusals:
                model.fail_reads = None
            return errors.TooManyRequests(text)

        model.fail_reads = busy
        assert verdicts(await LedgerChecker(client).check(ledger_id)) == {"a": "GOOD", "b": verdict, "c": "GOOD"}
        assert (len(asked), slept) == (refusals, pauses)


async def test_the_end_is_not_known_before_a_busy_bookie_was_heard(models, monkeypatch):
    """The others answer, and one of them knows of no entry."""
    slept = noted_pauses(monkeypatch, patience, "HEARD_SECONDS")
    async with models.of(*"abc") as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        for i in range(10):
            await ledger.append(payload(i))
        for bookie, last in zip("abc", (9, -1, 4), strict=True):
            await stored(client, bookie, ledger.ledger_id, 9)
            entries = models.model(bookie).ledgers[ledger.ledger_id].entries
            for entry_id in range(last + 1, 10):
                del entries[entry_id]
        model, read_lac = models.model("a"), models.model("a").read_lac

        def busy(ledger_id):
            model.read_lac = read_lac
            raise errors.TooManyRequests("not now")

        model.read_lac = busy
        assert (await LedgerChecker(client).check(ledger.ledger_id)).lac == 8
        assert slept == [1]


async def test_entries_between_the_ends_are_found_as_far_as_asked_for(models, version):
    async with models.of(*"abc", protocol_version=version) as client:
        ledger_id = await written(client, 150)
        del models.model("b").ledgers[ledger_id].entries[123]
        assert (await LedgerChecker(client).check(ledger_id)).is_healthy
        throttle = ReplicationThrottle()
        options = CheckOptions(verification_percentage=100, max_reads=7, throttle=throttle)
        report = await LedgerChecker(client, options).check(ledger_id)
        assert verdicts(report) == {"a": "GOOD", "b": "MISSING", "c": "GOOD"}
        assert {f.entry_id for f in report.fragments[0].findings} == {123, None}
        assert throttle.bytes_read > 2 * (await client.metadata(ledger_id)).length


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ([None] * 5, 5),
        ([BookieTimeout] * 5, LISTS_TO_GIVE_UP),
        ([BookieTimeout, BookieTimeout, None, *[BookieTimeout] * 4], 3 + LISTS_TO_GIVE_UP),
        ([BadRequest] * 5, 5),
    ],
    ids=["it tells", "silent", "silent again", "it refuses"],
)
async def test_of_bookies_in_doubt_every_copy_is_looked_for(models, said, asked, monkeypatch):
    """Whatever one says when it is asked for a list; only silence, which costs a time-out, is not met for ever."""
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 150)
        del models.model("b").ledgers[ledger_id].entries[123]

        left = list(said)

        async def entries_of_ledger(bookie, ledger_id):
            error = left.pop(0) if bookie == "b" else said[0]
            if error is not None:
                raise error("Java's with DbLedgerStorage")
            return decode_availability(encode_availability(sorted(models.model(bookie).ledgers[ledger_id].entries)))

        monkeypatch.setattr(client.operations, "entries_of_ledger", entries_of_ledger)
        checker = LedgerChecker(client)
        assert (await checker.check(ledger_id)).is_healthy
        assert (await checker.check(ledger_id, findings=absences("ac"))).is_healthy
        for _ in said:
            report = await checker.check(ledger_id, findings=absences("b"))
            assert verdicts(report) == {"a": "GOOD", "b": "MISSING", "c": "GOOD"}
            assert {f.entry_id for f in report.fragments[0].findings} == {123, None}
        assert len(said) - len(left) == asked


@pytest.mark.parametrize(("count", "lacked"), [(3, 0), (4, 1), (5, 2), (5, 4)])
async def test_an_entry_that_came_after_the_list_was_made_is_good(models, monkeypatch, count, lacked):
    """The list lacks it, and the bookie has it by now: whatever is read beside it, no entry is taken for another."""
    async with models.of(*"abc") as client:
        ledger_id = await written(client, count)

        async def entries_of_ledger(bookie, ledger_id):
            return decode_availability(encode_availability([each for each in range(count) if each != lacked]))

        monkeypatch.setattr(client.operations, "entries_of_ledger", entries_of_ledger)
        report = await LedgerChecker(client).check(ledger_id, findings=absences("abc"))
        assert verdicts(report) == dict.fromkeys("abc", "GOOD")


@pytest.mark.parametrize("lists", [True, False])
async def test_the_entries_that_a_finding_names_are_read_and_no_list_stands_for_them(models, version, lists):
    async with models.of(*"abc", protocol_version=version) as client:
        ledger_id = await written(client, 150)
        models.model("b").lists = lists
        models.model("b").damage(ledger_id, 123)
        checker = LedgerChecker(client)
        assert (await checker.check(ledger_id)).is_healthy
        named = [Finding("b", Reason.DAMAGED, ((120, 125),))]
        report = await checker.check(ledger_id, findings=named)
        assert verdicts(report) == {"a": "GOOD", "b": "DAMAGED", "c": "GOOD"}
        assert [found.entry_id for found in report.fragments[0].findings if found.entry_id is not None] == [123]
        assert not (await checker.check(ledger_id, findings=all_of("b"))).is_healthy
        models.model("b").ledgers[ledger_id].entries[123] = models.model("a").ledgers[ledger_id].entries[123]
        assert (await checker.check(ledger_id, findings=named)).is_healthy


async def test_an_absence_asks_for_no_more_than_lists_and_ends(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 150)
        models.model("b").damage(ledger_id, 123)
        before = models.requests()
        assert (await LedgerChecker(client).check(ledger_id, findings=absences("b"))).is_healthy
        assert models.requests() - before == 6


async def test_copies_that_were_found_to_diverge_are_compared_with_the_others(models, version):
    """Their digests are right: only a comparison tells."""
    async with models.of(*"abc", protocol_version=version) as client:
        ledger_id = await written(client, 60)
        held = models.model("b").ledgers[ledger_id].entries
        digest = replica_access(await client.metadata(ledger_id), None, b"").digest
        right, held[30] = held[30], digest.encode(ledger_id, 30, 29, 10_000, b"something else")
        checker = LedgerChecker(client)
        assert (await checker.check(ledger_id, findings=all_of("b"))).is_healthy
        divergent = [Finding("b", Reason.DIVERGENT, ((28, 31),))]
        report = await checker.check(ledger_id, findings=divergent)
        assert verdicts(report) == {"a": "GOOD", "b": "DIVERGENT", "c": "GOOD"}
        assert report.fragments[0].bad == {list(report.fragments[0].fragment.ensemble).index("b"): "b"}
        # A recovery that stored the entry again wrote another header, and nothing else.
        header = read_header(right)
        held[30] = digest.encode(ledger_id, 30, 3, header.length, right[digest.overhead :])
        assert (await checker.check(ledger_id, findings=divergent)).is_healthy
        for name in "ac":
            del models.model(name).ledgers[ledger_id].entries[30]
        report = await checker.check(ledger_id, findings=divergent)
        assert verdicts(report)["b"] == "UNREACHABLE"


@pytest.mark.parametrize("write_quorum", [3, 2])
async def test_entries_that_nobody_lists_are_found_without_a_read(models, write_quorum):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 90, write_quorum=write_quorum, ack_quorum=2)
        checker = LedgerChecker(client)
        (fragment,) = fragments(ledger_id, await client.metadata(ledger_id), -1)
        for name in "abc":
            models.model(name).ledgers[ledger_id].entries.pop(40, None)
        models.model("a").ledgers[ledger_id].entries.pop(41, None)
        before = models.requests()
        holders = fragment.write_set(40)
        assert await checker.holes(fragment, holders) == (40,)
        assert models.requests() == before
        models.model(fragment.ensemble[holders[0]]).lists = False
        assert await checker.holes(fragment, holders) == ()


async def test_who_holds_nothing_and_went_a_moment_ago_is_lost(models, monkeypatch):
    async def still_known():
        return frozenset("abc")

    async with models.of(*"abc") as client:
        ledger_id = await written(client, 0)
        checker = LedgerChecker(client)
        assert (await checker.check(ledger_id)).is_healthy
        await models.stop("b")
        await models.unregister("b")
        monkeypatch.setattr(client.bookies, "writable", still_known)
        report = await checker.check(ledger_id)
        assert verdicts(report)["b"] == "LOST"


async def test_striping_decides_who_is_asked(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 1, ensemble=4, write_quorum=2)
        ensemble = (await client.metadata(ledger_id)).ensemble_for(0)
        report = await LedgerChecker(client).check(ledger_id)
        assert [f.verdict.name for f in report.fragments[0].findings] == ["GOOD", "GOOD", "EMPTY", "EMPTY"]
        # A dead bookie is named wherever it stands, so that it leaves the metadata.
        await models.lose(client, ensemble[3])
        report = await LedgerChecker(client).check(ledger_id)
        assert report.fragments[0].bad == {3: ensemble[3]}


async def test_total_loss_of_the_only_entry_is_told(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 1)
        for name in "abc":
            models.model(name).ledgers.clear()
        report = await LedgerChecker(client).check(ledger_id)
        assert set(verdicts(report).values()) == {"MISSING"}


async def test_an_open_ledger_is_looked_at_up_to_its_last_add_confirmed(models, version):
    async with models.of(*"abc", protocol_version=version) as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        report = await LedgerChecker(client).check(ledger.ledger_id)
        assert (report.lac, set(verdicts(report).values())) == (-1, {"EMPTY"})
        for _ in range(10):
            await ledger.append(b"x")
        await until(lambda: all(len(models.held_at(name, ledger.ledger_id)) == 10 for name in "abc"))
        # The newest entry is its writer's alone: nobody else knows that it is acknowledged.
        del models.model("a").ledgers[ledger.ledger_id].entries[9]
        report = await LedgerChecker(client).check(ledger.ledger_id)
        assert report.lac == 8
        assert report.is_healthy
        del models.model("b").ledgers[ledger.ledger_id].entries[8]
        report = await LedgerChecker(client).check(ledger.ledger_id)
        assert verdicts(report)["b"] == "MISSING"
        assert not report.bad_fragments[0].fragment.is_closed
        await ledger.close()


async def test_an_open_ledger_whose_end_nobody_knows(models):
    async with models.of(*"abc") as client:
        ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        await ledger.append_many([b"x"] * 10)
        await models.lose(client, "a", "b")
        report = await LedgerChecker(client).check(ledger.ledger_id)
        assert report.lac == -1
        assert isinstance(report.lac_error, BookieUnavailable)
        assert report.cannot_tell
        assert set(report.fragments[0].bad.values()) == {"a", "b"}


async def test_a_bookie_that_turns_read_only_is_there(models):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 10)
        checker = LedgerChecker(client)
        await models.read_only("b")
        for _ in range(3):
            assert (await checker.check(ledger_id)).is_healthy


def test_options_make_sense():
    for bad in ({"verification_percentage": 101}, {"verification_percentage": -1}, {"max_reads": 0}):
        with pytest.raises(BadRequest):
            CheckOptions(**bad)


async def reached(client, bookie):
    """Until its requests go to where it is now, and not to the connection that it left behind."""
    await until(lambda: bookie in client.bookies.known_writable)
    async with asyncio.timeout(10):
        while True:
            try:
                await client.operations.read_entry(bookie, 10**9, 0)
            except NotThere:
                return
            except BookieUnavailable:
                await asyncio.sleep(0.01)


async def test_a_ledger_whose_segments_begin_behind_its_last_entry_is_sound(models):
    """As the reference may leave it: nothing is missing there, and a bookie that only they name can be replaced."""
    async with models.of(*"abcde") as client:
        ledger_id = await written(client, 10)
        stored = await client.stored_metadata(ledger_id)
        first = stored.value.ensemble_for(0)
        spares = sorted(set("abcde") - set(first))
        named = replace(stored.value, ensembles={0: first, 20: (spares[0], *first[1:]), 30: (spares[0], *first[1:])})
        await models.service.ledgers.write(named, stored.identity)
        assert (await LedgerChecker(client, CheckOptions(verification_percentage=100)).check(ledger_id)).is_healthy
        for fragment in fragments(ledger_id, await client.metadata(ledger_id), -1)[1:]:
            await FragmentReplicator(client).replicate(fragment, {0: spares[0]})
        assert spares[0] not in (await client.metadata(ledger_id)).all_bookies()


async def test_what_was_guessed_of_the_bytes_of_entries_is_put_right(models):
    async with models.of(*"abc") as client:
        async with client.create(ensemble=3, write_quorum=3, ack_quorum=3, password=PASSWORD) as ledger:
            await ledger.append_many([b"", *(bytes(10_000) for _ in range(20)), b""])
        throttle = ReplicationThrottle()
        await LedgerChecker(client, CheckOptions(throttle=throttle)).check(ledger.ledger_id)
        # Of each replica the first and the last entry, which are small, whatever the average is.
        assert 0 < throttle.bytes_read < 6 * 100


async def test_some_positions_are_looked_at_again(models):
    async with models.of(*"abcd") as client:
        ledger_id = await written(client, 60)
        names = (await client.metadata(ledger_id)).ensemble_for(0)
        held = models.model(names[0]).ledgers[ledger_id].entries
        gap = held.pop(30)  # neither the first nor the last
        await models.lose(client, names[1])
        checker = LedgerChecker(client)
        report = await checker.check(ledger_id, findings=absences(names[:1]))
        (found,) = report.fragments
        assert found.bad == {0: names[0], 1: names[1]}
        again = await checker.check_again(report.metadata.value, found, [0], findings=absences(names[:1]))
        assert [(each.bookie, each.verdict, each.entry_id) for each in again.findings] == [
            (each.bookie, each.verdict, each.entry_id) for each in found.findings
        ]
        held[30] = gap
        again = await checker.check_again(report.metadata.value, found, [0], findings=absences(names[:1]))
        assert again.bad == {1: names[1]}
        assert [each.position for each in again.findings] == [0, 1, 2]
        await models.add(names[1])  # it is back, without its data, at another address
        await reached(client, names[1])
        async with asyncio.timeout(5):  # at another port, which the client may hear of after the registration
            while not await client.operations._pool.reachable(names[1]):  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.002)
        again = await checker.check_again(report.metadata.value, found, [1])
        assert (again.findings[0], again.findings[2]) == (found.findings[0], found.findings[2])
        assert again.findings[1].verdict is ReplicaVerdict.MISSING


@pytest.mark.parametrize(("knows_batches", "knows_steps"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("write_quorum", [4, 2], ids=["every bookie has all", "striped"])
async def test_a_full_check_takes_few_requests_and_each_is_counted(models, write_quorum, knows_batches, knows_steps):
    await models.add(*"abcd")
    for name in "abcd":
        models.model(name).knows_batch_reads, models.model(name).knows_steps = knows_batches, knows_steps
    throttle = CountingThrottle()
    async with models.client() as client:
        ledger_id = await written(client, 200, ensemble=4, write_quorum=write_quorum, ack_quorum=2)
        before = models.requests()
        options = CheckOptions(verification_percentage=100, throttle=throttle)
        assert (await LedgerChecker(client, options).check(ledger_id)).is_healthy
        asked = models.requests() - before
    can = knows_batches if write_quorum == 4 else knows_steps
    assert asked < 60 if can else asked >= 200 * write_quorum
    if knows_batches:
        assert throttle.requests == asked
    else:  # which the model bookies do not count: they hang up
        assert asked < throttle.requests <= asked + 4 * 64


@pytest.mark.parametrize("knows_steps", [True, False])
async def test_no_more_reads_are_under_way_than_may_be(models, monkeypatch, knows_steps):
    """Of bookies with more places in the striping period than reads may be under way, asked by batch or one by one."""
    names = "abcdefgh"
    await models.add(*names)
    for name in names:
        models.model(name).knows_steps = knows_steps
    under_way = most = 0
    singly = SourceReads._singly

    async def counted(requests, read):
        nonlocal under_way, most
        under_way += requests
        most = max(most, under_way)
        try:
            return await read
        finally:
            under_way -= requests

    async with models.client() as client:
        ledger_id = await written(client, 120, ensemble=8, write_quorum=6, ack_quorum=2)
        batch_read = client.operations.batch_read
        monkeypatch.setattr(
            client.operations, "batch_read", lambda *what, **step: counted(1, batch_read(*what, **step))
        )
        monkeypatch.setattr(
            SourceReads, "_singly", lambda self, bookie, ids, *more: counted(len(ids), singly(self, bookie, ids, *more))
        )
        checker = LedgerChecker(client, CheckOptions(verification_percentage=100, max_reads=5))
        assert (await checker.check(ledger_id)).is_healthy
    assert 0 < most <= 5


@pytest.mark.parametrize(
    ("error", "lac_error"),
    [(errors.MetadataUnavailable, None), (BookieTimeout, BookieTimeout)],
    ids=["metadata", "bookies"],
)
async def test_the_end_of_an_open_ledger_that_nobody_tells(models, monkeypatch, error, lac_error):
    await models.add(*"abc")

    async def failing(*_, **__):
        raise error("no answer")

    monkeypatch.setattr(check, "read_last_confirmed", failing)
    async with models.client() as client, client.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
        await ledger.append_many([b"x"] * 3)
        if lac_error is None:
            with pytest.raises(error):
                await LedgerChecker(client).check(ledger.ledger_id)
            return
        report = await LedgerChecker(client).check(ledger.ledger_id)
        assert (type(report.lac_error), report.lac, report.cannot_tell) == (lac_error, -1, True)
        assert (report.is_healthy, report.bad_fragments) == (False, ())


@pytest.mark.parametrize(
    ("then", "forces", "is_durable"), [(None, 2, True), (StorageFault, 2, False), (BadRequest, BUSY_TRIES, True)]
)
async def test_a_force_that_failed_is_no_sign_of_an_older_bookie(models, monkeypatch, then, forces, is_durable):
    """Java's bookies answer alike to a request that they do not know, and to one that they failed to carry out."""
    await models.add("a")
    model = models.model("a")
    model.fail_forces = BadRequest
    pauses = noted_pauses(monkeypatch, check)
    again = check.Patience.again

    async def waited(patience):
        model.fail_forces = then
        return await again(patience)

    monkeypatch.setattr(check.Patience, "again", waited)
    async with models.client() as client:
        ledger_id = await written(client, 1, ensemble=1, write_quorum=1, ack_quorum=1)
        checker = LedgerChecker(client)
        reason = await checker.make_durable(await checker.check(ledger_id), ["a"])
    assert (model.forces, reason is None) == (forces, is_durable)
    assert pauses == [2**each for each in range(forces - 1)]


@pytest.mark.parametrize("gives_lists", [True, False])
async def test_a_bookie_that_restarted_before_the_force_has_not_made_durable_what_was_seen_there(models, gives_lists):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 20, ack_quorum=3)
        checker = LedgerChecker(client)
        report = await checker.check(ledger_id)
        bookie = report.metadata.value.last_ensemble[1]
        model = models.model(bookie)
        model.lists = gives_lists
        assert await checker.make_durable(report, [bookie]) is None
        model.ledgers[ledger_id].unsynced.update(range(5, 20))  # seen by the look, and gone with the process
        model.crash()
        assert await checker.make_durable(report, [bookie]) is not None


async def test_a_bookie_that_is_being_filled_is_read_whole(models, monkeypatch):
    """Of what its list lacked, the first entry has come when it is read; others have not."""
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 100, ack_quorum=3)
        bookie = (await client.metadata(ledger_id)).last_ensemble[1]
        held = models.model(bookie).ledgers[ledger_id].entries
        gone = {entry_id: held.pop(entry_id) for entry_id in range(10, 60)}
        listed = lists.Lists.of

        async def then_comes_a_piece(self, asked, ledger_id):
            found = await listed(self, asked, ledger_id)
            if asked == bookie:
                held.update({entry_id: gone[entry_id] for entry_id in range(10, 14)})
            return found

        monkeypatch.setattr(lists.Lists, "of", then_comes_a_piece)
        report = await LedgerChecker(client).check(ledger_id, findings=[Finding(bookie, Reason.MISSING, ((10, 10),))])
        assert verdicts(report)[bookie] == "MISSING"


async def test_a_look_that_fails_leaves_no_reads_behind(models, monkeypatch):
    async with models.of(*"abc") as client:
        ledger_id = await written(client, 30, ack_quorum=3)
        gone = (await client.metadata(ledger_id)).last_ensemble[1]
        reading, ends = asyncio.Event(), asyncio.Event()

        async def read(self, look, bookie, ids):
            reading.set()
            try:
                await asyncio.Event().wait()
            finally:
                ends.set()

        async def registration(self, bookie, **options):
            if bookie == gone:
                await reading.wait()
                raise MetadataUnavailable("a hiccup")
            return Registration.WRITABLE

        monkeypatch.setattr(replica_reads.ReplicaReads, "read", read)
        monkeypatch.setattr(Registrations, "of", registration)
        with pytest.raises(MetadataUnavailable):
            await LedgerChecker(client).check(ledger_id)
        assert ends.is_set()


async def test_others_have_their_turns_while_long_lists_are_compared(monkeypatch):
    monkeypatch.setattr(lists, "YIELD_EVERY", 3)
    entries, turns = StripedEntries(0, 9, 0, 1, 1), []

    async def counting():
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    other = asyncio.ensure_future(counting())
    assert await lists.first_missing(entries, decode_availability(encode_availability(range(10)))) is None
    assert len(turns) == 3
    assert await lists.first_missing(entries, decode_availability(encode_availability([0, 1]))) == 2
    assert len(turns) == 3
    other.cancel()
