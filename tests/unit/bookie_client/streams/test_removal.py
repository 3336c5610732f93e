"""Truncation, retention, deletion, cursors."""

import asyncio
import re
from dataclasses import replace

import pytest

from bookie_client.streams import PublishedLedger, StreamPosition, Streams, StreamSettings
from bookie_client.streams.cursors import _encode as encoded_cursor
from bookie_client.streams.manifest import LANDMARKS, truncated
from bookie_client.streams.publishing import published
from bookie_client.streams.store import GRAVE_MS, ManifestStore
from bookie_protocol.errors import (
    BadRequest,
    BookieUnavailable,
    MetadataDamaged,
    MetadataUnavailable,
    MetadataVersionConflict,
    NoSuchStream,
    StreamExists,
    StreamInUse,
    StreamPositionGone,
)
from bookie_protocol.metadata_service.records import STREAM_CURSOR
from tests.unit.bookie_client.streams.conftest import SETTINGS, read_all

TEN = StreamSettings(**SETTINGS, max_ledger_entries=10)


@pytest.fixture
async def fifty(streams):
    """Stream "s" with five ledgers of ten entries, each a byte."""
    await streams.configure("s", TEN)
    async with streams.writer("s") as writer:
        await writer.append_many([b"x"] * 50)
    await streams.apply_retention("s")
    return await streams.manifest("s")


async def test_truncation_deletes_whole_ledgers_and_hides_the_rest(streams, three, fifty):
    assert await streams.truncate("s", fifty.position_at(25)) == (0, 1)
    manifest = await streams.manifest("s")
    assert manifest.earliest == StreamPosition(2, 5)
    assert len(await read_all(streams)) == 25
    assert set(three.metadata.ledgers.stored) == {2, 3, 4}
    assert await streams.truncate("s", fifty.position_at(25)) == ()
    assert await streams.truncate("s", fifty.closed_end) == (2, 3, 4)
    assert await read_all(streams) == []
    assert await read_all(streams, start=fifty.closed_end) == []


async def test_whoever_has_read_everything_keeps_its_place_however_many_writers_come_and_go(streams, fifty):
    end = fifty.closed_end
    await streams.move_cursor("s", "consumer", end)
    assert await streams.truncate("s", end) == (0, 1, 2, 3, 4)
    for _ in range(LANDMARKS + 2):
        async with streams.writer("s"):
            pass
    assert len((await streams.manifest("s")).landmarks) == LANDMARKS + 1
    assert await read_all(streams, start=(await streams.cursor("s", "consumer")).position) == []
    async with streams.writer("s") as writer:
        await writer.append(b"news")
    assert await read_all(streams, start=end) == [b"news"]
    assert await streams.truncate("s", (await streams.manifest("s")).closed_end, force=True) != ()
    with pytest.raises(StreamPositionGone):
        await read_all(streams, start=end)


async def test_an_interrupted_truncation_is_finished_by_the_next_one(streams, three, fifty):
    real = three.metadata.ledgers.delete
    calls = []

    async def delete(ledger_id, *arguments, **options):
        calls.append(ledger_id)
        if len(calls) == 2:
            raise MetadataUnavailable("no answer")
        await real(ledger_id, *arguments, **options)

    three.metadata.ledgers.delete = delete
    with pytest.raises(MetadataUnavailable):
        await streams.truncate("s", fifty.position_at(30))
    assert await streams.retired("s") == {0, 1, 2}
    assert len(await read_all(streams)) == 20
    assert await streams.apply_retention("s") == (0, 1, 2)
    assert await streams.retired("s") == frozenset()
    assert set(three.metadata.ledgers.stored) == {3, 4}


async def test_no_cursor_is_overtaken_unless_forced(streams, fifty):
    await streams.move_cursor("s", "slow", fifty.position_at(20))
    await streams.move_cursor("s", "fast", fifty.position_at(45))
    with pytest.raises(StreamInUse, match="5 entries"):
        await streams.truncate("s", fifty.position_at(25))
    assert await streams.truncate("s", fifty.position_at(20)) == (0, 1)
    assert await streams.truncate("s", fifty.position_at(30), force=True) == (2,)
    await streams.delete_cursor("s", "slow")
    await streams.delete_cursor("s", "slow")
    assert await streams.truncate("s", fifty.position_at(40)) == (3,)


