"""Listing very many ledgers: complete, in order, bounded."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import defaultdict
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

import pytest

from bookie_protocol.errors import MetadataDamaged, MetadataNotFound, MetadataUnavailable
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.listing import READ_AHEAD, LedgerListing
from bookie_protocol.metadata_service.tree.nodes import Children

ROOT = "/ledgers"


class Tree:
    """The directories of given ledgers; remembers how many requests were under way at once."""

    def __init__(self, layout: LedgerLayout, ids: Iterable[int]) -> None:
        self.layout = layout
        self.vanished: set[str] = set()
        self.unavailable: str | None = None
        self.under_way = self.most = self.asked = 0
        children: dict[str, set[str]] = defaultdict(set)
        for ledger_id in ids:
            path = ""
            for name in paths.ledger_path(layout, ledger_id).split("/")[1:]:
                children[path].add(name)
                path = f"{path}/{name}"
        self._children = {path: tuple(names) for path, names in children.items()}

    async def settled_layout(self, *, timeout: float | None = None) -> LedgerLayout:
        return self.layout

    async def sync(self, path: str, *, timeout: float | None = None) -> None:
        await asyncio.sleep(0)

    async def children(self, path: str, *, timeout: float | None = None) -> Children:
        below = path.removeprefix(ROOT)
        self.asked += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if below == self.unavailable:
            raise MetadataUnavailable(below)
        if below in self.vanished:
            raise MetadataNotFound(below)
        return Children(self._children.get(below, ()), 0)


def listing(tree: Any) -> LedgerListing:
    return LedgerListing(tree, ROOT, tree)


async def listed(tree: Tree) -> list[int]:
    expected_start, ids = 0, []
    async for found in listing(tree).ranges():
        assert found.start == expected_start
        ids += found.ids
        expected_start = found.end + 1
    assert expected_start == 2**63
    return ids


@pytest.mark.parametrize(
    ("layout", "step", "ledgers"),
    [
        (LedgerLayout.HIERARCHICAL, 10_000, 20_000),  # a directory for each
        pytest.param(LedgerLayout.HIERARCHICAL, 10_000, 100_000, marks=pytest.mark.slow),
        (LedgerLayout.HIERARCHICAL, 1, 100_000),
        (LedgerLayout.FLAT, 3, 100_000),
    ],
)
async def test_very_many_ledgers(layout: LedgerLayout, step: int, ledgers: int) -> None:
    tree = Tree(layout, range(0, ledgers * step, step))
    count = 0
    tracemalloc.start()
    try:
        async with aclosing(listing(tree).ranges()) as ranges:
            async for found in ranges:
                assert len(found.ids) <= 10_000
                count += len(found.ids)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == ledgers
    assert tree.most <= READ_AHEAD
    assert peak < 16 * 1024 * 1024


async def test_directories_that_vanish_are_empty_and_faults_end_the_listing() -> None:
    ids = [1, 20_000, 30_000, 2**40, 2**40 + 10_000]
    tree = Tree(LedgerLayout.HIERARCHICAL, ids)
    assert await listed(tree) == ids
    tree.vanished = {"/00/0002", "/000/0001/0995"}
    assert await listed(tree) == [1, 30_000]
    tree.unavailable = "/00/0003"
    with pytest.raises(MetadataUnavailable):
        await listed(tree)
    assert tree.under_way == 0


@pytest.mark.parametrize("layout", LedgerLayout)
async def test_a_listing_that_begins_at_an_id_leaves_nothing_out(layout: LedgerLayout) -> None:
    ids = [0, 9_999, 10_000, 20_001, 99_999_999, 100_000_000, 2**31 - 2]
    if layout in (LedgerLayout.HIERARCHICAL, LedgerLayout.LONG_HIERARCHICAL, LedgerLayout.FLAT):
        ids += [2**31 - 1, 10**10 - 1, 10**10, 2**40, 10**15 + 7, 2**63 - 1]
    tree = Tree(layout, ids)
    for first in sorted({each + change for each in ids for change in (-1, 0, 1)} - {-1, 2**63}):
        found = [span async for span in listing(tree).ranges(first=first)]
        assert [each for span in found for each in span.ids] == [each for each in ids if each >= first]
        assert (found[0].start, found[-1].end) == (first, 2**63 - 1)


async def test_who_wants_the_next_few_ledgers_does_not_pay_for_the_others() -> None:
    tree = Tree(LedgerLayout.HIERARCHICAL, range(0, 20_000_000, 10_000))
    async with aclosing(listing(tree).ranges(first=15_000_000)) as ranges:
        assert (await anext(ranges)).ids == (15_000_000,)
    assert tree.asked <= 6


async def test_ledgers_of_two_layouts_are_an_error() -> None:
    tree = Tree(LedgerLayout.HIERARCHICAL, [5])
    tree._children |= Tree(LedgerLayout.LONG_HIERARCHICAL, [3])._children | {"": ("00", "000")}
    with pytest.raises(MetadataDamaged, match="layouts"):
        await listed(tree)


async def test_a_root_that_is_gone_is_an_error() -> None:
    tree = Tree(LedgerLayout.HIERARCHICAL, [5])
    tree.vanished = {""}
    with pytest.raises(MetadataNotFound):
        await listed(tree)
