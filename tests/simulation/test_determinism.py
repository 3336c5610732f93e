"""The same seed gives the same run, to the last event: in one process, and in another with other hashes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.simulation.runner import run_seed

SEEDS = range(40)
HEALING_SEEDS = range(15)
_DIGESTS = "\n".join(
    (
        "from tests.support.simulation.runner import run_seed",
        f"for seed in {SEEDS!r}:",
        "    print(run_seed(seed, keep_trace=True).trace.digest())",
        f"for seed in {HEALING_SEEDS!r}:",
        "    print(run_seed(seed, keep_trace=True, of='healing').trace.digest())",
    )
)


def digests(hash_seed: str) -> list[str]:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", _DIGESTS], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.timeout(660)
def test_a_run_is_the_same_in_every_process():
    one, other = digests("1"), digests("2")
    seeds = [*SEEDS, *(f"healing {seed}" for seed in HEALING_SEEDS)]
    assert [seed for seed, a, b in zip(seeds, one, other, strict=True) if a != b] == []


def test_a_run_is_the_same_the_second_time():
    first, second = (run_seed(7, keep_trace=True).trace for _ in range(2))
    assert first.lines == second.lines
    assert len(first.lines) > 50


def test_different_seeds_give_different_runs():
    assert len({run_seed(seed, keep_trace=True).trace.digest() for seed in range(10)}) == 10


def test_keeping_a_trace_changes_nothing():
    plain, traced = run_seed(3), run_seed(3, keep_trace=True)
    assert (plain.counts, plain.virtual_seconds) == (traced.counts, traced.virtual_seconds)
