"""A query is killed wherever that may hurt and goes on from its checkpoint: each entry is in the sink's stream once, in
order."""

from __future__ import annotations

import os

import pytest

from tests.support.dying_query import DRIVER, PROCESS, Kill, RunSettings
from tests.support.dying_query_driver import DyingQuery
from tests.support.query_story import Story

ROUNDS = 50


class ShortStory(Story):
    """With batches so large that a few copy everything."""

    def start(self) -> None:
        self._query.start(RunSettings(self._uri, self._source, self._sink, 100, 1, self._master))


@pytest.mark.timeout(1_200)
def test_the_driver_dies_behind_a_commit_and_a_worker_amid_a_write(uri, tool, tmp_path):
    """The two places where most is at stake: what is published is not in the checkpoint yet, and rows are in ledgers
    that nobody lists yet. The tests below have more time."""
    with DyingQuery(tmp_path / "query") as query:
        story = ShortStory(tool, uri, query, 2, "short")
        for place, who in (("commit-after", DRIVER), ("write", PROCESS)):
            story.round(Kill(place, who, 1))
        story.end()


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_the_driver_dies_at_each_place_where_it_may_hurt(uri, tool, tmp_path):
    with DyingQuery(tmp_path / "query") as query:
        story = Story(tool, uri, query, 1, "places")
        for place, skip in (("commit-before", 1), ("commit-after", 1), ("write", 1), ("partitions", 1), ("latest", 2)):
            story.round(Kill(place, DRIVER, skip))
        story.end()


@pytest.mark.seeds
@pytest.mark.timeout(7_200)
def test_fifty_rounds_of_deaths(uri, tool, tmp_path):
    """Of another seed: PODKEEPER_SEED. `pytest -s` tells each round."""
    seed = int(os.environ.get("PODKEEPER_SEED", "50"))
    with DyingQuery(tmp_path / "query") as query:
        story = Story(tool, uri, query, seed, "fifty")
        for number in range(1, ROUNDS + 1):
            kill = story.random_kill(driver_share=0.4)
            print(f"seed {seed}, round {number} of {ROUNDS}: {kill}, {len(story.written)} entries written", flush=True)
            story.round(kill)
        story.end()
