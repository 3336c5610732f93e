"""docs/spark-streaming.md: every example runs, and prints what the page says; the tables name every option."""

from __future__ import annotations

import re

import pytest

from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.options import option_names
from pyspark_bookie.sink.options import SinkOptions
from pyspark_bookie.source.options import SourceOptions, StreamingOptions
from tests.docs.examples import blocks
from tests.support.chart_files import ROOT
from tests.support.option_tables import wrong_defaults

PAGE = ROOT / "docs" / "spark-streaming.md"
BLOCKS = blocks(PAGE)
URI = "embedded://127.0.0.1:3180/ledgers"


@pytest.mark.parametrize(
    "number",
    [n for n, block in enumerate(BLOCKS) if block.language == "python"],
    ids=lambda n: f"line {BLOCKS[n].line}",
)
@pytest.mark.timeout(300)  # the first one starts Spark
def test_example(number, cluster, newcomer):
    newcomer.check(PAGE, number, {URI: cluster.uri}, cluster.uri)


def test_the_tables_name_every_option_of_the_sink_and_of_streaming():
    cells = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("|")]
    named = set(re.findall(r"`([A-Za-z.*]+)`", "\n".join(cells)))
    assert set(option_names(SinkOptions)) - set(option_names(AccessOptions)) <= named
    assert set(option_names(StreamingOptions)) - set(option_names(SourceOptions)) <= named


def test_the_tables_tell_the_defaults():
    source, sink = PAGE.read_text().split("### The sink")
    given = {"metadataServiceUri": URI, "stream": "s"}
    assert wrong_defaults(source, StreamingOptions, given) == []
    assert wrong_defaults(sink, SinkOptions, given) == []
