"""Which requests of a client of the class `batch` say so: reads of entries, and nothing else."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack

import pytest

from bookie_client import Client, ClientOptions
from bookie_client.reading.maintenance import replicas
from bookie_pod.server.tcp.reads import Reads
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import BadRequest
from bookie_protocol.traffic_class import TrafficClass
from tests.support.memory_metadata import MemoryMetadata
from tests.support.served_bookie import ServedBookie
from tests.support.until import until

BOOKIES = ("b1", "b2", "b3")


class Asked:
    """What bookies were asked that did not come from memory: (kind, marked)."""

    def __init__(self, monkeypatch):
        self.requests = Counter()
        read, read_batch = Reads.read, Reads.read_batch

        def note_read(reads, request, reply):
            kind = "fence" if request.fence_key is not None else "read"
            kind = "last" if kind == "read" and request.entry_id == LAST_ENTRY else kind
            self.requests[kind, request.batch_class] += 1
            read(reads, request, reply)

        def note_batch(reads, request, reply):
            self.requests["batch", request.batch_class] += 1
            read_batch(reads, request, reply)

        monkeypatch.setattr(Reads, "read", note_read)
        monkeypatch.setattr(Reads, "read_batch", note_batch)

    def take(self):
        taken, self.requests = self.requests, Counter()
        return taken


@pytest.fixture
def asked(monkeypatch):
    return Asked(monkeypatch)


@pytest.fixture
async def metadata(tmp_path):
    found = MemoryMetadata()
    async with AsyncExitStack() as stack:
        for name in BOOKIES:
            bookie = await stack.enter_async_context(ServedBookie(tmp_path / name))
            found.bookies.register_address(name, "127.0.0.1", bookie.port)
        yield found


def client(metadata, version, traffic_class=TrafficClass.BATCH, **options):
    return Client(metadata, ClientOptions(protocol_version=version, traffic_class=traffic_class, **options))


async def written(metadata, count=50, **settings):
    async with Client(metadata) as writer, writer.create(password=b"pw", **settings) as ledger:
        await ledger.append_many([bytes([number]) * 100 for number in range(count)])
    return ledger.ledger_id


async def test_ranges_are_marked_by_batch_and_one_by_one(metadata, asked, version):
    ledger_id = await written(metadata, write_quorum=3)
    async with client(metadata, version) as reading, reading.open(ledger_id, password=b"pw") as reader:
        asked.take()
        assert len(await reader.read(0, 49)) == 50
        assert asked.take().keys() == {("batch", True)}
    async with (
        client(metadata, version, batch_reads=False) as reading,
        reading.open(ledger_id, password=b"pw") as reader,
    ):
        asked.take()
        assert len(await reader.read(0, 49)) == 50
        assert asked.take() == {("read", True): 50}


async def test_every_copy_that_is_asked_is_asked_so(metadata, asked, version):
    """`parallel_reads` asks them all at once, as speculation does one after the other."""
    ledger_id = await written(metadata, write_quorum=3)
    async with (
        client(metadata, version, parallel_reads=True, batch_reads=False) as reading,
        reading.open(ledger_id, password=b"pw") as reader,
    ):
        for bookie in reader.metadata.last_ensemble:  # without a connection a copy is given up before it is asked
            assert [answer async for answer in replicas(reader).scan(bookie, 0, 0)]
        asked.take()
        assert len(await reader.read(0, 9)) == 10
        await until(lambda: sum(asked.requests.values()) == 30)
        assert asked.take() == {("read", True): 30}


async def test_scans_of_one_replica_are_marked(metadata, asked, version):
    ledger_id = await written(metadata, ensemble=3, write_quorum=2)
    async with client(metadata, version) as reading, reading.open(ledger_id, password=b"pw") as reader:
        asked.take()
        answers = [answer async for answer in replicas(reader).scan("b1", 0, 49)]
        assert sum(answer.entry is not None for answer in answers) > 20
        assert asked.take().keys() == {("batch", True)}


async def test_fencing_and_recovery_are_not(metadata, asked, version):
    async with Client(metadata) as writer:
        ledger = await writer.create(password=b"pw", write_quorum=3)
        await ledger.append_many([b"x"] * 20)
        asked.take()
        async with client(metadata, version) as reading:
            assert (await reading.recover(ledger.ledger_id, password=b"pw")).last_entry_id == 19
        requests = asked.take()
        assert requests["fence", False] > 0
        assert [key for key in requests if key[1]] == []


async def test_the_last_add_confirmed_is_asked_for_by_unmarked_requests(metadata, asked, version):
    async with Client(metadata) as writer:
        ledger = await writer.create(password=b"pw", write_quorum=3)
        await ledger.append_many([b"x"] * 20)
        await ledger.append(b"x")  # carries the last add confirmed
        asked.take()
        async with (
            client(metadata, version) as reading,
            await reading.open(ledger.ledger_id, password=b"pw", recover=False) as reader,
        ):
            assert reader.last_add_confirmed == 19
            assert [key for key in asked.take() if key[1]] == []
            assert len(await reader.read(0, 10)) == 11
            assert {key for key in asked.take() if key[0] != "last"} == {("batch", True)}
        await ledger.close()


async def test_a_client_that_says_nothing_marks_nothing(metadata, asked, version):
    ledger_id = await written(metadata, write_quorum=3)
    async with (
        Client(metadata, ClientOptions(protocol_version=version)) as reading,
        reading.open(ledger_id, password=b"pw") as reader,
    ):
        assert len(await reader.read(0, 49)) == 50
    assert asked.take().keys() == {("batch", False)}


def test_a_class_that_does_not_exist():
    with pytest.raises(BadRequest, match=r"traffic_class .*bulk"):
        ClientOptions(traffic_class="bulk")
    assert ClientOptions(traffic_class="batch").reads_are_batch
    assert not ClientOptions().reads_are_batch
