"""Files of a work tree that are made of others: written, or compared with what would be written.

To be run by people and tests; I/O on the work tree.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path


def keep(root: Path, files: Mapping[str, str], surplus: Iterable[str], *, check: bool, command: str) -> int:
    """Write what differs of `files` (content by path below `root`) and remove `surplus`; the exit code.

    `check`: change nothing, and name every file with `command` as the remedy; 1 if there is one.
    """
    stale = [path for path, content in files.items() if _present(root / path) != content]
    surplus = list(surplus)
    if check:
        for path in (*stale, *surplus):
            print(f"{path} is not as it is generated: run `{command}`", file=sys.stderr)
        return 1 if stale or surplus else 0
    for path in surplus:
        (root / path).unlink()
    for path in stale:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(files[path], encoding="utf-8")
        print(f"written: {path}")
    return 0


def _present(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
