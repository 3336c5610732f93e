"""The detail report of `space` and `compact-report`: one table for owners, bookies and entry logs.

Format: `section` is owner, bookie or entry log; `name` the owner as "kind name", the bookie, or "bookie file". What a
section does not have is null.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark_bookie.jobs.space.bookie_space import BookieSpace
from pyspark_bookie.jobs.space.ledger_space import Stock

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBERS: Final = (
    "ledgers",
    "open_ledgers",
    "payload_bytes",
    "replica_bytes",
    "leaked_ledgers",
    "leaked_bytes",
    "used_bytes",
    "free_bytes",
    "garbage_bytes",
    "reclaimable_bytes",
)


def table_of(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows of this module as a table."""
    import pyarrow as pa

    numbers = [(name, pa.int64()) for name in _NUMBERS]
    schema = pa.schema([("section", pa.string()), ("name", pa.string()), *numbers, ("detail", pa.string())])
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)


def owner_rows(stock: Stock) -> list[dict[str, Any]]:
    """The largest first."""
    ordered = sorted(stock.by_owner.items(), key=lambda item: (-item[1].replica_bytes, item[0]))
    return [
        {
            "section": "owner",
            "name": f"{kind} {name}".strip(),
            "ledgers": space.ledgers,
            "open_ledgers": space.open_ledgers,
            "payload_bytes": space.payload_bytes,
            "replica_bytes": space.replica_bytes,
            "leaked_ledgers": space.leaked_ledgers,
            "leaked_bytes": space.leaked_bytes,
        }
        for (kind, name), space in ordered
    ]


def bookie_rows(bookies: Iterable[BookieSpace], expected: Mapping[str, int]) -> list[dict[str, Any]]:
    """Those with the most garbage first."""
    return [
        {
            "section": "bookie",
            "name": each.bookie,
            "replica_bytes": expected.get(each.bookie),
            "used_bytes": None if each.problem else each.used_bytes,
            "free_bytes": None if each.problem else each.free_bytes,
            "garbage_bytes": None if each.problem else each.garbage_bytes,
            "reclaimable_bytes": None if each.problem else each.major_reclaimable,
            "detail": each.problem or _compaction(each),
        }
        for each in sorted(bookies, key=lambda each: (-each.garbage_bytes, each.bookie))
    ]


def log_rows(bookies: Iterable[BookieSpace]) -> list[dict[str, Any]]:
    """Those with the most garbage first."""
    logs = [log for each in bookies for log in each.logs]
    return [
        {
            "section": "entry log",
            "name": f"{log.bookie} {log.name}",
            "ledgers": len(log.owners) or None,
            "used_bytes": log.size,
            "garbage_bytes": None if log.live_bytes is None else max(0, log.size - log.live_bytes),
            "detail": log.reason,
        }
        for log in sorted(logs, key=lambda log: (-(log.size - (log.live_bytes or log.size)), log.bookie, log.name))
    ]


def _compaction(space: BookieSpace) -> str:
    parts = [
        f"minor compaction gives {space.minor_reclaimable} bytes for {space.minor_rewritten} copied",
        f"major {space.major_reclaimable} for {space.major_rewritten}",
    ]
    if space.unmeasured_logs:
        parts.append(f"{space.unmeasured_logs} entry logs are not measured")
    if space.quarantined_logs:
        parts.append(f"{space.quarantined_logs} are damaged and left alone")
    return "; ".join(parts)
