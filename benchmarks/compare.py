"""Our bookie beside the Java bookie, driven by the same stock client: `python -m benchmarks.compare [--quick]`.

Prints a markdown table of medians and ratios, and writes it with every figure to a directory. README.md in this
directory says what is compared and what that does not tell.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.environment import DIRECT_MB, HEAP_MB, SHARED, Environment
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.samples import JAVA, OURS, Samples, as_json, markdown
from benchmarks.stages import Stages
from tests.support.java import find_java

DEFAULT_OUT = Path(__file__).parent.parent / "data" / "bench"
_IDLE_LOAD = 0.7


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    java = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True, timeout=60)
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": java.stderr.splitlines()[0],
        "load_before": os.getloadavg()[0],
        "heap_mb": HEAP_MB,
        "direct_memory_mb": DIRECT_MB,
        "shared_settings": dict(SHARED),
    }


def compare(plan: Plan, parent: Path | None, log: Any) -> Samples:
    """Runs all stages, the kinds in turn: ours, Java, ours, Java, ..."""
    samples = Samples()
    with Environment(parent) as environment:
        stages = Stages(environment, plan, samples, log)
        for _ in range(plan.rounds):
            for kind in (OURS, JAVA):
                stages.throughput_and_reads(kind)
        for _ in range(plan.latency_rounds):
            for kind in (OURS, JAVA):
                stages.latency(kind)
            for kind in (OURS, JAVA):
                stages.replay(kind)
    return samples


@click.command()
@click.option("--quick", is_flag=True, help="About four minutes instead of a quarter of an hour or more.")
@click.option("--rounds", type=click.IntRange(1, 20), help="Rounds of every stage, instead of the plan's number.")
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Parent of the bookies' directories.")
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True)
def main(quick: bool, rounds: int | None, parent: Path | None, out: Path) -> None:
    """Compares the two bookies; both get the same directories, cache sizes, ZooKeeper and client."""
    about = machine()
    if about["load_before"] > _IDLE_LOAD:
        click.echo(
            f"load average is {about['load_before']:.1f}: something else runs here, ratios will be noisy", err=True
        )
    began = time.monotonic()

    def log(line: str) -> None:
        click.echo(f"{time.monotonic() - began:6.0f} s  {line}", err=True)

    plan = QUICK if quick else FULL
    if rounds is not None:
        plan = replace(plan, rounds=rounds, latency_rounds=rounds)
    samples = compare(plan, parent, log)
    table = markdown(samples)
    click.echo(table)
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"comparison-{time.strftime('%Y%m%d-%H%M%S')}"
    stem.with_suffix(".md").write_text(table)
    everything = {"machine": about, "metrics": as_json(samples), "failures": samples.failures}
    stem.with_suffix(".json").write_text(json.dumps(everything, indent=1) + "\n")
    click.echo(f"{stem}.md, {stem}.json: {time.monotonic() - began:.0f} s", err=True)
    if samples.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
