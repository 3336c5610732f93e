"""A scan keeps to its rate, by a clock that moves only while everybody waits."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest

from bookie_client.access import LedgerAccess
from bookie_client.context import BatchSupport
from bookie_client.distribution import Quorums
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.digest import DigestType, digest_manager
from pyspark_bookie.jobs.replicas.deep import ReplicaScanner, ScanLimits
from tests.support.packed import packed
from tests.support.virtual_loop import VirtualLoop

RATE = 1_000_000
SIZE = 2_000
COUNT = 5_000
BATCH = 64 * 1024


@pytest.fixture
def loop():
    made = VirtualLoop()
    yield made
    made.close()


class Bookie:
    """Answers at once, and notes when how much was asked for."""

    def __init__(self, loop, digest):
        self.loop, self.digest = loop, digest
        self.served: deque[tuple[float, int]] = deque()

    async def batch_read(self, bookie, ledger_id, first, count, max_bytes, *, step=1):
        fits = min(count, max_bytes // (SIZE + 40))
        entries = [self.digest.encode(ledger_id, first + place, 0, 0, bytes(SIZE)) for place in range(fits)]
        self.served.append((self.loop.time(), sum(map(len, entries))))
        return packed(entries)


@pytest.mark.parametrize("known", [None, SIZE + 36])
def test_bytes_over_time(loop, known):
    digest = digest_manager(DigestType.CRC32C, b"")
    bookie = Bookie(loop, digest)
    client = SimpleNamespace(
        operations=bookie, context=SimpleNamespace(batch_support=BatchSupport(), operations=bookie)
    )
    fragment = Fragment(7, 0, COUNT - 1, ("a",), Quorums(1, 1, 1), True)

    async def scan():
        limits = ScanLimits(ReplicationThrottle(RATE), batch_bytes=BATCH)
        scanner = ReplicaScanner(client, fragment, LedgerAccess(digest, b""), limits, average=known)
        return await scanner.scan("a", [range(COUNT)])

    result = loop.run_until_complete(scan())
    assert (result.entries, result.faults) == (COUNT, {})
    assert result.nbytes == COUNT * (SIZE + 36)
    seconds = result.nbytes / RATE
    assert seconds - 1 <= loop.time() <= seconds + 1
    # At no time is more read than the rate allows, but for the pieces that are under way at once.
    total = 0
    for at, nbytes in bookie.served:
        total += nbytes
        assert total <= at * RATE + 4 * BATCH * (2 if known is None else 1)
