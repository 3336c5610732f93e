"""Streams without an event loop: the same surface, and threads that share a writer."""

import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from bookie_client.blocking.streams import BlockingStreamReader, BlockingStreams, BlockingStreamWriter
from bookie_client.streams import PublishedLedger, StreamReader, Streams, StreamSettings, StreamWriter, Txn
from bookie_protocol.errors import LedgerClosed, NoSuchStream, StreamExists, StreamFenced

SETTINGS = StreamSettings(min_ledger_seconds=0, max_ledger_entries=100)


@pytest.fixture
def streams(client):
    streams = BlockingStreams(client, password=b"pw")
    streams.create("s", SETTINGS)
    return streams


def test_written_read_and_removed(streams):
    with streams.writer("s") as writer:
        first = writer.append(b"0")
        future = writer.submit(b"1")
        rest = writer.append_many(b"%d" % i for i in range(2, 250))
        writer.roll_over()
        assert writer.pending == 0
        assert writer.failure is None
    assert [str(first), str(future.result()), len(rest)] == ["0:0", "0:1", 248]
    manifest = streams.manifest("s")
    assert manifest.entries == 250
    assert [entry.payload for entry in streams.reader("s").entries()] == [b"%d" % i for i in range(250)]
    assert next(streams.reader("s").tail("earliest")).payload == b"0"
    assert next(streams.watch("s")) == manifest
    assert streams.end("s") == streams.reader("s").end() == manifest.closed_end
    cursor = streams.move_cursor("s", "c", manifest.position_at(120))
    assert streams.cursors("s") == {"c": cursor}
    assert streams.cursor("s", "c").ordinal == 120
    assert [ledger.entries for ledger in manifest.ledgers] == [100, 100, 50]
    assert 0 in streams.truncate("s", manifest.position_at(110))
    assert [ledger.entries for ledger in streams.manifest("s").ledgers] == [100, 50]
    streams.delete_cursor("s", "c")
    streams.delete("s")
    assert streams.names() == frozenset()
    with pytest.raises(NoSuchStream):
        streams.manifest("s")


def test_threads_share_a_writer_and_each_keeps_its_order(streams):
    with streams.writer("s") as writer, ThreadPoolExecutor(8) as pool:

        def append(thread):
            return [writer.append(b"%d.%d" % (thread, i)) for i in range(50)]

        positions = [each for made in pool.map(append, range(8)) for each in made]
    assert len(set(positions)) == 400
    entries = [entry.payload for entry in streams.reader("s").entries()]
    for thread in range(8):
        mine = [each for each in entries if each.startswith(b"%d." % thread)]
        assert mine == [b"%d.%d" % (thread, i) for i in range(50)]


def test_published_ledgers(streams, client):
    with client.create(write_quorum=3, password=b"pw") as ledger:
        ledger.append(b"abc")
    given = [PublishedLedger(ledger.ledger_id, 1, 3)]
    assert streams.publish("s", given, Txn("q", 0, 1)).is_new
    assert not streams.publish("s", given, Txn("q", 0, 1)).is_new
    assert [entry.payload for entry in streams.reader("s").entries()] == [b"abc"]
    assert streams.retired("s") == frozenset()
    assert streams.apply_retention("s") == ()
    assert streams.configure("s", StreamSettings()).settings == StreamSettings()
    assert streams.seal("s").open_ledger is None


def test_errors_are_the_same(streams):
    with pytest.raises(StreamExists):
        streams.create("s")
    assert streams.create("s", if_absent=True).settings == SETTINGS
    old = streams.writer("s")
    old.start()
    old.append(b"x")
    with streams.writer("s"):
        with pytest.raises(StreamFenced):
            old.append(b"y")
        old.close()
    with pytest.raises(LedgerClosed), streams.writer("s") as writer:
        writer.close()
        writer.append(b"z")


def test_they_do_not_travel(streams):
    for thing in (streams, streams.writer("s"), streams.reader("s")):
        with pytest.raises(TypeError, match="mapPartitions"):
            pickle.dumps(thing)


PAIRS = [(Streams, BlockingStreams), (StreamWriter, BlockingStreamWriter), (StreamReader, BlockingStreamReader)]
RETURNS = {
    "StreamWriter": "BlockingStreamWriter",
    "StreamReader": "BlockingStreamReader",
    "AsyncGenerator[Manifest, None]": "Iterator[Manifest]",
    "AsyncGenerator[Sequence[LedgerEntry], None]": "Iterator[Sequence[LedgerEntry]]",
    "AsyncGenerator[LedgerEntry, None]": "Iterator[LedgerEntry]",
    "asyncio.Future[StreamPosition]": "Future[StreamPosition]",
    "asyncio.Future[list[StreamPosition]]": "Future[list[StreamPosition]]",
}


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_the_surface_is_the_asynchronous_one(asynchronous, blocking):
    names = {name for name in dir(asynchronous) if not name.startswith("_")}
    assert {name for name in dir(blocking) if not name.startswith("_")} == names
    for name in names:
        theirs, ours = inspect.getattr_static(asynchronous, name), inspect.getattr_static(blocking, name)
        if isinstance(theirs, property):
            theirs, ours = theirs.fget, ours.fget
        expected, found = inspect.signature(theirs), inspect.signature(ours)
        assert found.parameters == expected.parameters, name
        assert found.return_annotation == RETURNS.get(expected.return_annotation, expected.return_annotation), name
