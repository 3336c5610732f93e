"""Programs that measure in a process of their own, and print what came of it as one JSON object, on their last line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class DriverError(RuntimeError):
    """The driver saw a failed request or could not run; the message says which."""


def printed_object(
    command: Sequence[str],
    arguments: Sequence[str],
    seconds: float,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> dict[str, Any]:
    """The object on the last line that a driver prints. Raises `DriverError`, which names its arguments."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env=environment,
        cwd=folder,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        problem = done.stderr if len(done.stderr) <= 1600 else f"{done.stderr[:800]} ... {done.stderr[-800:]}"
        raise DriverError(f"driver {' '.join(arguments)}: {problem}\n{done.stdout[-600:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result
