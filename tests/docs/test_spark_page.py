"""docs/spark.md: every example runs, and prints what the page says; the tables name every option."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pyspark_bookie.common.options import option_names
from pyspark_bookie.source.options import SourceOptions, Table
from tests.docs.examples import blocks, matches, run_python
from tests.support.chart_files import ROOT
from tests.support.markdown_links import broken_links

PAGE = ROOT / "docs" / "spark.md"
BLOCKS = blocks(PAGE)
URI = "embedded://127.0.0.1:3180/ledgers"


@pytest.fixture(scope="module")
def namespace(spark_sessions):
    """With a session of its own: what workers logged for others is in the table of theirs."""
    return {"__name__": "docs", "spark": spark_sessions.get().newSession()}


@pytest.mark.parametrize(
    "number",
    [n for n, block in enumerate(BLOCKS) if block.language == "python"],
    ids=lambda n: f"line {BLOCKS[n].line}",
)
async def test_example(number, cluster, namespace):
    block = replace(BLOCKS[number], code=BLOCKS[number].code.replace(URI, cluster.uri))
    printed = await run_python(block.code, str(PAGE), block.line, namespace)
    after = BLOCKS[number + 1] if number + 1 < len(BLOCKS) else None
    expected = after.code if after is not None and after.language == "text" else ""
    assert matches(expected, printed), f"{PAGE.name}:{block.line} printed:\n{printed}"


def test_the_tables_name_every_option_and_every_table():
    named = set(re.findall(r"`([A-Za-z.*]+)`", "\n".join(_rows(PAGE.read_text()))))
    assert set(option_names(SourceOptions)) <= named
    assert {table.value for table in Table} <= named


def test_links_lead_somewhere():
    assert not broken_links(PAGE)


def _rows(text: str) -> list[str]:
    """First cells of all tables."""
    return [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
