"""Ledgers of a stream go from its beginning, and only when its cursors have passed them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from bookie_client import Client
from bookie_client.streams import (
    Manifest,
    PublishedLedger,
    StreamPosition,
    Streams,
    StreamSettings,
    encoding,
    publishing,
)
from bookie_client.streams.store import ManifestStore, StoredStream
from bookie_protocol.archive import OffloadRecord
from bookie_protocol.errors import MetadataVersionConflict, NoSuchLedger
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned
from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.reading import read_manifest
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.offload.deletion import Deleter, DeletionFate, DeletionSettings, behind, cut, oldest
from tests.support.ledger_shelf import LedgerShelf
from tests.support.offload_rig import offloader

PAYLOADS = [b"first", b"last"]


@pytest.fixture
def manifest(shelf: LedgerShelf) -> Manifest:
    """A stream of ledgers 3, 1 and 2."""
    shelf.run(lambda client: Streams(client).create("orders", StreamSettings()))
    for ledger_id in (3, 1, 2):
        shelf.put(ledger_id, PAYLOADS, custom={"podkeeper/stream": b"orders"})
    published = [PublishedLedger(ledger_id, 2, 9) for ledger_id in (3, 1, 2)]
    shelf.run(lambda client: Streams(client).publish("orders", published))
    return read(shelf)


def read(shelf: LedgerShelf) -> Manifest:
    return shelf.run(lambda client: Streams(client).manifest("orders"))


def listed(shelf: LedgerShelf) -> list[int]:
    return [ledger.ledger_id for ledger in read(shelf).ledgers]


def test_the_oldest_are_those_at_the_beginning(manifest: Manifest) -> None:
    assert oldest(manifest, {1, 2}) == ()
    assert oldest(manifest, {3, 2, 9}) == (3,)
    assert oldest(manifest, {1, 2, 3}) == (3, 1, 2)
    assert behind(manifest, 1) == StreamPosition(1, 0)
    assert behind(manifest, 3) == StreamPosition(2, 2)


def test_a_stream_is_cut_behind_what_may_go(shelf: LedgerShelf, manifest: Manifest) -> None:
    assert cut(shelf, manifest, {2}) is None
    assert listed(shelf) == [3, 1, 2]
    assert cut(shelf, manifest, {3, 2}) is None
    assert listed(shelf) == [1, 2]
    with pytest.raises(NoSuchLedger):
        shelf.metadata(3)
    assert shelf.metadata(2).is_closed


def test_a_cursor_keeps_what_it_has_not_passed(shelf: LedgerShelf, manifest: Manifest) -> None:
    shelf.run(lambda client: Streams(client).move_cursor("orders", "reader", StreamPosition(3, 1)))
    assert "a cursor is" in str(cut(shelf, manifest, {3}))
    assert listed(shelf) == [3, 1, 2]
    shelf.run(lambda client: Streams(client).move_cursor("orders", "reader", StreamPosition(1, 0)))
    assert cut(shelf, manifest, {3}) is None
    assert listed(shelf) == [1, 2]


def test_what_a_stream_lists_is_proven_and_not_deleted_by_itself(
    shelf: LedgerShelf, manifest: Manifest, target: str
) -> None:
    offloader(shelf, target).offload(3)
    deleter = Deleter(shelf, Files(target, "--target"), DeletionSettings(target, 0.0), Throttle(None))
    assert deleter.delete(3) is DeletionFate.IN_STREAM
    assert deleter.prove(3)
    assert not deleter.prove(1)
    assert cut(shelf, manifest, {3}) is None
    assert deleter.delete(3) is DeletionFate.DELETED


def test_what_is_kept_in_a_stream_goes_when_every_cursor_has_passed_it(
    shelf: LedgerShelf, manifest: Manifest, target: str
) -> None:
    """From the middle of it, too; the list stays, and so does what its order and its ends are."""
    shelf.run(lambda client: Streams(client).move_cursor("orders", "reader", StreamPosition(1, 1)))
    settings = DeletionSettings(target, 0.0, keep_listed=True)
    deleter = Deleter(shelf, Files(target, "--target"), settings, Throttle(None))
    for each in (3, 1, 2):
        offloader(shelf, target).offload(each)
    assert [deleter.delete(each) for each in (3, 1, 2)] == [
        DeletionFate.DELETED,
        DeletionFate.UNREAD,
        DeletionFate.UNREAD,
    ]
    shelf.run(lambda client: Streams(client).move_cursor("orders", "reader", StreamPosition(2, 0)))
    assert deleter.delete(1) is DeletionFate.DELETED
    assert shelf.metadata(2).is_closed
    assert read(shelf).ledgers == manifest.ledgers
    shelf.run(lambda client: Streams(client).truncate("orders", StreamPosition(2, 0)))
    assert listed(shelf) == [2], "ledgers that are gone already are truncated like others"


def test_a_ledger_of_which_the_stream_knows_another_end_stays(shelf: LedgerShelf, target: str) -> None:
    shelf.run(lambda client: Streams(client).create("orders", StreamSettings()))
    shelf.put(3, PAYLOADS, custom={"podkeeper/stream": b"orders"})
    shelf.run(lambda client: Streams(client).publish("orders", [PublishedLedger(3, 2, 9)]))
    _, record = offloader(shelf, target).offload(3)
    assert record is not None
    settings = DeletionSettings(target, 0.0, keep_listed=True)
    deleter = Deleter(shelf, Files(target, "--target"), settings, Throttle(None))
    other = replace(record, ledger=replace(record.ledger, last_entry_id=2))
    assert deleter._streams_obstacle("orders", other) is DeletionFate.IN_STREAM
    assert deleter._streams_obstacle("orders", record) is None


# --- who counts on a ledger -------------------------------------------------------------------------------------


def listed_as_older_versions_did(shelf: LedgerShelf, stream: str, *ledger_ids: int) -> None:
    """Whatever the ledgers say of themselves."""

    async def publish(client: Client) -> None:
        store = ManifestStore(client.metadata_service)
        published = [PublishedLedger(each, 2, 9) for each in ledger_ids]
        await store.update(stream, lambda each: publishing.published(each, published, None, replacing=False, now_ms=1))

    shelf.run(lambda client: Streams(client).create(stream, StreamSettings()))
    shelf.run(publish)


@pytest.mark.parametrize("custom", [{}, {"podkeeper/stream": b"another"}, {"podkeeper/stream": b"gone"}])
def test_a_ledger_stays_that_any_stream_lists(shelf: LedgerShelf, target: str, custom: dict[str, bytes]) -> None:
    shelf.run(lambda client: Streams(client).create("another", StreamSettings()))
    shelf.put(7, PAYLOADS, custom=custom)
    listed_as_older_versions_did(shelf, "orders", 7)
    offloader(shelf, target).offload(7)
    deleter = Deleter(shelf, Files(target, "--target"), DeletionSettings(target, 0.0), Throttle(None))
    assert deleter.delete(7) is DeletionFate.IN_STREAM
    shelf.run(lambda client: Streams(client).move_cursor("orders", "reader", StreamPosition(7, 0)))
    settings = DeletionSettings(target, 0.0, keep_listed=True)
    deleter = Deleter(shelf, Files(target, "--target"), settings, Throttle(None))
    assert deleter.delete(7) is DeletionFate.UNREAD
    assert shelf.metadata(7).is_closed


def test_a_stream_is_not_cut_behind_ledgers_that_another_one_lists(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS)
    for stream in ("orders", "copied"):
        listed_as_older_versions_did(shelf, stream, 7)
    offloader(shelf, target).offload(7)
    deleter = Deleter(shelf, Files(target, "--target"), DeletionSettings(target, 0.0), Throttle(None))
    assert not deleter.prove(7)


def while_it_is_proved(deleter: Deleter, event: Callable[[], object]) -> None:
    prove = deleter._prove

    def proved(record: OffloadRecord) -> None:
        prove(record)
        event()

    deleter._prove = proved  # type: ignore[method-assign]


def test_a_cursor_that_was_made_during_the_proof_keeps_the_ledger(
    shelf: LedgerShelf, manifest: Manifest, target: str
) -> None:
    offloader(shelf, target).offload(3)
    settings = DeletionSettings(target, 0.0, keep_listed=True)
    deleter = Deleter(shelf, Files(target, "--target"), settings, Throttle(None))
    while_it_is_proved(
        deleter,
        lambda: shelf.run(lambda client: Streams(client).move_cursor("orders", "reader", StreamPosition(3, 0))),
    )
    assert deleter.delete(3) is DeletionFate.UNREAD
    assert shelf.metadata(3).is_closed


@pytest.mark.parametrize("custom", [{}, {"podkeeper/stream": b"orders"}])
def test_a_ledger_that_was_published_during_the_proof_stays(
    shelf: LedgerShelf, target: str, custom: dict[str, bytes]
) -> None:
    shelf.run(lambda client: Streams(client).create("orders", StreamSettings()))
    shelf.put(7, PAYLOADS, custom=custom)
    offloader(shelf, target).offload(7)
    deleter = Deleter(shelf, Files(target, "--target"), DeletionSettings(target, 0.0), Throttle(None))
    while_it_is_proved(
        deleter,
        lambda: shelf.run(lambda client: Streams(client).publish("orders", [PublishedLedger(7, 2, 9)])),
    )
    assert deleter.delete(7) is DeletionFate.IN_STREAM
    assert listed(shelf) == [7]
    assert shelf.metadata(7).is_closed


def test_a_publication_that_slept_while_the_ledger_was_deleted_fails(shelf: LedgerShelf, target: str) -> None:
    """It had looked at the ledger, and was about to list it."""
    shelf.run(lambda client: Streams(client).create("orders", StreamSettings()))
    shelf.put(7, PAYLOADS, custom={"podkeeper/stream": b"orders"})
    offloader(shelf, target).offload(7)
    ledgers = [PublishedLedger(7, 2, 9)]

    async def looked_at(client: Client) -> tuple[ManifestStore, StoredStream]:
        store = ManifestStore(client.metadata_service)
        stored = await store.read("orders")
        await publishing.own_ledgers(client, "orders", ledgers)
        return store, stored

    store, stored = shelf.run(looked_at)
    deleter = Deleter(shelf, Files(target, "--target"), DeletionSettings(target, 0.0), Throttle(None))
    assert deleter.delete(7) is DeletionFate.DELETED
    changed = publishing.published(stored.manifest, ledgers, None, replacing=False, now_ms=1)
    assert changed is not None
    with pytest.raises(MetadataVersionConflict):
        shelf.run(lambda _: store.replace(stored, changed))


@pytest.mark.parametrize("custom", [{}, {"podkeeper/stream": b"orders"}])
def test_a_publication_that_begins_behind_the_last_look_fails_too(
    shelf: LedgerShelf, target: str, custom: dict[str, bytes]
) -> None:
    """It has read the stream as it is, and comes in front of the deletion."""
    shelf.run(lambda client: Streams(client).create("orders", StreamSettings()))
    shelf.put(7, PAYLOADS, custom=custom)
    offloader(shelf, target).offload(7)
    deleter = Deleter(shelf, Files(target, "--target"), DeletionSettings(target, 0.0), Throttle(None))
    delete = deleter._delete_marked

    def deleting(marked: Versioned[LedgerMetadata]) -> None:
        with pytest.raises(NoSuchLedger, match="deleted"):
            shelf.run(lambda client: Streams(client).publish("orders", [PublishedLedger(7, 2, 9)]))
        delete(marked)

    deleter._delete_marked = deleting  # type: ignore[method-assign]
    assert deleter.delete(7) is DeletionFate.DELETED
    assert listed(shelf) == []


async def _write(client: Client, metadata: LedgerMetadata) -> None:
    stored = await client.stored_metadata(metadata.ledger_id)
    await client.metadata_service.ledgers.write(metadata, stored.identity)


def test_one_that_was_restored_under_its_id_and_version_meanwhile_stays(shelf: LedgerShelf, target: str) -> None:
    """The deleter slept between its mark and its deletion."""
    shelf.put(7, PAYLOADS)
    offloader(shelf, target).offload(7)
    deleter = Deleter(shelf, Files(target, "--target"), DeletionSettings(target, 0.0), Throttle(None))
    delete = deleter._delete_marked

    def deleting(marked: Versioned[LedgerMetadata]) -> None:
        shelf.run(lambda client: client.metadata_service.ledgers.delete(7))
        restored = shelf.put(7, PAYLOADS, created_ms=None)
        for _ in range(marked.version):
            shelf.run(partial(_write, metadata=restored))
        deleter._delete_marked = delete  # type: ignore[method-assign]
        delete(marked)

    deleter._delete_marked = deleting  # type: ignore[method-assign]
    assert deleter.delete(7) is not DeletionFate.DELETED
    assert shelf.metadata(7).is_closed


def test_a_ledger_that_cannot_name_its_stream_stays_if_it_was_published_meanwhile(
    shelf: LedgerShelf, target: str
) -> None:
    shelf.run(lambda client: Streams(client).create("orders", StreamSettings()))
    for ledger_id in (7, 8):
        shelf.put(ledger_id, PAYLOADS, format_version=1, created_ms=None)
        offloader(shelf, target).offload(ledger_id)
    settings, files = DeletionSettings(target, 0.0), Files(target, "--target")
    deleter = Deleter(shelf, files, settings, Throttle(None), ledger_ids=(7, 8))
    assert deleter.delete(7) is DeletionFate.DELETED
    shelf.run(lambda client: Streams(client).publish("orders", [PublishedLedger(8, 2, 9)]))
    assert deleter.delete(8) is DeletionFate.IN_STREAM
    assert shelf.metadata(8).is_closed


def test_a_long_list_is_read_once_for_all_ledgers(
    shelf: LedgerShelf, manifest: Manifest, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie_client.streams.encoding.SEGMENT_LEDGERS", 1)
    shelf.run(
        lambda client: ManifestStore(client.metadata_service).update("orders", lambda each: replace(each, epoch=9))
    )
    for each in (3, 1, 2):
        offloader(shelf, target).offload(each)
    read: list[str] = []
    segment = encoding.decode_segment
    monkeypatch.setattr(
        "bookie_client.streams.store.decode_segment", lambda name, data: read.append(name) or segment(name, data)
    )
    settings = DeletionSettings(target, 0.0, keep_listed=True)
    deleter = Deleter(shelf, Files(target, "--target"), settings, Throttle(None), ledger_ids=(3, 1, 2))
    assert {deleter.delete(each) for each in (3, 1, 2)} == {DeletionFate.DELETED}
    assert len(read) == 2


@pytest.mark.parametrize("keep_listed", [False, True])
def test_what_an_overwrite_replaced_is_the_streams_until_its_readers_had_their_time(
    shelf: LedgerShelf, manifest: Manifest, target: str, keep_listed: bool
) -> None:
    offloader(shelf, target).offload(3)
    shelf.run(lambda client: Streams(client).publish("orders", [], replace=True))
    assert listed(shelf) == []
    settings = DeletionSettings(target, 0.0, keep_listed=keep_listed)
    deleter = Deleter(shelf, Files(target, "--target"), settings, Throttle(None))
    assert deleter.delete(3) is DeletionFate.IN_STREAM
    assert shelf.metadata(3).is_closed


def test_what_was_said_to_go_before_an_overwrite_has_its_time_in_the_archive(
    shelf: LedgerShelf, manifest: Manifest, target: str
) -> None:
    """Nobody tells the deleter, which had looked for the last time: as if the overwrite had come behind it."""
    _, record = offloader(shelf, target).offload(3)
    assert record is not None
    settings, files = DeletionSettings(target, 0.0, keep_listed=True), Files(target, "--target")
    deleter = Deleter(shelf, files, settings, Throttle(None))
    delete = deleter._delete_marked

    def deleting(marked: Versioned[LedgerMetadata]) -> None:
        shelf.run(lambda client: Streams(client).publish("orders", [], replace=True))
        delete(marked)

    deleter._delete_marked = deleting  # type: ignore[method-assign]
    assert deleter.delete(3) is DeletionFate.DELETED
    assert read_manifest(files, 3, record.uuid) is not None
    assert 3 in read(shelf).retired_ids
    lag = read(shelf).settings.deletion_lag_seconds
    shelf.run(lambda client: Streams(client, clock=lambda: time.time() + lag + 1).apply_retention("orders"))
    assert read(shelf).retired_ids == frozenset(), "the stream finds it gone"
