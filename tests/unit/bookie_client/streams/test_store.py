"""Long lists: segments, and that what is read is what was stored whatever happens in between."""

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.streams import Manifest, PublishedLedger, StreamSettings, Txn
from bookie_client.streams import encoding as layouts
from bookie_client.streams.encoding import (
    INLINE_RETIRED,
    Loaded,
    decode_head,
    decode_retired,
    decode_segment,
    encode_head,
    lay_out,
    put_together,
)
from bookie_client.streams.manifest import forgotten, retained, truncated
from bookie_client.streams.model import RetiredLedgers
from bookie_client.streams.publishing import MAX_TRANSACTIONS, published
from bookie_client.streams.store import MAX_HEAD_BYTES, ManifestStore
from bookie_protocol.errors import MetadataDamaged, MetadataVersionConflict, NoSuchStream, Refused
from bookie_protocol.versioned import UNSTORED


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(layouts, "SEGMENT_LEDGERS", 4)
    monkeypatch.setattr(layouts, "INLINE_RETIRED", 3)


@pytest.fixture
async def store(three):
    store = ManifestStore(three.metadata)
    await store.create(Manifest("s", UNSTORED, 0, (), StreamSettings()))
    return store


def adding(first, count):
    ledgers = [PublishedLedger(i, i % 3 + 1, 10) for i in range(first, first + count)]
    return lambda manifest: published(manifest, ledgers, None, replacing=False, now_ms=1)


def segments(three):
    return sorted(name for kind, name in three.metadata.all_records.stored if kind == "stream-segment")


async def test_a_long_list_is_kept_in_segments_that_do_not_change(three, store, small):
    await store.update("s", adding(0, 3))
    assert segments(three) == []
    await store.update("s", adding(3, 11))
    first = segments(three)
    assert len(first) == 3
    before = {name: three.metadata.all_records.stored["stream-segment", name] for name in first}
    await store.update("s", adding(14, 1))
    assert {name: three.metadata.all_records.stored["stream-segment", name] for name in first} == before
    other = ManifestStore(three.metadata)
    stored = await other.read("s")
    assert [ledger.ledger_id for ledger in stored.manifest.ledgers] == list(range(15))
    assert stored.manifest == (await store.read("s")).manifest
    assert len(stored.head.tail) <= 4


async def test_removal_reuses_segments_and_deletes_those_that_are_over(three, store, small):
    await store.update("s", adding(0, 15))
    manifest = (await store.read("s")).manifest
    cut = manifest.position_at(manifest.ledgers[6].first_ordinal)
    await store.update("s", lambda each: truncated(each, cut, 5))
    stored = await ManifestStore(three.metadata).read("s")
    assert [ledger.ledger_id for ledger in stored.manifest.ledgers] == list(range(6, 15))
    assert stored.head.segments[0].removed == 2
    assert {each for group in stored.manifest.retired for each in group.ledger_ids} == set(range(6))
    assert set(segments(three)) == {f"s:{each}" for each in stored.head.segment_ids}
    await store.update("s", lambda each: forgotten(each, range(6)))
    assert (await store.read("s")).manifest.retired == ()
    assert len(segments(three)) == 2


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_change_that_lost_leaves_nothing_behind(three, store, small, deleted):
    stored = await store.read("s")
    if deleted:
        await store._heads.delete("s")
    else:
        await store.update("s", adding(0, 1))
    with pytest.raises(NoSuchStream if deleted else MetadataVersionConflict):
        await store.replace(stored, adding(100, 20)(stored.manifest))
    assert segments(three) == []


async def test_a_segment_that_goes_while_the_stream_is_read(three, store, small):
    """The head is read, then the stream is overwritten, then the segments of the old head are looked for."""
    await store.update("s", adding(0, 15))
    reader = ManifestStore(three.metadata)
    kind = type(three.metadata.records("stream-segment"))
    original, done = kind.read, []

    async def read(records, name, **options):
        if records._kind == "stream-segment" and not done:
            done.append(name)
            await store.update(
                "s", lambda each: published(each, [PublishedLedger(99, 1, 1)], None, replacing=True, now_ms=1)
            )
        return await original(records, name, **options)

    kind.read = read
    try:
        manifest = (await reader.read("s")).manifest
    finally:
        kind.read = original
    assert done
    assert [ledger.ledger_id for ledger in manifest.ledgers] == [99]


