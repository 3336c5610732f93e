"""Streams hold what their lists say, and the judge finds what is planted. A failure prints how to replay it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulation.planted import Bug, assert_found
from tests.simulation.stream_bugs import STREAM_BUGS
from tests.support.simulation.run import run
from tests.support.simulation.runner import run_seeds

NORMAL = 40
LONG = 2_000
PARTS = 4
JOBS = os.cpu_count() or 1
HAPPENS = (
    "acknowledged",
    "published",
    "cursor moved",
    "entries read",
    "name used again",
    "offload: deleted",
    "restored into a stream",
    "a number used again",
)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("first", range(0, NORMAL, NORMAL // PARTS))
def test_everything_holds(first):
    reports = list(run_seeds(range(first, first + NORMAL // PARTS), of="streams"))
    failures = [one.failure for one in reports if one.failure is not None]
    assert not failures, "\n\n".join(failures[:3])
    counts = sum((Counter(one.counts) for one in reports), Counter[str]())
    assert [what for what in HAPPENS if not counts[what]] == []


@pytest.mark.seeds
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(NORMAL, LONG, 490))
def test_everything_holds_for_many_more(first):
    seeds = f"{first}:{first + 490}"
    command = [sys.executable, "-m", "tests.simulation", "--of", "streams", "--seeds", seeds, "--jobs", str(JOBS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", STREAM_BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_found(bug: Bug, monkeypatch):
    assert_found(bug, monkeypatch)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("focus", {bug.focus: None for bug in STREAM_BUGS}, ids=lambda focus: focus.__name__)
def test_without_a_bug_the_same_scenarios_hold(focus):
    bug = next(bug for bug in STREAM_BUGS if bug.focus is focus)
    assert run(bug.scenario(0)).violations == ()