async def test_retention_by_age(streams, fifty, clock):
    await streams.configure("s", replace(TEN, retention_seconds=60.0))
    clock.now += 59
    assert await streams.apply_retention("s") == ()
    await streams.move_cursor("s", "c", fifty.position_at(35))
    clock.now += 1
    assert await streams.apply_retention("s") == (0, 1, 2)
    await streams.move_cursor("s", "c", fifty.closed_end)
    assert await streams.apply_retention("s") == (3, 4)
    assert (await streams.manifest("s")).ledgers == ()


async def test_retention_by_size_and_never_the_open_ledger(streams, fifty):
    await streams.configure("s", replace(TEN, retention_bytes=20))
    assert await streams.apply_retention("s") == (0, 1, 2)
    await streams.configure("s", replace(TEN, retention_bytes=0))
    writer = streams.writer("s")
    await writer.start()
    await writer.append(b"x")
    assert await streams.apply_retention("s") == (3, 4)
    assert len((await streams.manifest("s")).ledgers) == 1
    await writer.close()


async def test_writers_apply_retention_when_they_begin_a_ledger(streams, three):
    await streams.configure("s", replace(TEN, retention_bytes=10))
    async with streams.writer("s") as writer:
        await writer.append_many([b"x"] * 35)
        async for manifest in streams.watch("s"):
            if manifest.entries <= 10 and not manifest.retired:
                break
    assert len(three.metadata.ledgers.stored) == 2


# --- cursors --------------------------------------------------------------------------------------------------


async def test_retention_that_removes_nothing_asks_for_no_cursors(streams, fifty, monkeypatch):
    """That takes a list of all cursors of the cluster, and idle writers apply retention all the time."""
    asked = []
    of = streams._cursors.of
    monkeypatch.setattr(streams._cursors, "of", lambda name: asked.append(name) or of(name))
    assert await streams.apply_retention("s") == ()
    assert asked == []
    await streams.configure("s", replace(TEN, retention_bytes=40))
    assert await streams.apply_retention("s") == (0,)
    assert asked == ["s"]


async def test_cursors_only_go_forwards(streams, fifty):
    first = await streams.move_cursor("s", "c", fifty.position_at(20))
    assert await streams.cursor("s", "c") == first
    assert await streams.move_cursor("s", "c", fifty.position_at(10)) == first
    assert (await streams.move_cursor("s", "c", fifty.position_at(30))).ordinal == 30
    assert {name: each.ordinal for name, each in (await streams.cursors("s")).items()} == {"c": 30}
    with pytest.raises(NoSuchStream, match="no cursor"):
        await streams.cursor("s", "other")
    with pytest.raises(StreamPositionGone):
        await streams.move_cursor("s", "c", StreamPosition(4711, 0))
    with pytest.raises(BadRequest, match="or cursor"):
        await streams.move_cursor("s", "a:b", fifty.earliest)


async def test_of_many_moves_at_once_the_farthest_stays(streams, fifty):
    await asyncio.gather(*(streams.move_cursor("s", "c", fifty.position_at(n)) for n in (3, 41, 17, 29, 40, 5)))
    assert (await streams.cursor("s", "c")).ordinal == 41


async def test_a_cursor_that_is_made_while_the_stream_is_truncated_is_not_overtaken(streams, three, fifty, monkeypatch):
    """The cursor is stored after the truncation has listed the cursors, and before it changes the stream."""
    cursors = type(three.metadata.records("stream-cursor"))
    original = cursors.names
    made = []

    async def names(store, **options):
        found = await original(store, **options)
        if not made:
            made.append("cursor")
            await streams.move_cursor("s", "late", fifty.position_at(5))
        return found

    monkeypatch.setattr(cursors, "names", names)
    with pytest.raises(StreamInUse):
        await streams.truncate("s", fifty.position_at(30))
    assert len(await read_all(streams)) == 50


