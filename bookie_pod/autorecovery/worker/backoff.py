"""How long a ledger that could not be repaired is left alone: twice as long after each failure, up to a limit.

Invariants
- How often a ledger failed is remembered of the last `REMEMBERED` that failed, ten times as many as a worker holds
  locks of: were it forgotten before its ledger's turn comes again, no delay would ever grow. Why it failed, which is
  for people, of the last `EXPLAINED`.
- No delay is shorter than `SHORTEST_S`, whatever is configured: a ledger that cannot be repaired is no hot loop.

Pure; event loop only.

Source: reference auto-recovery, section 6.2, step 5.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from bookie_protocol.pace import doubled

REMEMBERED: Final = 100_000
EXPLAINED: Final = 2_000
SHORTEST_S: Final = 0.1
_FIRST: Final = 32
"""What part of the full delay the first one is."""


@dataclass(frozen=True, slots=True)
class Failures:
    """What is remembered of a ledger. `reason`, `lost_entries`: of the last failure, see `worker.RoundResult`."""

    count: int
    reason: str = ""
    lost_entries: tuple[int, ...] = ()


class Backoff:
    """`longest_s`: the full delay in seconds; the first one is a 32nd of it."""

    def __init__(self, longest_s: float, remembered: int = REMEMBERED, explained: int = EXPLAINED) -> None:
        self._longest_s = longest_s
        self._remembered = remembered
        self._explained = explained
        self._counts: OrderedDict[int, int] = OrderedDict()
        self._failures: OrderedDict[int, Failures] = OrderedDict()

    def failures(self, ledger_id: int) -> Failures:
        """The failures since this ledger last succeeded, as far as they are remembered."""
        return self._failures.get(ledger_id) or Failures(self._counts.get(ledger_id, 0))

    def failed(self, ledger_id: int, reason: str = "", lost_entries: tuple[int, ...] = ()) -> float:
        """It failed (again): seconds until the next try."""
        before = self._counts.pop(ledger_id, 0)
        self._counts[ledger_id] = before + 1
        self._failures.pop(ledger_id, None)
        self._failures[ledger_id] = Failures(before + 1, reason, lost_entries)
        if len(self._counts) > self._remembered:
            self._counts.popitem(last=False)
        if len(self._failures) > self._explained:
            self._failures.popitem(last=False)
        return max(SHORTEST_S, doubled(self._longest_s / _FIRST, self._longest_s, before))

    def succeeded(self, ledger_id: int) -> None:
        """It is repaired, or gone."""
        self._counts.pop(ledger_id, None)
        self._failures.pop(ledger_id, None)
