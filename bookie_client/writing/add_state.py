"""The writer's state machine: which adds are pending, acknowledged, to be sent again, or failed.

Sans I/O: it is fed with what bookies and the metadata service answered, and returns what is to be done. It
never sends, waits or looks at a clock, so every order of answers can be tried in a test.

Invariants
- Adds are delivered for 0, 1, 2, ... without gaps; the LAC is the last one delivered, or, with deferred sync,
  the last one delivered before a force that every bookie answered.
- An add is delivered only when Qa positions of its write set acknowledged it in the ensemble that the
  metadata service holds for it. While an ensemble change runs nothing is delivered, so the key LAC + 1 stays
  well defined.
- After a change all pending adds are first cleared and marked for sending, and only then delivery is tried.
- A position that failed while no spare bookie exists is *degraded*: writing goes on without it as long as
  every entry can still reach Qa, and it leaves that state by a later change or because its bookie came back, which is
  then sent what is pending. Positions are degraded, too, when no further change may be stored.
- With deferred sync the ensemble never changes: what was delivered and not forced could not be sent again.
- Each add ends exactly once: delivered, or failed; failures are reported in order of entry ids.

`WriteEnsemble` holds the bookies' positions and failures; this module holds the adds and their outcomes.

Used from the event loop of the ledger's writer only.

Source: docs/internals/client-protocol.md, sections 6, 7, 8 and 9.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bookie_client.connection.request import BookieRequest
from bookie_client.distribution import Quorums
from bookie_client.writing.pending_add import PendingAdd, count_together
from bookie_client.writing.write_ensemble import Positions, WriteEnsemble
from bookie_protocol.errors import (
    BookieReadOnly,
    LedgerClosed,
    LedgerFenced,
    PodkeeperError,
    QuorumLost,
    Unauthorized,
    fresh,
)


@dataclass(slots=True)
class Outcome:
    """The next steps of the driver, in this order: report failures, start a change, send, deliver."""

    failed: list[tuple[PendingAdd, PodkeeperError]] = field(default_factory=list)
    change: Mapping[int, str] | None = None
    """Start an ensemble change that replaces these bookies (position -> bookie id)."""
    resend: list[tuple[PendingAdd, int]] = field(default_factory=list)
    """Send the add to `add.ensemble[position]`."""
    deliver: bool = False
    """`AddState.deliver` may have something now."""


def failure_of(add: PendingAdd, ledger_id: int, quorums: Quorums, error: PodkeeperError) -> PodkeeperError:
    """Return the application's error for one add: of the same type, with the entry and its bookies named."""
    bookies = [add.ensemble[position] for position in quorums.write_set(add.entry_id)]
    own = type(error)(f"ledger {ledger_id}, entry {add.entry_id} on {', '.join(bookies)}: {error}")
    own.__cause__ = error
    return own


class ForcePoint(NamedTuple):
    """The reach of a force: the last entry delivered when it began, and the ledger's length there."""

    entry_id: int
    length: int


