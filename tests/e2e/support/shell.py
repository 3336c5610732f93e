"""Commands of a page, as a reader types them.

Threads: that of the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.e2e.support.environment import Environment

ROOT: Final = Path(__file__).parents[3]
_SECONDS: Final = 600


def run(script: str, settings: Environment, **more: str) -> str:
    """Run it in the folder of the repository, with the kubeconfig of the ring; return what it prints. AssertionError:
    a command of it failed."""
    environment = {
        **os.environ,
        "KUBECONFIG": settings.kubeconfig,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **more,
    }
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout
