"""One process of the cluster: started, killed, stopped, held up and started again.

It writes to a file, never to a pipe. Whoever starts one ends it. Any thread, one at a time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_TAIL: Final = 3000


class Program:
    """`command` is run as it is, in a session of its own."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.environment = dict(environment or {})
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begins = 0

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the process that ended last by itself; negative: the signal that it died of."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Not waiting for anything."""
        assert not self.is_running
        self.starts += 1
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._log_begins = output.tell()
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    def kill(self) -> None:
        """As a crash would; it may have ended by itself."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def terminate(self, seconds: float) -> int | None:
        """SIGTERM: its exit code; None if it did not end in time and was killed."""
        assert self._process is not None
        self._process.terminate()
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        self._process = None
        return code

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def said(self) -> str:
        """The end of what the last start has written."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_begins, size - _TAIL))
            return file.read().decode(errors="replace")
