"""`kubectl bookie` as a user calls it: the command of this work tree's environment.

Threads: any.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.e2e.support.kube import PATIENCE

_COMMAND: Final = Path(sys.executable).with_name("kubectl-bookie")
_SECONDS: Final = 900


class Plugin:
    """Of one namespace."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        self._options = ["--kubeconfig", kubeconfig, "--namespace", namespace]

    def run(self, *words: str, code: int = 0) -> str:
        """What it prints, with its errors; AssertionError unless it ends with this code."""
        done = subprocess.run(
            [str(_COMMAND), *words, *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS * PATIENCE,
            check=False,
        )
        assert done.returncode == code, f"kubectl bookie {' '.join(words)}: {done.returncode}: {done.stdout[-3000:]}"
        return done.stdout
