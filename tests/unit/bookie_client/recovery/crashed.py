"""Ledgers whose writer is gone, made entry by entry on model bookies."""

from __future__ import annotations

from functools import cache

from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.keys import master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState

LEDGER = 7
ABC = ("b1", "b2", "b3")


def payload(entry_id: int) -> bytes:
    return f"entry {entry_id} ".encode() * (entry_id % 3 + 1)


@cache
def length_of(entry_id: int) -> int:
    return sum(len(payload(i)) for i in range(entry_id + 1))


class CrashedLedger:
    """A ledger in a `ModelCluster`. `put` stores copies as its writer sent them."""

    def __init__(
        self,
        cluster,
        quorums,
        segments,
        *,
        state=LedgerState.OPEN,
        password=b"pw",
        recorded=True,
        digest=DigestType.CRC32C,
    ):
        self.cluster = cluster
        self.digest = digest_manager(digest, password)
        self.key = master_key(password)
        self.metadata = LedgerMetadata(
            LEDGER,
            *quorums,
            segments,
            state=state,
            digest_type=digest if recorded else None,
            password=password if recorded else None,
        )
        cluster.metadata.ledgers.make(self.metadata)

    def entry(self, entry_id, lac):
        return self.digest.encode(LEDGER, entry_id, lac, length_of(entry_id), payload(entry_id))

    def put(self, entry_id, *bookies, lac=None):
        """Copies on these bookies, by default on the whole write set. `lac`: by default the entry before."""
        for bookie in bookies or self.metadata.bookies_for(entry_id):
            self.cluster.bookie(bookie).add(self.key, self.entry(entry_id, entry_id - 1 if lac is None else lac))

    def put_all(self, *entry_ids):
        for entry_id in entry_ids:
            self.put(entry_id)

    @property
    def stored(self):
        return self.cluster.stored(LEDGER)

    @property
    def states(self):
        return [metadata.state.value for metadata in self.cluster.metadata.ledgers.history]

    def fenced(self, bookie):
        ledger = self.cluster.bookie(bookie).ledgers.get(LEDGER)
        return ledger is not None and ledger.fenced

    def holders(self, entry_id):
        """Bookies of the write set that the metadata assign, which hold the entry."""
        return [b for b in self.stored.bookies_for(entry_id) if entry_id in self.cluster.held_at(b, LEDGER)]

    def check(self, last_entry_id):
        """Closed at this entry, with its exact length, and every entry on its ack quorum."""
        stored = self.stored
        assert stored.state is LedgerState.CLOSED
        assert (stored.last_entry_id, stored.length) == (last_entry_id, length_of(last_entry_id))
        for entry_id in range(last_entry_id + 1):
            assert len(self.holders(entry_id)) >= stored.ack_quorum_size, entry_id


async def contents(client, **options):
    async with client.open(LEDGER, password=b"pw", **options) as reader:
        return [entry.payload async for entry in reader.entries()]


async def crashed(cluster, quorums=(3, 3, 2), segments=None, spares=0, **options):
    """The ledger, and its bookies and some spare ones, which it adds to the cluster."""
    segments = segments or {0: tuple(f"b{i}" for i in range(1, quorums[0] + 1))}
    names = sorted({bookie for ensemble in segments.values() for bookie in ensemble})
    for name in names + [f"s{i}" for i in range(spares)]:
        await cluster.add_bookie(name)
    return CrashedLedger(cluster, quorums, segments, **options)
