"""One run of a comparison: what the machine is, a log with seconds, and in the end a table, a file of every figure and
an exit code."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.environment import DIRECT_MB, HEAP_MB, SHARED
from benchmarks.samples import Samples, as_json, markdown
from tests.support.java import find_java

DEFAULT_OUT = Path(__file__).parent.parent / "data" / "bench"
_IDLE_LOAD = 0.7


class Session:
    """Made before the first measurement, because the load of the machine is looked at then."""

    def __init__(self, name: str) -> None:
        """`name`: of the module that measures."""
        # As at Ctrl-C, what was started ends with it: bookies, ZooKeeper, their files.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        self._name = name
        self._machine = machine()
        self._began = time.monotonic()
        load = self._machine["load_before"]
        if load > _IDLE_LOAD:
            click.echo(f"load average is {load:.1f}: something else runs here, figures will be noisy", err=True)

    def log(self, line: str) -> None:
        click.echo(f"{time.monotonic() - self._began:6.0f} s  {line}", err=True)

    def report(self, samples: Samples, out: Path, verdict: str = "") -> None:
        """Print and write everything; exits with 1 if something failed."""
        command = " ".join([f"python -m benchmarks.{self._name}", *sys.argv[1:]])
        table = f"`{command}`, {os.cpu_count()} cores\n\n{markdown(samples)}\n"
        if verdict:
            table += f"{verdict}\n"
        click.echo(table)
        out.mkdir(parents=True, exist_ok=True)
        stem = out / f"{self._name}-{time.strftime('%Y%m%d-%H%M%S')}"
        stem.with_suffix(".md").write_text(table)
        everything = {
            "command": command,
            "machine": self._machine,
            "metrics": as_json(samples),
            "failures": samples.failures,
        }
        stem.with_suffix(".json").write_text(json.dumps(everything, indent=1) + "\n")
        self.log(f"{stem}.md, {stem}.json")
        if samples.failures:
            sys.exit(1)


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


def sizes_of(context: click.Context, sizes: dict[str, float], smoke: dict[str, float]) -> dict[str, float]:
    """The options' values, with those of a smoke run where the command line has none."""
    source = click.core.ParameterSource.DEFAULT
    given = {name for name in sizes if context.get_parameter_source(name) is not source}
    return sizes | {name: value for name, value in smoke.items() if name not in given}
