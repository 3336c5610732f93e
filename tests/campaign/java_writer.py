"""The stock Java client as a writer; what it was told it tells the history.

It needs Maven's class path and ZooKeeper, since it knows no other metadata service. Event loop only; its calls wait on
threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from tests.campaign.history import History, Ledger
from tests.interop.java_client import JavaClient, JavaClientError

_SHAPES: Final = ((3, 3, 2), (3, 2, 2), (3, 3, 3), (1, 1, 1))
_PAUSE_S: Final = 0.5


class JavaWriter:
    """One JVM, which is started again when it has ended. `close` ends it."""

    def __init__(
        self, class_path: str, uri: str, log: Path, history: History, new_ledger: Callable[..., Ledger]
    ) -> None:
        self._make = lambda: JavaClient(class_path, uri, log)
        self._history = history
        self._new_ledger = new_ledger
        self._java: JavaClient | None = None

    async def write(self, random: Random) -> Ledger | None:
        """One ledger, which may be left open; None: there is none."""
        if self._java is None:
            self._java = await asyncio.to_thread(self._make)
        java, ledger = self._java, None
        try:
            shape = random.choice(_SHAPES)
            protocol = random.choice(("V2", "V3"))
            ledger_id = await asyncio.to_thread(java.create, shape, protocol=protocol)
            ledger = self._new_ledger(ledger_id, shape, "CRC32C", "java")
            await self._append(java, ledger, random)
            if random.random() < 0.5:
                ledger.is_closed_by_writer = True
                await asyncio.to_thread(java.close, ledger_id)
        except JavaClientError:
            self._history.counts["Java calls that failed"] += 1
            await asyncio.sleep(_PAUSE_S)
        except (AssertionError, OSError, ValueError):  # it ended: what it does with errors that are no BKException
            self._history.counts["Java programs that ended"] += 1
            self.close()
            await asyncio.sleep(_PAUSE_S)
        return ledger

    async def _append(self, java: JavaClient, ledger: Ledger, random: Random) -> None:
        for _ in range(random.randint(1, 10)):
            count = random.randint(1, 20)
            ledger.sent += count
            await asyncio.to_thread(java.append, ledger.ledger_id, count)
            for entry_id in range(ledger.acked + 1, ledger.sent):
                self._history.acknowledged(ledger, entry_id)

    def close(self) -> None:
        java, self._java = self._java, None
        if java is not None:
            java.stop()
