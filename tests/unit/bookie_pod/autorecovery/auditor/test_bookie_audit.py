"""The audit of bookies: how it asks for the metadata of very many ledgers, and what it says of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.autorecovery.auditor.bookie_audit import WINDOW, AuditResult, BookieAudit, ledger_ids
from bookie_pod.autorecovery.auditor.marking import Marked
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound
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


class Listed:
    """Two spans of ids, of which the first has a gap."""

    async def ranges(self) -> AsyncGenerator[LedgerRange, None]:
        yield LedgerRange(0, 9, (0, 5, 9))
        yield LedgerRange(10, 19, (10, 19))


@pytest.mark.parametrize(
    ("first", "ids"), [(0, [0, 5, 9, 10, 19]), (5, [5, 9, 10, 19]), (9, [9, 10, 19]), (10, [10, 19]), (20, [])]
)
async def test_ids_from_one_on(first: int, ids: list[int]) -> None:
    listed: Any = Listed()
    assert [ledger_id async for ledger_id in ledger_ids(listed, first)] == ids


class Said:
    """Bookies by what is said of them: available, lost, or neither yet. Marks end as told."""

    def __init__(self, outcome: Marked = Marked.NEW) -> None:
        self.outcome = outcome
        self.asked: list[tuple[int, list[str]]] = []

    def is_available(self, bookie: str) -> bool:
        return bookie.startswith("there")

    def is_lost(self, bookie: str) -> bool:
        return bookie.startswith("lost")

    async def mark_lost(self, ledger_id: int, bookies: list[str]) -> Marked:
        self.asked.append((ledger_id, bookies))
        await asyncio.sleep(0.001)
        return self.outcome


def audit_of(said: Said, ledgers: dict[int, tuple[str, ...] | Exception], enabled: asyncio.Event) -> BookieAudit:
    class Store:
        async def ranges(self) -> AsyncGenerator[LedgerRange, None]:
            yield LedgerRange(0, 99, tuple(ledgers))

        async def read(self, ledger_id: int) -> Any:
            found = ledgers[ledger_id]
            if isinstance(found, Exception):
                raise found
            return SimpleNamespace(
                value=SimpleNamespace(ledger_id=ledger_id, length=100 + ledger_id, all_bookies=lambda: found)
            )

    service: Any = SimpleNamespace(ledgers=Store())
    marker: Any = said
    return BookieAudit(service, marker, said, enabled)


async def test_what_an_audit_finds_of_each_ledger() -> None:
    said, enabled = Said(), asyncio.Event()
    ledgers = {
        1: ("there1", "there2"),
        2: ("there1", "lost1", "away1"),
        3: ("away1", "away2"),
        4: MetadataNotFound("deleted meanwhile"),
        5: MetadataDamaged("no metadata"),
        6: ("lost1", "lost2"),
    }
    audit = audit_of(said, ledgers, enabled)
    grown: list[AuditResult] = []
    running = asyncio.create_task(audit.run(grown.append))
    for _ in range(10):
        await asyncio.sleep(0)
    assert said.asked == [], "while auto-recovery is disabled nothing is marked"
    enabled.set()
    result = await running
    assert said.asked == [(2, ["lost1"]), (6, ["lost1", "lost2"])]
    assert result.counts() == {"ledgers": 6, "marked": 2, "marked_before": 0, "locked": 0, "damaged": 1}
    assert result.marked_bytes == 102 + 106
    assert result.skipped == {"away1", "away2"}
    assert result.named == {"lost1": 2, "away1": 2, "away2": 1, "lost2": 1}
    assert 1.9 <= result.publish_ms < 10_000
    assert grown == [result]


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (Marked.ALREADY, {"marked_before": 1}),
        (Marked.LOCKED, {"locked": 1}),
        (Marked.UNREADABLE, {"damaged": 1}),
    ],
)
async def test_what_became_of_a_mark_is_counted(outcome: Marked, counted: dict[str, int]) -> None:
    enabled = asyncio.Event()
    enabled.set()
    result = await audit_of(Said(outcome), {7: ("lost1",)}, enabled).run()
    assert {name: count for name, count in result.counts().items() if count} == {"ledgers": 1, **counted}
    assert result.marked_bytes == 0
