"""The ensemble that a writer sends to: the bookie at each position, the failed positions, and the change under way.

Part of the writer's state machine (`AddState`): sans I/O, like it.

Invariants
- What failed is kept by position and bookie: a bookie that was replaced meanwhile counts no more.
- At most one change is under way. What fails while it runs joins it, or makes another round of it, before anything is
  sent to the new bookies.
- A *degraded* position has a failed bookie for which there was no spare; a *late* failure is one of an add that had its
  ack quorum already, and is replaced with the next add.
- Only changes that were stored count against `max_changes`; when they are used up, what fails is degraded.

Used from the event loop of the ledger's writer only.

Source: docs/internals/client-protocol.md, section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from bookie_client.distribution import Quorums
from bookie_client.writing.pending_add import PendingAdd
from bookie_protocol.errors import LedgerIdInUse, LedgerStateUnknown, PodkeeperError, QuorumLost

Positions = dict[int, str]
"""Position in the ensemble -> id of the bookie that failed there."""


class WriteEnsemble:
    """The ensemble of one writer's handle. `bookies`: the ensemble as the metadata service holds it, by position.
    `max_changes`: how many changes may be stored; None: no limit."""

    def __init__(self, quorums: Quorums, bookies: tuple[str, ...], max_changes: int | None) -> None:
        self.bookies = bookies
        self.degraded: Positions = {}
        self.late: Positions = {}
        self.changing: Positions | None = None
        """Positions that the change under way replaces; None if there is none."""
        self.changes = 0
        """Rounds of changes begun so far."""
        self.max_changes = max_changes
        self._stored_changes = 0
        self._stored = bookies
        self._quorums = quorums
        self._joined: Positions = {}
        self._errors: dict[str, PodkeeperError] = {}
        self._since: dict[str, int] = {}
        """Bookie id -> the first entry that was sent to it once it was chosen last."""
        self.left_out: frozenset[str] = frozenset()
        """Bookies that are never sent anything."""
        self.on_refused: Callable[[str, PodkeeperError], None] | None = None
        """Called with each failure of an add."""

    # --- an add's positions -----------------------------------------------------------------------------------

    def position_of(self, add: PendingAdd, bookie: str) -> int:
        """Return the position of the bookie in the add's write set; -1 if it was exchanged meanwhile."""
        try:
            position = add.ensemble.index(bookie)
        except ValueError:
            return -1
        return -1 if self.was_moved(add, position) else position

    def was_moved(self, add: PendingAdd, position: int) -> bool:
        """The bookie was exchanged, and taken again for a position that does not hold the entry."""
        return self.changes > 0 and not self._quorums.holds(position, add.entry_id)

    def skip_degraded(self, add: PendingAdd) -> None:
        """A new add is not sent to degraded positions. With too many of them they fail late: the next change must
        replace them."""
        for position, bookie in self.degraded.items():
            if self._quorums.holds(position, add.entry_id):
                add.failed |= 1 << position
                if add.failed.bit_count() > self._quorums.tolerated:
                    self.late |= self.failed_positions(add)
                    self.late[position] = bookie

    def failed_positions(self, add: PendingAdd) -> Positions:
        """Return the positions at which an add failed, with their bookies."""
        return {p: add.ensemble[p] for p in self._quorums.write_set(add.entry_id) if add.failed >> p & 1}

    def leave_out(self, bookies: Collection[str]) -> None:
        """Treat these bookies as if they had failed: the first add replaces them, and is not sent to them."""
        self.left_out = frozenset(bookies)
        self.degraded = {position: each for position, each in enumerate(self.bookies) if each in bookies}
        self.late = dict(self.degraded)

    # --- what failed ----------------------------------------------------------------------------------------

    def note(self, bookie: str, error: PodkeeperError) -> None:
        """Remember why a bookie failed, for messages and for the choice of spares."""
        self._errors[bookie] = error
        if self.on_refused is not None:
            self.on_refused(bookie, error)

    def was_chosen_since(self, entry_id: int, bookie: str) -> bool:
        """Return True if the entry was delivered before the bookie was chosen, which was a member before perhaps: what
        becomes of that add tells nothing of the bookie now."""
        return entry_id < self._since.get(bookie, 0)

    def failed_late(self, position: int, bookie: str) -> None:
        """A bookie failed for an add that has its ack quorum."""
        if self.bookies[position] != bookie:
            return
        if self.changing is None:
            self.late[position] = bookie
        elif self.changing.get(position) != bookie:
            self._joined[position] = bookie

    def join(self, failed: Positions) -> None:
        """Add failures to the change that is under way."""
        self._joined |= failed

    def restored(self, position: int, bookie: str) -> bool:
        """Restore a degraded position whose bookie can be reached again. Return True if it is in use again now."""
        if self.degraded.get(position) != bookie or self.changing is not None or bookie in self.left_out:
            return False
        del self.degraded[position]
        return True

    def quorum_lost(self, bookies: Collection[str], reason: str) -> QuorumLost:
        """Return the error of a writer that these bookies have failed."""
        is_in_use = any(isinstance(self._errors.get(bookie), LedgerStateUnknown) for bookie in bookies)
        return (LedgerIdInUse if is_in_use else QuorumLost)(f"{reason} ({self._reasons(bookies)})")

    def _reasons(self, bookies: Iterable[str]) -> str:
        return "; ".join(f"{bookie}: {self._errors.get(bookie, 'failed before')}" for bookie in bookies)

    # --- changes --------------------------------------------------------------------------------------------

    @property
    def is_exhausted(self) -> bool:
        """Return True if no further change may begin."""
        return self.max_changes is not None and self._stored_changes >= self.max_changes

    def take_failed(self, failed: Positions) -> Positions:
        """Return what a change has to replace now: late failures and these, where the bookies are still in the
        ensemble."""
        wanted = self._standing(self.late | failed)
        self.late = {}
        return wanted

    def begin_round(self, failed: Positions) -> None:
        """A change, or another round of it, is under way."""
        self.changes += 1
        self.changing = (self.changing or {}) | failed

    def stored(self, bookies: tuple[str, ...]) -> None:
        """The metadata service holds these from here on; the same ones as before where there was no spare."""
        if bookies != self._stored:
            self._stored = bookies
            self._stored_changes += 1

    def failed_meanwhile(self, bookies: tuple[str, ...]) -> Positions:
        """Return what another round has to replace, now that the stored ensemble is `bookies`; empty if none of
        them failed while the change ran."""
        changing = self.changing or {}
        joined = {p: b for p, b in self._joined.items() if bookies[p] == b and changing.get(p) != b}
        self._joined = {}
        return {p: b for p, b in (changing | joined).items() if bookies[p] == b} if joined else {}

    def end_change(self, bookies: tuple[str, ...], given_up: Positions, first: int) -> None:
        """The stored ensemble is `bookies` from entry `first` on: what could not be replaced, and `given_up`, is
        degraded."""
        self._since |= dict.fromkeys(set(bookies).difference(self.bookies), first)
        unreplaced = self.degraded | (self.changing or {}) | given_up
        self.bookies = bookies
        self.changing = None
        self.degraded = self._standing(unreplaced)
        self.late = {p: b for p, b in self._standing(self.late).items() if p not in self.degraded}

    def give_up(self) -> None:
        """Give up the change under way and those wanted: nothing will be sent any more."""
        self.changing = None
        self.late, self._joined = {}, {}

    def _standing(self, failed: Positions) -> Positions:
        return {p: b for p, b in failed.items() if self.bookies[p] == b}
