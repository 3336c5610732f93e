"""Clusters of either kind of bookie, for the tests that the stock Java client drives.

Invariants
- Every process started here is ended by `Cluster.stop` or `Cluster.discard`; directories belong to the caller.
- A cluster has a ledgers root of its own, so that several share one ZooKeeper. The first is made by Apache's own tool;
  the others are copies of it with an instance id of their own, which saves a Java each.

One thread uses a `Cluster`.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.support.bookie_process import BookieProcess, free_port, loopback_configuration, podkeeper_bookie
from tests.support.java import short_lived
from tests.support.java_bookie import initialise_cluster, java_bookie

KINDS = ("ours", "java")

# Small enough for four bookies and their clients on one small machine; a flush takes place while tests run.
SMALL: Mapping[str, str] = {
    "dbStorage_writeCacheMaxSizeMb": "32",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "dbStorage_rocksDB_blockCacheSize": str(8 * 1024 * 1024),
    "journalMaxSizeMB": "64",
    "logSizeLimit": str(64 * 1024 * 1024),
    "flushInterval": "2000",
    "gcWaitTime": "60000",
    "zkTimeout": "6000",
}


class Cluster:
    """Bookies under one ledgers root. `class_path` is that of the interop project, which holds the Java bookie."""

    _roots = itertools.count()
    _fresh: ClassVar[dict[str, bytes]] = {}
    """The nodes of a ledgers root that is new, by their names below it."""

    def __init__(self, class_path: str, zookeeper: str, directory: Path) -> None:
        self._class_path = class_path
        self._zookeeper = zookeeper
        self._directory = directory
        self.root = f"/interop-{next(self._roots)}"
        self.metadata_uri = f"zk+hierarchical://{zookeeper}{self.root}"
        self.bookies: list[BookieProcess] = []
        client = KazooClient(zookeeper)
        client.start()
        try:
            if not self._fresh:
                initialise_cluster(class_path, self.metadata_uri, directory)
                self._fresh.update(_nodes(client, self.root))
            else:
                for name, data in self._fresh.items():
                    own = str(uuid.uuid4()).encode() if name == "/INSTANCEID" else data
                    client.create(self.root + name, own)
        finally:
            client.stop()
            client.close()

    def bookie(self, kind: str, settings: Mapping[str, str] | None = None) -> BookieProcess:
        """A bookie on new directories and a new port, not started."""
        port = free_port()
        work = self._directory / f"bookie-{port}"
        configuration = {
            **loopback_configuration(work, self.metadata_uri, port),
            **SMALL,
            **(settings or {}),
        }
        made = self._make(kind, configuration, work)
        self.bookies.append(made)
        return made

    def successor(self, bookie: BookieProcess, kind: str) -> BookieProcess:
        """A bookie of `kind` on the configuration, directories and address of one that has ended; not started."""
        made = self._make(kind, bookie.configuration, bookie.work)
        self.bookies[self.bookies.index(bookie)] = made
        return made

    def discard(self, bookie: BookieProcess) -> None:
        """Ends the bookie and removes its registration, so that no client picks it any more."""
        if bookie.process is not None:
            bookie.kill()
        self.bookies.remove(bookie)
        client = KazooClient(self._zookeeper)
        client.start()
        try:
            with suppress(NoNodeError):  # its session may have ended meanwhile
                client.delete(f"{self.root}/available/{bookie.bookie_id}")
        finally:
            client.stop()
            client.close()

    def stop(self) -> None:
        """Ends all bookies, without waiting for their flushes."""
        for bookie in self.bookies:
            if bookie.process is not None:
                bookie.kill()

    def _make(self, kind: str, configuration: dict[str, str], work: Path) -> BookieProcess:
        if kind == "java":
            return java_bookie(
                self._class_path, configuration, work, self._zookeeper, options=short_lived(self._class_path)
            )
        if kind == "ours":
            return podkeeper_bookie(configuration, work, self._zookeeper, warm=True)
        raise ValueError(f"no bookie of kind {kind!r}; known: {', '.join(KINDS)}")


def _nodes(client: KazooClient, root: str, name: str = "") -> dict[str, bytes]:
    """A node and all below it: each after the one that it stands in."""
    found = {name: client.get(root + name)[0]}
    for child in client.get_children(root + name):
        found |= _nodes(client, root, f"{name}/{child}")
    return found
