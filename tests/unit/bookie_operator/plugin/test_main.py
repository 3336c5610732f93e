"""What the command costs before it does anything."""

from __future__ import annotations

import subprocess
import sys


def test_the_start_loads_nothing_heavy() -> None:
    """Not for `--help`, nor where the shell asks for the rest of a word."""
    heavy = ("aiohttp", "kubernetes", "pydantic", "rich", "structlog", "urllib3", "yaml")
    code = f"import sys, bookie_operator.plugin.main; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
