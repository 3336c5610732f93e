"""The metadata service's drivers behind one face, for the contract suite.

Each gives tests a cluster root of their own, further sessions, an end to a session against its will, and
(where there is a wire) an interruption.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass

from bookie_protocol.metadata_service.embedded.local import connect_local
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.remote import GrpcTransport
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from bookie_protocol.metadata_service.embedded.tree import EmbeddedTree
from bookie_protocol.metadata_service.etcd.connection import EtcdConnection
from bookie_protocol.metadata_service.etcd.tree import EtcdTree
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.migrating.gate import MigratingTree
from bookie_protocol.metadata_service.migrating.participant import Participant
from bookie_protocol.metadata_service.options import MetadataServiceUri
from bookie_protocol.metadata_service.oxia.connection import OxiaConnection, SessionGone
from bookie_protocol.metadata_service.oxia.tree import OxiaTree
from bookie_protocol.metadata_service.tree.nodes import NodeTree
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri_parser import parse_metadata_service_uri
from bookie_protocol.metadata_service.zookeeper.driver import ZooKeeperTree
from tests.support.etcd import EtcdServer
from tests.support.migration_world import always
from tests.support.oxia import OxiaServer
from tests.support.zookeeper import ZooKeeperServer

_numbers = itertools.count()


class MetadataDriverUnderTest(ABC):
    """`open` gives a new session on one cluster root; `close` ends all of them."""

    first_number = 0
    """Of the sequential names below a new node."""
    removes_directories = True
    """Empty directories go with the last ledger."""

    def __init__(self) -> None:
        self.root = f"/contract-{next(_numbers)}/ledgers"
        self._opened: list[MetadataService] = []

    async def open(self, *, timeout: float = 4.0, layout: LedgerLayout | None = None) -> MetadataService:
        service = await self._open(timeout, layout)
        self._opened.append(service)
        await service.prepare()
        return service

    async def close(self) -> None:
        for service in self._opened:
            await service.close()

    @abstractmethod
    async def _open(self, timeout: float, layout: LedgerLayout | None) -> MetadataService: ...
    @abstractmethod
    async def expire(self, service: MetadataService) -> None:
        """End this session at the server."""

    @abstractmethod
    async def interrupt(self) -> None:
        """From now on nobody answers."""

    @abstractmethod
    async def restore(self) -> None: ...
    @property
    @abstractmethod
    def uri(self) -> str:
        """For another process."""


class ZooKeeperUnderTest(MetadataDriverUnderTest):
    def __init__(self, server: ZooKeeperServer) -> None:
        super().__init__()
        self._server = server
        self._trees: dict[int, ZooKeeperTree] = {}

    @property
    def uri(self) -> str:
        return self._server.uri(self.root)

    async def _open(self, timeout: float, layout: LedgerLayout | None) -> MetadataService:
        tree = ZooKeeperTree(self._server.hosts, timeout)
        await tree.connect()
        gate = MigratingTree(tree)
        await Participant(gate, self.root, _no_target, always).begin()
        service = MetadataService(gate, self.root, layout)
        self._trees[id(service)] = tree
        return service

    async def expire(self, service: MetadataService) -> None:
        identity = self._trees[id(service)].client_id
        assert identity is not None
        await asyncio.to_thread(self._server.expire, *identity)  # everybody else goes on meanwhile

    async def interrupt(self) -> None:
        self._server.pause()

    async def restore(self) -> None:
        self._server.resume()


async def _no_target(_: MetadataServiceUri) -> NodeTree:
    raise AssertionError("nothing migrates")


class EtcdUnderTest(MetadataDriverUnderTest):
    def __init__(self, server: EtcdServer) -> None:
        super().__init__()
        self._server = server

    @property
    def uri(self) -> str:
        return self._server.uri(self.root)

    async def _open(self, timeout: float, layout: LedgerLayout | None) -> MetadataService:
        targets = self._server.endpoints.split(",")
        tree = EtcdTree(EtcdConnection(targets, None, None, self.root), self.root, timeout)
        await tree.connect()
        return MetadataService(tree, self.root, layout)

    async def expire(self, service: MetadataService) -> None:
        lease = {"ID": str(service.tree.session_id)}
        await asyncio.to_thread(self._server.ask, self._server.members[0], "lease/revoke", lease)

    async def interrupt(self) -> None:
        self._server.pause()

    async def restore(self) -> None:
        self._server.resume()


class OxiaUnderTest(MetadataDriverUnderTest):
    first_number = 1
    removes_directories = False

    def __init__(self, server: OxiaServer | OxiaAddress) -> None:
        super().__init__()
        self._server = server
        self._trees: dict[int, OxiaTree] = {}

    @property
    def uri(self) -> str:
        return self._server.uri(self.root)

    async def _open(self, timeout: float, layout: LedgerLayout | None) -> MetadataService:
        tree = OxiaTree(OxiaConnection([self._server.target], "default"), timeout)
        await tree.connect()
        service = MetadataService(tree, self.root, layout)
        self._trees[id(service)] = tree
        return service

    async def expire(self, service: MetadataService) -> None:
        """In every shard, as a server that was away for too long does it."""
        sessions = self._trees[id(service)]._open_sessions
        other = OxiaConnection([self._server.target], "default")
        await other.shards(10)
        for shard, session in list(sessions.ids.items()):
            with suppress(SessionGone):  # the first one makes its owner close the others
                await other.close_session(shard, session, 10)
        await other.close()

    async def interrupt(self) -> None:
        self._server.pause()

    async def restore(self) -> None:
        self._server.resume()


def oxia_tree(service: MetadataService) -> OxiaTree:
    """The driver itself, below what tries again."""
    tree = service.tree._tree
    assert isinstance(tree, OxiaTree)
    return tree


@dataclass(frozen=True)
class OxiaAddress:
    """Where a server listens that speaks Oxia's protocol."""

    target: str

    def uri(self, root: str) -> str:
        return f"oxia://{self.target}/default{root}"