class AddState:
    """All adds of one writer handle. `lac` and `length` other than the defaults continue a ledger
    (recovery)."""

    def __init__(
        self,
        ledger_id: int,
        quorums: Quorums,
        ensemble: tuple[str, ...],
        *,
        lac: int = -1,
        length: int = 0,
        delay_ensemble_change: bool = False,
        max_ensemble_changes: int | None = None,
        deferred_sync: bool = False,
    ) -> None:
        self.ledger_id = ledger_id
        self.quorums = quorums
        self.lac = lac
        self.confirmed_length = length
        self.delivered = ForcePoint(lac, length)
        self.last_pushed = lac
        self.piggy_backed = -1
        self.length = length
        self.failure: PodkeeperError | None = None
        self.closing = False
        self._delay_change = delay_ensemble_change
        self._deferred_sync = deferred_sync
        self._pending: deque[PendingAdd] = deque()
        self._next = lac + 1
        self._ensemble = WriteEnsemble(quorums, ensemble, max_ensemble_changes)
        self._ack = quorums.ack
        self._tolerated = quorums.tolerated
        self._striped = quorums.write < quorums.ensemble

    # --- what can be asked ----------------------------------------------------------------------------------

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The bookies that new adds go to, by position."""
        return self._ensemble.bookies

    @property
    def ensemble_changes(self) -> int:
        """Return the number of times that the driver was asked to replace failed bookies."""
        return self._ensemble.changes

    @property
    def degraded(self) -> Mapping[int, str]:
        """Positions that get no new adds, and their bookies: these failed, and there was no spare."""
        return self._ensemble.degraded

    @property
    def left_out(self) -> frozenset[str]:
        """Bookies that are never sent anything."""
        return self._ensemble.left_out

    def tell_refusals(self, told: Callable[[str, PodkeeperError], None]) -> None:
        """Call this with each failure of an add, and the bookie that failed."""
        self._ensemble.on_refused = told

    def can_do_without(self, positions: Collection[int], ensemble: tuple[str, ...]) -> bool:
        """Return True if every entry can be acknowledged without the bookies at these positions of the ensemble."""
        holds, entries = self.quorums.holds, range(self.quorums.ensemble)
        return all(sum(holds(position, entry) for position in positions) <= self._tolerated for entry in entries)

    def may_acknowledge(self, ensemble: tuple[str, ...]) -> bool:
        """Return True if every entry can be acknowledged in this ensemble while all its bookies are well."""
        return self.can_do_without((), ensemble)

    @property
    def may_change(self) -> bool:
        """Another change may be stored."""
        return not self._ensemble.is_exhausted

    @property
    def idle(self) -> bool:
        """Return True if nothing is pending and no ensemble change is running: the end of the ledger is final."""
        return not self._pending and self._ensemble.changing is None

    @property
    def over(self) -> bool:
        """Return True if nothing will be sent any more."""
        return self.failure is not None or (self.closing and self.idle)

    @property
    def pending(self) -> int:
        """Adds that are neither delivered nor failed."""
        return len(self._pending)

    def leave_out(self, bookies: Collection[str]) -> None:
        """Send nothing to these bookies, as if they had failed. To be called before the first add."""
        self._ensemble.leave_out(bookies)

    # --- the application ------------------------------------------------------------------------------------

    def begin(self, payload_size: int, waiter: Any = None) -> PendingAdd:
        """Give out the next entry id. The driver builds the entry with `piggy_back` and `add.length`, sends it to
        `targets(add)` before it feeds anything else but acknowledgements, then looks at `wanted_change`.

        Raises `LedgerClosed`, or the error that ended this handle.
        """
        if self.failure is not None or self.closing:
            raise self._closed()
        self.last_pushed += 1
        self.length += payload_size
        ensemble = self._ensemble
        add = PendingAdd(self.last_pushed, self.length, ensemble.bookies, waiter)
        if ensemble.degraded:
            ensemble.skip_degraded(add)
        self._pending.append(add)
        return add

    def begin_many(self, bodies: Sequence[bytes], waiter: Any = None) -> list[PendingAdd]:
        """Begin consecutive entries as `begin` does one; their `body` is set."""
        if self.failure is not None or self.closing:
            raise self._closed()
        ensemble, entry_id, length = self._ensemble, self.last_pushed, self.length
        bookies = ensemble.bookies
        adds = []
        for body in bodies:
            entry_id += 1
            length += len(body)
            add = PendingAdd(entry_id, length, bookies, waiter)
            add.body = body
            adds.append(add)
        self.last_pushed, self.length = entry_id, length
        if ensemble.degraded:
            for add in adds:
                ensemble.skip_degraded(add)
        self._pending += adds
        return adds

    def _closed(self) -> LedgerClosed:
        if self.failure is None:
            return LedgerClosed(f"ledger {self.ledger_id}: this handle is closed; entries go to a new ledger")
        error = LedgerClosed(f"ledger {self.ledger_id}: this handle failed before: {self.failure}")
        error.__cause__ = self.failure
        return error

    def piggy_back(self) -> int:
        """The LAC that entries which are sent now carry."""
        self.piggy_backed = self.lac
        return self.lac

    def targets(self, add: PendingAdd) -> Sequence[int]:
        """Positions to which a new add is sent: its write set without degraded positions."""
        write_set = self.quorums.write_set(add.entry_id)
        if add.failed:
            return [position for position in write_set if not add.failed >> position & 1]
        return write_set

    @property
    def everywhere(self) -> bool:
        """New adds go to every position."""
        return not self._striped and not self._ensemble.degraded

    def wanted_change(self) -> Outcome:
        """Start the change that late failures asked for; called after `begin` if there are `late_failures`."""
        if self._ensemble.late and self._ensemble.changing is None and self.failure is None:
            return self._start_change({})
        return Outcome()

    @property
    def late_failures(self) -> bool:
        """Bookies failed for entries that were complete already; the next add replaces them."""
        return bool(self._ensemble.late)

    # --- answers of bookies ---------------------------------------------------------------------------------

    def acknowledged(self, add: PendingAdd, bookie: str) -> bool:
        """A bookie stored the add. True: `deliver` has something now."""
        try:
            position = add.ensemble.index(bookie)
        except ValueError:
            return False
        if self._striped and self._ensemble.was_moved(add, position):
            return False
        bit = 1 << position
        add.waiting &= ~bit
        if add.acked & bit:
            return False
        add.acked |= bit
        if add.failed:
            add.failed &= ~bit
        add.acks += 1
        return add.acks >= self._ack and add.entry_id == self._next and self._ensemble.changing is None

    def acknowledged_run(self, add: PendingAdd, run: Sequence[BookieRequest], at: int, bookie: str) -> int:
        """Count the acknowledgements of `add`, which is `run[at]`, and of adds of this ledger behind it.

        Returns the index of the first that was not counted; `is_deliverable` is True if `deliver` has something now.
        """
        if bookie not in add.ensemble or (self._striped and self._ensemble.changes):
            self.acknowledged(add, bookie)
            return at + 1
        return count_together(add, run, at, add.ensemble.index(bookie))

    @property
    def is_deliverable(self) -> bool:
        """The oldest add is complete, and no change holds it back."""
        pending = self._pending
        return bool(pending) and pending[0].acks >= self._ack and self._ensemble.changing is None

    def deliver(self) -> Sequence[PendingAdd]:
        """Take the adds that are complete, in order, to acknowledge them to the application now."""
        pending = self._pending
        delivered = []
        if self._ensemble.changing is None:
            while pending and pending[0].acks >= self._ack:
                delivered.append(pending.popleft())
        if delivered:
            last = delivered[-1]
            self._next = last.entry_id + 1
            self.delivered = ForcePoint(last.entry_id, last.length)
            if not self._deferred_sync:
                self.lac, self.confirmed_length = last.entry_id, last.length
        return delivered

    def refused(self, add: PendingAdd, bookie: str, error: PodkeeperError) -> Outcome:
        """A bookie answered with an error, did not answer in time, or cannot be reached."""
        position = self._ensemble.position_of(add, bookie)
        if position < 0:
            return Outcome()
        bit = 1 << position
        add.waiting &= ~bit
        if self.over:
            return Outcome()
        if isinstance(error, (LedgerFenced, Unauthorized)):
            return self._fail(error)
        if add.acked & bit or self._ensemble.was_chosen_since(add.entry_id, bookie):
            return Outcome()
        add.failed |= bit
        self._ensemble.note(bookie, error)
        known = self._ensemble.degraded.get(position) == bookie
        if add.acks >= self._ack:
            if not known and not self._delay_change:
                self._ensemble.failed_late(position, bookie)
            return Outcome()
        failed = self._ensemble.failed_positions(add)
        if add.failed.bit_count() > self._tolerated:
            return self._start_change(failed)
        if known:
            return Outcome()
        if not self._delay_change or isinstance(error, BookieReadOnly):
            return self._start_change({position: bookie})
        return Outcome() if self.can_do_without(failed, add.ensemble) else self._start_change(failed)

    # --- deferred sync --------------------------------------------------------------------------------------

    def forced(self, point: ForcePoint) -> None:
        """Every bookie synced what it had acknowledged when `delivered` was `point`: the LAC may follow."""
        if point.entry_id > self.lac:
            self.lac, self.confirmed_length = point

    # --- answers of the metadata service --------------------------------------------------------------------

    def ensemble_changed(self, ensemble: tuple[str, ...]) -> Outcome:
        """The stored metadata names `ensemble` from entry LAC + 1 on (it may equal the old one: no spare)."""
        if self._ensemble.changing is None or self.failure is not None:
            return Outcome()
        self._ensemble.stored(ensemble)
        again = self._ensemble.failed_meanwhile(ensemble)
        if again and self.may_change:
            return self._change_round(again)
        return self._end_change(ensemble, again)

    # --- degraded positions ---------------------------------------------------------------------------------

    def retry_degraded(self) -> Outcome:
        """There may be a spare bookie now: try to replace the degraded positions."""
        if not self._ensemble.degraded or self._ensemble.changing is not None or self.over or not self.may_change:
            return Outcome()
        return self._start_change(dict(self._ensemble.degraded))

    def restored(self, position: int, bookie: str) -> Outcome:
        """The bookie of a degraded position can be reached again: adds go to it as before, also those that are pending
        and failed there, since without it they may be short of acknowledgements."""
        resend = []
        if not self.over and self._ensemble.restored(position, bookie):
            bit = 1 << position
            for add in self._pending:
                if add.failed & bit:
                    add.failed &= ~bit
                    resend.append((add, position))
        return Outcome(resend=resend)

    # --- the end --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop new adds; pending ones continue."""
        self.closing = True

    def abandon(self, error: PodkeeperError) -> Outcome:
        """Fail everything that is pending with `error`: an ensemble change failed, or the driver gives up. The first
        such error is the one that counts."""
        return self._fail(error) if self.failure is None else Outcome()

    # --- inside ---------------------------------------------------------------------------------------------

    def _start_change(self, failed: Positions) -> Outcome:
        ensemble = self._ensemble
        if ensemble.changing is not None:
            ensemble.join(failed)
            return Outcome()
        wanted = ensemble.take_failed(failed)
        if self._deferred_sync:
            reason = "with deferred sync the ensemble stays, and bookies failed"
            return self._fail(ensemble.quorum_lost(wanted.values(), reason))
        return self._change_round(wanted) if self.may_change else self._end_change(ensemble.bookies, wanted)

    def _change_round(self, failed: Positions) -> Outcome:
        self._ensemble.begin_round(failed)
        return Outcome(change=dict(failed))

    def _end_change(self, bookies: tuple[str, ...], given_up: Positions) -> Outcome:
        self._ensemble.end_change(bookies, given_up, self._next)
        resend = self._move_pending(bookies)
        lost = next((a for a in self._pending if a.acks < self._ack and a.failed.bit_count() > self._tolerated), None)
        if lost is not None:
            return self._fail(self._quorum_lost(lost))
        return Outcome(resend=resend, deliver=True)

    def _move_pending(self, ensemble: tuple[str, ...]) -> list[tuple[PendingAdd, int]]:
        resend = []
        for add in self._pending:
            before, add.ensemble = add.ensemble, ensemble
            if before == ensemble:
                continue
            for position in self.quorums.write_set(add.entry_id):
                if before[position] != ensemble[position]:
                    add.forget(position)
                    resend.append((add, position))
        return resend

    def _quorum_lost(self, add: PendingAdd) -> QuorumLost:
        if self.may_change:
            reason = f"{add.acks} of {self._ack} needed acknowledgements, no spare bookie to replace what failed"
        else:
            reason = f"more than {self._ensemble.max_changes} ensemble changes (max_ensemble_changes), bookies failed"
        return self._ensemble.quorum_lost(self._ensemble.failed_positions(add).values(), reason)

    def _fail(self, error: PodkeeperError) -> Outcome:
        self.failure = fresh(error)
        self._ensemble.give_up()
        failed = [(add, failure_of(add, self.ledger_id, self.quorums, error)) for add in self._pending]
        self._pending.clear()
        return Outcome(failed=failed)
