"""Ledgers in bundles: a task costs some 100 ms before its first byte, so small ledgers share one.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark_bookie.jobs.framework.ledgers import LedgerRow

BUNDLE_BYTES: Final = 64 * 1024 * 1024
BUNDLE_LEDGERS: Final = 200


def bundles(
    rows: Iterable[LedgerRow], max_bytes: int = BUNDLE_BYTES, max_ledgers: int = BUNDLE_LEDGERS, at_least: int = 1
) -> list[tuple[LedgerRow, ...]]:
    """Every ledger in exactly one bundle. A bundle has at most `max_bytes`, or is one ledger; bundles come with the
    largest first, so that the last tasks of a job are short. There are `at_least` so many, if there are ledgers enough:
    no slot stays idle for the sake of bundling."""
    by_size = sorted(rows, key=lambda row: (-row.nbytes, row.ledger_id))
    max_ledgers = max(1, min(max_ledgers, -(-len(by_size) // max(1, at_least))))
    made: list[tuple[LedgerRow, ...]] = []
    current: list[LedgerRow] = []
    nbytes = 0
    for row in by_size:
        if current and (nbytes + row.nbytes > max_bytes or len(current) >= max_ledgers):
            made.append(tuple(current))
            current, nbytes = [], 0
        current.append(row)
        nbytes += row.nbytes
    if current:
        made.append(tuple(current))
    return made