async def test_a_cursor_for_a_place_that_goes_meanwhile_is_not_kept(streams, three, fifty):
    """The stream is truncated between the cursor's record and its announcement."""
    records = three.metadata.all_records

    def before(line):
        if line == "create stream-cursor s:late":
            records.before = lambda line: None
            truncating.append(asyncio.get_running_loop().create_task(streams.truncate("s", fifty.position_at(30))))

    truncating = []
    records.before = before
    try:
        cursor = await streams.move_cursor("s", "late", fifty.position_at(5))
    except StreamPositionGone:
        await truncating[0]
        assert await streams.cursors("s") == {}
    else:
        assert cursor.ordinal == 5
        with pytest.raises(StreamInUse):
            await truncating[0]


async def test_a_cursor_that_cannot_be_read(streams, three, fifty):
    cursors = three.metadata.records("stream-cursor")
    for number, (data, why) in enumerate({b"[" * 10_000: "recursion", b'{"format":2}': "newer version"}.items()):
        await cursors.create(f"s:bad{number}", data)
        with pytest.raises(MetadataDamaged, match=why):
            await streams.cursor("s", f"bad{number}")
    with pytest.raises(MetadataDamaged):
        await streams.truncate("s", fifty.closed_end)  # nobody can tell what it has not passed


# --- streams --------------------------------------------------------------------------------------------------


async def test_create_and_names(streams):
    with pytest.raises(StreamExists):
        await streams.create("s")
    assert (await streams.create("s", TEN, if_absent=True)).settings != TEN
    await streams.create("a.b-c_D9")
    assert await streams.names() == {"s", "a.b-c_D9"}
    for name in ("", "a b", "a/b", ".a", "-a", "a:b", "ü", "x" * 201):
        with pytest.raises(BadRequest, match="valid"):
            await streams.create(name)


async def test_delete_takes_everything_and_may_be_interrupted(streams, three, fifty):
    await streams.move_cursor("s", "c", fifty.earliest)
    await streams.create("other")
    await streams.move_cursor("other", "c", (await streams.manifest("other")).earliest)
    records = three.metadata.all_records

    def fail(line):
        if line.startswith("delete stream-cursor"):
            records.before = lambda line: None
            raise MetadataUnavailable("no answer")

    records.before = fail
    with pytest.raises(MetadataUnavailable):
        await streams.delete("s")
    with pytest.raises(NoSuchStream, match="deleting"):
        await streams.manifest("s")
    assert "s" in await streams.names()
    await streams.delete("s")
    assert three.metadata.ledgers.stored == {}
    assert await streams.names() == {"other"}
    assert set(records.stored) == {
        ("stream", "other"),
        ("stream-cursor", "other:c"),
        ("stream", "s"),
        ("stream-grave", "s"),
    }
    with pytest.raises(NoSuchStream):
        await streams.delete("s")


async def test_delete_may_leave_the_ledgers(streams, three, fifty):
    assert await streams.delete("s", with_ledgers=False) == ()
    assert set(three.metadata.ledgers.stored) == {0, 1, 2, 3, 4}


async def test_a_stream_that_a_newer_version_wrote_is_left_alone(streams, three):
    heads = three.metadata.records("stream")
    stored = await heads.read("s")
    other_format = stored.value.replace(b'"format":1', b'"format":2')
    other_kind = stored.value.replace(b'"transactions":{}', b'"transactions":[]')
    assert other_kind != stored.value
    endless = re.sub(rb'"epoch":[0-9]+', b'"epoch":1e999', stored.value)
    for data in (other_format, other_kind, endless, b"{", b"[]", b"[" * 10_000, stored.value[:-1] + b',"new":1}'):
        await heads.overwrite("s", data)
        with pytest.raises(MetadataDamaged, match="stream s "):
            await streams.manifest("s")
        with pytest.raises(MetadataDamaged):
            await Streams(streams._client).delete("s")


async def test_a_cursor_counts_before_anybody_who_moves_it_is_told_so(streams, fifty):
    """Whoever made it died before its stream was told; retention had asked for cursors before, and comes back now."""
    manifest = fifty
    stored = await streams._store.read("s")

    async def dies(_):
        raise asyncio.CancelledError

    announce, streams._cursors._announce = streams._cursors._announce, dies
    with pytest.raises(asyncio.CancelledError):
        await streams.move_cursor("s", "c", manifest.earliest)
    streams._cursors._announce = announce
    moved = await streams.move_cursor("s", "c", manifest.position_at(1))
    assert moved.announced
    with pytest.raises(MetadataVersionConflict):
        await streams._store.replace(stored, truncated(manifest, manifest.closed_end, 1))
    version = (await streams.manifest("s")).version
    await streams.move_cursor("s", "c", manifest.position_at(2))
    assert (await streams.manifest("s")).version == version, "a cursor that counts disturbs nobody"


