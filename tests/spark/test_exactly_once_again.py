"""The same as `test_exactly_once`, by chance, and with executors that are processes of their own."""

from __future__ import annotations

import pytest

from tests.support.dying_query import DRIVER, EXECUTOR, PROCESS, Kill
from tests.support.dying_query_driver import DyingQuery
from tests.support.query_story import Story


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_some_rounds_of_deaths(uri, tool, tmp_path):
    with DyingQuery(tmp_path / "query") as query:
        story = Story(tool, uri, query, 12, "rounds")
        for _ in range(2):  # test_exactly_once.py has fifty
            story.round(story.random_kill(driver_share=0.25))
        story.end()


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_tasks_executors_and_the_driver_die_in_a_cluster(uri, tool, tmp_path):
    """Executors are Java processes of their own there, and outlive the driver for a moment."""
    with DyingQuery(tmp_path / "query") as query:
        story = Story(tool, uri, query, 3, "spread", "local-cluster[2,1,1024]")
        for place, who in (("write", DRIVER), ("write", EXECUTOR), ("write-begin", PROCESS), ("write-end", DRIVER)):
            story.round(Kill(place, who, 1))
        story.end()
