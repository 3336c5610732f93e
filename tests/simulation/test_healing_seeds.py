"""Clusters that heal: seeds of the normal run, and many more in the long one. A failure prints how to replay it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.support.simulation.runner import run_seeds

NORMAL = 96
LONG = 2_056
PARTS = 8
JOBS = os.cpu_count() or 1


@pytest.mark.timeout(200)
@pytest.mark.parametrize("first", range(0, NORMAL, NORMAL // PARTS))
def test_everything_heals(first):
    seeds = range(first, first + NORMAL // PARTS)
    reports = list(run_seeds(seeds, of="healing"))
    failures = [one.failure for one in reports if one.failure is not None]
    assert not failures, "\n\n".join(failures[:3])
    counts = sum((Counter(one.counts) for one in reports), Counter[str]())
    for what in ("marked", "mark removed", "exchanged", "cookie deleted", "metadata CLOSED"):
        assert counts[what], f"{what}: never"


@pytest.mark.seeds
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(NORMAL, LONG, 980))
def test_everything_heals_for_many_more(first):
    seeds = f"{first}:{first + 980}"
    command = [sys.executable, "-m", "tests.simulation", "--of", "healing", "--seeds", seeds, "--jobs", str(JOBS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