async def test_a_cursor_that_stays_where_it_is_is_announced_too(client, streams, fifty):
    manifest = fifty
    cursor = await streams.move_cursor("s", "c", manifest.position_at(2))
    records = client.metadata_service.records(STREAM_CURSOR)
    await records.overwrite("s:c", encoded_cursor(replace(cursor, announced=False)))
    before = (await streams.manifest("s")).version
    assert (await streams.move_cursor("s", "c", manifest.earliest)).ordinal == 2
    assert (await streams.manifest("s")).version != before
    assert (await streams.cursor("s", "c")).announced


# --- another stream of the name -------------------------------------------------------------------------------


async def test_a_change_that_was_begun_before_the_stream_was_made_anew_fails(streams, fifty):
    """By a process that slept meanwhile, whatever number of changes the next stream of the name has had."""
    stored = await streams._store.read("s")
    await streams.delete("s")
    await streams.create("s", TEN)
    for _ in range(2 * stored.manifest.version):
        with pytest.raises(MetadataVersionConflict):
            await streams._store.replace(stored, replace(stored.manifest, epoch=1))
        await streams._store.update("s", lambda each: replace(each, epoch=each.epoch + 1))
    assert (await streams.manifest("s")).ledgers == ()


async def test_a_slow_deletion_leaves_the_segments_of_the_next_stream(streams, three, fifty, monkeypatch):
    monkeypatch.setattr("bookie_client.streams.encoding.SEGMENT_LEDGERS", 2)
    drop = ManifestStore._drop

    async def slow(self, name, segments):
        if b'"generation":-1' not in three.metadata.all_records.stored["stream", "s"].value:
            return await drop(self, name, segments)
        monkeypatch.setattr(ManifestStore, "_drop", drop)
        await streams.create("s", TEN)
        async with streams.writer("s") as writer:
            await writer.append_many([b"y"] * 50)
        return await drop(self, name, segments)

    await streams._store.update("s", lambda each: replace(each, epoch=1))  # its list is in segments now
    monkeypatch.setattr(ManifestStore, "_drop", slow)
    await streams.delete("s")
    assert len(await read_all(Streams(streams._client, password=b"secret"))) == 50
    assert await streams.names() == {"s"}


async def test_what_a_deleted_stream_leaves_goes_after_a_day(streams, three, clock):
    await streams.delete("s")
    await streams.create("other")
    clock.now += GRAVE_MS / 1000 - 1
    await streams.delete("other")
    records = three.metadata.all_records
    assert {name for kind, name in records.stored} == {"s", "other"}
    await streams.create("third")
    clock.now += 1
    await streams.delete("third")
    assert {name for kind, name in records.stored} == {"other", "third"}
    assert await streams.names() == frozenset()


async def test_a_name_may_be_used_again_and_again(streams):
    for _ in range(3):
        await streams.delete("s")
        with pytest.raises(NoSuchStream):
            await streams.delete("s")
        await streams.create("s", TEN)
        assert await streams.names() == {"s"}
        with pytest.raises(StreamExists):
            await streams.create("s")
        async with streams.writer("s") as writer:
            await writer.append(b"x")
        assert await read_all(streams) == [b"x"]


async def test_ledgers_that_another_stream_lists_are_left_to_it(streams, three, fifty):
    """Older versions published a ledger to several streams."""
    await streams.create("other", TEN)
    shared = [PublishedLedger(each.ledger_id, each.entries, each.nbytes) for each in fifty.ledgers[1:3]]
    await streams._store.update("other", lambda each: published(each, shared, None, replacing=False, now_ms=1))
    assert await streams.delete("s") == (0, 3, 4)
    assert len(await read_all(streams, "other")) == 20


