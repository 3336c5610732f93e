"""The `bookie-operator` command.

Until the operator is there the command says so and fails, so that a manifest that starts it by mistake is noticed.
"""

from __future__ import annotations

import sys
from importlib.metadata import version


def main() -> None:
    """Print the version with `--version`; end with exit code 1 and one line otherwise."""
    if sys.argv[1:] == ["--version"]:
        print(f"bookie-operator {version('podkeeper')}")
        return
    print(
        "bookie-operator: this release has no operator yet; run bookies from a StatefulSet with `bookie serve`",
        file=sys.stderr,
    )
    sys.exit(1)
