"""The replay puts from a thread of its own: nobody may freeze what it is putting into.

The event loop of these tests runs nothing but when the test lets it: in the middle of every put, and while the replay
itself waits for a flush.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bookie_pod.node.recovery import ReplayIntoStorage
from bookie_pod.storage.engines.interface import LedgerStorage, OnLoop
from tests.support.memtable_engine import Checkpoints, MemTableBookie, memtable_options
from tests.support.storage_engine import KEY, MemoryBookie, entry, small_options

BACKGROUND_S = 0.03
"""How long a put stands still for background work to strike."""
HALF = 16 << 10


class HeldLoop:
    """An `OnLoop` whose functions wait until `run_while_asked` runs them."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[Callable[[], None], threading.Event]] = queue.Queue()

    def __call__(self, function: Callable[[], None]) -> None:
        ran = threading.Event()
        self._waiting.put((function, ran))
        assert ran.wait(10)

    def run_while_asked(self, within: float) -> None:
        """Run what comes until nothing has come for so many seconds."""
        with contextlib.suppress(queue.Empty):
            while True:
                function, ran = self._waiting.get(timeout=within)
                function()
                ran.set()

    def run_until_over(self, work: Callable[[], None]) -> None:
        """Serve while another thread does `work`."""
        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            self.run_while_asked(0.005)


class Preempted:
    """A storage whose callers lose the interpreter between the look at the active half and the put."""

    def __init__(self, storage: LedgerStorage, loop: HeldLoop) -> None:
        self._storage = storage
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def active_entries(self, ledger_id: int) -> dict[int, bytes]:
        entries = self._storage.active_entries(ledger_id)
        self._loop.run_while_asked(BACKGROUND_S)
        return entries

    def flush(self) -> None:
        self._loop.run_until_over(self._storage.flush)


def _db(on_loop: OnLoop) -> LedgerStorage:
    options = small_options(half_bytes=HALF)
    options = replace(options, db_storage=replace(options.db_storage, flush_threshold_bytes=HALF // 4))
    return MemoryBookie(options=options, on_loop=on_loop).open()


def _memtable(name: str) -> Callable[[OnLoop], LedgerStorage]:
    return lambda on_loop: MemTableBookie(name, options=memtable_options(memtable_bytes=HALF), on_loop=on_loop).open()


@pytest.mark.parametrize(
    "opened", [_db, _memtable("interleaved"), _memtable("sorted")], ids=["db", "interleaved", "sorted"]
)
def test_every_entry_that_is_replayed_is_there_afterwards(opened: Callable[[OnLoop], LedgerStorage]) -> None:
    loop = HeldLoop()
    storage = opened(loop)
    replayed = ReplayIntoStorage(Preempted(storage, loop))
    replayed.on_key(1, KEY)
    entries = [entry(1, number, 1000) for number in range(2 * HALF // 1000)]  # every threshold is passed, twice
    for number, data in enumerate(entries):
        replayed.on_entry(1, number, data)
    loop.run_until_over(storage.flush)
    storage.start(Checkpoints())
    assert [storage.read(1, number) for number in range(len(entries))] == entries
    storage.close()
