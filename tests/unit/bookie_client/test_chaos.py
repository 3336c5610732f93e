"""A ledger written while bookies stop, hang, refuse and come back at random, from one seed.

Checked at the end, on what the bookies really hold: S2 to S5 and S7 of the reference client protocol, section
20.
"""

import asyncio
from random import Random

import pytest

from bookie_protocol.errors import BookieReadOnly, StorageFault, TooManyRequests
from tests.support.until import until
from tests.unit.bookie_client.conftest import FAST

BOOKIES = 5
ENTRIES = 1500


def payload(entry_id):
    return f"entry {entry_id} ".encode() * (entry_id % 40)


class Faults:
    """One fault at a time on each of at most `most` bookies, as spares and quorums tolerate."""

    def __init__(self, cluster, random, most, kinds):
        self.cluster = cluster
        self.random = random
        self.most = most
        self.kinds = kinds
        self.ill = {}
        self.count = 0

    async def step(self):
        if len(self.ill) == self.most or (self.ill and self.random.random() < 0.5):
            name = self.random.choice(sorted(self.ill))
            await self.heal(name)
            return
        name = self.random.choice([n for n in sorted(self.cluster.servers) if n not in self.ill])
        fault = self.random.choice(self.kinds)
        server = self.cluster.servers[name]
        self.count += 1
        if fault == "stop":
            await server.stop()
        elif fault == "silent":
            server.silent = True
        elif fault == "refuse":
            server.bookie.fail_adds = self.random.choice([StorageFault, BookieReadOnly, TooManyRequests])
        else:
            for connection in list(server.connections):
                connection.abort()
            return
        self.ill[name] = fault

    async def heal(self, name):
        server = self.cluster.servers[name]
        if self.ill.pop(name) == "stop":
            await server.start()
        server.silent = False
        server.bookie.fail_adds = None


@pytest.mark.parametrize("seed", range(10))
async def test_what_was_acknowledged_is_there(cluster, seed):
    random = Random(seed)
    for i in range(BOOKIES):
        server = await cluster.add_bookie(f"b{i}")
        server.shuffle_answers = random.random() < 0.3
    quorums = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 3, 3), (4, 2, 2)][seed % 5]
    kinds = ["stop", "refuse", "cut"]
    if quorums[2] < quorums[1]:
        # Its effect is seen a time-out later, when the spare may be ill: only a slack in the quorum bears
        # that.
        kinds.append("silent")
    faults = Faults(cluster, random, max(1, BOOKIES - quorums[0]), kinds)
    # A bookie that a busy machine makes late, or a fault whose effect it sees late, would be one fault too many for a
    # quorum without slack.
    timeout = 0.15 if "silent" in kinds else 10.0
    options = {"protocol_version": random.choice([2, 3]), "add_timeout": timeout, "read_timeout": timeout}
    acknowledged = []

    async with cluster.client(**options) as client:
        ledger = await client.create(ensemble=quorums[0], write_quorum=quorums[1], ack_quorum=quorums[2])
        bulk = seed % 2
        for entry_id in range(ENTRIES):
            if not bulk:
                future = await ledger.submit(payload(entry_id))
                future.add_done_callback(lambda f: f.exception() or acknowledged.append(f.result()))
            elif entry_id % 25 == 0:
                future = await ledger.submit_many(payload(i) for i in range(entry_id, entry_id + 25))
                future.add_done_callback(lambda f: f.exception() or acknowledged.extend(f.result()))
            if entry_id % 50 == 49:
                await faults.step()
                if "silent" not in kinds:  # what the fault did is dealt with before the next one
                    await until(lambda: not ledger.pending, 60)
                await asyncio.sleep(FAST["reconnect_delay"])
        for name in list(faults.ill):
            await faults.heal(name)
        await ledger.close()
        await asyncio.sleep(0)
        assert faults.count > 5
        assert (ledger.failure, ledger.pending, len(acknowledged)) == (None, 0, ENTRIES)

        # S7: in order, without gaps; the end is exactly what was acknowledged.
        assert acknowledged == list(range(len(acknowledged)))
        stored = cluster.stored(ledger.ledger_id)
        assert stored.is_closed
        assert stored.last_entry_id == len(acknowledged) - 1
        assert stored.length == sum(len(payload(i)) for i in acknowledged)

        # S4, S5: Qa bookies of the ensemble that the metadata assigns hold each entry.
        for entry_id in acknowledged:
            holders = [b for b in stored.bookies_for(entry_id) if entry_id in cluster.held_at(b, ledger.ledger_id)]
            assert len(holders) >= quorums[2], entry_id

        # S10: segments ascend, and each is an ensemble of different bookies.
        assert all(len(set(ensemble)) == quorums[0] for ensemble in stored.ensembles.values())

        async with client.open(ledger.ledger_id) as reader:
            found = [entry.payload async for entry in reader.entries()]
        assert found == [payload(i) for i in acknowledged]
