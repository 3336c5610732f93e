"""Asks for an audit of the bookies, and waits for one that began after it was asked for.

The clocks of the operator and of the auditor may differ: an audit counts only if it is both newer than the last one
that was there before and begun after the question by the auditor's clock; while it seems older, another is asked for.
An audit declares absent bookies lost whatever the delay, so nobody asks while some other bookie is away.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.planner import gates, operations
from bookie_operator.planner.actions import TriggerAudit
from bookie_operator.planner.decision import Decision
from bookie_operator.planner.run import Run

ASKED: Final = "auditAsked"
"""When it was asked for; RFC 3339."""
BEFORE: Final = "auditBefore"
"""When the last audit before began."""
REPEATED: Final = "auditRepeated"
KEYS: Final = (ASKED, BEFORE, REPEATED)
REPEAT_S: Final = 60.0


def audit(run: Run, but: frozenset[str], deadline_s: float, *, writable: bool = True) -> Decision | None:
    """None: there is such an audit; forget `KEYS` then. `but`: bookies that may be away."""
    obstacle = gates.first(
        gates.copies_can_be_made(run.world), gates.members_serve(run.world, run.desired, but, writable=writable)
    )
    if obstacle is not None:
        return run.blocked(obstacle, deadline_s)
    assert run.world.facts is not None
    last = run.world.facts.last_audit
    if not run.saved(ASKED):
        now = operations.written(run.world.now)
        saved = {ASKED: now, REPEATED: now, BEFORE: operations.written(last or 0.0)}
        return run.act(TriggerAudit(), "an audit is wanted that is newer than what was done", saved=saved)
    if last is not None and last > max(run.saved_time(ASKED), run.saved_time(BEFORE)):
        return None
    if run.world.now - run.saved_time(REPEATED) >= REPEAT_S:
        return run.act(
            TriggerAudit(), "no newer audit was completed yet", saved={REPEATED: operations.written(run.world.now)}
        )
    return run.wait_at_most(
        deadline_s,
        "WaitingForAudit",
        f"waits for an audit of the bookies by {run.world.facts.auditor}: see `bookie cluster autorecovery status`",
    )
