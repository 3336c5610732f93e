"""Whose bookies a campaign runs: ours, or the reference's.

The reference's are judged by the same rules, but for those that speak of what only ours have: a memory budget, gauges
of what a bookie at rest holds, the words with which it refuses damaged files.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.java import short_lived
from tests.support.java_bookie import java_bookie_command

COMMAND: Final = str(Path(sys.executable).with_name("bookie"))
_HEAP_MB: Final = 160
_DIRECT_MB: Final = 96


@dataclass(frozen=True)
class Kind:
    """`command` is what runs one, in front of its configuration file."""

    command: Sequence[str]
    probe: str
    """The path of its admin API that answers 200 while it is ready."""
    stops_with: int
    """Its exit code after SIGTERM."""
    settings: Mapping[str, str] = field(default_factory=dict)
    is_ours: bool = True
    patience: float = 1.0
    """So many times as long as one of ours it may take to come back."""


OURS: Final = Kind((COMMAND, "serve", "--config"), "/readyz", 0)


def java_bookies(class_path: str) -> Kind:
    """Apache BookKeeper's, which promise to end with the code of the signal."""
    command = java_bookie_command(class_path, heap_mb=_HEAP_MB, direct_mb=_DIRECT_MB, options=short_lived(class_path))
    settings = {
        "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
        "dbStorage_rocksDB_blockCacheSize": str(8 << 20),
        "allocatorPoolingPolicy": "UnpooledHeap",
    }
    return Kind(command, "/api/v1/bookie/is_ready", 143, settings, is_ours=False, patience=3.0)
