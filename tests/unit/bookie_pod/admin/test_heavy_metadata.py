"""Metadata that strangers made heavy: read one at a time, shown in part, and made into answers aside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.admin import streams as streams_module
from bookie_pod.admin.decommission_jobs import MOST_BOOKIES, MOST_MEMBERS, Decommissions
from bookie_pod.admin.ledger_search import MOST_SHOWN, LedgerFinder
from bookie_pod.admin.ledger_weights import AT_A_TIME, HEAVY, weight_of
from bookie_pod.admin.ledgers import MOST_LISTINGS, ClusterLedgers
from bookie_pod.admin.streams import StreamsView
from bookie_pod.autorecovery.decommission.survey import survey
from bookie_pod.roles import NOBODY, Caller, Role
from bookie_protocol.admin_api.cluster import LedgerSearch
from bookie_protocol.admin_api.streams import StreamsQuery, StreamState
from bookie_protocol.aside import STEPS
from bookie_protocol.errors import Refused, TooManyRequests
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.support.memory_metadata import MemoryMetadata


def with_fragments(ledger_id: int, fragments: int = 1, bookies: int = 1) -> LedgerMetadata:
    ensemble = tuple(f"b{number}:1" for number in range(bookies))
    return LedgerMetadata(ledger_id, bookies, 1, 1, dict.fromkeys(range(fragments), ensemble))


HEAVY_ONES = {
    "fragments": with_fragments(5, MOST_SHOWN),
    "bookies": with_fragments(5, bookies=MOST_SHOWN),
    "names": LedgerMetadata(
        5, 1, 1, 1, {0: ("a:1",)}, custom_metadata={f"k{each}": b"" for each in range(MOST_SHOWN + 1)}
    ),
    "a value": LedgerMetadata(5, 1, 1, 1, {0: ("a:1",)}, custom_metadata={"a": b"x", "k": bytes(64 * MOST_SHOWN)}),
    "a name": LedgerMetadata(5, 1, 1, 1, {0: ("a:1",)}, custom_metadata={"x" * 64 * MOST_SHOWN: b""}),
}


@pytest.fixture
def metadata() -> MemoryMetadata:
    return MemoryMetadata()


@pytest.fixture
def read_together(metadata: MemoryMetadata) -> list[int]:
    """How many ledgers each read was about."""
    sizes, read = list[int](), metadata.ledgers.read_each

    async def read_each(ids: Sequence[int], **more: Any) -> Any:
        sizes.append(len(ids))
        return await read(ids, **more)

    metadata.ledgers.read_each = read_each  # type: ignore[method-assign, assignment]
    return sizes


@pytest.mark.parametrize("kind", HEAVY_ONES)
async def test_a_search_shows_a_part_of_a_heavy_ledger_and_says_so(metadata: MemoryMetadata, kind: str) -> None:
    metadata.ledgers.make(HEAVY_ONES[kind])
    metadata.ledgers.make(with_fragments(6, 2))
    page = await LedgerFinder(metadata).find(LedgerSearch())  # type: ignore[arg-type]
    heavy, light = page.ledgers
    shown = sum(1 + len(each) for each in heavy.all_ensembles.values())
    custom = sum(1 + (len(name) + len(value)) // 64 for name, value in heavy.custom_metadata.items())
    assert (shown <= MOST_SHOWN, custom <= 2 * MOST_SHOWN, page.shortened) == (True, True, [5])
    assert (len(light.all_ensembles), light.fragments, light.custom_metadata_values) == (2, 2, 0)
    assert heavy.fragments == len(HEAVY_ONES[kind].ensembles)
    assert heavy.custom_metadata_values == len(HEAVY_ONES[kind].custom_metadata)


async def test_the_last_fragments_are_shown(metadata: MemoryMetadata) -> None:
    metadata.ledgers.make(with_fragments(5, 4 * MOST_SHOWN))
    page = await LedgerFinder(metadata).find(LedgerSearch())  # type: ignore[arg-type]
    last = 4 * MOST_SHOWN
    assert list(page.ledgers[0].all_ensembles) == [str(each) for each in range(last - MOST_SHOWN // 2, last)]


async def ids_of(metadata: MemoryMetadata) -> AsyncIterator[int]:
    for ledger_id in sorted(metadata.ledgers.stored):
        yield ledger_id


async def test_heavy_ledgers_are_read_one_at_a_time(metadata: MemoryMetadata, read_together: list[int]) -> None:
    for ledger_id in range(40):
        metadata.ledgers.make(with_fragments(ledger_id, HEAVY if ledger_id >= 20 else 1))
    ledgers = ClusterLedgers(SimpleNamespace(metadata=metadata))  # type: ignore[arg-type]
    found = [each async for each, _ in ledgers.metadata_of(ids_of(metadata))]
    assert found == list(range(40))
    assert (read_together[0], max(read_together)) == (1, AT_A_TIME)
    assert set(read_together[5:]) == {1}
    del read_together[:]
    await LedgerFinder(metadata).find(LedgerSearch(first=20))  # type: ignore[arg-type]
    assert set(read_together) == {1}


async def test_what_is_made_of_a_heavy_ledger_is_made_on_a_thread(metadata: MemoryMetadata) -> None:
    ledgers = ClusterLedgers(SimpleNamespace(metadata=metadata))  # type: ignore[arg-type]
    for fragments, is_here in ((1, True), (HEAVY, False)):
        thread = await ledgers.made(with_fragments(5, fragments), lambda _: threading.get_ident(), NOBODY)
        assert (thread == threading.get_ident()) is is_here


async def test_few_lists_with_metadata_are_made_at_a_time(metadata: MemoryMetadata) -> None:
    ledgers = ClusterLedgers(SimpleNamespace(metadata=metadata))  # type: ignore[arg-type]
    async with AsyncExitStack() as under_way:
        for _ in range(MOST_LISTINGS):
            await under_way.enter_async_context(ledgers.listing(NOBODY))
        operator = Caller("ops", "10.0.0.1", frozenset({Role.OPERATOR}))
        await under_way.enter_async_context(ledgers.listing(operator))
        for caller in (NOBODY, operator):
            with pytest.raises(TooManyRequests):
                await under_way.enter_async_context(ledgers.listing(caller))
    async with ledgers.listing(NOBODY):
        pass


async def test_a_page_of_streams_ends_after_so_many_ledgers(
    metadata: MemoryMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "MOST_ROWS", 100)
    names = [f"s{each:02}" for each in range(30)]
    view = StreamsView(SimpleNamespace(metadata=metadata))  # type: ignore[arg-type]

    async def streams() -> Any:
        async def those() -> list[str]:
            return names

        return SimpleNamespace(names=those)

    async def state(name: str, _: Sequence[str]) -> StreamState:
        return StreamState(name, 20, 0, 0, None, 0, 0, [], 0)

    monkeypatch.setattr(view, "_streams", streams)
    monkeypatch.setattr(view, "_state", state)
    monkeypatch.setattr("bookie_pod.admin.turns.PAUSE", 0)
    found, after, pages = list[str](), "", 0
    while pages < 10:
        page = await view.page(StreamsQuery(after=after, limit=25))
        found += [each.name for each in page.streams]
        pages += 1
        if page.next is None:
            break
        after = page.next
    assert (found, pages) == (names, 5)


@pytest.mark.parametrize(
    ("fragments", "bookies"), [(MOST_MEMBERS + 1, 1), (1, MOST_BOOKIES + 1), (MOST_MEMBERS // 100 + 1, 100)]
)
async def test_replicas_of_a_ledger_with_too_many_are_not_listed(
    metadata: MemoryMetadata, fragments: int, bookies: int
) -> None:
    metadata.ledgers.make(with_fragments(5, fragments, bookies))

    class Client:
        async def stored_metadata(self, ledger_id: int) -> Any:
            return await metadata.ledgers.read(ledger_id)

    async def get() -> Client:
        return Client()

    jobs = Decommissions(SimpleNamespace(metadata=metadata, get=get), None)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="replicas 5"):
        await jobs.holdings(5)


async def no_marks() -> AsyncIterator[None]:
    for none in ():
        yield none


async def test_a_survey_leaves_turns_between_heavy_ledgers(metadata: MemoryMetadata) -> None:
    turn, turns, ticking = 0, list[int](), True

    def tick() -> None:
        nonlocal turn
        turn += 1
        if ticking:
            asyncio.get_running_loop().call_soon(tick)

    for ledger_id in range(12):
        metadata.ledgers.make(with_fragments(ledger_id, STEPS + ledger_id % 2))
    tick()
    marks = SimpleNamespace(list=no_marks)
    service = SimpleNamespace(ledgers=metadata.ledgers, under_replication=marks)
    found = await survey(service, "b0:1", look=lambda _: turns.append(turn))  # type: ignore[arg-type]
    ticking = False
    assert (found.ledgers_seen, len(set(turns))) == (12, 12)


def test_weights() -> None:
    assert weight_of(with_fragments(5, 3, 4)) == 15
    assert [weight_of(each) > HEAVY for each in HEAVY_ONES.values()] == [True] * len(HEAVY_ONES)