class EmbeddedOxiaUnderTest(OxiaUnderTest):
    """Our driver for Oxia on the embedded metadata service, which speaks Oxia's protocol."""

    def __init__(self, folder: str) -> None:
        super().__init__(OxiaAddress(""))
        self._folder = folder
        self._owner: EmbeddedOwner | None = None
        self._embedded: EmbeddedMetadataServer | None = None

    async def _open(self, timeout: float, layout: LedgerLayout | None) -> MetadataService:
        if self._owner is None:
            self._owner = await EmbeddedOwner.open(self._folder, keep_notices=True)
            self._embedded = EmbeddedMetadataServer(self._owner)
            await self._embedded.start()
            self._server = OxiaAddress(f"127.0.0.1:{self._embedded.port}")
        return await super()._open(timeout, layout)

    async def interrupt(self) -> None:
        assert self._embedded is not None
        await self._embedded.stop()

    async def restore(self) -> None:
        assert self._embedded is not None
        await self._embedded.start()

    async def close(self) -> None:
        await super().close()
        if self._embedded is not None:
            await self._embedded.stop()
        if self._owner is not None:
            await self._owner.close()


class MovedUnderTest(EmbeddedOxiaUnderTest):
    """The service of a process whose metadata moved from ZooKeeper to Oxia while it ran."""

    async def _open(self, timeout: float, layout: LedgerLayout | None) -> MetadataService:
        service = await super()._open(timeout, layout)
        tree = self._trees[id(service)]
        gate = MigratingTree(tree)
        gate.end = tree.close
        gate.switch(tree, "")
        moved = MetadataService(gate, self.root, layout)
        self._trees[id(moved)] = tree
        return moved


class EmbeddedUnderTest(MetadataDriverUnderTest):
    """The owner in this process, sessions without a wire."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self.owner: EmbeddedOwner | None = None

    @property
    def uri(self) -> str:
        raise AssertionError("another process cannot reach a store that is not served")

    async def _open(self, timeout: float, layout: LedgerLayout | None) -> MetadataService:
        if self.owner is None:
            self.owner = await EmbeddedOwner.open(self._folder)
        return await self._connect(self.owner, timeout, layout)

    async def _connect(self, owner: EmbeddedOwner, timeout: float, layout: LedgerLayout | None) -> MetadataService:
        return await connect_local(owner, timeout, root=self.root, layout=layout)

    async def expire(self, service: MetadataService) -> None:
        assert self.owner is not None
        await self.owner.expire(service.tree.session_id)

    async def interrupt(self) -> None:
        raise AssertionError("there is no wire to interrupt")

    async def restore(self) -> None:
        raise AssertionError("there is no wire to restore")

    async def close(self) -> None:
        await super().close()
        if self.owner is not None:
            await self.owner.close()


class ServedUnderTest(EmbeddedUnderTest):
    """The same owner behind gRPC."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._server: EmbeddedMetadataServer | None = None

    @property
    def uri(self) -> str:
        assert self._server is not None
        return self._server.uri(self.root)

    async def _connect(self, owner: EmbeddedOwner, timeout: float, layout: LedgerLayout | None) -> MetadataService:
        if self._server is None:
            self._server = EmbeddedMetadataServer(owner)
            await self._server.start()
        tree = EmbeddedTree(GrpcTransport(parse_metadata_service_uri(self.uri).connect_string), timeout)
        await tree.connect()
        return MetadataService(tree, self.root, layout)

    async def interrupt(self) -> None:
        assert self._server is not None
        await self._server.stop()

    async def restore(self) -> None:
        assert self._server is not None
        await self._server.start()

    async def close(self) -> None:
        await MetadataDriverUnderTest.close(self)
        if self._server is not None:
            await self._server.stop()
        if self.owner is not None:
            await self.owner.close()
