"""Ledgers and registrations as tests of the metadata service make them, and what they ask of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import BookieGroup, Session, SessionState
from bookie_protocol.metadata_service.service_info import BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import AuditorCheck
from tests.support.metadata_drivers import MetadataDriverUnderTest

INFO = BookieServiceInfo((Endpoint("bookie", "10.0.0.1", 3181, "bookie-rpc"),))
W, R = BookieGroup.WRITABLE, BookieGroup.READ_ONLY


def ledger(ledger_id: int, **changes: object) -> LedgerMetadata:
    made = LedgerMetadata(ledger_id, 3, 2, 2, {0: ("a:1", "b:1", "c:1")}, digest_type=DigestType.CRC32C, password=b"pw")
    return replace(made, **changes)  # type: ignore[arg-type]


async def listed(service: MetadataService, first: int | None = None) -> list[int]:
    """All ids, with a check that the ranges leave no gap."""
    ids: list[int] = []
    expected_start = first or 0
    async for found in service.ledgers.ranges(first=first):
        assert found.start == expected_start
        assert all(found.start <= i <= found.end for i in found.ids)
        assert list(found.ids) == sorted(set(found.ids))
        ids += found.ids
        expected_start = found.end + 1
    assert expected_start == 2**63
    return ids


class Recorded:
    """The states of a session from now on."""

    def __init__(self, session: Session) -> None:
        self.states: list[SessionState] = []
        self._changed = asyncio.Event()
        session.add_listener(self._listen)

    def _listen(self, state: SessionState) -> None:
        self.states.append(state)
        self._changed.set()

    async def renewed(self, seconds: float = 10.0) -> None:
        """Wait until the session has expired and another one is connected."""
        async with asyncio.timeout(seconds):
            while SessionState.EXPIRED not in self.states or self.states[-1] is not SessionState.CONNECTED:
                self._changed.clear()
                await self._changed.wait()


async def filled(driver: MetadataDriverUnderTest, **options: Any) -> MetadataService:
    """A cluster with a bit of everything."""
    service = await driver.open(**options)
    await service.cluster.initialize()
    await asyncio.gather(*(service.ledgers.create(ledger(i)) for i in (*range(150), 20_000, 2**40)))
    await service.ledgers.generate_id()
    await service.tree.create(f"{driver.root}/idgen-long", open_to_all=True)
    await service.tree.create(f"{driver.root}/idgen-long/HOB-0000000001", open_to_all=True)
    await service.cookies.create("b:1", b"cookie")
    await service.records("decommission").create("b:1", b"{}")
    tree = service.under_replication
    await tree.mark(1, ["b:1"], ctime_ms=1)
    await tree.lock(1)
    await tree.disable()
    await tree.set_lost_bookie_recovery_delay(7)
    await tree.set_check_time(AuditorCheck.REPLICAS, 5)
    return service
