"""The same seed gives the same run, to the last event: in one process, and in another with other hashes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.simulation.runner import run_seed

SEEDS = range(8)
HEALING_SEEDS = range(3)
_DIGESTS = "from tests.simulation.test_determinism import digests; print(*digests())"


def digests() -> list[str]:
    drawn = [run_seed(seed, keep_trace=True) for seed in SEEDS]
    drawn += [run_seed(seed, keep_trace=True, of="healing") for seed in HEALING_SEEDS]
    return [each.trace.digest() for each in drawn]


@pytest.mark.timeout(660)
def test_a_run_is_the_same_in_every_process():
    environment = os.environ | {"PYTHONHASHSEED": "2"}
    done = subprocess.run(
        [sys.executable, "-c", _DIGESTS], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    seeds = [*SEEDS, *(f"healing {seed}" for seed in HEALING_SEEDS)]
    assert [seed for seed, a, b in zip(seeds, digests(), done.stdout.split(), strict=True) if a != b] == []


def test_a_run_is_the_same_the_second_time():
    first, second = (run_seed(7, keep_trace=True).trace for _ in range(2))
    assert first.lines == second.lines
    assert len(first.lines) > 50


def test_different_seeds_give_different_runs():
    assert len({run_seed(seed, keep_trace=True).trace.digest() for seed in range(5)}) == 5


def test_keeping_a_trace_changes_nothing():
    plain, traced = run_seed(3), run_seed(3, keep_trace=True)
    assert (plain.counts, plain.virtual_seconds) == (traced.counts, traced.virtual_seconds)
