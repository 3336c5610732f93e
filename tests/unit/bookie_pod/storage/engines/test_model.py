"""Any sequence of operations against a plain dict, with flushes, failures, restarts and power cuts in between."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import NoSuchEntry, NoSuchLedger, NotThere, StorageFault
from tests.support.memory_faults import MUTATING
from tests.support.storage_engine import KEY, MemoryBookie, entry, put, small_options

LEDGERS = st.integers(0, 4)
ENTRIES = st.integers(0, 12)
SIZES = st.sampled_from([40, 300, 900])


class EngineMachine(RuleBasedStateMachine):
    """The model is what a client was promised: everything put, since a replay would bring back what a crash took."""

    def __init__(self) -> None:
        super().__init__()
        self.bookie = MemoryBookie(("/d0", "/d1"), small_options(directories=2, log_size=2000, read_cache_bytes=3000))
        self.storage: DbLedgerStorage = self.bookie.open()
        self.model: dict[int, dict[int, bytes]] = {}
        self.fenced: set[int] = set()
        self.since_flush: list[tuple[str, int, bytes]] = []

    def teardown(self) -> None:
        self.storage.close()

    @rule(
        ledger_id=LEDGERS,
        entry_id=ENTRIES,
        size=st.sampled_from([40, 300, 900]),
        mark=st.binary(min_size=1, max_size=2),
    )
    def put(self, ledger_id: int, entry_id: int, size: int, mark: bytes) -> None:
        data = entry(ledger_id, entry_id, size, mark)
        put(self.storage, data)
        self.model.setdefault(ledger_id, {})[entry_id] = data
        self.since_flush.append(("put", ledger_id, data))

    @rule(ledger_id=LEDGERS)
    def fence(self, ledger_id: int) -> None:
        self._fence(ledger_id)
        self.model.setdefault(ledger_id, {})
        self.fenced.add(ledger_id)
        self.since_flush.append(("fence", ledger_id, b""))

    def _fence(self, ledger_id: int) -> None:
        self.storage.set_ledger(ledger_id, replace(self.storage.set_master_key(ledger_id, KEY), fenced=True))

    @rule(ledger_id=LEDGERS)
    def delete(self, ledger_id: int) -> None:
        self.storage.delete_ledger(ledger_id)
        self.model.pop(ledger_id, None)
        self.fenced.discard(ledger_id)
        self.since_flush.append(("delete", ledger_id, b""))

    @rule()
    def flush(self) -> None:
        self.storage.flush()
        self.since_flush.clear()

    @rule(failing=st.integers(0, 30))
    def failing_flush(self, failing: int) -> None:
        self.bookie.faults.fail(*MUTATING, after=failing, times=1)
        try:
            self.storage.flush()
        except StorageFault:
            pass
        else:
            self.since_flush.clear()
        self.bookie.faults.clear()

    @rule()
    def restart(self) -> None:
        self.flush()
        self.storage.close()
        self.storage = self.bookie.open()

    @rule(seed=st.integers(0, 1 << 30))
    def power_cut(self, seed: int) -> None:
        crashed = self.bookie.crash(random.Random(seed))
        self.storage.close()
        self.bookie = crashed
        self.storage = crashed.open()
        for what, ledger_id, data in list(
            self.since_flush
        ):  # as a replay does, and as garbage collection repeats itself
            if what == "put":
                put(self.storage, data)
            elif what == "fence":
                self._fence(ledger_id)
            else:
                self.storage.delete_ledger(ledger_id)

    @rule(ledger_id=LEDGERS, entry_id=ENTRIES)
    def read(self, ledger_id: int, entry_id: int) -> None:
        wanted = self.model.get(ledger_id, {}).get(entry_id)
        if wanted is not None:
            assert self.storage.read(ledger_id, entry_id) == wanted
            return
        with pytest.raises(NoSuchEntry if ledger_id in self.model else NoSuchLedger):
            self.storage.read(ledger_id, entry_id)

    @rule(ledger_id=LEDGERS)
    def read_last(self, ledger_id: int) -> None:
        held = self.model.get(ledger_id)
        if held:
            assert self.storage.read(ledger_id, LAST_ENTRY) == held[max(held)]
            return
        with pytest.raises(NotThere):
            self.storage.last_entry_id(ledger_id)

    @rule(ledger_id=LEDGERS)
    def list_entries(self, ledger_id: int) -> None:
        if ledger_id in self.model:
            assert list(self.storage.entry_ids(ledger_id)) == sorted(self.model[ledger_id])

    @invariant()
    def ledgers_are_known(self) -> None:
        assert set(self.storage.ledger_ids()) == set(self.model)
        fenced = {n for n in self.model if (record := self.storage.ledger(n)) is not None and record.fenced}
        assert fenced == self.fenced

    @invariant()
    def caches_keep_their_bounds(self) -> None:
        for directory in self.storage.directories:
            assert directory.read_cache.nbytes <= directory.read_cache.max_bytes


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(stateful_step_count=40)
