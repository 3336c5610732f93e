"""Sizes that follow from the volumes' and the container's: what fits, where the pod's own defaults may not.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bookie_operator.crds.cluster_spec import Volume
from bookie_operator.crds.quantity import known_bytes

MIB: Final = 1 << 20
LARGEST_JOURNAL_FILE_MB: Final = 2048
LARGEST_ENTRY_LOG: Final = 1 << 30
SMALLEST_BUDGET_MB: Final = 64
"""Below it a bookie does not work well, whatever its container has."""


def memory_budget_mb(resources: Mapping[str, Any]) -> int | None:
    """`memoryBudgetMb`: half of the container's memory, as the interpreter, the index and what is under way need about
    as much again. None: the container has no limit and asks for nothing, and the bookie looks for itself."""
    for part in ("limits", "requests"):
        given = (resources.get(part) or {}).get("memory")
        size = known_bytes(str(given)) if given is not None else None
        if size:
            return max(SMALLEST_BUDGET_MB, size // 2 // MIB)
    return None


def journal_sizes(journal: Volume) -> dict[str, str]:
    """Keys that keep journal files within their volume: the open file, the one that is made in advance, one that is
    kept, and those that no checkpoint has passed yet. The pod's default of five that are kept takes 14 GiB."""
    size = known_bytes(journal.size) or 0
    file_mb = min(LARGEST_JOURNAL_FILE_MB, max(16, size // MIB // 8))
    return {"journalMaxSizeMB": str(file_mb), "journalMaxBackups": "1"}


def ledger_sizes(ledger: Volume) -> dict[str, str]:
    """Keys that keep one entry log small beside its volume, so that compaction finds room; none for a usual volume."""
    size = known_bytes(ledger.size) or 0
    log = max(16 * MIB, size // 16)
    return {} if log >= LARGEST_ENTRY_LOG else {"logSizeLimit": str(log)}
