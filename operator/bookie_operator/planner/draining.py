"""The drain of one bookie, as a step of several flows: begun, watched, resumed where its coordinator went.

Whether a drain that is done was done for this operation follows from `drainedSince`, which is saved when it is begun:
the record of an earlier one of the same bookie says "done" too.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from bookie_operator.crds.cluster_status import Operation
from bookie_operator.crds.quantity import readable
from bookie_operator.planner import gates, operations, view
from bookie_operator.planner.actions import BeginDrain
from bookie_operator.planner.decision import Decision, Event
from bookie_operator.planner.run import Run
from bookie_operator.world.facts import DrainFacts, DrainPhase

SINCE: Final = "drainedSince"
"""Key for the time at which the drain was begun; RFC 3339. Audits have to be newer."""
ACCEPTED: Final = "acceptedLosses"
"""Ids of the ledgers whose loss was accepted, in pieces."""
_LEDGERS: Final = "ledgersLeft"
_BYTES: Final = "bytesLeft"
_REFUSED: Final = "drainRefused"
KEYS: Final = (SINCE, _LEDGERS, _BYTES, _REFUSED)
RETRY_S: Final = 60.0
UNDER_WAY: Final = frozenset({DrainPhase.RUNNING, DrainPhase.BLOCKED, DrainPhase.INTERRUPTED})


def accepted_by(operation: Operation) -> tuple[int, ...]:
    """Ledgers whose loss counts as accepted in this operation, sorted."""
    return tuple(sorted(int(one) for one in operations.joined(operation, ACCEPTED)))


def accepting(ledgers: Iterable[int]) -> dict[str, str]:
    """Return what is saved of ledgers whose loss is accepted."""
    return operations.in_pieces(ACCEPTED, map(str, sorted(ledgers)))


def drain(run: Run, *, stopped: bool, stall_s: float, removes_cookie: bool = False) -> Decision | None:
    """Return the next step of a drain; None: it is drained. `stopped`: the bookie is down, and has to stay so.
    `removes_cookie`: see `BeginDrain`."""
    begin = partial(_begin, run, stopped, removes_cookie)
    if not run.saved(SINCE):
        if _unheard_of(run):
            return None
        nowhere = gates.elsewhere(run.world, run.bookie_id)
        if nowhere is not None and nowhere.needs_person:  # it would be refused, again and again
            return run.blocked(nowhere, stall_s)
    given_up = frozenset(accepted_by(run.operation)) | frozenset(view.accepted_losses(run.world))
    if not run.saved(SINCE) or given_up != frozenset(accepted_by(run.operation)):
        return begin(given_up, "it is not being drained yet")
    facts = run.world.drains.get(run.bookie_id)
    if facts is None:
        return run.wait_at_most(
            stall_s, gates.METADATA_UNREACHABLE, f"the progress of the drain of {run.bookie} is unknown"
        )
    match facts.phase:
        case DrainPhase.DRAINED:
            return None
        case DrainPhase.ABSENT | DrainPhase.INTERRUPTED:
            return begin(given_up, "no process works on its drain any more")
        case DrainPhase.REFUSED:
            if run.saved(_REFUSED) and run.world.now - run.saved_time(_REFUSED) >= RETRY_S:
                return begin(given_up, "it was refused, and is tried again")
            return _refused(run, facts)
        case _:
            return _watch(run, facts, stall_s)


def stays_drained(run: Run) -> str:
    """Return what a person has to do where the drain was not taken back, because that was refused."""
    why = f" ({run.operation.message})" if run.operation.message else ""
    return (
        f"But what was done to it could not be taken back{why}: see the operator's log, and take its drain back with"
        f" `bookie cluster decommission {run.bookie_id} --undo`"
    )


def _unheard_of(run: Run) -> bool:
    """Return whether neither ledgers nor a cookie name it, so that a drain would be refused: it never served, or all
    was done already."""
    outlook, facts = run.world.outlooks.get(run.bookie_id), run.world.facts
    if outlook is None or facts is None:
        return False
    return outlook.ledgers == 0 and run.bookie_id not in facts.cookies | facts.registered


def asks(operation: Operation) -> bool:
    """Return whether `drain` wants to know the outlook of its bookie."""
    return operation.step in ("Drain", "DrainServing") and SINCE not in operation.saved


def _begin(run: Run, stopped: bool, removes_cookie: bool, given_up: frozenset[int], why: str) -> Decision:
    losses = tuple(sorted(given_up))
    saved = accepting(losses)
    if not run.saved(SINCE):
        saved[SINCE] = operations.written(run.world.now)
    return run.forget(_REFUSED).act(
        BeginDrain(run.bookie_id, stopped, losses, removes_cookie),
        f"{run.bookie} is drained: its ledgers get their copies elsewhere; {why}",
        saved=saved,
        event=Event("DrainBegun", f"copies of what {run.bookie} stores are made on other bookies"),
    )


def _refused(run: Run, facts: DrainFacts) -> Decision:
    if not run.saved(_REFUSED):
        run = run.keep(**{_REFUSED: operations.written(run.world.now)})
    return run.wait("DecommissionBlocked", f"the drain of {run.bookie} was refused: {facts.message}", stalled=True)


def _watch(run: Run, facts: DrainFacts, stall_s: float) -> Decision:
    message = _told(run, facts)
    left = {_LEDGERS: str(facts.ledgers_left or 0), _BYTES: str(facts.bytes_left or 0)}
    if any(run.saved(key) and int(run.saved(key)) > int(value) for key, value in left.items()):
        return run.progressed(message, **left).wait("Draining", message)
    if any(run.saved(key) != value for key, value in left.items()):
        run = run.keep(**left)
    if not operations.overdue(run.world, run.operation, stall_s):
        return run.wait("Draining", message)
    return run.wait("DecommissionBlocked", f"no progress for more than {stall_s:.0f} s: {message}", stalled=True)


def _told(run: Run, facts: DrainFacts) -> str:
    if facts.ledgers_left is None:
        return f"{run.bookie} is drained"
    size = f", {readable(facts.bytes_left)}" if facts.bytes_left is not None else ""
    message = f"{run.bookie} is drained: {facts.ledgers_left} ledgers left{size}"
    if facts.blockers:
        message += f"; these do not move: {'; '.join(facts.blockers[:20])}"
    return message