async def test_a_segment_that_is_lost_is_damage(three, store, small):
    await store.update("s", adding(0, 15))
    await three.metadata.records("stream-segment").delete(segments(three)[0])
    with pytest.raises(MetadataDamaged, match="segment"):
        await ManifestStore(three.metadata).read("s")


async def test_a_head_stays_small_whatever_the_list(three, store, monkeypatch):
    await store.update("s", adding(0, 10_000))
    records = three.metadata.all_records.stored
    assert len(records["stream", "s"].value) < MAX_HEAD_BYTES / 2
    assert all(len(records["stream-segment", name].value) < MAX_HEAD_BYTES for name in segments(three))

    def with_applications(manifest):
        for number in range(MAX_TRANSACTIONS):
            txn = Txn(f"{number:256}", 2**62, 2**62, 2**62)
            manifest = published(manifest, [], txn, replacing=False, now_ms=2**42)
        return manifest

    await store.update("s", with_applications)
    assert len(records["stream", "s"].value) <= MAX_HEAD_BYTES

    monkeypatch.setattr("bookie_client.streams.store.MAX_HEAD_BYTES", 100_000)
    with pytest.raises(Refused, match="many"):
        await store.update("s", adding(10_000, 1))


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 12)),
        st.tuples(st.just("truncate"), st.integers(0, 60)),
        st.tuples(st.just("retain"), st.integers(0, 500)),
        st.tuples(st.just("overwrite"), st.integers(0, 6)),
        st.tuples(st.just("forget"), st.integers(0, 10)),
    ),
    max_size=15,
)


@given(operations)
def test_what_is_stored_is_what_was_meant(steps):
    """Any sequence of changes, each laid out on what was stored before and put together again by a stranger."""
    limits = layouts.SEGMENT_LEDGERS, layouts.INLINE_RETIRED
    layouts.SEGMENT_LEDGERS, layouts.INLINE_RETIRED = 4, 3
    try:
        _stored_is_meant(steps)
    finally:
        layouts.SEGMENT_LEDGERS, layouts.INLINE_RETIRED = limits


def _stored_is_meant(steps):
    manifest, head, loaded = Manifest("s", UNSTORED, 0, (), StreamSettings()), None, Loaded()
    segments, ids, next_ledger = {}, iter(range(10_000)), 0
    for version, (kind, number) in enumerate(steps):
        if kind in ("add", "overwrite"):
            given = [PublishedLedger(i, i % 3 + 1, i) for i in range(next_ledger, next_ledger + number)]
            next_ledger += number
            changed = published(
                manifest, given, Txn("q", version, number), replacing=kind == "overwrite", now_ms=version
            )
        elif kind == "truncate":
            place = min(max(number, manifest.first_ordinal), manifest.end_ordinal)
            changed = truncated(manifest, manifest.position_at(place), version)
        elif kind == "retain":
            kept = Manifest(**{**vars_of(manifest), "settings": StreamSettings(retention_bytes=number)})
            changed = retained(kept, None, version)
        else:
            retired = [each for group in manifest.retired for each in group.ledger_ids]
            changed = forgotten(manifest, retired[:number])
        if changed is None:
            continue
        laid_out = lay_out(changed, head, loaded, lambda: f"{next(ids):x}")
        head = decode_head("s", encode_head(laid_out.head))
        assert head == laid_out.head
        assert segments.keys().isdisjoint(laid_out.new_segments)
        segments = {**segments, **laid_out.new_segments}
        segments = {each: segments[each] for each in head.segment_ids}
        loaded = Loaded(
            {each.segment_id: decode_segment("s", segments[each.segment_id]) for each in head.segments},
            {
                each.segment_id: decode_retired("s", segments[each.segment_id])
                for each in head.retired
                if each.segment_id
            },
        )
        assert loaded == laid_out.loaded
        stored = put_together("s", version, head, loaded)
        assert stored.ledgers == changed.ledgers
        assert {each for group in stored.retired for each in group.ledger_ids} == {
            each for group in changed.retired for each in group.ledger_ids
        }
        assert len(head.tail) <= 4
        assert sum(len(each.ledger_ids) for each in head.retired) <= 3
        manifest = stored


