"""Marks and locks of ledgers are settled by one room, and by those few who are named here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRODUCT = ("bookie_client", "bookie_pod", "bookie_protocol", "pyspark_bookie", "operator")
ROOM = "bookie_client/healing/"
TREE = "bookie_protocol/metadata_service/tree/under_replication/"

ALLOWED = {
    r"\.mark_replicated\(": set(),
    r"\.note_failure\(": {"bookie_pod/autorecovery/worker/worker.py"},
    r"\bwhat_is_left\(report": set(),
    r"\b(?:marks|under_replication)\.lock\(": {
        "bookie_pod/node/gc_metadata.py",
    },
}
"""What only the room calls, and who else may."""


def callers(pattern: str) -> set[str]:
    found = set()
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith((ROOM, TREE)) and re.search(pattern, path.read_text()):
                found.add(name)
    return found


@pytest.mark.parametrize("pattern", ALLOWED)
def test_only_the_room_settles_marks_and_takes_locks(pattern: str) -> None:
    assert callers(pattern) <= ALLOWED[pattern]
