"""The bookies that are lost: registered nowhere for longer than the recovery delay.

A machine without I/O: it gets the registered bookies and the time, and says which bookies are lost and when to look
again.

Invariants
- A registered bookie is never lost, nor is one before its delay has passed, unless an operator demanded an audit: that
  counts everybody who is absent at that moment.
- Each bookie has a delay of its own. Two that restart at the same time are waited for like one (the reference gives up
  the delay then).
- While no bookie at all is registered no bookie is lost: that is an outage of the metadata service or of the network,
  and there would be neither source nor target.
- Times of loss can be handed to the next auditor, so that its election neither shortens nor prolongs a delay.
- A bookie that is not needed any more (no cookie, and no ledger names it) is kept for `LATE_MS`, and then looked for
  once more: work that was under way when it left may name it still. A bookie that is forgotten would never be looked
  for.

Pure; event loop of the auditor. Times are in ms since the epoch.

Source: docs/internals/auto-recovery.md, sections 3.1 and 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

MS: Final = 1000
LATE_MS: Final = 120 * MS
"""Longer than any request of a client, or the end of its session, takes."""


@dataclass(slots=True)
class Absence:
    """A bookie that is registered nowhere. `audited`: its ledgers were marked since it left."""

    since_ms: int
    demanded: bool = False
    audited: bool = False
    unneeded_ms: int | None = None
    """Time at which it was found that the bookie is not needed, in ms; None: it is needed, or that is unknown."""


@dataclass(frozen=True, slots=True)
class Change:
    """The result of an observation; `returned` splits into those whose ledgers were marked and those in their delay."""

    left: frozenset[str] = frozenset()
    returned_in_time: frozenset[str] = frozenset()
    returned_audited: frozenset[str] = frozenset()
    since_ms: Mapping[str, int] = field(default_factory=dict)
    """Time at which each returned bookie had left, in ms."""

    def __bool__(self) -> bool:
        return bool(self.left or self.returned_in_time or self.returned_audited)


@dataclass(slots=True)
class Membership:
    """See the module. `delay_s`: the recovery delay."""

    delay_s: int
    available: frozenset[str] = frozenset()
    _absences: dict[str, Absence] = field(default_factory=dict)

    # --- input --------------------------------------------------------------------------------------------------

    def restore(self, since_ms: Mapping[str, int]) -> None:
        """Take over times of loss that another auditor noted, as far as they count."""
        for bookie, since in since_ms.items():
            if bookie not in self.available:
                self._absences[bookie] = Absence(since)

    def observe(self, available: frozenset[str], now_ms: int) -> Change:
        """Note the registered bookies, writable and read-only together, as of now; return what changed."""
        left = self.available - available
        returned = [bookie for bookie in self._absences if bookie in available]
        gone = [(bookie, self._absences.pop(bookie)) for bookie in returned]
        for bookie in left:
            self._absences[bookie] = Absence(now_ms)
        self.available = available
        return Change(
            left,
            frozenset(bookie for bookie, absence in gone if not absence.audited),
            frozenset(bookie for bookie, absence in gone if absence.audited),
            {bookie: absence.since_ms for bookie, absence in gone},
        )

    def expect(self, bookies: Iterable[str], now_ms: int) -> frozenset[str]:
        """Note bookies that should be there (they have a cookie, or ledgers name them); return those newly absent."""
        new = frozenset(bookies) - self.available - self._absences.keys()
        for bookie in new:
            self._absences[bookie] = Absence(now_ms)
        return new

    def unneeded(self, bookies: Iterable[str], now_ms: int) -> bool:
        """Note that an audit that began now found nothing of these absent bookies, and something of all others.

        Return whether it was the last one that a bookie waited for: that bookie is forgotten.
        """
        found = frozenset(bookies)
        forgotten = False
        for bookie, absence in list(self._absences.items()):
            if bookie not in found:
                absence.unneeded_ms = None
            elif absence.unneeded_ms is None:
                absence.unneeded_ms = now_ms
            elif absence.unneeded_ms + LATE_MS <= now_ms:
                del self._absences[bookie]
                forgotten = True
        return forgotten

    def demand(self, bookies: Iterable[str]) -> None:
        """Let these bookies, as far as they are absent now, count as lost on request, whatever the delay."""
        for bookie in bookies:
            absence = self._absences.get(bookie)
            if absence is not None:
                absence.demanded, absence.audited = True, False

    def audited(self, since_ms: Mapping[str, int]) -> None:
        """Note that every ledger of these was marked; one that left again meanwhile has another time of loss."""
        for bookie, since in since_ms.items():
            absence = self._absences.get(bookie)
            if absence is not None and absence.since_ms == since:
                absence.audited = True

    # --- answers ------------------------------------------------------------------------------------------------

    def deadline_ms(self, bookie: str) -> int | None:
        """Return when an absent bookie counts, or counted, as lost, in ms; None: it is not absent."""
        absence = self._absences.get(bookie)
        if absence is None:
            return None
        return absence.since_ms if absence.demanded else absence.since_ms + self.delay_s * MS

    def is_lost(self, bookie: str, now_ms: int) -> bool:
        """Return whether its copies count as missing now."""
        deadline = self.deadline_ms(bookie)
        return bool(self.available) and deadline is not None and deadline <= now_ms

    def lost(self, now_ms: int) -> frozenset[str]:
        """Return the bookies whose copies count as missing now."""
        return frozenset(bookie for bookie in self._absences if self.is_lost(bookie, now_ms))

    def waiting(self, now_ms: int) -> frozenset[str]:
        """Return the bookies that are absent, and still within the delay."""
        return frozenset(self._absences) - self.lost(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when something is due next if nothing happens until then; None: never.

        That is when the next bookie that was not audited is lost, or when one that is not needed has to be looked for
        once more.
        """
        if not self.available:
            return None
        deadlines = [self.deadline_ms(bookie) for bookie, absence in self._absences.items() if not absence.audited]
        last_looks = [each.unneeded_ms + LATE_MS for each in self._absences.values() if each.unneeded_ms is not None]
        return min((deadline for deadline in (*deadlines, *last_looks) if deadline is not None), default=None)

    @property
    def absences(self) -> Mapping[str, Absence]:
        """The absent bookies."""
        return self._absences

    def since_ms(self, bookies: Iterable[str] | None = None) -> dict[str, int]:
        """Return the times of loss, of these or of all, for the next auditor."""
        chosen = self._absences if bookies is None else bookies
        return {bookie: self._absences[bookie].since_ms for bookie in chosen}
