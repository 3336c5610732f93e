"""Random adds, deletions, ids that come back, rotations, compactions and restarts: the store and a dict agree."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_protocol.errors import NoSuchEntry, NoSuchLedger
from tests.support.gc_rig import FAST, MAJOR, MINOR, GcRig
from tests.support.memtable_engine import MemTableBookie, memtable_options
from tests.support.storage_engine import KEY, MemoryBookie, entry, put, small_options

STEPS = 250
OTHER = ("other:3181",)


def _make(engine: str, *, transactional: bool, per_ledger: bool = False) -> GcRig:
    options = replace(
        FAST, transactional_compaction=transactional, overreplicated_wait_time_ms=1, compaction_max_outstanding=7
    )
    if engine == "db":
        return GcRig(options, MemoryBookie(options=small_options(log_size=3000, read_cache_bytes=4000)))
    small_pages = memtable_options(log_size=3000, page_bytes=64, page_limit=4, open_files=3, per_ledger=per_ledger)
    return GcRig(options, MemTableBookie(engine, options=small_pages))


class Pair:
    """The store, and what it must hold. A bookie learns of a deletion with its next pass; what it holds until then
    belongs to whoever uses the id."""

    def __init__(self, rig: GcRig, seed: int) -> None:
        self.rig = rig
        self.rng = random.Random(seed)
        self.absent = random.Random(seed)
        """Which of the entries that are not there are asked for."""
        self.model: dict[int, dict[int, bytes]] = {}
        self.life = 0
        self.compacted = self.deleted = self.passes = 0
        rig.metadata.ledgers[999] = OTHER

    def run(self) -> None:
        for number in range(STEPS):
            passes = self.passes
            self.step()
            if number % 5 == 4 or self.passes != passes:
                self.check()

    def step(self) -> None:
        actions: list[tuple[int, Callable[[], None]]] = [
            (40, self.add),
            (6, self.delete),
            (3, self.move_elsewhere),
            (6, self.rig.storage.flush),
            (8, self.rotate),
            (6, lambda: self.collect(None)),
            (4, lambda: self.collect("minor")),
            (6, lambda: self.collect("major")),
            (2, self.restart),
        ]
        self.rng.choices([action for _, action in actions], [weight for weight, _ in actions])[0]()

    def add(self) -> None:
        ledger_id = self.rng.randrange(12)
        if self.rig.metadata.ledgers.get(ledger_id, OTHER) == OTHER:
            self.life += 1  # created, created anew, or re-replicated to this bookie
            self.rig.metadata.ledgers[ledger_id] = None
        self.rig.storage.set_master_key(ledger_id, KEY)
        held = self.model.setdefault(ledger_id, {})
        first = self.rng.choice([0, len(held), self.rng.randrange(30)])
        for entry_id in range(first, first + self.rng.randrange(1, 6)):
            # What a client sends twice is the same: only one that is not here may differ.
            data = held.get(entry_id) or entry(ledger_id, entry_id, self.rng.randrange(40, 200), b"%d" % self.life)
            put(self.rig.storage, data)
            held[entry_id] = data

    def delete(self) -> None:
        known = [ledger_id for ledger_id in self.rig.metadata.ledgers if ledger_id < 100]
        if known:
            del self.rig.metadata.ledgers[self.rng.choice(known)]

    def move_elsewhere(self) -> None:
        known = [ledger_id for ledger_id, where in self.rig.metadata.ledgers.items() if where is None]
        if known:
            self.rig.metadata.ledgers[self.rng.choice(known)] = OTHER

    def rotate(self) -> None:
        self.rig.storage.flush()
        self.rig.logs.rotate()
        self.rig.logs.sync()

    def restart(self) -> None:
        self.rig.storage.flush()
        self.rig.restart()

    def collect(self, kind: str | None) -> None:
        self.rig.now += 10
        if kind is not None:
            self.rig.gc.request(MINOR if kind == "minor" else MAJOR)
        result = self.rig.gc.run_pass()
        assert result.errors == []
        self.passes += 1
        self.compacted += result.logs_compacted
        self.deleted += result.ledgers_deleted
        exist = {ledger_id for ledger_id, where in self.rig.metadata.ledgers.items() if where is None}
        self.model = {ledger_id: held for ledger_id, held in self.model.items() if ledger_id in exist}

    def check(self) -> None:
        storage = self.rig.storage
        assert set(storage.ledger_ids()) == set(self.model)
        for ledger_id in range(12):
            held = self.model.get(ledger_id)
            if held is None:
                with pytest.raises(NoSuchLedger):
                    storage.read(ledger_id, 0)
                continue
            assert list(storage.entry_ids(ledger_id)) == sorted(held), ledger_id
            assert storage.last_entry_id(ledger_id) == max(held)
            for entry_id, data in held.items():
                assert storage.read(ledger_id, entry_id) == data, (ledger_id, entry_id)
            for entry_id in {*self.absent.sample(range(40), 5), max(held) + 1} - held.keys():
                with pytest.raises(NoSuchEntry):
                    storage.read(ledger_id, entry_id)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "plain"])
@pytest.mark.parametrize("engine", ["db", "sorted", "interleaved"])
def test_store_and_model_agree(engine: str, transactional: bool, seed: int) -> None:
    pair = Pair(_make(engine, transactional=transactional), seed)
    pair.run()
    assert pair.compacted > 3
    assert pair.deleted > 5
    pair.rig.storage.close()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
def test_with_one_log_per_ledger(engine: str, seed: int) -> None:
    pair = Pair(_make(engine, transactional=False, per_ledger=True), seed)
    pair.run()
    assert pair.deleted > 5
    pair.rig.storage.close()
