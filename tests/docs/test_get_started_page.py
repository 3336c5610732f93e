"""docs/get-started.md: its commands and programs run as they are written, but for addresses, and print what it says."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.docs.examples import blocks
from tests.support.chart_files import CLUSTER, ROOT

PAGE = ROOT / "docs" / "get-started.md"
BLOCKS = blocks(PAGE)
URI = "embedded://127.0.0.1:3180/ledgers"
BEFORE = ("python3 -m venv", "bookie standalone --data")
"""Blocks that the fixtures run: the environment and the cluster."""


@pytest.mark.parametrize(
    "number",
    [n for n, block in enumerate(BLOCKS) if block.language in ("python", "console")],
    ids=lambda n: f"line {BLOCKS[n].line}",
)
@pytest.mark.timeout(300)  # one starts Spark
def test_example(number, cluster, newcomer):
    replaced = {URI: cluster.uri, "http://127.0.0.1:8000": f"http://{cluster.http[0]}"}
    newcomer.check(PAGE, number, replaced, cluster.uri)


def test_every_other_block_is_run_elsewhere():
    others = [block.code for block in BLOCKS if block.language not in ("python", "console", "text", "yaml")]
    assert [code.startswith(beginning) for code, beginning in zip(others, BEFORE, strict=True)] == [True, True]


def test_labels_are_those_that_the_dashboards_select_by():
    (settings,) = (yaml.safe_load(block.code) for block in BLOCKS if block.language == "yaml")
    labels = [each["labels"] for job in settings["scrape_configs"] for each in job["static_configs"]]
    assert all(re.fullmatch(r"[\w-]+-bookie-\d+", each["pod"]) for each in labels)
    for path in (CLUSTER / "dashboards").glob("*.json"):
        expressions = " ".join(re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', path.read_text()))
        assert set(re.findall(r'(\w+)=~?\\"\$?\{?(?:namespace|cluster|pod)', expressions)) <= {"namespace", "pod"}
        assert json.loads(path.read_text())["title"]