@pytest.mark.parametrize("how", ["truncate", "overwrite"])
async def test_a_ledger_that_says_that_it_is_another_streams_is_left_to_that(streams, three, fifty, how):
    """Older versions published a ledger to several streams, and each of them deleted it when it had its time."""
    await streams.create("other", StreamSettings(**SETTINGS, deletion_lag_seconds=0.0))
    shared = [PublishedLedger(each.ledger_id, each.entries, each.nbytes) for each in fifty.ledgers]
    await streams._store.update("other", lambda each: published(each, shared, None, replacing=False, now_ms=1))
    await streams.truncate("s", fifty.position_at(10))
    assert set(three.metadata.ledgers.stored) == {1, 2, 3, 4}
    if how == "truncate":
        await streams.truncate("other", fifty.position_at(20))
    else:
        await streams.publish("other", [], replace=True)
    assert len(await read_all(streams)) == 40
    assert await streams.retired("other") == frozenset()


async def test_a_slow_deletion_leaves_the_cursors_of_the_next_stream(streams, three, fifty):
    await streams.move_cursor("s", "c", fifty.earliest)
    other = Streams(streams._client, password=b"secret")
    ids = streams._cursors._ids

    async def slow(name):
        found = await ids(name)
        await other.delete("s")
        await other.create("s", TEN)
        async with other.writer("s") as writer:
            await writer.append_many([b"y"] * 20)
        await other.move_cursor("s", "c", (await other.manifest("s")).earliest)
        return found

    streams._cursors._ids = slow
    with pytest.raises(MetadataVersionConflict):
        await streams.delete("s")
    assert set(await other.cursors("s")) == {"c"}
    assert len(await read_all(other)) == 20


async def test_a_cursor_that_moves_while_its_stream_is_deleted_goes_with_it(streams, fifty):
    await streams.move_cursor("s", "c", fifty.position_at(10))
    mover = Streams(streams._client, password=b"secret")
    begun, deleting = asyncio.Event(), asyncio.Event()
    wanted = mover._cursors._wanted
    read = streams._store.read

    async def held(*arguments):
        stored = await wanted(*arguments)
        begun.set()
        await deleting.wait()
        return stored

    async def read_after_the_move(name, **options):
        stored = await read(name, **options)
        if stored.manifest.is_deleting and not deleting.is_set():
            deleting.set()
            await moving
        return stored

    mover._cursors._wanted = held
    moving = asyncio.create_task(mover.move_cursor("s", "c", fifty.position_at(40)))
    await begun.wait()
    streams._cursors._store = _Reading(streams._store, read_after_the_move)
    await streams.delete("s")
    assert (await moving).ordinal == 40
    await streams.create("s", TEN)
    assert await streams.cursors("s") == {}


class _Reading:
    def __init__(self, store, read):
        self.read = read
        self.update = store.update


async def test_a_grave_that_was_dug_for_a_stream_that_lives_hides_it_from_no_decision(streams, three, fifty):
    """As by a deletion that died after another stream of the name had been made."""
    await three.metadata.records("stream-grave").create("s", b'{"deleted_ms":1}')
    assert set(await streams._store.listing([2])) == {2}


async def test_a_deletion_that_died_before_the_grave_is_finished_by_the_next_one(streams, three, clock):
    graves = streams._store._graves

    class Away(type(graves)):
        async def create(self, name, data):
            raise MetadataUnavailable("no answer")

    graves.__class__ = Away
    with pytest.raises(MetadataUnavailable):
        await streams.delete("s")
    graves.__class__ = Away.__base__
    assert await streams.names() == {"s"}
    with pytest.raises(NoSuchStream):
        await streams.delete("s")
    assert await streams.names() == frozenset()
    clock.now += GRAVE_MS / 1000
    await streams.create("other")
    await streams.delete("other")
    assert {name for _, name in three.metadata.all_records.stored} == {"other"}


async def test_however_many_streams_were_deleted_one_more_costs_the_same(streams, three, clock, monkeypatch):
    monkeypatch.setattr("bookie_client.streams.store.LEVELLED_TOGETHER", 3)
    read = []
    kind = type(streams._store._graves)
    really = kind.read

    async def counted(self, name, **options):
        read.append(self._kind)
        return await really(self, name, **options)

    monkeypatch.setattr(kind, "read", counted)

    async def delete_one(name):
        await streams.create(name)
        read.clear()
        await streams.delete(name)
        assert read.count("stream-grave") <= 3

    for index in range(20):
        await delete_one(f"t{index}")
    clock.now += GRAVE_MS / 1000
    for _ in range(10):  # two at least of the three that each looks at are old ones
        await delete_one("u")
    assert {name for kind, name in three.metadata.all_records.stored if kind == "stream-grave"} == {"u"}


