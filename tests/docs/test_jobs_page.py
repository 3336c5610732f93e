"""docs/jobs.md: every example runs, and prints what the page says; every job has its place there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pyspark_bookie.jobs.framework.registry import find_job, job_names
from tests.docs.examples import blocks

PAGE = Path(__file__).parents[2] / "docs" / "jobs.md"
BLOCKS = blocks(PAGE)
_SECONDS = 300.0
"""Each job starts a Java process of its own."""


_ARCHIVE = "/tmp/podkeeper-archive"
"""Where the page's examples write."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """With an archive of this run's own, whatever else runs on the machine."""
    folder = tmp_path_factory.mktemp("page")
    page = folder / PAGE.name
    text = PAGE.read_text()
    assert _ARCHIVE in text
    page.write_text(text.replace(_ARCHIVE, str(folder / "archive")))
    return page


def test_every_job_is_told_of():
    text = PAGE.read_text()
    assert [name for name in job_names() if f"`{name}`" not in text] == []


def test_commands_that_are_only_shown_have_arguments_that_there_are():
    lines = [line for block in BLOCKS if block.language == "sh" for line in block.code.splitlines()]
    shown = [shlex.split(line) for line in lines if line.startswith("bookie job ") and "NAME" not in line]
    assert shown
    for _, _, name, *arguments in shown:
        known = {field.replace("_", "-") for field in find_job(name).Arguments.__dataclass_fields__}
        assert {text.removeprefix("--") for text in arguments if text.startswith("--")} <= known


@pytest.mark.parametrize(
    "number",
    [n for n, block in enumerate(BLOCKS) if block.language in ("python", "console")],
    ids=lambda n: f"line {BLOCKS[n].line}",
)
@pytest.mark.slow
@pytest.mark.timeout(_SECONDS + 60)
def test_example(number, page, cluster, newcomer):
    newcomer.check(page, number, {}, cluster.uri, _SECONDS)
