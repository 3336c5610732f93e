"""Seeds of a normal run, in the process of the test, and many more in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection

from tests.support.simulation.runner import LEDGERS, run_seeds

_JOBS = os.cpu_count() or 1


def assert_all_hold(seeds: range, *, of: str = LEDGERS, happens: Collection[str] = ()) -> None:
    """No rule is broken, and each of what `happens` is counted somewhere. A failure prints how to replay it."""
    reports = list(run_seeds(seeds, of=of))
    failures = [one.failure for one in reports if one.failure is not None]
    assert not failures, "\n\n".join(failures[:3])
    counts = sum((Counter(one.counts) for one in reports), Counter[str]())
    assert [what for what in happens if not counts[what]] == []


def assert_many_hold(seeds: range, *, of: str = LEDGERS) -> None:
    """As `assert_all_hold`, on all cores."""
    command = [sys.executable, "-m", "tests.simulation", "--of", of, "--seeds", f"{seeds.start}:{seeds.stop}"]
    done = subprocess.run([*command, "--jobs", str(_JOBS)], capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
