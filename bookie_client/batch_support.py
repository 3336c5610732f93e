"""Which bookies are known to serve batch reads, and which of them those with a step (every so many-th entry).

Invariants
- A bookie that refused is not asked again before `RETRY_SECONDS` have passed: it may be upgraded meanwhile.
- Only its own word counts (it does not know the request, or answers nonsense), never a failure that a bookie
  which serves batch reads may have as well.

Bounded by the number of bookies. Event loop only.

Source: reference client protocol, section 11.5; reference wire protocol, sections 3.2 and 11.
"""

from __future__ import annotations

from functools import cached_property
from math import inf
from typing import Final

from bookie_protocol.errors import BadRequest, BadVersion, PodkeeperError, ProtocolViolation

RETRY_SECONDS: Final = 120.0


class BatchSupport:
    """What one client learnt. Times are seconds of the event loop's clock."""

    def __init__(self) -> None:
        self._asked_again_at: dict[str, float] = {}
        """`-inf`: served a batch read, and did not refuse one since."""

    @cached_property
    def stepped(self) -> BatchSupport:
        """The same of batch reads with a step."""
        return BatchSupport()

    def may_ask(self, bookie: str, now: float) -> bool:
        """False while the bookie counts as one that cannot."""
        return now >= self._asked_again_at.get(bookie, -inf)

    def is_proven(self, bookie: str) -> bool:
        """Whether it has served one."""
        return self._asked_again_at.get(bookie) == -inf

    def served(self, bookie: str) -> None:
        """It answered a batch read with entries."""
        self._asked_again_at[bookie] = -inf

    def judge(self, bookie: str, error: PodkeeperError, now: float) -> bool:
        """Learn from a failed batch read; True if the bookie cannot do it, so that single reads may do
        better."""
        if not isinstance(error, BadRequest | BadVersion | ProtocolViolation):
            return False
        self._asked_again_at[bookie] = now + RETRY_SECONDS
        return True
