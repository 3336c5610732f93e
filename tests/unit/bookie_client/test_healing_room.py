"""One file takes the locks of ledgers, gives them back, and changes the marks of locked ledgers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRODUCT = ("bookie_client", "bookie_pod", "bookie_protocol", "pyspark_bookie", "operator")
TREE = "bookie_protocol/metadata_service/tree/under_replication/"
GUARD = "bookie_protocol/metadata_service/ledger_guard.py"

MARKS = r"\b_?(?:marks|tree|under_replication)\."
ROOMS = {
    MARKS + r"(?:lock|acquire|try_acquire|release|is_held)\(": {GUARD},
    r"\.mark_replicated\(": {GUARD},
    MARKS + r"(?:withdraw|note_failure)\(": {GUARD},
    r"\bwhat_is_left\(report": {"bookie_client/healing/settling.py", "bookie_client/healing/rule.py"},
}
"""What only some files call."""


def callers(pattern: str) -> set[str]:
    found = set()
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(TREE) and re.search(pattern, path.read_text()):
                found.add(name)
    return found


@pytest.mark.parametrize("pattern", ROOMS)
def test_only_the_guard_takes_locks_and_changes_the_marks_of_locked_ledgers(pattern: str) -> None:
    assert callers(pattern) == ROOMS[pattern]
