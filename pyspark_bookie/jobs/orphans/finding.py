"""What is left behind: its kinds, and one thing of them.

Format of the detail report: `table_of`; `thing` is a ledger id, a segment's name or a path.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

SINK_ATTEMPTS: Final = "sink-attempts"
STREAM_LEDGERS: Final = "stream-ledgers"
STREAM_SEGMENTS: Final = "stream-segments"
OFFLOADS: Final = "offload-files"
GONE_STREAMS: Final = "gone-streams"
MANAGED_LEDGERS: Final = "managed-ledgers"
KINDS: Final = (SINK_ATTEMPTS, STREAM_LEDGERS, STREAM_SEGMENTS, OFFLOADS, GONE_STREAMS, MANAGED_LEDGERS)
DEFAULT_KINDS: Final = (SINK_ATTEMPTS, STREAM_LEDGERS, STREAM_SEGMENTS, OFFLOADS)
OF_LEDGERS: Final = frozenset({SINK_ATTEMPTS, STREAM_LEDGERS, GONE_STREAMS, MANAGED_LEDGERS})


class Fate(Enum):
    """What became of it."""

    FOUND = "FOUND"
    REMOVED = "REMOVED"
    KEPT = "KEPT"
    """It was to be removed, and something spoke against it at the last moment, or it failed."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """`nbytes`: of all copies; 0 where nobody knows. `created_ms`: since 1970; None: not known."""

    kind: str
    thing: str
    owner: str
    nbytes: int
    created_ms: int | None
    fate: Fate
    detail: str


def table_of(orphans: Iterable[Orphan]) -> pa.Table:
    """The detail report."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("kind", pa.string()),
            ("thing", pa.string()),
            ("owner", pa.string()),
            ("bytes", pa.int64()),
            ("created", pa.timestamp("ms", "UTC")),
            ("fate", pa.string()),
            ("detail", pa.string()),
        ]
    )
    rows = [
        {
            "kind": each.kind,
            "thing": each.thing,
            "owner": each.owner,
            "bytes": each.nbytes,
            "created": each.created_ms,
            "fate": each.fate.value,
            "detail": each.detail,
        }
        for each in orphans
    ]
    return pa.Table.from_pylist(rows, schema=schema)
