"""Pages of ledgers and of streams: complete together, bounded each, and in turns."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.admin.client import ClusterClient
from bookie_pod.admin.cluster import ClusterView
from bookie_pod.admin.console import LocalSource
from bookie_pod.admin.ledger_search import MOST_LOOKED_AT, MOST_WEIGHT, LedgerFinder
from bookie_pod.admin.rooms import ClusterRooms
from bookie_pod.admin.routes import RESOURCES
from bookie_pod.admin.turns import LONGEST_S, WAITING, Turns
from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.roles import NOBODY, Caller, Role
from bookie_pod.server.http.api.call import Call
from bookie_pod.server.http.api.context import Context, Workers
from bookie_protocol.admin_api import decommission as of_bookies
from bookie_protocol.admin_api import streams as streams_api
from bookie_protocol.admin_api.bodies import Route
from bookie_protocol.admin_api.cluster import KNOWN, SEARCH, FoundLedgers, LedgerSearch
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import MetadataUnavailable, TooManyRequests
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.interface import BookieGroup, BookieSet
from tests.support.memory_metadata import MemoryMetadata
from tests.unit.bookie_pod.server.nodes import FakeNode

OPERATOR = Caller("ops", "10.0.0.1", frozenset({Role.OPERATOR}))


@pytest.fixture
def metadata() -> MemoryMetadata:
    service = MemoryMetadata()
    for ledger_id in range(1_000):
        is_closed = ledger_id % 10 != 0
        service.ledgers.make(
            LedgerMetadata(
                ledger_id,
                2,
                2,
                1,
                {0: ("a:1", "b:1"), 5: ("a:1", "c:1" if ledger_id == 900 else "d:1")},
                digest_type=DigestType.CRC32C,
                password=b"secret",
                state=LedgerState.CLOSED if is_closed else LedgerState.OPEN,
                last_entry_id=9 if is_closed else -1,
                length=9 if is_closed else 0,
            )
        )
    return service


async def all_pages(finder: LedgerFinder, **asked: str | int) -> list[FoundLedgers]:
    pages, first = [], 0
    while True:
        page = await finder.find(LedgerSearch(first=first, **asked))  # type: ignore[arg-type]
        pages.append(page)
        if page.next is None:
            return pages
        first = page.next


async def test_pages_are_complete_together_and_bounded_each(metadata: MemoryMetadata) -> None:
    finder = LedgerFinder(metadata)  # type: ignore[arg-type]
    pages = await all_pages(finder, limit=100)
    assert [each.ledger_id for page in pages for each in page.ledgers] == list(range(1_000))
    assert {len(page.ledgers) for page in pages} == {100}
    found = await all_pages(finder, bookie="c:1")
    assert [each.ledger_id for page in found for each in page.ledgers] == [900]
    assert max(page.looked_at for page in found) <= MOST_LOOKED_AT
    is_open = await all_pages(finder, state="OPEN", limit=30)
    assert [each.ledger_id for page in is_open for each in page.ledgers] == list(range(0, 1_000, 10))


async def test_no_page_tells_a_password(metadata: MemoryMetadata) -> None:
    page = await LedgerFinder(metadata).find(LedgerSearch())  # type: ignore[arg-type]
    assert {each.password for each in page.ledgers} == {""}
    assert base64.b64encode(b"secret").decode() not in str(page)


async def test_a_page_ends_early_where_ledgers_have_many_fragments() -> None:
    service, each, ledgers = MemoryMetadata(), MOST_WEIGHT // 4 + 1, 20
    for ledger_id in range(ledgers):
        service.ledgers.make(LedgerMetadata(ledger_id, 1, 1, 1, dict.fromkeys(range(each), ("a:1",))))
    for asked in ({}, {"bookie": "b:1"}):
        pages = await all_pages(LedgerFinder(service), **asked)  # type: ignore[arg-type]
        assert sum(page.looked_at for page in pages) == ledgers
        assert max(page.looked_at for page in pages) == 2


async def test_a_ledger_without_a_recorded_password_is_found() -> None:
    service = MemoryMetadata()
    service.ledgers.make(LedgerMetadata(5, 1, 1, 1, {0: ("a:1",)}))
    page = await LedgerFinder(service).find(LedgerSearch())  # type: ignore[arg-type]
    assert [(each.ledger_id, each.password, each.digest_type) for each in page.ledgers] == [(5, "", None)]


async def test_what_is_not_known_is_no_empty_page(metadata: MemoryMetadata) -> None:
    metadata.ledgers.unavailable = True
    with pytest.raises(MetadataUnavailable):
        await LedgerFinder(metadata).find(LedgerSearch())  # type: ignore[arg-type]


async def test_one_works_at_a_time_few_wait_and_others_are_refused() -> None:
    turns, gate, at_work = Turns(), asyncio.Event(), []

    async def work() -> None:
        async with turns.turn():
            at_work.append(1)
            await gate.wait()

    tasks = [asyncio.create_task(work()) for _ in range(WAITING + 3)]
    refused, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert len(at_work) == 1
    assert {type(task.exception()) for task in refused} == {TooManyRequests}
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    async with turns.turn():
        pass  # who gave up holds no place


async def test_callers_who_may_change_something_do_not_wait_for_viewers() -> None:
    turns, gate = Turns(), asyncio.Event()

    async def work(caller: Caller) -> None:
        async with turns.turn(caller):
            await gate.wait()

    viewers = [asyncio.create_task(work(NOBODY)) for _ in range(WAITING + 1)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        await work(NOBODY)
    gate.set()
    async with asyncio.timeout(10):
        await work(OPERATOR)
    for viewer in viewers:
        viewer.cancel()
    await asyncio.wait(viewers)


@pytest.mark.parametrize(
    "route", [KNOWN, SEARCH, streams_api.LIST, streams_api.STREAM, of_bookies.REPLICAS, of_bookies.OUTLOOK]
)
async def test_every_turn_is_that_of_its_caller(
    metadata: MemoryMetadata, monkeypatch: pytest.MonkeyPatch, route: Route[Any]
) -> None:
    async def client(of: ClusterClient) -> Any:
        return SimpleNamespace(metadata_service=metadata)

    def turn(of: Turns, caller: Caller) -> None:
        raise TooManyRequests(caller.name)

    monkeypatch.setattr(ClusterClient, "get", client)
    monkeypatch.setattr(Turns, "turn", turn)
    monkeypatch.setattr(metadata, "under_replication", None, raising=False)
    rooms = ClusterRooms(metadata, BookieConfig(), lambda: None)  # type: ignore[arg-type]
    context: Context = Context(FakeNode(), Registry(), lambda: rooms, Workers())
    (operation,) = (each for resource in RESOURCES for each in resource.operations if each.route is route)
    required = {"name": "s", "ledger_id": "1", "bookie_id": "a:1"}
    query = operation.asked({name: required[name] for name in required if name in route.query.__struct_fields__})
    with pytest.raises(TooManyRequests, match=OPERATOR.name):
        await operation.handler(context, Call(route.method, query, caller=OPERATOR))  # type: ignore[arg-type]


async def test_the_next_turn_waits_in_proportion_to_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    now = 100.0

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("bookie_pod.admin.turns.asyncio.sleep", sleep)
    monkeypatch.setattr("bookie_pod.admin.turns.time.monotonic", lambda: now)
    turns = Turns()
    async with turns.turn():
        now += 1
    async with turns.turn():
        now += 1_000
    async with turns.turn():
        pass
    assert slept == [0, 4, LONGEST_S]


async def test_bookies_are_read_in_turns_and_only_those_that_are_registered(metadata: MemoryMetadata) -> None:
    """A cookie costs its writer nothing."""
    metadata.bookies.register_address("a:1", "h", 1)
    list_those, gate = metadata.bookies.list, asyncio.Event()

    async def with_cookies(group: BookieGroup) -> BookieSet:
        await gate.wait()
        if group is BookieGroup.ALL:
            return BookieSet(frozenset(f"gone-{each}:1" for each in range(1_000)), 1)
        return await list_those(group)

    metadata.bookies.list = with_cookies  # type: ignore[method-assign, assignment]
    view = ClusterView(SimpleNamespace(metadata=metadata))  # type: ignore[arg-type]
    asking = [asyncio.create_task(view.known()) for _ in range(WAITING + 2)]
    refused, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    assert {type(each.exception()) for each in refused} == {TooManyRequests}
    context: Context = Context(FakeNode(), Registry(), lambda: {ClusterView: view}, Workers())
    look = asyncio.create_task(LocalSource(context, Call("GET", KNOWN.query())).cluster(KNOWN))
    gate.set()
    assert len(await look) == 1_001, "those callers do not keep the console out"
    known = await asking[0]
    assert (len(known), metadata.bookies.info_reads) == (1_001, 2)
    assert [each.host for each in known if each.registration != "none"] == ["h"]
    for each in asking:
        each.cancel()
    await asyncio.wait(asking)
