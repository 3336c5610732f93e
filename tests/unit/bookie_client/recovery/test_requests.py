"""What a recovery sends: every read fences and goes before the bookies' other work, and so does every add."""

from __future__ import annotations

import pytest

from bookie_protocol.digest import DigestType
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.traffic_class import TrafficClass
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3
from bookie_protocol.wire.v2 import Flag
from tests.support import model_bookie
from tests.unit.bookie_client.recovery.crashed import LEDGER, CrashedLedger

ABC = ("b1", "b2", "b3")


@pytest.fixture
def received(monkeypatch):
    """The requests that bookies got, in order."""
    requests = []
    serve = model_bookie._Connection._serve

    def noting(self, body):
        request = None if self._speaks_v2 else v3.parse_request(body)
        requests.append(v2.decode_request(body) if request is None else request)
        return serve(self, body)

    monkeypatch.setattr(model_bookie._Connection, "_serve", noting)
    return requests


async def test_reads_fence_and_everything_has_priority(three, version, received):
    ledger = CrashedLedger(three, (3, 3, 2), {0: ABC})
    ledger.put_all(*range(6))
    async with three.client(protocol_version=version) as client:
        await client.recover(LEDGER, password=b"pw")
    ledger.check(5)
    reads = [each.readRequest for each in received if isinstance(each, pb.Request) and each.HasField("readRequest")]
    # The LAC lags by one, so entry 5 is read forward, and the one behind it denied.
    assert {read.entryId & 2**64 - 1 for read in reads} >= {LAST_ENTRY & 2**64 - 1, 5, 6}
    assert {(read.flag, read.masterKey) for read in reads} == {(pb.ReadRequest.FENCE_LEDGER, ledger.key)}
    assert all(each.header.priority > 0 for each in received if isinstance(each, pb.Request))
    if version == 3:
        adds = [each.addRequest for each in received if each.HasField("addRequest")]
        assert {(add.entryId, add.flag, add.masterKey) for add in adds} == {(5, pb.AddRequest.RECOVERY_ADD, ledger.key)}
    else:
        adds = [each for each in received if isinstance(each, v2.AddRequest)]
        expected = Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY
        assert {(add.entry_id, add.flags, add.master_key) for add in adds} == {(5, expected, ledger.key)}
    assert len(adds) >= 2


async def test_read_for_the_length_is_one_of_the_recovery_whatever_the_class_of_its_client(three, received):
    """The end lies in an earlier ensemble, whose bookies may store another ledger of the id."""
    for name in ("b4", "b5", "b6"):
        await three.add_bookie(name)
    ledger = CrashedLedger(three, (3, 3, 2), {0: ABC, 4: ("b4", "b5", "b6")}, digest=DigestType.CRC32)
    ledger.put_all(*range(4))
    async with three.client(traffic_class=TrafficClass.BATCH) as client:
        await client.recover(LEDGER, password=b"pw")
    ledger.check(3)
    reads = [each for each in received if isinstance(each, pb.Request) and each.HasField("readRequest")]
    assert 3 in {each.readRequest.entryId for each in reads}
    assert {each.readRequest.flag for each in reads} == {pb.ReadRequest.FENCE_LEDGER}
    assert all(each.header.priority > 0 for each in reads)


async def test_opening_without_recovery_fences_nobody(three, version, received):
    ledger = CrashedLedger(three, (3, 3, 2), {0: ABC})
    ledger.put_all(*range(6))
    async with three.client(protocol_version=version) as client, client.open(LEDGER, password=b"pw") as reader:
        assert len(await reader.read(0, 4)) == 5
    assert received
    for each in received:
        if isinstance(each, pb.Request):
            assert not each.readRequest.HasField("flag")
            assert not each.header.priority
        else:
            assert not each.flags & (Flag.DO_FENCING | Flag.HIGH_PRIORITY)
    assert not any(ledger.fenced(bookie) for bookie in ABC)
