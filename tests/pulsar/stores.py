"""Where a cluster and its broker have their metadata, in the words of our programs and in those of Pulsar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.metadata_process import MetadataProcess
from tests.support.oxia import MISSING, OxiaServer, is_program
from tests.support.zookeeper import ZooKeeperServer


@dataclass(frozen=True)
class Store:
    """One metadata service. `url` is what Pulsar's metadataStoreUrl says."""

    uri: str
    url: str
    server: ZooKeeperServer | MetadataProcess | OxiaServer | None = None
    """`stop` kills it and `start` starts it again with its data; None if it is a part of another program."""


def embedded(uri: str, server: MetadataProcess | None = None) -> Store:
    """Pulsar takes it for Oxia. `uri`: embedded://HOST:PORT/ledgers, the root at which Pulsar looks for it."""
    return Store(uri, uri.replace("embedded://", "oxia://").replace("/ledgers", "/default"), server)


@contextmanager
def started(kind: str, work: Path) -> Iterator[Store]:
    """A zookeeper, an embedded service or an oxia of its own, which ends with this."""
    work.mkdir()
    if kind == "zookeeper":
        zookeeper = ZooKeeperServer(str(work))
        zookeeper.start()
        made = Store(zookeeper.uri(), f"zk:{zookeeper.hosts}", zookeeper)
    elif kind == "embedded":
        service = MetadataProcess(work)
        service.start()
        made = embedded(service.uri(), service)
    else:
        if not is_program():
            pytest.skip(MISSING)
        oxia = OxiaServer(work)
        oxia.start()
        url = f"oxia://{oxia.target}/default"
        made = Store(f"metadata-store:{url}", url, oxia)
    try:
        yield made
    finally:
        assert made.server is not None
        made.server.stop()
