"""The writer's state machine: which adds are pending, acknowledged, to be sent again, or failed.

Sans I/O: it is fed with what bookies and the metadata service answered, and returns what is to be done. It
never sends, waits or looks at a clock, so every order of answers can be tried in a test.

Invariants
- Adds are delivered for 0, 1, 2, ... without gaps; the LAC is the last one delivered.
- An add is delivered only when Qa positions of its write set acknowledged it in the ensemble that the
  metadata service holds for it. While an ensemble change runs nothing is delivered, so the key LAC + 1 stays
  well defined.
- After a change all pending adds are first cleared and marked for sending, and only then delivery is tried.
- A position that failed while no spare bookie exists is *degraded*: writing goes on without it as long as
  every entry can still reach Qa, and it leaves that state by a later change or because its bookie came back.
- Each add ends exactly once: delivered, or failed; failures are reported in order of entry ids.

Used from the event loop of the ledger's writer only.

Source: reference client protocol, sections 6, 7 and 8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bookie_client.distribution import Quorums
from bookie_client.writing.pending_add import PendingAdd
from bookie_protocol.errors import (
    BookieReadOnly,
    LedgerClosed,
    LedgerFenced,
    PodkeeperError,
    QuorumLost,
    Unauthorized,
)

_NOTHING: tuple[PendingAdd, ...] = ()


@dataclass(slots=True)
class Outcome:
    """What the driver has to do now, in this order: fail, start a change, send, tell the application."""

    failed: list[tuple[PendingAdd, PodkeeperError]] = field(default_factory=list)
    change: Mapping[int, str] | None = None
    """Start an ensemble change that replaces these bookies (position -> bookie id)."""
    resend: list[tuple[PendingAdd, int]] = field(default_factory=list)
    """Send the add to `add.ensemble[position]`."""
    delivered: Sequence[PendingAdd] = _NOTHING


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
    ) -> None:
        self.ledger_id = ledger_id
        self.quorums = quorums
        self.ensemble = ensemble
        self.lac = lac
        self.confirmed_length = length
        self.last_pushed = lac
        self.length = length
        self.ensemble_changes = 0
        self.failure: PodkeeperError | None = None
        self.closing = False
        self.degraded: dict[int, str] = {}
        self._delay_change = delay_ensemble_change
        self._max_changes = max_ensemble_changes
        self._pending: deque[PendingAdd] = deque()
        self._late: dict[int, str] = {}
        self._changing: dict[int, str] | None = None
        self._joined: dict[int, str] = {}
        self._errors: dict[str, PodkeeperError] = {}
        self._ack = quorums.ack
        self._tolerated = quorums.tolerated

    # --- what can be asked ----------------------------------------------------------------------------------

    @property
    def changing(self) -> bool:
        """An ensemble change is running."""
        return self._changing is not None

    @property
    def idle(self) -> bool:
        """Nothing is pending and no ensemble change is running: the end of the ledger is final."""
        return not self._pending and self._changing is None

    @property
    def pending(self) -> int:
        """Adds that are neither delivered nor failed."""
        return len(self._pending)

    def pending_adds(self) -> Iterator[PendingAdd]:
        """The pending adds in order of their ids."""
        return iter(self._pending)

    # --- the application ------------------------------------------------------------------------------------

    def begin(self, payload_size: int, waiter: Any = None) -> PendingAdd:
        """Give out the next entry id. The driver builds the entry with `lac` and `add.length` and sends it to
        `targets(add)`, then looks at `wanted_change`.

        Raises `LedgerClosed`, or the error that ended this handle.
        """
        if self.failure is not None:
            raise LedgerClosed(f"ledger {self.ledger_id}: this handle failed before: {self.failure}") from self.failure
        if self.closing:
            raise LedgerClosed(f"ledger {self.ledger_id}: this handle is closed; entries go to a new ledger")
        self.last_pushed += 1
        self.length += payload_size
        add = PendingAdd(self.last_pushed, self.length, self.ensemble, waiter)
        if self.degraded:
            self._skip_degraded(add)
        self._pending.append(add)
        return add

    def targets(self, add: PendingAdd) -> Sequence[int]:
        """Positions to which a new add is sent: its write set without degraded positions."""
        write_set = self.quorums.write_set(add.entry_id)
        if add.failed:
            return [position for position in write_set if not add.failed >> position & 1]
        return write_set

    def wanted_change(self) -> Outcome:
        """To be called after `begin` when `late_failures`: starts the change that late failures asked for."""
        if self._late and self._changing is None and self.failure is None:
            return self._start_change({})
        return Outcome()

    @property
    def late_failures(self) -> bool:
        """Bookies failed for entries that were complete already; the next add replaces them."""
        return bool(self._late)

    # --- answers of bookies ---------------------------------------------------------------------------------

    def acknowledged(self, add: PendingAdd, position: int, bookie: str) -> Sequence[PendingAdd]:
        """A bookie stored the add. Returns the adds that are delivered now."""
        if add.ensemble[position] != bookie:
            return _NOTHING
        bit = 1 << position
        if add.acked & bit:
            return _NOTHING
        add.acked |= bit
        add.failed &= ~bit
        add.acks += 1
        if add.acks < self._ack or self._changing is not None:
            return _NOTHING
        if not self._pending or add is not self._pending[0]:
            return _NOTHING
        return self._deliver()

    def refused(self, add: PendingAdd, position: int, bookie: str, error: PodkeeperError) -> Outcome:
        """A bookie answered with an error, did not answer in time, or cannot be reached."""
        if self.failure is not None or add.ensemble[position] != bookie:
            return Outcome()
        if self.closing and self.idle:
            return Outcome()
        if isinstance(error, (LedgerFenced, Unauthorized)):
            return self._fail(error)
        bit = 1 << position
        if add.acked & bit:
            return Outcome()
        add.failed |= bit
        self._errors[bookie] = error
        known = self.degraded.get(position) == bookie
        if add.acks >= self._ack:
            if not known and not self._delay_change:
                self._remember_late(position, bookie)
            return Outcome()
        if add.failed.bit_count() > self._tolerated:
            return self._start_change(self._failed_positions(add))
        if known or (self._delay_change and not isinstance(error, BookieReadOnly)):
            return Outcome()
        return self._start_change({position: bookie})

    # --- answers of the metadata service --------------------------------------------------------------------

    def ensemble_changed(self, ensemble: tuple[str, ...]) -> Outcome:
        """The stored metadata names `ensemble` from entry LAC + 1 on (it may equal the old one: no spare)."""
        failed = self._changing
        if failed is None or self.failure is not None:
            return Outcome()
        joined = {p: b for p, b in self._joined.items() if ensemble[p] == b and failed.get(p) != b}
        self._joined = {}
        if joined:
            # Failed while the change ran. Another round, before anything is sent to the new bookies.
            self._changing = failed | joined
            return Outcome(change={p: b for p, b in self._changing.items() if ensemble[p] == b})
        self._changing = None
        self.ensemble = ensemble
        self.degraded = {p: b for p, b in (self.degraded | failed).items() if ensemble[p] == b}
        self._late = {p: b for p, b in self._late.items() if ensemble[p] == b and p not in self.degraded}
        resend = self._move_pending(ensemble)
        lost = next((a for a in self._pending if a.acks < self._ack and a.failed.bit_count() > self._tolerated), None)
        if lost is not None:
            return self._fail(self._quorum_lost(lost))
        return Outcome(resend=resend, delivered=self._deliver())

    def change_failed(self, error: PodkeeperError) -> Outcome:
        """The metadata could not be changed: the ledger was fenced, closed or deleted, or nobody can tell."""
        return self._fail(error) if self.failure is None else Outcome()

    # --- degraded positions ---------------------------------------------------------------------------------

    def retry_degraded(self) -> Outcome:
        """There may be a spare bookie now: try to replace the degraded positions."""
        if not self.degraded or self._changing is not None or self.failure is not None:
            return Outcome()
        if self.closing and self.idle:
            return Outcome()
        return self._start_change(dict(self.degraded))

    def restored(self, position: int, bookie: str) -> None:
        """The bookie of a degraded position can be reached again: new adds go to it as before."""
        if self.degraded.get(position) == bookie and self._changing is None:
            del self.degraded[position]

    # --- the end --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """No add may begin any more; pending ones go on."""
        self.closing = True

    def abandon(self, error: PodkeeperError) -> Outcome:
        """Fail everything that is pending with `error`."""
        return self._fail(error) if self.failure is None else Outcome()

    # --- inside ---------------------------------------------------------------------------------------------

    def _deliver(self) -> list[PendingAdd]:
        delivered = []
        pending = self._pending
        while pending and pending[0].acks >= self._ack:
            delivered.append(pending.popleft())
        if delivered:
            last = delivered[-1]
            self.lac = last.entry_id
            self.confirmed_length = last.length
        return delivered

    def _skip_degraded(self, add: PendingAdd) -> None:
        for position, bookie in self.degraded.items():
            if self.quorums.holds(position, add.entry_id):
                add.failed |= 1 << position
                if add.failed.bit_count() > self._tolerated:
                    self._late |= self._failed_positions(add)
                    self._late[position] = bookie

    def _failed_positions(self, add: PendingAdd) -> dict[int, str]:
        return {p: add.ensemble[p] for p in self.quorums.write_set(add.entry_id) if add.failed >> p & 1}

    def _remember_late(self, position: int, bookie: str) -> None:
        if self.ensemble[position] != bookie:
            return
        if self._changing is None:
            self._late[position] = bookie
        elif self._changing.get(position) != bookie:
            self._joined[position] = bookie

    def _start_change(self, failed: dict[int, str]) -> Outcome:
        if self._changing is not None:
            self._joined |= failed
            return Outcome()
        if self._max_changes is not None and self.ensemble_changes >= self._max_changes:
            return self._fail(
                QuorumLost(
                    f"ledger {self.ledger_id}: more than {self._max_changes} ensemble changes; bookies keep failing"
                )
            )
        self.ensemble_changes += 1
        wanted = {p: b for p, b in (self._late | failed).items() if self.ensemble[p] == b}
        self._late = {}
        self._changing = wanted
        return Outcome(change=dict(wanted))

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
        reasons = "; ".join(
            f"{bookie}: {self._errors.get(bookie, 'failed before')}" for bookie in self._failed_positions(add).values()
        )
        return QuorumLost(
            f"{add.acks} of {self._ack} needed acknowledgements, no spare bookie to replace what failed ({reasons})"
        )

    def _fail(self, error: PodkeeperError) -> Outcome:
        self.failure = error
        self._changing = None
        self._late, self._joined = {}, {}
        # Everything still pending ends here; entries keep their own message so that a log line is enough.
        failed = [(add, self._error_for(add, error)) for add in self._pending]
        self._pending.clear()
        return Outcome(failed=failed)

    def _error_for(self, add: PendingAdd, error: PodkeeperError) -> PodkeeperError:
        bookies = ", ".join(add.ensemble[p] for p in self.quorums.write_set(add.entry_id))
        own = type(error)(f"ledger {self.ledger_id}, entry {add.entry_id} on {bookies}: {error}")
        own.__cause__ = error
        return own
