"""docs/spark.md and docs/spark-decode.md: every example runs as the page says, and the tables name every option."""

from __future__ import annotations

import re

import pytest

from pyspark_bookie.common.options import option_names
from pyspark_bookie.source.options import SourceOptions, Table
from tests.docs.examples import blocks
from tests.support.chart_files import ROOT
from tests.support.option_tables import wrong_defaults

PAGE = ROOT / "docs" / "spark.md"
BLOCKS = [
    (page, number, block)
    for page in (PAGE, ROOT / "docs" / "spark-decode.md")
    for number, block in enumerate(blocks(page))
    if block.language == "python"
]
URI = "embedded://127.0.0.1:3180/ledgers"


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page, number, _ in BLOCKS],
    ids=[f"{page.stem} {block.line}" for page, _, block in BLOCKS],
)
@pytest.mark.timeout(300)  # the first one starts Spark
def test_example(page, number, cluster, newcomer):
    newcomer.check(page, number, {URI: cluster.uri}, cluster.uri)


def test_the_tables_name_every_option_and_every_table():
    named = set(re.findall(r"`([A-Za-z.*]+)`", "\n".join(_rows(PAGE.read_text()))))
    assert set(option_names(SourceOptions)) <= named
    assert {table.value for table in Table} <= named


def test_the_tables_tell_the_defaults():
    assert wrong_defaults(PAGE.read_text(), SourceOptions, {"metadataServiceUri": URI, "scope": "all"}) == []


def _rows(text: str) -> list[str]:
    """First cells of all tables."""
    return [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
