"""Orphans: whose a ledger is, the guard of age, and that a dry run changes nothing."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from bookie_client.streams import Streams
from bookie_client.streams.ledgers import StreamLedgers
from bookie_client.streams.model import APPLICATION, GOING_KEY, STREAM_KEY, PublishedLedger, StreamSettings
from bookie_client.streams.publishing import going, own_ledgers, published
from bookie_client.streams.store import ManifestStore
from bookie_protocol.errors import MetadataVersionConflict, NoSuchLedger
from bookie_protocol.metadata_service.records import STREAM, STREAM_SEGMENT
from pyspark_bookie.jobs import orphans
from pyspark_bookie.jobs.framework.owners import Owners, Standing
from pyspark_bookie.jobs.orphans import (
    GONE_STREAMS,
    KINDS,
    SINK_ATTEMPTS,
    STREAM_LEDGERS,
    Fate,
    Orphan,
    Search,
    search_ledgers,
    stream_segments,
    table_of,
)
from pyspark_bookie.jobs.replicas.units import Slice, Unit
from pyspark_bookie.jobs.transfer.record import KIND, TRANSFER_KEY, TransferRecord, TransferState

SETTINGS = StreamSettings(ensemble=2, write_quorum=2, ack_quorum=2)
LATER = 1 << 60
SINK = {"podkeeper/sink": b"pyspark_bookie"}


def search(*, remove=False, before_ms=LATER, kinds=KINDS):
    return Search(frozenset(kinds), before_ms, remove, "/managed-ledgers")


async def ledger(client, **tags):
    metadata = {name.replace("_", "/"): value for name, value in tags.items()}
    async with client.create(ensemble=2, write_quorum=2, metadata=metadata) as made:
        await made.append(b"payload")
    return made.ledger_id


async def of_stream(client, name, **more):
    tags = {"application": APPLICATION.encode(), STREAM_KEY: name.encode(), **more}
    async with client.create(ensemble=2, write_quorum=2, metadata=tags) as made:
        await made.append(b"payload")
    return made.ledger_id


async def searched(client, question):
    ids = [each async for each in client.list()]
    return await search_ledgers(client, question, Unit(0, tuple(Slice(each, 0, None, 0) for each in ids)))


async def a_bit_of_everything(client):
    streams = Streams(client)
    await streams.create("orders", SETTINGS)
    listed = await of_stream(client, "orders")
    metadata = await client.metadata(listed)
    await streams.publish("orders", [PublishedLedger(listed, metadata.last_entry_id + 1, metadata.length)])
    return {
        "listed": listed,
        "attempt": await of_stream(client, "orders", **SINK),
        "writer": await of_stream(client, "orders"),
        "gone": await of_stream(client, "forgotten"),
        "nobody": await ledger(client),
        "application": await ledger(client, application=b"other"),
        "pulsar": await ledger(client, application=b"pulsar", pulsar_schemaId=b"x"),
    }


async def test_only_what_its_owner_does_not_list_is_an_orphan(models):
    async with models.of("a", "b") as client:
        made = await a_bit_of_everything(client)
        found = await searched(client, search())
        assert {(each.kind, int(each.thing), each.fate) for each in found.orphans} == {
            (SINK_ATTEMPTS, made["attempt"], Fate.FOUND),
            (STREAM_LEDGERS, made["writer"], Fate.FOUND),
            (GONE_STREAMS, made["gone"], Fate.FOUND),
        }
        assert found.standings == {"owned": 1, "orphan": 3, "unknown": 3}
        assert all(each.nbytes == 2 * len(b"payload") for each in found.orphans)
        assert table_of(found.orphans).num_rows == 3
        assert {each async for each in client.list()} == set(made.values()), "nothing was removed"


async def test_what_is_removed_is_only_what_was_asked_for(models):
    async with models.of("a", "b") as client:
        made = await a_bit_of_everything(client)
        found = await searched(client, search(remove=True, kinds=[SINK_ATTEMPTS]))
        assert [(each.thing, each.fate) for each in found.orphans] == [(str(made["attempt"]), Fate.REMOVED)]
        with pytest.raises(NoSuchLedger):
            await client.metadata(made["attempt"])
        assert {each async for each in client.list()} == set(made.values()) - {made["attempt"]}


async def test_a_publication_that_slept_while_its_ledger_was_removed_fails(models):
    """It had looked at the ledger, and was about to list it."""
    async with models.of("a", "b") as client:
        await Streams(client).create("orders", SETTINGS)
        attempt = await of_stream(client, "orders", **SINK)
        ledgers = [PublishedLedger(attempt, 1, len(b"payload"))]
        store = ManifestStore(client.metadata_service)
        stored = await store.read("orders")
        await own_ledgers(client, "orders", ledgers)
        assert (await searched(client, search(remove=True))).orphans[0].fate is Fate.REMOVED
        with pytest.raises(MetadataVersionConflict):
            await store.replace(stored, published(stored.manifest, ledgers, None, replacing=False, now_ms=1))
        with pytest.raises(NoSuchLedger):
            await Streams(client).publish("orders", ledgers)


async def test_a_publication_that_begins_behind_the_last_look_fails_too(models, monkeypatch):
    """It has read the stream as it is, and comes in front of the deletion."""
    async with models.of("a", "b") as client:
        streams = Streams(client)
        await streams.create("orders", SETTINGS)
        attempt = await of_stream(client, "orders", **SINK)
        ledgers, delete = client.metadata_service.ledgers, client.metadata_service.ledgers.delete

        async def deleting(ledger_id, version):
            with pytest.raises(NoSuchLedger, match="deleted"):
                await streams.publish("orders", [PublishedLedger(attempt, 1, len(b"payload"))])
            await delete(ledger_id, version)

        monkeypatch.setattr(ledgers, "delete", deleting)
        assert (await searched(client, search(remove=True))).orphans[0].fate is Fate.REMOVED
        assert (await streams.manifest("orders")).ledgers == ()


async def test_a_writer_does_not_list_a_ledger_that_was_taken_for_an_orphan(models, monkeypatch):
    async with models.of("a", "b") as client:
        streams = Streams(client)
        await streams.create("orders", SETTINGS)
        create, removed = StreamLedgers.create, []

        async def sleeping(self, *arguments):
            made = await create(self, *arguments)
            if not removed:
                removed.extend((await searched(client, search(remove=True))).orphans)
            return made

        monkeypatch.setattr(StreamLedgers, "create", sleeping)
        with pytest.raises(NoSuchLedger):
            await streams.writer("orders").start()
        assert [each.fate for each in removed] == [Fate.REMOVED]
        async with streams.writer("orders") as writer:
            await writer.append(b"kept")
        assert [each.entries for each in (await streams.manifest("orders")).ledgers] == [1]


async def test_what_is_young_or_of_unknown_age_is_left_alone(models):
    async with models.of("a", "b") as client:
        attempt = await of_stream(client, "orders", **SINK)
        await Streams(client).create("orders", SETTINGS)
        ctime = (await client.metadata(attempt)).ctime
        assert ctime is not None
        question = search(remove=True, before_ms=ctime - 1)
        found = await searched(client, question)
        assert (found.orphans, found.young) == ([], 1)
        assert (await searched(client, dataclasses.replace(question, before_ms=ctime))).orphans[0].fate is Fate.REMOVED


async def test_retired_ledgers_have_an_owner_and_a_manifest_that_is_damaged_accuses_nobody(models):
    async with models.of("a", "b") as client:
        streams = Streams(client)
        await streams.create("orders", SETTINGS)
        old, new = await of_stream(client, "orders", **SINK), await of_stream(client, "orders", **SINK)
        for each in (old, new):
            metadata = await client.metadata(each)
            await streams.publish("orders", [PublishedLedger(each, 1, metadata.length)], replace=True)
        found = await searched(client, search(remove=True))
        assert (found.orphans, found.standings["owned"]) == ([], 2)
        records = client.metadata_service.records(STREAM)
        await records.overwrite("orders", b"{")
        found = await searched(client, search(remove=True))
        assert (found.orphans, found.standings["unknown"]) == ([], 2)


async def test_a_ledger_that_was_published_at_the_last_moment_is_kept(models, monkeypatch):
    async with models.of("a", "b") as client:
        streams = Streams(client)
        await streams.create("orders", SETTINGS)
        attempt = await of_stream(client, "orders", **SINK)

        async def publishing(client, stored):
            await streams.publish("orders", [PublishedLedger(attempt, 1, stored.value.length)])
            return await going(client, stored)

        monkeypatch.setattr(orphans, "going", publishing)
        (orphan,) = (await searched(client, search(remove=True))).orphans
        assert orphan.fate is Fate.KEPT
        assert (await client.metadata(attempt)).length
        assert GOING_KEY not in (await client.metadata(attempt)).custom_metadata


async def test_segments_that_nobody_names(models):
    async with models.of("a", "b") as client:
        await Streams(client).create("orders", SETTINGS)
        segments = client.metadata_service.records(STREAM_SEGMENT)
        await segments.create("orders:left-behind", b"x")
        await segments.create("deleted:another", b"y")
        before = (await Streams(client).manifest("orders")).version
        found = await stream_segments(client, remove=False)
        assert [(each.thing, each.fate) for each in found] == [
            ("deleted:another", Fate.FOUND),
            ("orders:left-behind", Fate.FOUND),
        ]
        assert await segments.names() == {"orders:left-behind", "deleted:another"}
        assert (await Streams(client).manifest("orders")).version == before
        assert {each.fate for each in await stream_segments(client, remove=True)} == {Fate.REMOVED}
        assert await segments.names() == frozenset()
        assert (await Streams(client).manifest("orders")).version != before, "changes under way fail"
        assert await stream_segments(client, remove=True) == []
        assert await ManifestStore(client.metadata_service).segment_ids("orders") == frozenset()


async def test_what_names_no_owner_is_nobodys_orphan(models):
    async with models.of("a", "b") as client:
        for tags in ({}, {"application": b"other"}, {"application": b"pulsar", "pulsar/managed-ledger": b"a/b/c/d"}):
            async with client.create(ensemble=2, write_quorum=2, metadata=tags) as made:
                pass
            assert (await Owners(client).of(await client.metadata(made.ledger_id))).standing is Standing.UNKNOWN


async def test_what_another_stream_lists_than_the_one_it_names_is_no_orphan(models):
    """As older versions published it."""
    async with models.of("a", "b") as client:
        streams = Streams(client)
        for name in ("a", "b"):
            await streams.create(name, SETTINGS)
        ledger_id = await of_stream(client, "a", **SINK)
        listed = [PublishedLedger(ledger_id, 1, 7)]
        store = ManifestStore(client.metadata_service)
        await store.update("b", lambda each: published(each, listed, None, replacing=False, now_ms=1))
        found = await searched(client, search(remove=True))
        assert (found.orphans, found.standings) == ([], {"owned": 1})
        assert (await client.metadata(ledger_id)).is_closed


async def test_what_was_given_to_a_stream_and_is_not_listed_is_nobodys_orphan(models):
    """Whoever published it died in between, and may have made it for something else."""
    async with models.of("a", "b") as client:
        await Streams(client).create("orders", SETTINGS)
        await ledger(client, application=b"mine", podkeeper_stream=b"orders")
        found = await searched(client, search(remove=True))
        assert (found.orphans, found.standings) == ([], {"unknown": 1})


async def test_what_a_transfer_has_made_is_its_own_until_the_stream_has_it(models):
    """A restore into a stream may take longer than the age from which ledgers are orphans."""
    async with models.of("a", "b") as client:
        await Streams(client).create("orders", SETTINGS)
        records = client.metadata_service.records(KIND)
        for uuid in ("begun", "given-up"):
            await of_stream(client, "orders", **{TRANSFER_KEY: f"t:{uuid}".encode()})
        record = TransferRecord(name="t", source_id=7, state=TransferState.WRITING, target_id=0, uuid="begun")
        await records.create(record.key, record.encode())
        found = await searched(client, search())
        assert ([each.thing for each in found.orphans], found.standings) == (["1"], {"owned": 1, "orphan": 1})


@pytest.mark.parametrize(("created_ms", "shown"), [(-(1 << 63), None), (0, datetime(1970, 1, 1, tzinfo=UTC))])
def test_findings_are_shown_whatever_a_ledger_says_of_its_creation(created_ms: int, shown: datetime | None) -> None:
    (row,) = table_of([Orphan("a", "7", "", 0, created_ms, Fate.REMOVED, "")]).to_pylist()
    assert row["created"] == shown
