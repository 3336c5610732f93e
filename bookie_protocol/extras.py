"""Commands that need more than the plain install: the extras of pyproject.toml, and what to say without them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

_OWN = ("bookie_protocol", "bookie_client", "bookie_pod", "bookie_operator", "pyspark_bookie")


def run_with(extra: str, module: str) -> None:
    """Run `main` of a module whose imports need this extra. One line and exit code 1 where a package is missing."""
    try:
        import_module(module).main()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in _OWN:
            raise
        command = Path(sys.argv[0]).name
        sys.exit(f"{command}: the Python package {missing} is not installed: pip install 'podkeeper[{extra}]'")
