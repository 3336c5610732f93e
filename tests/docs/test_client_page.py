"""docs/client.md, and the pages that go on from it: every example runs, and prints what its page says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from bookie_pod.config.load import read_config
from tests.docs.examples import blocks

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / f"{name}.md" for name in ("client", "client-options", "client-replicas", "grpc")]
BLOCKS = [(page, number, block) for page in PAGES for number, block in enumerate(blocks(page))]
URI, GRPC = "embedded://127.0.0.1:3180/ledgers", "127.0.0.1:3182"


def test_the_pages_have_examples_of_every_kind_and_no_other_blocks():
    kinds = [block.language for _, _, block in BLOCKS]
    assert set(kinds) == {"sh", "python", "text", "console", "properties"}
    assert [block.code for _, _, block in BLOCKS if block.language == "sh"] == [
        "bookie standalone --bookies 3 --data /var/tmp/bookies\n"
    ]
    assert all(before == "python" for before, kind in pairwise(kinds) if kind == "text")


def test_configurations_are_accepted():
    for _, _, block in BLOCKS:
        if block.language == "properties":
            keys = dict(line.split("=", 1) for line in block.code.splitlines())
            assert not read_config(environ={}, overrides=keys).problems


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page, number, block in BLOCKS if block.language in ("python", "console")],
    ids=[f"{page.stem} {block.line}" for page, _, block in BLOCKS if block.language in ("python", "console")],
)
def test_example(page, number, cluster, newcomer):
    newcomer.check(page, number, {URI: cluster.uri, GRPC: cluster.grpc[0]}, cluster.uri)
