"""Which bookies are lost: registered nowhere for longer than the recovery delay.

A machine without I/O: it is told who is registered and what time it is, and says who is lost and when to look again.

Invariants
- A registered bookie is never lost, nor is one before its delay has passed, unless an operator demanded an audit: that
  counts everybody who is absent at that moment.
- Each bookie has a delay of its own. Two that restart at the same time are waited for like one (the reference gives up
  the delay then).
- While nobody at all is registered nobody is lost: that is an outage of the metadata service or of the network, and
  there would be neither source nor target.
- Times of loss can be handed to the next auditor, so that its election neither shortens nor prolongs a delay.

Pure; event loop of the auditor. Times are in ms since the epoch.

Source: reference auto-recovery, sections 3.1 and 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

MS: Final = 1000


@dataclass(slots=True)
class Absence:
    """A bookie that is registered nowhere. `audited`: its ledgers were marked since it left."""

    since_ms: int
    demanded: bool = False
    audited: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What an observation brought; `returned` splits into those whose ledgers were marked and those in their delay."""

    left: frozenset[str] = frozenset()
    returned_in_time: frozenset[str] = frozenset()
    returned_audited: frozenset[str] = frozenset()
    since_ms: Mapping[str, int] = field(default_factory=dict)
    """When those who returned had left."""

    def __bool__(self) -> bool:
        return bool(self.left or self.returned_in_time or self.returned_audited)


@dataclass(slots=True)
class Membership:
    """See the module. `delay_s`: the recovery delay."""

    delay_s: int
    available: frozenset[str] = frozenset()
    _absences: dict[str, Absence] = field(default_factory=dict)

    # --- what is told -------------------------------------------------------------------------------------------

    def restore(self, since_ms: Mapping[str, int], now_ms: int) -> None:
        """Times of loss that another auditor noted; one in the future counts as now."""
        for bookie, since in since_ms.items():
            if bookie not in self.available:
                self._absences[bookie] = Absence(min(since, now_ms))

    def observe(self, available: frozenset[str], now_ms: int) -> Change:
        """The registered bookies, writable and read-only together, as of now."""
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
        """Bookies that should be there (they have a cookie, or ledgers name them); returns those newly absent."""
        new = frozenset(bookies) - self.available - self._absences.keys()
        for bookie in new:
            self._absences[bookie] = Absence(now_ms)
        return new

    def forget(self, bookies: Iterable[str]) -> None:
        """Absent bookies that nobody expects any more."""
        for bookie in bookies:
            self._absences.pop(bookie, None)

    def demand(self, bookies: Iterable[str]) -> None:
        """An operator wants these, as far as they are absent now, to count as lost, whatever the delay."""
        for bookie in bookies:
            absence = self._absences.get(bookie)
            if absence is not None:
                absence.demanded, absence.audited = True, False

    def audited(self, since_ms: Mapping[str, int]) -> None:
        """Every ledger that names these was marked; one that came and left again meanwhile has another time of loss."""
        for bookie, since in since_ms.items():
            absence = self._absences.get(bookie)
            if absence is not None and absence.since_ms == since:
                absence.audited = True

    # --- what is said -------------------------------------------------------------------------------------------

    def deadline_ms(self, bookie: str) -> int | None:
        """When an absent bookie counts, or counted, as lost; None: it is not absent."""
        absence = self._absences.get(bookie)
        if absence is None:
            return None
        return absence.since_ms if absence.demanded else absence.since_ms + self.delay_s * MS

    def is_lost(self, bookie: str, now_ms: int) -> bool:
        """Whether its copies count as missing now."""
        deadline = self.deadline_ms(bookie)
        return bool(self.available) and deadline is not None and deadline <= now_ms

    def lost(self, now_ms: int) -> frozenset[str]:
        """Everybody whose copies count as missing now."""
        return frozenset(bookie for bookie in self._absences if self.is_lost(bookie, now_ms))

    def to_audit(self, now_ms: int) -> frozenset[str]:
        """The lost ones whose ledgers have not been marked."""
        return frozenset(bookie for bookie in self.lost(now_ms) if not self._absences[bookie].audited)

    def waiting(self, now_ms: int) -> frozenset[str]:
        """Absent, and still within the delay."""
        return frozenset(self._absences) - self.lost(now_ms)

    def next_deadline_ms(self) -> int | None:
        """When the next of those that are not audited is lost, if nothing happens until then; None: never."""
        if not self.available:
            return None
        deadlines = [self.deadline_ms(bookie) for bookie, absence in self._absences.items() if not absence.audited]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def absences(self) -> Mapping[str, Absence]:
        """Everybody who is absent."""
        return self._absences

    def since_ms(self, bookies: Iterable[str] | None = None) -> dict[str, int]:
        """Times of loss: of these, or of everybody, for the next auditor."""
        chosen = self._absences if bookies is None else bookies
        return {bookie: self._absences[bookie].since_ms for bookie in chosen}
