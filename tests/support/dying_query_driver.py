"""The parent's side of `tests.support.dying_query`: starts the program, again and again, and tells it where to die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from tests.support.dying_query import FOLDER_VARIABLE, Kill, RunSettings
from tests.support.spark_environment import REPOSITORY, spark_environment
from tests.support.until import until_true

PATIENCE_S = 600.0
"""A Spark application begins its work within that, also on a busy machine."""


class DyingQuery:
    """One query with one checkpoint. A context manager, which leaves no process behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> DyingQuery:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pid in self._pids():
                _kill(pid)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def failures(self) -> str:
        """Why the query failed, all times together."""
        path = self.folder / "failures"
        return path.read_text() if path.exists() else ""

    def start(self, run: RunSettings) -> None:
        """Start the application; its query goes on from the checkpoint."""
        for name in ("stop", "pids"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "run.json").write_text(json.dumps(asdict(run)))
        environment = {**spark_environment(), FOLDER_VARIABLE: str(self.folder)}
        self.starts += 1
        with open(self.folder / f"log-{self.starts}", "wb") as log:
            command = [sys.executable, "-m", "tests.support.dying_query", str(self.folder)]
            self._process = subprocess.Popen(
                command, cwd=REPOSITORY, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def until_killed(self, kill: Kill, feed: Callable[[], object]) -> None:
        """Feed the query until it came to the place where it dies."""
        kill.arm(self.folder)
        fired = self.folder / "killed"

        def has_fired() -> bool:
            assert fired.exists() or self.is_running, self._told()
            if fired.exists():
                return True
            feed()
            return False

        until_true(has_fired, PATIENCE_S)
        if kill.who == "driver":
            assert self._process is not None
            self._process.wait(PATIENCE_S)
            for pid in self._pids():
                _kill(pid)

    def until_done(self, is_done: Callable[[], bool]) -> None:
        """Let the query go on until everything is there, then end it as one does."""
        Kill.disarm(self.folder)

        def is_ready() -> bool:
            assert self.is_running, self._told()
            return is_done()

        until_true(is_ready, PATIENCE_S)
        (self.folder / "stop").touch()
        assert self._process is not None
        assert self._process.wait(PATIENCE_S) == 0, self._told()

    def _pids(self) -> list[int]:
        path = self.folder / "pids"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def _told(self) -> str:
        return (self.folder / f"log-{self.starts}").read_text()[-3000:] + self.failures[-3000:]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass
