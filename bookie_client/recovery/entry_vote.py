"""The vote on one entry behind the last add confirmed: is it part of the ledger?

Sans I/O: fed with the answers of the entry's write set, in any order.

Invariants
- Found: any one undamaged copy. It may have been acknowledged, so it stays.
- Not found: Qw - Qa + 1 positions of the write set said in so many words, behind a fence, that they have not got
  it. Then fewer than Qa copies can exist, now and ever: it was never acknowledged.
- A time-out, a lost connection, a fault, a damaged copy or a ledger in limbo is never such a word.
- Unknown: everybody answered, and neither holds. The recovery fails, and another one may know more.
- The verdict, once it is not `OPEN`, never changes.

Pure; one read uses it.

Source: reference client protocol, section 14.5.
"""

from __future__ import annotations

from enum import Enum

from bookie_client.distribution import Quorums
from bookie_client.reading.lac_vote import is_negative
from bookie_protocol.errors import PodkeeperError


class Verdict(Enum):
    """OPEN: more answers are needed."""

    OPEN = "open"
    FOUND = "found"
    NOT_FOUND = "not found"
    UNKNOWN = "unknown"


class EntryVote:
    """`bookies`: the entry's write set."""

    def __init__(self, quorums: Quorums, bookies: tuple[str, ...]) -> None:
        self._missing = set(bookies)
        self._negatives_needed = quorums.write - quorums.ack + 1
        self._negatives = 0
        self.verdict = Verdict.OPEN
        self.errors: dict[str, PodkeeperError] = {}
        """What each bookie said that has not served the entry, in the order of the answers."""

    def found(self, bookie: str) -> None:
        """The bookie served the entry, undamaged."""
        if self._count(bookie):
            self.verdict = Verdict.FOUND

    def failed(self, bookie: str, error: PodkeeperError) -> None:
        """The bookie has not served the entry."""
        if not self._count(bookie):
            return
        self.errors[bookie] = error
        if is_negative(error):
            self._negatives += 1
        if self._negatives >= self._negatives_needed:
            self.verdict = Verdict.NOT_FOUND
        elif not self._missing:
            self.verdict = Verdict.UNKNOWN

    def _count(self, bookie: str) -> bool:
        if self.verdict is not Verdict.OPEN or bookie not in self._missing:
            return False
        self._missing.discard(bookie)
        return True
