"""What every benchmark stands on: a ZooKeeper, a bookie of either kind on fresh directories, the Java driver.

Invariants
- Both kinds of bookie run from the same configuration, cache sizes included; `SHARED` is all that is set.
- Everything listens on the loopback interface only, and ends with the `Environment`.

One thread uses an `Environment`.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.drivers import printed_object
from benchmarks.samples import CEILING
from tests.support.bookie_process import BookieProcess, free_port, loopback_configuration, podkeeper_bookie
from tests.support.java import BOOKKEEPER_OPTIONS, NETTY_OPTIONS, MavenProject, find_java
from tests.support.java_bookie import initialise_cluster, java_bookie
from tests.support.zookeeper import ZooKeeperServer

PROJECT = MavenProject(Path(__file__).parent / "java")
KINDS = ("ours", "java")

# The stock sizes of a Java bookie: heap 1 GiB, direct memory 2 GiB, a quarter of the latter for each cache.
HEAP_MB = 1024
DIRECT_MB = 2048
SHARED: Mapping[str, str] = {
    "dbStorage_writeCacheMaxSizeMb": "512",
    "dbStorage_readAheadCacheMaxSizeMb": "512",
    "dbStorage_rocksDB_blockCacheSize": str(205 * 1024 * 1024),
}
_DRIVER_SECONDS = 600


def drive(class_path: str, *arguments: str) -> dict[str, Any]:
    """Runs the load driver; returns the object it printed. Raises `DriverError`."""
    return printed_object(
        [
            find_java(),
            "-Xms512m",
            "-Xmx1g",
            "-XX:MaxDirectMemorySize=2g",
            *BOOKKEEPER_OPTIONS,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            "-cp",
            class_path,
            "dev.podkeeper.bench.Main",
            *arguments,
        ],
        arguments,
        _DRIVER_SECONDS,
    )


class Environment:
    """A ZooKeeper with an initialised cluster, and a directory for bookies; `journals`: parent of one more, for their
    journals, on a device of its own."""

    def __init__(self, parent: Path | None = None, journals: Path | None = None) -> None:
        self.class_path = PROJECT.class_path()
        self.directory = _made_in(parent)
        self._journals = None if journals is None else _made_in(journals)
        self._zookeeper = ZooKeeperServer(str(self.directory / "zookeeper"))
        self.metadata_uri = ""
        self._bookies: list[BookieProcess] = []

    def __enter__(self) -> Environment:
        try:
            self._zookeeper.start()
            self.metadata_uri = self._zookeeper.uri(layout="hierarchical")
            initialise_cluster(self.class_path, self.metadata_uri, self.directory)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def bookie(
        self, kind: str, settings: Mapping[str, str] | None = None, memory_mb: int | None = None
    ) -> BookieProcess:
        """A bookie on directories of its own, not started. `kind` is one of `KINDS`, or `CEILING`: what answers clients
        of version 2 at once (`StubBookie`). `memory_mb`: heap, and direct
        memory, of a Java bookie, in place of the stock sizes."""
        port = free_port()
        work = self.directory / f"{kind}-{port}"
        configuration = {
            **loopback_configuration(work, self.metadata_uri, port),
            **SHARED,
            **({} if self._journals is None else {"journalDirectories": str(self._journals / f"{port}")}),
            **(settings or {}),
        }
        address = self._zookeeper.hosts
        if kind == "java":
            bookie = java_bookie(
                self.class_path,
                configuration,
                work,
                address,
                heap_mb=memory_mb or HEAP_MB,
                direct_mb=memory_mb or DIRECT_MB,
            )
        elif kind == "ours":
            bookie = podkeeper_bookie(configuration, work, address)
        elif kind == CEILING:
            bookie = BookieProcess(kind, configuration, work, address, self._stub)
        else:
            raise ValueError(f"no bookie of kind {kind!r}; known: {', '.join((*KINDS, CEILING))}")
        self._bookies.append(bookie)
        return bookie

    def _stub(self, file: Path, _: Mapping[str, str]) -> list[str]:
        options = ["-Xms1g", "-Xmx1g", *NETTY_OPTIONS, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        return [find_java(), *options, "-cp", self.class_path, "dev.podkeeper.bench.StubBookie", str(file)]

    def drive(self, bookie: BookieProcess, *arguments: str) -> dict[str, Any]:
        """Runs the driver against this cluster and reports the CPU time and memory of `bookie`."""
        return drive(self.class_path, *arguments, "--metadata", self.metadata_uri, "--bookie-pid", str(bookie.pid))

    def metadata_requests(self) -> int:
        """Packets that ZooKeeper has received so far, those of idle sessions included."""
        host, port = self._zookeeper.hosts.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"srvr")
            told = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        return int(next(line for line in told.splitlines() if line.startswith("Received:")).split()[1])

    def discard(self, bookie: BookieProcess) -> None:
        """Ends the bookie and removes its files, its cookie aside: its address is not used again."""
        if bookie.process is not None:
            bookie.kill()
        shutil.rmtree(bookie.work)
        self._bookies.remove(bookie)

    def close(self) -> None:
        """Ends everything and removes the directory."""
        for bookie in self._bookies:
            if bookie.process is not None:
                bookie.kill()
        self._zookeeper.stop()
        shutil.rmtree(self.directory)
        if self._journals is not None:
            shutil.rmtree(self._journals)


def _made_in(parent: Path | None) -> Path:
    """A directory for one run; the parent is made too."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="podkeeper-bench-", dir=parent))
