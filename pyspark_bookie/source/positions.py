"""The positions at which reading starts and ends: `earliest`, `latest`, or an entry for each ledger.

    startingPosition={"5": 100, "7": -2}     the first entry that is read
    endingPosition={"5": 200, "7": -1}       the first entry that is not read any more

-2 is the beginning of a ledger and -1 its end, as in Kafka. Ledgers that are not named are read from their beginning
to their end.

Pure; any process.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError

EARLIEST: Final = -2
LATEST: Final = -1
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True)
class Positions:
    """`everywhere` counts for ledgers without a position of their own; None: the edge that reading is about."""

    everywhere: int | None = None
    ledgers: Mapping[int, int] = field(default_factory=dict, hash=False)
    is_default: bool = field(default=False, compare=False)
    """True if no option gave it."""

    def of(self, ledger_id: int, end: int, default: int) -> int:
        """Return the position in a ledger whose entries end in front of `end`; `default` is EARLIEST or LATEST."""
        chosen = self.ledgers.get(ledger_id, default if self.everywhere is None else self.everywhere)
        if chosen == EARLIEST:
            return 0
        return end if chosen == LATEST else min(chosen, end)

    def begin(self, ledger_id: int, entries: int, *, is_open: bool) -> int:
        """Return the first entry of a query in a ledger. Bookies may know fewer entries of an open one than the
        option names."""
        return self.of(ledger_id, max(entries, self.ledgers.get(ledger_id, 0)) if is_open else entries, EARLIEST)


def check_named(chosen: Positions, ledger_ids: Container[int], option: str, where: str) -> None:
    """Check that each ledger that positions name is one of those that are read: a slip, or a ledger that retention
    took, would otherwise mean "from the beginning". `where`: what is read, for the message. Raises
    `PodkeeperSparkError` (OPTION)."""
    strangers = sorted(ledger_id for ledger_id in chosen.ledgers if ledger_id not in ledger_ids)
    if strangers:
        named = ", ".join(map(str, strangers[:10]))
        raise PodkeeperSparkError(
            OPTION,
            f"option {option} names ledger {named}, which is not part of {where}, or not any more; name a ledger that"
            " is, or use earliest or latest",
        )


def positions(text: str) -> Positions:
    """Raises `ValueError` with what would be right."""
    word = _WORDS.get(text.strip().lower())
    if word is not None:
        return Positions(word)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(_is_position(*item) for item in found.items()):
        raise ValueError('must be earliest, latest, or entries by ledger such as {"5": 100, "7": -1}')
    return Positions(None, {int(ledger): entry for ledger, entry in found.items()})


def _is_position(ledger: str, entry: object) -> bool:
    return ledger.isdecimal() and isinstance(entry, int) and not isinstance(entry, bool) and entry >= EARLIEST
