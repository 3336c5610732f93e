"""A coordinator of Pulsar's migration from ZooKeeper to Oxia (PIP-454), step by step for tests.

It does what Pulsar's `MigrationCoordinator` does, in its order: the flag, the wait for participants, a copy of every
record that is not ephemeral, with ZooKeeper's version as version id and count of changes, the flag.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import make_digest_acl

from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from bookie_protocol.metadata_service.oxia import oxia_pb2 as messages
from bookie_protocol.metadata_service.oxia.connection import OxiaConnection
from tests.support.until import until
from tests.support.zookeeper import ZooKeeperServer

_BASE: Final = "/pulsar/migration-coordinator"
FLAG: Final = f"{_BASE}/migration"
PARTICIPANTS: Final = f"{_BASE}/participants"


@asynccontextmanager
async def embedded_oxia(folder: str) -> AsyncIterator[str]:
    """Host and port of a service in this process that speaks Oxia's protocol."""
    owner = await EmbeddedOwner.open(folder, keep_notices=True)
    server = EmbeddedMetadataServer(owner)
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop()
        await owner.close()


class Coordinator:
    """`chroot`: that of the brokers, which is all that is copied. `oxia`: host:port."""

    def __init__(self, zookeeper: ZooKeeperServer, oxia: str, chroot: str = "") -> None:
        self.target_url = f"oxia://{oxia}/default"
        self.oxia = oxia
        self._chroot = chroot
        self._copied: set[str] = set()
        self._client: KazooClient = zookeeper.kazoo(timeout=10)

    async def start(self) -> None:
        """Make the nodes that the first broker with migrations makes."""
        await asyncio.to_thread(self._client.start, 30)
        await asyncio.to_thread(self._client.ensure_path, self._chroot + PARTICIPANTS)

    async def own(self, user: str, password: str) -> None:
        """Log in, and give what is said of the migration, and all above it, to this user alone."""
        await asyncio.to_thread(self._client.add_auth, "digest", f"{user}:{password}")
        acl = [make_digest_acl(user, password, all=True)]
        path = self._chroot + FLAG
        while path:
            await asyncio.to_thread(self._client.set_acls, path, acl)
            path = path.rpartition("/")[0]
        await asyncio.to_thread(self._client.set_acls, "/", acl)

    async def stop(self) -> None:
        await asyncio.to_thread(self._client.stop)
        await asyncio.to_thread(self._client.close)

    def participants(self) -> list[str]:
        """Return the participants that are not ready."""
        found: list[str] = self._client.get_children(self._chroot + PARTICIPANTS)
        return found

    async def joined(self, number: int) -> None:
        await until(lambda: len(self.participants()) == number, seconds=20)

    async def set_phase(self, phase: str) -> None:
        path, data = self._chroot + FLAG, json.dumps({"phase": phase, "targetUrl": self.target_url}).encode()

        def write() -> None:
            try:
                self._client.set(path, data)
            except NoNodeError:
                self._client.create(path, data)

        await asyncio.to_thread(write)

    async def prepare(self) -> None:
        await self.set_phase("PREPARATION")
        await self.joined(0)

    async def copy(self) -> int:
        """Copy all records (phase COPYING). Return their number."""
        await self.set_phase("COPYING")
        records = await asyncio.to_thread(self._records, self._chroot or "/")
        connection = OxiaConnection([self.oxia], "default")
        try:
            shards = await connection.shards(10)
            for path, (data, version) in records.items():
                put = messages.PutRequest(
                    key=path, value=data, override_version_id=version, override_modifications_count=version
                )
                answer = await connection.write(shards.shard_of(path), messages.WriteRequest(puts=[put]), 10)
                assert answer.puts[0].status == messages.OK
                self._copied.add(path)
        finally:
            await connection.close()
        return len(records)

    async def empty(self) -> None:
        """Delete the copied records from Oxia."""
        connection = OxiaConnection([self.oxia], "default")
        try:
            shards = await connection.shards(10)
            for path in sorted(self._copied, reverse=True):
                request = messages.WriteRequest(deletes=[messages.DeleteRequest(key=path)])
                answer = await connection.write(shards.shard_of(path), request, 10)
                assert answer.deletes[0].status == messages.OK
            self._copied.clear()
        finally:
            await connection.close()

    async def migrate(self) -> None:
        """Run the whole migration."""
        await self.prepare()
        await self.copy()
        await self.set_phase("COMPLETED")

    def _records(self, path: str) -> dict[str, tuple[bytes, int]]:
        found: dict[str, tuple[bytes, int]] = {}
        for name in self._client.get_children(path):
            child = f"{path.rstrip('/')}/{name}"
            data, stat = self._client.get(child)
            if child.startswith("/zookeeper") or stat.ephemeralOwner:
                continue
            found[child.removeprefix(self._chroot)] = data, stat.version
            found.update(self._records(child))
        return found
