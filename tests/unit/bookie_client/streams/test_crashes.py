"""Writers that die at every step of every change, and answers that are lost there.

What was acknowledged is in the stream once and in order, whatever comes next.
"""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.streams import PublishedLedger, Streams, StreamSettings, Txn
from bookie_protocol.errors import CouldNotTell, LedgerDeleted, MetadataUnavailable, PodkeeperError, StreamFenced
from tests.unit.bookie_client.conftest import ModelCluster
from tests.unit.bookie_client.streams.conftest import SETTINGS, read_all

PATIENT = {"add_timeout": 30.0, "read_timeout": 30.0}
"""Nothing here fails because it is slow."""


class Died(BaseException):
    """The process is gone: nothing of it runs any more, not even what tidies up."""


class Fate:
    """Lets the `number`-th write of records happen or not, and ends the writer there."""

    def __init__(self, records, number, *, applied, error):
        self.records = records
        self.left = number
        self.applied = applied
        self.error = error
        self.struck = False
        setattr(records, "after" if applied else "before", self)

    def __call__(self, line):
        if self.struck and self.error is Died:
            raise Died  # whatever the dead one tries
        if self.left == 0 and not self.struck:
            self.struck = True
            raise self.error("no answer")
        self.left -= 1

    def end(self):
        """From now on the others write. Nobody hears of what ended the tasks of the dead one."""
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        self.records.before = self.records.after = lambda line: None


async def stream_of(cluster, client, **limits):
    streams = Streams(client, password=b"secret")
    await streams.create("s", StreamSettings(**SETTINGS, **limits), if_absent=True)
    return streams


async def check(streams, acknowledged, tried):
    """Every acknowledged entry once, in order; of the others each at most once."""
    entries = await read_all(streams)
    assert len(set(entries)) == len(entries)
    assert set(entries) <= set(tried)
    assert [each for each in entries if each in set(acknowledged)] == acknowledged
    order = {payload: index for index, payload in enumerate(tried)}
    assert sorted(entries, key=order.__getitem__) == entries


async def write(streams, generation, acknowledged, tried, count=7):
    """What one writer does in its life."""
    async with streams.writer("s", patience=60.0) as writer:
        for number in range(count):
            payload = b"%d.%d" % (generation, number)
            tried.append(payload)
            await writer.append(payload)
            acknowledged.append(payload)


STEPS = range(9)
"""A life of seven entries in ledgers of three makes nine writes at most before it ends; beyond, nothing happens."""


@pytest.mark.parametrize("applied", [False, True], ids=["not applied", "applied"])
@pytest.mark.parametrize("number", STEPS)
async def test_a_writer_that_dies_at_any_step(three, number, applied):
    records = three.metadata.all_records
    acknowledged, tried = [], []
    dying_client = three.client(**PATIENT)
    await dying_client.start()
    streams = await stream_of(three, dying_client, max_ledger_entries=3)
    await write(streams, 0, acknowledged, tried, count=2)

    fate = Fate(records, number, applied=applied, error=Died)
    writing = asyncio.create_task(_catching(write(streams, 1, acknowledged, tried)))
    writing_ended = await asyncio.wait([writing], timeout=0.5)
    assert fate.struck or writing in writing_ended[0]
    fate.end()
    if not writing.done():
        writing.cancel()
        await asyncio.wait([writing])
    async with three.client(**PATIENT) as client:
        successor = Streams(client, password=b"secret")
        await write(successor, 2, acknowledged, tried)
        await check(successor, acknowledged, tried)
        manifest = await successor.manifest("s")
        assert manifest.open_ledger is None
        assert all(ledger.entries for ledger in manifest.ledgers)
        await successor.apply_retention("s")
        assert await successor.retired("s") == frozenset()
        _nothing_without_an_owner(three, manifest)
    await dying_client.close()


async def _catching(work):
    try:
        await work
    except (Died, PodkeeperError):
        return


def _nothing_without_an_owner(three, manifest):
    """A ledger that no manifest lists has no entries, and tells whose it was."""
    for ledger_id, stored in three.metadata.ledgers.stored.items():
        if ledger_id not in manifest:
            assert stored.value.custom_metadata["podkeeper/stream"] == b"s"
            assert not any(three.held_at(name, ledger_id) for name in three.servers)


@pytest.mark.parametrize("applied", [False, True], ids=["not applied", "applied"])
@pytest.mark.parametrize("number", STEPS)
async def test_a_lost_answer_at_any_step_costs_time_only(three, number, applied):
    """Also when the change was made: it is found, and nothing is done twice."""
    acknowledged, tried = [], []
    async with three.client(**PATIENT) as client:
        streams = await stream_of(three, client, max_ledger_entries=3)
        await write(streams, 0, acknowledged, tried, count=2)
        fate = Fate(three.metadata.all_records, number, applied=applied, error=MetadataUnavailable)
        with suppress(MetadataUnavailable):  # only the first and the last steps are the caller's to repeat
            await write(streams, 1, acknowledged, tried)
        fate.end()
        await write(streams, 2, acknowledged, tried)
        await check(streams, acknowledged, tried)
        assert len(acknowledged) >= 9 + (7 if 2 <= number < 5 else 0)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("applied", [False, True], ids=["not applied", "applied"])
