"""A writer that is a process of its own, to be killed and stopped: creates a ledger, appends, and notes how each
append ended.

    python -m tests.support.ledger_program URI FILE E QW QA COUNT WINDOW

The file has a line for each thing that happened, written without a buffer: what a line says is true however the
process ends. The ledger is left open, and the process stays until somebody ends it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from bookie_client import Client, ClientOptions
from tests.support.until import until_true

PASSWORD = b"ledger program"
ADD_TIMEOUT = 30.0
"""Seconds; long, so that a writer that was stopped for a while does not count its own sleep against bookies."""


def payload(entry_id: int) -> bytes:
    """What entry `entry_id` holds."""
    return b"entry %d " % entry_id * (1 + entry_id % 50)


class LedgerProgram:
    """The running program; a context manager that kills it. `window`: appends that are under way at a time."""

    def __init__(self, uri: str, file: Path, quorums: tuple[int, int, int], count: int, window: int = 50) -> None:
        self._file = file
        file.touch()
        with file.with_suffix(".out").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, uri, str(file), *map(str, (*quorums, count, window))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=Path(__file__).parents[2],
                start_new_session=True,
            )

    def lines(self) -> list[list[str]]:
        """What it noted so far, words by line; without a line that is not complete yet."""
        return [line.split() for line in self._file.read_text().rpartition("\n")[0].splitlines()]

    def noted(self, what: str) -> list[list[str]]:
        """The words behind `what` of all such lines."""
        return [words[1:] for words in self.lines() if words[0] == what]

    def wait_for(self, what: str, count: int = 1, seconds: float = 60.0) -> list[list[str]]:
        """Wait until it noted so many of these."""

        def there() -> bool:
            ended = self.process.poll() is not None
            found = len(self.noted(what)) >= count
            assert found or not ended, self._file.with_suffix(".out").read_text()
            return found

        until_true(there, seconds)
        return self.noted(what)

    @property
    def ledger_id(self) -> int:
        return int(self.wait_for("ledger")[0][0])

    def acknowledged(self) -> list[int]:
        """Entry ids, in the order of their acknowledgements."""
        return [int(words[0]) for words in self.noted("acknowledged")]

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> LedgerProgram:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


async def _run(uri: str, file: str, ensemble: int, write_quorum: int, ack_quorum: int, count: int, window: int) -> None:
    out = os.open(file, os.O_WRONLY | os.O_APPEND)

    def note(*words: object) -> None:
        os.write(out, (" ".join(map(str, words)) + "\n").encode())

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


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
