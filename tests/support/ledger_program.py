"""A writer that is a process of its own, to be killed and stopped: creates a ledger, appends, and notes how each
append ended.

The ledger is left open, and the process stays until somebody ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from bookie_client import Client, ClientOptions
from tests.support.noting_program import NotingProgram, note_to

PASSWORD = b"ledger program"
ADD_TIMEOUT = 30.0
"""Seconds; long, so that a writer that was stopped for a while does not count its own sleep against bookies."""


def payload(entry_id: int) -> bytes:
    """What entry `entry_id` holds."""
    return b"entry %d " % entry_id * (1 + entry_id % 50)


class LedgerProgram(NotingProgram):
    """The running program. `window`: appends that are under way at a time."""

    def __init__(self, uri: str, file: Path, quorums: tuple[int, int, int], count: int, window: int = 50) -> None:
        super().__init__(__name__, file, (uri, file, *quorums, count, window))

    @property
    def ledger_id(self) -> int:
        return int(self.wait_for("ledger")[0][0])


async def _run(uri: str, file: str, ensemble: int, write_quorum: int, ack_quorum: int, count: int, window: int) -> None:
    note = note_to(file)

    def ended(entry_id: int, future: asyncio.Future[int]) -> None:
        error = future.exception()
        note("acknowledged", future.result()) if error is None else note("failed", entry_id, type(error).__name__)

    options = ClientOptions(add_timeout=ADD_TIMEOUT, write_window_entries=window)
    async with Client(uri, options) as client:
        ledger = await client.create(
            ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, password=PASSWORD
        )
        note("ledger", ledger.ledger_id)
        for entry_id in range(count):
            try:
                future = await ledger.submit(payload(entry_id))
            except Exception as error:
                note("refused", entry_id, type(error).__name__)
                break
            future.add_done_callback(lambda f, entry_id=entry_id: ended(entry_id, f))
        await asyncio.wait([asyncio.ensure_future(ledger.flush())])
        note("done")
        await asyncio.get_running_loop().create_future()


def main(arguments: Sequence[str]) -> None:
    uri, file, *numbers = arguments
    asyncio.run(_run(uri, file, *map(int, numbers)))
