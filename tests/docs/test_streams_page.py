"""docs/streams.md: every example runs, and prints what the page says."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import pytest

from bookie_client.streams import StreamSettings
from tests.docs.examples import blocks

PAGE = Path(__file__).parents[2] / "docs" / "streams.md"
BLOCKS = blocks(PAGE)
URI = "embedded://127.0.0.1:3180/ledgers"


def test_the_page_has_no_blocks_that_do_not_run():
    kinds = [block.language for block in BLOCKS]
    assert set(kinds) == {"python", "text", "console"}
    assert all(before == "python" for before, kind in pairwise(kinds) if kind == "text")


def test_the_page_names_every_setting():
    text = PAGE.read_text()
    assert [field.name for field in dataclasses.fields(StreamSettings) if f"`{field.name}`" not in text] == []


@pytest.mark.parametrize(
    "number",
    [n for n, block in enumerate(BLOCKS) if block.language in ("python", "console")],
    ids=lambda n: f"line {BLOCKS[n].line}",
)
def test_example(number, cluster, newcomer):
    newcomer.check(PAGE, number, {URI: cluster.uri}, cluster.uri)
