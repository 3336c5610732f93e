"""Bookies with ledgers, one of which is lost at a time, and one run of auto-recovery beside them.

Threads: the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from random import Random
from typing import Final

from kazoo.client import KazooClient

from benchmarks.environment import Environment
from benchmarks.healers import Healer
from benchmarks.paced_load import PacedLoad
from bookie_client import Client
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.bookie_process import BookieProcess

SETTLE_S: Final = 3.0
_POLL_S: Final = 0.02
_ELECTION_S: Final = 90.0
_FIRST_LOAD_LEDGER: Final = 5_000_000
_LOAD_BYTES: Final = 1024


class HealingCluster:
    """Bookies, one of which is lost at a time, and their ledgers."""

    def __init__(
        self,
        environment: Environment,
        client: Client,
        bookies: Sequence[BookieProcess],
        ledger_ids: Sequence[int],
        raw_mb_per_second: float,
    ) -> None:
        self.environment = environment
        self.client = client
        self.bookies = bookies
        self.raw_mb_per_second = raw_mb_per_second
        self._ledger_ids = ledger_ids
        self._victims = itertools.cycle(bookies)
        self._load_ledgers = itertools.count(_FIRST_LOAD_LEDGER)

    def next_victim(self) -> BookieProcess:
        return next(self._victims)

    def load(self, bookie: BookieProcess, adds_per_second: float) -> PacedLoad:
        """Adds to ledgers of its own in one bookie."""
        ids = list(itertools.islice(self._load_ledgers, 4))
        port = int(bookie.configuration["bookiePort"])
        payload = Random(3).randbytes(_LOAD_BYTES)
        return PacedLoad(port, ids, [], payload, adds_per_second=adds_per_second, reads_per_second=0.0)

    async def naming(self, bookie: str) -> list[LedgerMetadata]:
        """Metadata of the ledgers that name the bookie."""
        found = []
        for ledger_id in self._ledger_ids:
            metadata = await self.client.metadata(ledger_id)
            if bookie in metadata.all_bookies():
                found.append(metadata)
        return found

    async def lose(self, bookie: BookieProcess) -> None:
        """As if its session had ended at once."""

        def lose() -> None:
            bookie.kill()
            zookeeper = KazooClient(bookie.zookeeper)
            zookeeper.start()
            try:
                zookeeper.delete(f"/ledgers/available/{bookie.bookie_id}")
            finally:
                zookeeper.stop()
                zookeeper.close()

        await asyncio.to_thread(lose)

    async def first_mark(self, healer: Healer) -> float:
        """When there was one."""
        while not await self._is_marked():
            healer.check()
            await asyncio.sleep(_POLL_S)
        return time.perf_counter()

    async def healed(self, lost: str, named: Sequence[LedgerMetadata], healer: Healer) -> float:
        """When no ledger named the lost bookie any more; then all marks go."""
        ended = time.perf_counter()
        for metadata in named:
            while lost in (await self.client.metadata(metadata.ledger_id)).all_bookies():
                healer.check()
                await asyncio.sleep(_POLL_S)
                ended = time.perf_counter()
        while await self._is_marked():  # noqa: ASYNC110 - another process
            await asyncio.sleep(_POLL_S)
        return ended

    async def _is_marked(self) -> bool:
        async with aclosing(self.client.metadata_service.under_replication.list()) as marks:  # type: ignore[type-var]
            async for _ in marks:
                return True
        return False


class HealingRun:
    """One run of auto-recovery: elected at the start, gone at the end, and the lost bookie is back."""

    def __init__(self, kind: str, cluster: HealingCluster, settings: Mapping[str, str]) -> None:
        self.cluster = cluster
        self.victim = cluster.next_victim()
        self.healer = Healer(kind, cluster.environment, {"lostBookieRecoveryDelay": "0", **settings})
        self._service = cluster.client.metadata_service

    async def __aenter__(self) -> HealingRun:
        self.healer.start()
        try:
            await elected(self._service, self.healer)
            await asyncio.sleep(SETTLE_S)
        except BaseException:
            await asyncio.to_thread(self.healer.stop)
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.healer.stop)
        if not self.victim.is_running():
            await asyncio.to_thread(self.victim.start)
        await no_auditor(self._service)


async def elected(service: MetadataService, healer: Healer) -> None:
    async with asyncio.timeout(_ELECTION_S):
        while await service.auditor_election.current_auditor() is None:
            healer.check()
            await asyncio.sleep(_POLL_S)


async def no_auditor(service: MetadataService) -> None:
    async with asyncio.timeout(_ELECTION_S):
        while await service.auditor_election.current_auditor() is not None:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)
