"""How the audit of bookies asks for the metadata of very many ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

from bookie_pod.autorecovery.auditor.bookie_audit import WINDOW, BookieAudit
from bookie_protocol.metadata_service.interface import LedgerRange
from bookie_protocol.metadata_service.tree.nodes import NODES_AT_ONCE
from bookie_protocol.metadata_service.zookeeper.client import MultiRead, ReadBatches

LEDGERS = 16 * NODES_AT_ONCE


class SlowZooKeeper:
    """A kazoo client whose requests are answered one after the other, each in a turn of its own."""

    chroot = ""

    def __init__(self) -> None:
        self.handler = SimpleNamespace(async_result=Answer)
        self.sizes: list[int] = []
        self.under_way = self.most = 0

    def _call(self, request: MultiRead, result: Answer) -> None:
        self.sizes.append(len(request.paths))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        asyncio.get_running_loop().call_later(0.001 * self.under_way, self._answer, request, result)

    def _answer(self, request: MultiRead, result: Answer) -> None:
        self.under_way -= 1
        result.settle([(path.encode(), None) for path in request.paths])


class Answer:
    """What kazoo's asynchronous results are to their users."""

    exception = None
    value: list[Any]

    def rawlink(self, told: Any) -> None:
        self._told = told

    def settle(self, value: list[Any]) -> None:
        self.value = value
        self._told(self)


class Ledgers:
    def __init__(self, client: SlowZooKeeper) -> None:
        self._reads = ReadBatches(client)

    async def ranges(self) -> AsyncGenerator[LedgerRange, None]:
        yield LedgerRange(0, LEDGERS, tuple(range(LEDGERS)))

    async def read(self, ledger_id: int) -> Any:
        await self._reads.get(f"/{ledger_id}")
        return SimpleNamespace(value=SimpleNamespace(all_bookies=lambda: ("b",)))


async def test_full_requests_are_under_way_while_answers_are_looked_at() -> None:
    client = SlowZooKeeper()
    service: Any = SimpleNamespace(ledgers=Ledgers(client))
    known: Any = SimpleNamespace(is_available=lambda bookie: True)
    marker: Any = None
    result = await BookieAudit(service, marker, known, asyncio.Event()).run()
    assert result.ledgers == LEDGERS
    assert client.sizes == [NODES_AT_ONCE] * (LEDGERS // NODES_AT_ONCE)
    assert client.most == WINDOW // NODES_AT_ONCE == 4
