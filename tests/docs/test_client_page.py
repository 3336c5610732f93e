"""docs/client.md: every example runs, and prints what the page says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from bookie_pod.config.load import read_config
from tests.docs.examples import blocks, check_example

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
BLOCKS = blocks(PAGE)
URI, GRPC = "embedded://127.0.0.1:3180/ledgers", "127.0.0.1:3182"


def test_the_page_has_examples_of_every_kind_and_no_other_blocks():
    kinds = [block.language for block in BLOCKS]
    assert set(kinds) == {"sh", "python", "text", "console", "properties"}
    assert [block.code for block in BLOCKS if block.language == "sh"] == [
        "bookie standalone --bookies 3 --data /var/tmp/bookies\n"
    ]
    assert all(before == "python" for before, kind in pairwise(kinds) if kind == "text")


def test_configurations_are_accepted():
    for block in BLOCKS:
        if block.language == "properties":
            keys = dict(line.split("=", 1) for line in block.code.splitlines())
            assert not read_config(environ={}, overrides=keys).problems


@pytest.mark.parametrize(
    "number",
    [n for n, block in enumerate(BLOCKS) if block.language in ("python", "console")],
    ids=lambda n: f"line {BLOCKS[n].line}",
)
async def test_example(number, cluster, namespace):
    await check_example(PAGE, number, {URI: cluster.uri, GRPC: cluster.grpc[0]}, cluster.uri, namespace)