@pytest.mark.parametrize("grave", [b"", b"{}", b'{"deleted_ms":"x"}', b'{"deleted_ms":1e999}'])
async def test_a_damaged_grave_keeps_no_stream_from_being_deleted(streams, three, grave):
    await three.metadata.records("stream-grave").create("old", grave)
    await streams.delete("s")
    assert await streams.names() == frozenset()


async def test_a_cursor_ahead_of_the_end_of_the_open_ledger_is_refused(streams, three):
    """It could never be put back, and retention would take entries that nobody has read."""
    await streams.configure("s", replace(TEN, retention_seconds=0))
    async with streams.writer("s") as writer:
        last = (await writer.append_many([b"0", b"1", b"2"]))[-1]
        for entry in (4, 20, 1000):
            with pytest.raises(BadRequest):
                await streams.move_cursor("s", "billing", StreamPosition(last.ledger_id, entry))
        assert await streams.cursors("s") == {}
        written = StreamPosition(last.ledger_id, 3)
        assert (await streams.move_cursor("s", "billing", written)).ordinal == 3, "its writer knows more than readers"
        await writer.append_many([b"x"] * 57)
    await streams.apply_retention("s")
    assert len(await read_all(streams, start=written)) == 57


async def test_a_cursor_behind_entries_that_too_few_bookies_have_is_refused_or_cannot_be_told(streams, three):
    async with streams.writer("s") as writer:
        position = await writer.append(b"0")
        at = StreamPosition(position.ledger_id, 1)
        one, two, _ = three.servers
        for bookie in (one, two):
            del three.bookie(bookie).ledgers[at.ledger_id].entries[0]
        with pytest.raises(BadRequest):
            await streams.move_cursor("s", "c", at)
        await three.servers[one].stop()
        with pytest.raises(BookieUnavailable):
            await streams.move_cursor("s", "c", at)


async def test_a_ledger_that_has_the_id_of_one_of_a_stream_by_now_stays(client, streams, three, fifty):
    """Another program deleted ledgers 1 and 3 of the stream and made its own under their ids, which name no stream."""
    ledgers = three.metadata.ledgers
    others = [ledgers.make(replace(ledgers.stored[each].value, custom_metadata={})) for each in (1, 3)]
    assert await streams.truncate("s", fifty.position_at(30)) == (0, 1, 2)
    with pytest.raises(StreamPositionGone):
        await read_all(streams)
    assert set(await streams.delete("s")) == {3, 4}
    assert list(ledgers.stored.values()) == others


async def test_taking_a_stream_over_closes_no_ledger_that_has_the_id_of_its_open_one_by_now(client, streams, three):
    async with streams.writer("s") as writer:
        await writer.append(b"first")
        (opened,) = [each for each in three.metadata.ledgers.stored.values() if not each.value.is_closed]
        other = three.metadata.ledgers.make(replace(opened.value, creation_token=1, custom_metadata={}))
        await streams.seal("s")
        assert three.metadata.ledgers.stored[opened.value.ledger_id] == other


async def test_a_move_that_was_begun_in_an_earlier_stream_of_the_name_moves_no_cursor(streams, fifty, monkeypatch):
    """Its ordinal would be ahead of all that the next stream has, and retention would take what nobody has read."""
    cursors, asleep, awake = streams._cursors, asyncio.Event(), asyncio.Event()
    update = cursors._records.update
    await streams.move_cursor("s", "c", fifty.position_at(2))

    async def sleep_first(*arguments):
        if not asleep.is_set():
            asleep.set()
            await awake.wait()
        return await update(*arguments)

    monkeypatch.setattr(cursors._records, "update", sleep_first)
    late = asyncio.create_task(streams.move_cursor("s", "c", fifty.position_at(40)))
    await asleep.wait()
    await streams.delete("s")
    await streams.create("s")
    async with streams.writer("s") as writer:
        await writer.append(b"news")
    start = (await streams.manifest("s")).earliest
    moved = await streams.move_cursor("s", "c", start)
    awake.set()
    with pytest.raises(StreamPositionGone):
        await late
    assert await streams.cursor("s", "c") == moved