async def test_a_publisher_that_dies_at_any_step(three, number, applied, monkeypatch):
    """With so many ledgers that segments are written."""
    monkeypatch.setattr("bookie_client.streams.encoding.SEGMENT_LEDGERS", 4)
    records = three.metadata.all_records
    async with three.client(**PATIENT) as client:
        streams = await stream_of(three, client)
        given = []
        for payload in (b"%d" % i for i in range(11)):
            async with client.create(write_quorum=3, password=b"secret") as ledger:
                await ledger.append(payload)
            given.append(PublishedLedger(ledger.ledger_id, 1, len(payload)))
        fate = Fate(records, number, applied=applied, error=Died)
        await _catching(streams.publish("s", given, Txn("q", 0, 11)))
        fate.end()
        result = await streams.publish("s", given, Txn("q", 0, 11))
        assert result.unlisted == ()
        assert await read_all(streams) == [b"%d" % i for i in range(11)]
        # the next writer removes the segments that nobody names
        async with streams.writer("s"):
            pass
        named = [name for kind, name in records.stored if kind == "stream-segment"]
        assert len(named) == 2
        fresh = Streams(client, password=b"secret")
        assert len((await fresh.manifest("s")).ledgers) == 11


class Lives:
    """Writers that come and go as hypothesis likes, on bookies that fail as it likes."""

    def __init__(self, cluster, client):
        self.cluster = cluster
        self.streams = Streams(client, password=b"secret")
        self.writers = []
        self.acknowledged = {}
        self.tried = []
        self.pending = []

    async def begin(self):
        writer = self.streams.writer("s", patience=60.0)
        with suppress(CouldNotTell):  # bookies went away while it recovered
            await writer.start()
            self.writers.append(writer)

    async def append(self, which, count):
        if not self.writers:
            return
        writer = self.writers[which % len(self.writers)]
        for _ in range(count):
            payload = b"%d" % len(self.tried)
            self.tried.append(payload)
            with suppress(StreamFenced):
                self.pending.append((payload, await writer.submit(payload)))

    async def fail(self, which):
        """A bookie refuses for a moment."""
        name = sorted(self.cluster.servers)[which % 3]
        for connection in list(self.cluster.servers[name].connections):
            connection.abort()

    async def recover(self, which):
        """As auto-recovery does with the ledger of a writer that it takes for dead."""
        current = (await self.streams.manifest("s")).open_ledger
        if current is None:
            return
        with suppress(CouldNotTell, LedgerDeleted):  # of its writer, if nothing that was acknowledged is in it
            await self.streams._client.recover(current.ledger_id, password=b"secret")

    async def roll(self, which):
        if self.writers:
            with suppress(StreamFenced):
                await self.writers[which % len(self.writers)].roll_over()

    async def settle(self):
        for payload, future in self.pending:
            with suppress(StreamFenced):
                self.acknowledged[payload] = await future
        self.pending.clear()

    async def end(self):
        await self.settle()
        for writer in self.writers:
            with suppress(StreamFenced):
                await writer.close()


moves = st.lists(
    st.one_of(
        st.tuples(st.just("begin")),
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 6)),
        st.tuples(st.sampled_from(["fail", "recover", "roll"]), st.integers(0, 3)),
        st.tuples(st.just("settle")),
    ),
    max_size=14,
)


@given(moves)
def test_whoever_writes_what_was_acknowledged_is_there_once(steps):
    asyncio.run(_lives(steps))


async def _lives(steps):
    cluster = ModelCluster()
    for name in ("b1", "b2", "b3"):
        await cluster.add_bookie(name)
    try:
        async with cluster.client(**PATIENT) as client:
            await stream_of(cluster, client, max_ledger_entries=5)
            lives = Lives(cluster, client)
            for name, *arguments in [("begin",), *steps]:
                await getattr(lives, name)(*arguments)
            await lives.end()
            await lives.streams.seal("s")
            entries = None
            while entries is None:  # who asks first finds that connections were cut
                with suppress(CouldNotTell):
                    entries = await read_all(lives.streams)
            assert len(set(entries)) == len(entries)
            assert set(lives.acknowledged) <= set(entries) <= set(lives.tried)
            manifest = await lives.streams.manifest("s")
            for payload, position in lives.acknowledged.items():
                assert entries[manifest.ordinal(position)] == payload
    finally:
        await cluster.stop()
