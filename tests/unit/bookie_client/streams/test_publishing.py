"""Publishing: each batch once, all or none, and what a set-back application is told."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.streams import Manifest, PublishedLedger, StreamSettings, Txn, publishing
from bookie_client.streams.model import STREAM_KEY
from bookie_client.streams.publishing import published
from bookie_client.streams.store import MAX_ATTEMPTS
from bookie_protocol.errors import (
    BadRequest,
    MetadataUnavailable,
    MetadataVersionConflict,
    NoSuchLedger,
    NoSuchStream,
    Refused,
    StreamInUse,
    StreamPositionGone,
    StreamTransactionConflict,
)
from bookie_protocol.versioned import UNSTORED
from tests.unit.bookie_client.streams.conftest import SETTINGS, read_all


async def written(client, *payloads, password=b"secret"):
    async with client.create(write_quorum=3, password=password) as ledger:
        await ledger.append_many(payloads)
    return PublishedLedger(ledger.ledger_id, len(payloads), sum(map(len, payloads)))


async def test_ledgers_are_read_in_the_order_in_which_they_were_published(client, streams):
    late, early = await written(client, b"a", b"b"), await written(client, b"c")
    result = await streams.publish("s", [early, late], Txn("q", 0, 3))
    assert result.is_new
    assert result.unlisted == ()
    assert (str(result.start), str(result.end)) == ("1:0", "0:2")
    assert await read_all(streams) == [b"c", b"a", b"b"]
    assert await read_all(streams, start=result.start, to=result.end) == [b"c", b"a", b"b"]


async def test_the_same_batch_again_changes_nothing_and_names_what_is_not_needed(client, streams):
    first = await written(client, b"a")
    await streams.publish("s", [first], Txn("q", 7, 1))
    again, empty = await written(client, b"a"), await written(client)
    result = await streams.publish("s", [again, empty], Txn("q", 7, 1))
    assert not result.is_new
    assert result.unlisted == (again.ledger_id, empty.ledger_id)
    assert (await streams.publish("s", [first], Txn("q", 7, 1))).unlisted == ()
    assert await read_all(streams) == [b"a"]


@pytest.mark.parametrize(
    ("txn", "told"),
    [
        (Txn("q", 7, 2, 99), "2 rows"),
        (Txn("q", 6, 1, 99), "batch 7"),
        (Txn("q", 7, 1, 98), "content"),
    ],
)
async def test_an_application_that_was_set_back_is_refused(client, streams, txn, told):
    await streams.publish("s", [await written(client, b"a")], Txn("q", 7, 1, 99))
    with pytest.raises(StreamTransactionConflict, match=told):
        await streams.publish("s", [await written(client, b"b")], txn)
    assert await read_all(streams) == [b"a"]


@pytest.mark.parametrize("txn", [Txn("q", 7, 1), Txn("q", 7, 1, 99)])
async def test_a_checksum_counts_only_when_both_are_known(client, streams, txn):
    await streams.publish("s", [await written(client, b"a")], replace(txn, checksum=None))
    assert not (await streams.publish("s", [await written(client, b"a")], txn)).is_new


async def test_applications_do_not_know_each_other(client, streams):
    for app, batch in [("q1", 5), ("q2", 3), ("q1", 6), ("q2", 4)]:
        assert (await streams.publish("s", [await written(client, app.encode())], Txn(app, batch, 1))).is_new
    assert await read_all(streams) == [b"q1", b"q2", b"q1", b"q2"]
    transactions = (await streams.manifest("s")).transactions
    assert {app: last.batch_id for app, last in transactions.items()} == {"q1": 6, "q2": 4}


async def test_an_empty_batch_is_remembered(client, streams):
    empty = await written(client)
    result = await streams.publish("s", [empty], Txn("q", 0, 0))
    assert result.is_new
    assert result.unlisted == (empty.ledger_id,)
    assert (await streams.manifest("s")).ledgers == ()
    with pytest.raises(StreamTransactionConflict):
        await streams.publish("s", [await written(client, b"a")], Txn("q", 0, 1))


async def test_without_a_transaction_the_ledgers_themselves_tell(client, streams):
    ledgers = [await written(client, b"a"), await written(client, b"b")]
    assert (await streams.publish("s", ledgers)).is_new
    assert not (await streams.publish("s", ledgers)).is_new
    assert not (await streams.publish("s", [])).is_new
    with pytest.raises(BadRequest, match="belong"):
        await streams.publish("s", [ledgers[0], await written(client, b"c")])
    with pytest.raises(BadRequest, match="belong"):
        await streams.publish("s", ledgers, Txn("q", 0, 2))
    assert await read_all(streams) == [b"a", b"b"]


async def test_what_is_not_as_it_is_said_to_be_is_refused(client, streams):
    good = await written(client, b"a")
    open_one = await client.create(write_quorum=3, password=b"secret")
    for ledger, error, told in [
        (replace(good, entries=2), BadRequest, "2 of 1"),
        (replace(good, nbytes=2), BadRequest, "1 of 2"),
        (PublishedLedger(open_one.ledger_id, 1, 1), BadRequest, "closed"),
        (PublishedLedger(4711, 1, 1), NoSuchLedger, "4711"),
    ]:
        with pytest.raises(error, match=told):
            await streams.publish("s", [ledger])
    with pytest.raises(BadRequest, match="twice"):
        await streams.publish("s", [good, good])
    await open_one.close()
    assert (await streams.manifest("s")).ledgers == ()


async def test_nothing_is_published_behind_an_open_ledger(client, streams):
    ledger = await written(client, b"b")
    writer = streams.writer("s")
    await writer.start()
    await writer.append(b"a")
    with pytest.raises(StreamInUse, match="seal"):
        await streams.publish("s", [ledger], Txn("q", 0, 1))
    await streams.seal("s")
    await streams.publish("s", [ledger], Txn("q", 0, 1))
    await writer.close()
    assert await read_all(streams) == [b"a", b"b"]


async def test_no_stream(client, streams):
    with pytest.raises(NoSuchStream):
        await streams.publish("other", [])


async def test_a_lost_answer_is_found_by_the_next_try(client, streams, three):
    ledger = await written(client, b"a")

    def lose(line):
        if line == "update stream s":
            three.metadata.all_records.after = lambda line: None
            raise MetadataUnavailable("the answer was lost")

    three.metadata.all_records.after = lose
    with pytest.raises(MetadataUnavailable):
        await streams.publish("s", [ledger], Txn("q", 0, 1))
    result = await streams.publish("s", [ledger], Txn("q", 0, 1))
    assert not result.is_new
    assert result.unlisted == ()
    assert await read_all(streams) == [b"a"]


async def test_many_publish_at_the_same_time(client, streams):
    async def application(number):
        for batch in range(5):
            ledger = await written(client, b"%d.%d" % (number, batch))
            await streams.publish("s", [ledger], Txn(f"q{number}", batch, 1))

    await asyncio.gather(*(application(number) for number in range(6)))
    entries = await read_all(streams)
    assert sorted(entries) == sorted(b"%d.%d" % (number, batch) for number in range(6) for batch in range(5))
    for number in range(6):
        mine = [each for each in entries if each.startswith(b"%d." % number)]
        assert mine == [b"%d.%d" % (number, batch) for batch in range(5)]


# --- overwrite ------------------------------------------------------------------------------------------------


async def test_an_overwrite_begins_a_generation_and_deletes_the_old_one_later(client, streams, three, clock):
    old = await written(client, b"old")
    before = await streams.publish("s", [old])
    manifest = before.manifest
    new = await written(client, b"new")
    result = await streams.publish("s", [new], Txn("q", 0, 1), replace=True)
    assert result.manifest.generation == 1
    assert await read_all(streams) == [b"new"]
    assert result.manifest.ordinal(result.start) == 1  # ordinals never go back
    with pytest.raises(StreamPositionGone):
        await read_all(streams, start=before.end)
    # who began before goes on with the ledgers of then
    assert await streams.apply_retention("s") == ()
    async with client.open(manifest.ledgers[0].ledger_id, password=b"secret") as ledger:
        assert [entry.payload async for entry in ledger.entries()] == [b"old"]
    assert await streams.retired("s") == {old.ledger_id}
    assert not (await streams.publish("s", [], Txn("q", 0, 1), replace=True)).is_new
    clock.now += 3600
    assert await streams.apply_retention("s") == (old.ledger_id,)
    assert set(three.metadata.ledgers.stored) == {new.ledger_id}


async def test_ledgers_that_were_overwritten_are_not_given_back_for_deletion(client, streams):
    old = await written(client, b"old")
    await streams.publish("s", [old], Txn("q", 0, 1))
    await streams.publish("s", [await written(client, b"new")], replace=True)
    replayed = await streams.publish("s", [old], Txn("q", 0, 1))
    assert not replayed.is_new
    assert replayed.unlisted == ()  # the stream itself deletes it when nobody reads it any more


async def test_an_overwrite_with_nothing(client, streams):
    await streams.publish("s", [await written(client, b"old")])
    result = await streams.publish("s", [], replace=True)
    assert result.is_new
    assert await read_all(streams) == []
    assert await read_all(streams, start=result.manifest.earliest) == []
    await streams.publish("s", [await written(client, b"new")])
    assert await read_all(streams, start=result.manifest.earliest) == [b"new"]


# --- many applications ----------------------------------------------------------------------------------------


def empty_manifest(**members):
    return Manifest("s", UNSTORED, 0, (), StreamSettings(), **members)


def test_the_memory_for_applications_is_bounded(monkeypatch):
    monkeypatch.setattr(publishing, "MAX_TRANSACTIONS", 3)
    manifest = empty_manifest()
    for app in range(3):
        manifest = published(manifest, [], Txn(f"q{app}", 0, 0), replacing=False, now_ms=0)
    with pytest.raises(Refused, match="3 applications"):
        published(manifest, [], Txn("q3", 0, 0), replacing=False, now_ms=publishing.FORGOTTEN_AFTER_MS - 1)
    later = published(manifest, [], Txn("q3", 0, 0), replacing=False, now_ms=publishing.FORGOTTEN_AFTER_MS)
    assert set(later.transactions) == {"q3"}


batches = st.lists(st.tuples(st.sampled_from(["q1", "q2"]), st.integers(0, 6), st.integers(0, 3)), max_size=25)


@given(batches)
def test_whatever_is_published_each_batch_is_there_once(calls):
    """Against a model: per application the last batch and its rows."""
    manifest, model, expected = empty_manifest(), {}, []
    for number, (app, batch, rows) in enumerate(calls):
        ledgers = [PublishedLedger(number, rows, rows)] if rows else []
        last = model.get(app)
        try:
            changed = published(manifest, ledgers, Txn(app, batch, rows), replacing=False, now_ms=number)
        except StreamTransactionConflict:
            assert last is not None
            assert batch < last[0] or (batch == last[0] and rows != last[1])
            continue
        assert (changed is None) == (last == (batch, rows))
        if changed is not None:
            assert last is None or batch > last[0]
            model[app] = batch, rows
            expected += [number] if rows else []
            manifest = changed
    assert [ledger.ledger_id for ledger in manifest.ledgers] == expected
    ordinals = [ledger.first_ordinal for ledger in manifest.ledgers]
    assert ordinals == [sum(ledger.entries for ledger in manifest.ledgers[:i]) for i in range(len(expected))]


# --- a ledger is one stream's -----------------------------------------------------------------------------------


async def owner(client, ledger_id):
    return (await client.metadata(ledger_id)).custom_metadata.get(STREAM_KEY)


async def test_a_ledger_that_is_published_becomes_the_streams_own(client, streams):
    made = await written(client, b"a")
    assert await owner(client, made.ledger_id) is None
    await streams.publish("s", [made])
    assert await owner(client, made.ledger_id) == b"s"


async def test_a_ledger_of_another_stream_is_refused(client, streams):
    await streams.create("other", (await streams.manifest("s")).settings)
    made = await written(client, b"a")
    await streams.publish("s", [made])
    with pytest.raises(BadRequest, match=r"stream s.* other"):
        await streams.publish("other", [made])
    await streams.delete("other")
    assert await read_all(streams) == [b"a"]


async def test_of_two_streams_that_take_a_ledger_at_once_one_has_it(client, streams):
    await streams.create("other", (await streams.manifest("s")).settings)
    made = await written(client, b"a")
    tried = await asyncio.gather(*(streams.publish(name, [made]) for name in ("s", "other")), return_exceptions=True)
    assert sorted(isinstance(each, BadRequest) for each in tried) == [False, True]
    listing = [name for name in ("s", "other") if made.ledger_id in await streams.manifest(name)]
    assert [name.encode() for name in listing] == [await owner(client, made.ledger_id)]


async def test_a_deletion_that_was_decided_before_the_ledger_was_published_fails(client, streams):
    made = await written(client, b"a")
    judged = await client.stored_metadata(made.ledger_id)
    await streams.publish("s", [made])
    with pytest.raises(MetadataVersionConflict):
        await client.metadata_service.ledgers.delete_this(judged)


async def test_ledgers_are_looked_at_again_when_another_change_came_first(client, streams, monkeypatch):
    """As when an abort that takes the batch for lost deletes its ledgers, behind a change of the stream."""
    made = await written(client, b"a")
    replace_head = streams._store.replace

    async def aborted(stored, manifest):
        monkeypatch.setattr(streams._store, "replace", replace_head)
        await streams.configure("s", replace(stored.manifest.settings, retention_bytes=1 << 40))
        await client.delete(made.ledger_id)
        return await replace_head(stored, manifest)

    monkeypatch.setattr(streams._store, "replace", aborted)
    with pytest.raises(NoSuchLedger):
        await streams.publish("s", [made], Txn("q", 0, 1))
    assert (await streams.manifest("s")).ledgers == ()


# --- what is replaced goes --------------------------------------------------------------------------------------


async def test_what_an_overwrite_replaced_is_deleted_by_the_next_publication(client, streams, three, clock):
    await streams.configure("s", StreamSettings(**SETTINGS, deletion_lag_seconds=60.0))
    first, second, third = [await written(client, b"%d" % n) for n in range(3)]
    await streams.publish("s", [first], Txn("q", 0, 1))
    await streams.publish("s", [second], Txn("q", 1, 1), replace=True)
    clock.now += 59
    await streams.publish("s", [], Txn("q", 2, 0))
    assert first.ledger_id in three.metadata.ledgers.stored
    clock.now += 1
    await streams.publish("s", [third], Txn("q", 3, 1), replace=True)
    assert set(three.metadata.ledgers.stored) == {second.ledger_id, third.ledger_id}
    assert await streams.retired("s") == {second.ledger_id}


async def test_retention_counts_for_a_stream_without_writers(client, streams, three, clock):
    await streams.configure("s", StreamSettings(**SETTINGS, retention_seconds=60.0))
    old, kept, new = [await written(client, b"%d" % n) for n in range(3)]
    await streams.publish("s", [old])
    await streams.publish("s", [kept])
    await streams.move_cursor("s", "c", (await streams.manifest("s")).position_at(1))
    clock.now += 60
    await streams.publish("s", [new])
    assert await read_all(streams) == [b"1", b"2"]
    assert set(three.metadata.ledgers.stored) == {kept.ledger_id, new.ledger_id}


async def test_wide_overwrites_leave_no_more_and_more_behind(client, streams, three, monkeypatch):
    monkeypatch.setattr("bookie_client.streams.streams.SWEPT_TOGETHER", 1)
    await streams.configure("s", StreamSettings(**SETTINGS, deletion_lag_seconds=0.0))
    for batch in range(4):
        ledgers = [await written(client, b"%d" % n) for n in range(3)]
        await streams.publish("s", ledgers, Txn("q", batch, 3), replace=True)
        assert len(three.metadata.ledgers.stored) <= 6


async def test_a_batch_is_published_though_what_is_due_cannot_be_deleted(client, streams, three, clock):
    await streams.configure("s", StreamSettings(**SETTINGS, deletion_lag_seconds=0.0))
    first, second = await written(client, b"a"), await written(client, b"b")
    await streams.publish("s", [first])

    async def away(*_, **__):
        raise MetadataUnavailable("no answer")

    delete, three.metadata.ledgers.delete = three.metadata.ledgers.delete, away
    assert (await streams.publish("s", [second], replace=True)).is_new
    assert await read_all(streams) == [b"b"]
    three.metadata.ledgers.delete = delete
    await streams.publish("s", [], Txn("q", 0, 0))
    assert set(three.metadata.ledgers.stored) == {second.ledger_id}


async def test_many_who_change_one_stream_at_once_all_come_through(streams, monkeypatch):
    count = 3 * MAX_ATTEMPTS // 2
    read = streams._store.read

    async def read_like_the_others(name, **options):
        found = await read(name, **options)
        await asyncio.sleep(0)
        return found

    monkeypatch.setattr(streams._store, "read", read_like_the_others)

    async def changed():
        await streams._store.update("s", lambda each: replace(each, epoch=each.epoch + 1))

    await asyncio.gather(*(changed() for _ in range(count)))
    assert (await streams.manifest("s")).epoch == count
