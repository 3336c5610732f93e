"""The operator as a process of this machine, which is killed after every few side effects and started again.

    with DyingOperator(environment, namespace, folder) as operator:
        ...                                      # let a flow run to its end
    operator.deaths                              # what each process did last

Every process has a few side effects (1, 2, 1, 3, and so on), so that each step of a flow is once the last one of a
process, also between an effect and the status that tells of it.

Threads: one of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.e2e.support.crashing_operator import EXIT_CODE

EFFECTS: Final = (1, 2, 1, 3)
_LEAST_SECONDS: Final = 0.2
"""Between two starts."""


class DyingOperator:
    """A context manager. `arguments`: of the operator's command; `variables`: of its environment."""

    def __init__(
        self, folder: Path, arguments: list[str], variables: dict[str, str], effects: tuple[int, ...] = EFFECTS
    ) -> None:
        self._log = folder / "operator.log"
        self._arguments = arguments
        self._variables = variables
        self._effects = effects
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.ends: list[int] = []
        """Exit codes."""

    @property
    def deaths(self) -> list[str]:
        """What each of those that died did last: method and path."""
        return [line.removeprefix("dies after ") for line in self.log().splitlines() if line.startswith("dies after ")]

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def __enter__(self) -> DyingOperator:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._process is not None:
            self._process.terminate()
        self._thread.join(timeout=60)
        if kind is not None:
            print("operator's log:", self.log()[-20_000:])
        else:
            wrong = [code for code in self.ends[:-1] if code != EXIT_CODE]
            assert not wrong, f"the operator ended by itself with {wrong}:\n{self.log()[-5000:]}"

    def _run(self) -> None:
        command = [sys.executable, "-m", "tests.e2e.support.crashing_operator", *self._arguments]
        for effects in cycle(self._effects):
            if self._stop.is_set():
                return
            variables = {**os.environ, **self._variables, "CRASH_AFTER": str(effects)}
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=variables,
                    cwd=Path(__file__).parents[3],
                )
            if self._stop.is_set():
                self._process.terminate()
            self.ends.append(self._process.wait())
            self._stop.wait(_LEAST_SECONDS)
