"""How much memory the bookie may plan with.

The reference implementation sizes its caches from the JVM's direct-memory limit. Here `memoryBudgetMb` takes
that place; its default is half of what the container (or else the machine) has, and never more than 1024 MiB,
so that an unconfigured bookie on a large machine does not grow caches that nobody asked for.

Reads a few small files of the kernel at start-up; any thread may call it.
"""

from __future__ import annotations

import os
from typing import Final

LARGEST_DEFAULT_MB: Final = 1024
SMALLEST_DEFAULT_MB: Final = 64
_MIB: Final = 1024 * 1024
_CGROUP_LIMITS: Final = (
    "sys/fs/cgroup/memory.max",  # cgroup v2
    "sys/fs/cgroup/memory/memory.limit_in_bytes",  # cgroup v1
)


def default_memory_budget_mb(root: str = "/") -> int:
    """Half of the memory that this process may use in MiB, between 64 and 1024.

    `root` is where the kernel's files are looked for.
    """
    half = _available_bytes(root) // 2 // _MIB
    return max(SMALLEST_DEFAULT_MB, min(LARGEST_DEFAULT_MB, half))


def _available_bytes(root: str) -> int:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [limit for name in _CGROUP_LIMITS if (limit := _limit(os.path.join(root, name))) is not None]
    return min([physical, *limits])


def _limit(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(64).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) > 0 else None  # "max" means no limit
