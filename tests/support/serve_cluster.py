"""A cluster of our bookies, each a process with a name and a port of its own that it keeps through restarts, and the
metadata service that a test gives.

Invariants
- Every process started here is ended by `stop`, also one that was paused.
- "Ready" is what clients see: a bookie registers before it serves.

One thread uses a `ServeCluster`; blocking calls of it are short, but for `start` and `add`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from tests.support.hanging import hanging
from tests.support.serve_process import ServeProcess
from tests.support.until import until_true

_START_S = 240.0


class ServeCluster:
    """`bookies`: by name, bookie-1 and so on."""

    def __init__(self, work: Path, metadata_uri: str, settings: Mapping[str, str] | None = None) -> None:
        self.uri = metadata_uri
        self.bookies: dict[str, ServeProcess] = {}
        self._added = 0
        self._work = work
        self._settings = {"zkTimeout": "4000", **(settings or {})}
        made = ServeProcess.command("cluster", "init", metadata_uri, "--if-absent")
        assert made.returncode == 0, made.stderr

    def add(self, count: int) -> list[str]:
        """Start so many further bookies; returns their names when all serve."""
        names = [f"bookie-{number}" for number in range(self._added + 1, self._added + count + 1)]
        self._added += count
        for name in names:
            settings = {"bookieId": name, "metadataServiceUri": self.uri, **self._settings}
            self.bookies[name] = ServeProcess(self._work / name, settings)
        self.start(names)
        return names

    def start(self, names: Iterable[str]) -> None:
        """Start bookies that are not running, on the directories and ports that they had."""
        starting = [self.bookies[name] for name in names]
        for bookie in starting:
            bookie.launch()
        for bookie in starting:
            until_true(lambda bookie=bookie: bookie.process.poll() is not None or bookie.is_up(), _START_S)
            assert bookie.process is not None
            assert bookie.process.poll() is None, bookie.log.read_text()[-3000:]

    def kill(self, *names: str) -> None:
        """As a crash would."""
        for name in names:
            self.bookies[name].kill()

    def paused(self, names: Iterable[str]) -> AbstractContextManager[None]:
        """These hang meanwhile: connections to them stand, and nobody answers."""
        processes = [self.bookies[name].process for name in names]
        return hanging(process.pid for process in processes if process is not None)

    def stop(self) -> None:
        """End all processes, without waiting for their flushes."""
        for bookie in self.bookies.values():
            if bookie.process is not None:
                bookie.kill()
