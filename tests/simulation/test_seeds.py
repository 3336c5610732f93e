"""Seeds of the normal run, and many more in the long one. A failure prints the command that replays it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.simulation.runner import run_seeds

NORMAL = 300
LONG = 10_000
PARTS = 12
JOBS = os.cpu_count() or 1


@pytest.mark.parametrize("first", range(0, NORMAL, NORMAL // PARTS))
def test_everything_holds(first):
    failures = [one.failure for one in run_seeds(range(first, first + NORMAL // PARTS)) if one.failure is not None]
    assert not failures, "\n\n".join(failures[:3])


@pytest.mark.seeds
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(NORMAL, LONG, 970))
def test_everything_holds_for_many_more(first):
    seeds = f"{first}:{first + 970}"
    command = [sys.executable, "-m", "tests.simulation", "--seeds", seeds, "--jobs", str(JOBS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
