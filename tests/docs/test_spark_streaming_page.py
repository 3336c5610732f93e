"""docs/spark-streaming.md: every example runs, and prints what the page says; the tables name every option."""

from __future__ import annotations

import dataclasses
import io
import re
from contextlib import redirect_stdout

import pytest

from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.options import option_name, option_names
from pyspark_bookie.sink.options import SinkOptions
from pyspark_bookie.source.options import SourceOptions, StreamingOptions
from tests.docs.examples import blocks, matches
from tests.docs.test_spark_page import URI, namespace  # noqa: F401 - a fixture
from tests.support.chart_files import ROOT
from tests.support.markdown_links import broken_links

PAGE = ROOT / "docs" / "spark-streaming.md"
BLOCKS = blocks(PAGE)


@pytest.mark.parametrize(
    "number",
    [n for n, block in enumerate(BLOCKS) if block.language == "python"],
    ids=lambda n: f"line {BLOCKS[n].line}",
)
def test_example(number, cluster, namespace):  # noqa: F811 - fixtures
    """In this thread: Spark finds the source of a write by the session that is active in the thread that writes."""
    block = BLOCKS[number]
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(block.code.replace(URI, cluster.uri), f"{PAGE.name}:{block.line}", "exec"), namespace)
    after = BLOCKS[number + 1] if number + 1 < len(BLOCKS) else None
    expected = after.code if after is not None and after.language == "text" else ""
    assert matches(expected, printed.getvalue()), f"{PAGE.name}:{block.line} printed:\n{printed.getvalue()}"


def test_the_tables_name_every_option_of_the_sink_and_of_streaming():
    cells = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("|")]
    named = set(re.findall(r"`([A-Za-z.*]+)`", "\n".join(cells)))
    assert set(option_names(SinkOptions)) - set(option_names(AccessOptions)) <= named
    of_the_source = {item.name for item in dataclasses.fields(SourceOptions)}
    added = {option_name(item) for item in dataclasses.fields(StreamingOptions) if item.name not in of_the_source}
    assert added <= named


def test_links_lead_somewhere():
    assert not broken_links(PAGE)
