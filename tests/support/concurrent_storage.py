"""A ledger storage that many threads use at once: the hop to its event loop, and readers beside a writer."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from bookie_pod.storage.engines.interface import LedgerStorage
from tests.support.storage_engine import entry


class LoopRunner:
    """`OnLoop` as the node makes it: hop to the loop and wait."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()

    def __call__(self, action: Callable[[], None]) -> None:
        done: Future[None] = Future()

        def run() -> None:
            assert threading.get_ident() == self.thread
            try:
                action()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self.loop.call_soon_threadsafe(run)
        done.result(30)


def read_what_was_put(
    storage: LedgerStorage, acknowledged: Mapping[int, int], stop: threading.Event, failures: list[str], seed: int
) -> None:
    """Read entries of 150 bytes and the last one of each ledger until told to stop. `acknowledged`: the last entry id
    put into ledgers 0, 1, ..., -1 before there is one. What is wrong goes to `failures`."""
    rng = random.Random(seed)
    while not stop.is_set():
        ledger_id = rng.randrange(len(acknowledged))
        last = acknowledged[ledger_id]
        if last < 0:
            continue
        try:
            entry_id = rng.randint(0, last)
            if storage.read(ledger_id, entry_id) != entry(ledger_id, entry_id, 150):
                failures.append(f"wrong bytes {ledger_id} {entry_id}")
            if storage.last_entry_id(ledger_id) < last:
                failures.append(f"last entry of {ledger_id} below {last}")
        except Exception as error:
            failures.append(repr(error))