def vars_of(manifest):
    return {name: getattr(manifest, name) for name in Manifest.__dataclass_fields__}


def test_a_head_stays_small_however_many_overwrites_there_were():
    """A thousand batches of two ledgers within the lag; with a segment each, every look would read them all."""
    manifest = Manifest("s", UNSTORED, 0, (), StreamSettings())
    head, loaded, ids = None, Loaded(), (f"{n:016x}" for n in count())
    for batch in range(1_000):
        retired = (*manifest.retired, RetiredLedgers(batch, (2 * batch, 2 * batch + 1)))
        laid_out = lay_out(replace(manifest, retired=retired), head, loaded, lambda: next(ids))
        head, loaded = laid_out.head, laid_out.loaded
        manifest = put_together("s", batch, head, loaded)
    assert manifest.retired_ids == set(range(2_000))
    assert all(group.due_ms >= each // 2 for group in manifest.retired for each in group.ledger_ids), "none goes early"
    assert len(head.segment_ids) <= 2_000 // INLINE_RETIRED
    assert len(encode_head(head)) < MAX_HEAD_BYTES / 8


async def test_a_head_is_read_without_its_list(three, store, small):
    await store.update("s", adding(0, 15))
    for name in segments(three):
        del three.metadata.all_records.stored["stream-segment", name]
    other = ManifestStore(three.metadata)
    assert (await other.head("s")).settings == StreamSettings()
    with pytest.raises(MetadataDamaged):
        await other.read("s")
    with pytest.raises(NoSuchStream):
        await other.head("none")


async def test_a_list_that_did_not_change_costs_one_read_and_is_not_made_again(three, store, small, monkeypatch):
    """However long it is: an idle query looks five times a second."""
    monkeypatch.setattr("bookie_client.streams.store.CACHED_RECORDS", 2)
    await store.update("s", adding(0, 40))
    other = ManifestStore(three.metadata)
    first = await other.read("s")
    reads = counted_reads(three, monkeypatch)
    assert (await other.read("s")) is first
    assert reads == ["stream s"]
    await store.update("s", adding(40, 1))
    reads.clear()
    assert len((await other.read("s")).manifest.ledgers) == 41
    assert len(reads) <= 2, "what is in segments is known"


async def test_what_is_kept_of_other_lists_is_bounded(three, store, small, monkeypatch):
    monkeypatch.setattr("bookie_client.streams.store.CACHED_RECORDS", 12)
    for name in ("s", "t", "u"):
        if name != "s":
            await store.create(Manifest(name, UNSTORED, 0, (), StreamSettings()))
        await store.update(name, adding(0, 30))
        await store.read(name)
    assert list(store._seen) == ["u"]
    reads = counted_reads(three, monkeypatch)
    assert len((await store.read("s")).manifest.ledgers) == 30
    assert len(reads) > 5


async def test_short_lists_that_are_kept_are_bounded_too(three, store, monkeypatch):
    """Whoever asks all streams must not have all of them in memory afterwards."""
    monkeypatch.setattr("bookie_client.streams.store.CACHED_RECORDS", 5)
    for index in range(20):
        await store.create(Manifest(f"t{index}", UNSTORED, 0, (), StreamSettings()))
        await store.update(f"t{index}", adding(3 * index, 3))
    assert len(await store.listing(None)) == 60
    assert len(store._seen) == 5


def counted_reads(three, monkeypatch):
    reads = []
    kind = type(three.metadata.records("stream"))
    read = kind.read

    async def noted(self, name, **options):
        reads.append(f"{self._kind} {name}")
        return await read(self, name, **options)

    monkeypatch.setattr(kind, "read", noted)
    return reads
