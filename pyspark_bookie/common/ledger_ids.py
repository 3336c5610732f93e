"""Sets of ledger ids as people write them: `5,7,100-200`.

Pure; any thread.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from bookie_protocol.ledger_metadata.model import MAX_LEDGER_ID

_PIECE: Final = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")


@dataclass(frozen=True, slots=True)
class LedgerIds:
    """`spans`: first and last id, both included, ascending, apart from each other."""

    spans: tuple[tuple[int, int], ...]

    @classmethod
    def parse(cls, text: str) -> LedgerIds:
        """Raises `ValueError`, in words for the user."""
        spans: list[tuple[int, int]] = []
        for piece in text.split(","):
            found = _PIECE.fullmatch(piece.strip())
            if found is None:
                raise ValueError("must be ledger ids and ranges of them, such as 5,7,100-200")
            first, last = int(found[1]), int(found[2] or found[1])
            if last < first or last > MAX_LEDGER_ID:
                raise ValueError(f"has {piece.strip()}: ranges must ascend, and ids end at 2^63-1")
            spans.append((first, last))
        return cls(_joined(spans))

    @classmethod
    def of(cls, ids: Iterable[int]) -> LedgerIds:
        return cls(_joined((ledger_id, ledger_id) for ledger_id in ids))

    def __contains__(self, ledger_id: int) -> bool:
        at = bisect_right(self.spans, (ledger_id, MAX_LEDGER_ID)) - 1
        return at >= 0 and ledger_id <= self.spans[at][1]

    def singles(self) -> Iterator[int]:
        """The ids that were named one by one: such a ledger is missed when it does not exist."""
        return (first for first, last in self.spans if first == last)

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.spans)


def _joined(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ascending, what overlaps as one. Neighbours stay apart, so that singles stay singles."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(set(spans)):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)
