"""A Java program that does one thing after the other for Python: one JSON object a line, both ways.

Any thread may call a `JavaAgent`, one at a time. Whoever starts one stops it.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_STOP_SECONDS = 30


class JavaAgent:
    """What the program prints besides goes to a file, whose end is shown when the program ends unasked."""

    def __init__(self, line: Sequence[str], log: Path) -> None:
        """`line`: as from `java_programs.command`."""
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._log = log
        self._turn = threading.Lock()

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        """The program's answer. Raises AssertionError when it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        assert line, f"the Java program ended:\n{self._log.read_text()[-4000:]}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """End it, as one that dies."""
        self._process.kill()
        self._process.communicate(timeout=_STOP_SECONDS)
