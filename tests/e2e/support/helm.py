"""Helm, as a user calls it.

Threads: any.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

CHARTS = Path(__file__).parents[3] / "charts"
_SECONDS = 120


class Helm:
    def __init__(self, kubeconfig: str, namespace: str) -> None:
        found = shutil.which("helm")
        if found is None:
            pytest.fail("the e2e ring installs charts: helm is not on the PATH", pytrace=False)
        self._command = [found, "--kubeconfig", kubeconfig, "--namespace", namespace]

    def install(self, release: str, chart: str, values: Mapping[str, Any], *, wait: bool = False) -> None:
        """Install, or upgrade. `chart`: the name of one of ours, or a path."""
        waiting = ["--wait", f"--timeout={_SECONDS}s"] if wait else []
        self._run("upgrade", "--install", release, self._chart(chart), "-f", "-", *waiting, stdin=json.dumps(values))

    def render(self, release: str, chart: str, values: Mapping[str, Any]) -> str:
        return self._run("template", release, self._chart(chart), "-f", "-", stdin=json.dumps(values))

    def test(self, release: str) -> str:
        return self._run("test", release, "--logs", f"--timeout={_SECONDS}s")

    def uninstall(self, release: str, *, hooks: bool = True) -> None:
        past = [] if hooks else ["--no-hooks"]
        self._run("uninstall", release, "--ignore-not-found", "--wait", f"--timeout={_SECONDS}s", *past)

    def releases(self) -> list[str]:
        return [str(each["name"]) for each in json.loads(self._run("list", "-o", "json"))]

    def _chart(self, chart: str) -> str:
        return chart if os.sep in chart else str(CHARTS / chart)

    def _run(self, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=3 * _SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr[-4000:]}{done.stdout[-2000:]}"
        return done.stdout
