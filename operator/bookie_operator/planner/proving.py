"""The proof that all copies are elsewhere, and the claims that may go once it holds.

It needs an audit of the bookies that began after it was asked for.

The clocks of the operator and of the auditor may differ: an audit counts only if it is both newer than the last one
that was there before and begun after the question by the auditor's clock; while it seems older, another is asked for.
An audit declares absent bookies lost whatever the delay, so none is asked for while some other bookie is away.

Threads: values and pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from bookie_operator.crds.cluster_status import Operation
from bookie_operator.planner import draining, gates, operations, view
from bookie_operator.planner.actions import TriggerAudit
from bookie_operator.planner.decision import Decision
from bookie_operator.planner.run import Run
from bookie_operator.world.facts import Proof
from bookie_operator.world.model import ClaimView, World

ASKED: Final = "auditAsked"
"""Key for the time at which it was asked for; RFC 3339."""
BEFORE: Final = "auditBefore"
"""Key for the time at which the last audit before began."""
REPEATED: Final = "auditRepeated"
AUDIT_KEYS: Final = (ASKED, BEFORE, REPEATED)
REPEAT_S: Final = 60.0


def audit(run: Run, but: frozenset[str], deadline_s: float, *, writable: bool = True) -> Decision | None:
    """Asks for an audit, and waits for one. None: there is such an audit; forget `AUDIT_KEYS` then.

    `but`: bookies that may be away.
    """
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


_CLAIMS: Final = "claims"


def disproof(proof: Proof) -> str | None:
    """Return what still needs the bookie; None: nothing."""
    if proof.ledgers:
        return f"{proof.ledgers} ledgers name it"
    if proof.marks:
        return f"{proof.marks} under-replicated ledgers name it"
    return None


def unproven(run: Run, proof: Proof, *, registered: bool = False) -> str | None:
    """Return what is missing before its cookie and claims may go; None: nothing. `registered`: it may still serve."""
    if (named := disproof(proof)) is not None:
        return f"{named}, so nothing of {run.bookie} is deleted"
    if proof.registered and not registered:
        return f"{run.bookie} is registered, though it was stopped: find what runs under its id {run.bookie_id}"
    instance_id = view.instance_id(run.world)
    if not instance_id or proof.instance_id != instance_id:
        return f"the metadata service is of cluster {proof.instance_id}, not of {instance_id or 'a known one'}"
    if proof.auditor is None:
        return "no auditor is elected, so nothing looks for missing copies"
    if proof.claims:
        return (
            f"{proof.claims} ledgers are being re-replicated or recovered, and may come to name {run.bookie}: waits"
            " until that is done; one that does not end is closed by `bookie ledger recover`"
        )
    judged = replace(proof, registered=False) if registered else proof
    if not judged.holds(instance_id=instance_id, drained_since=run.saved_time(draining.SINCE)):
        return f"waits for an audit that is newer than the drain of {run.bookie}"
    return None


def told(run: Run, deadline_s: float) -> Proof | Decision:
    """Return the proof of this pass, whatever it says; otherwise what to do until it is known."""
    proof = run.world.proofs.get(run.bookie_id)
    if proof is not None:
        return proof
    return run.wait_at_most(deadline_s, "WaitingForProof", f"it is not known yet who needs {run.bookie}")


def standing(run: Run, deadline_s: float) -> Proof | Decision:
    """Return the proof of this pass if its cookie and claims may go on the strength of it."""
    proof = told(run, deadline_s)
    if not isinstance(proof, Proof):
        return proof
    why = unproven(run, proof)
    return proof if why is None else run.wait("WaitingForProof", why, stalled=True)


@dataclass(frozen=True)
class Claims:
    """Names and UIDs of the claims that a bookie had when its operation began: only these are ever deleted. Claims of
    another owner are not among them."""

    uids: Mapping[str, str]
    """UIDs of the claims by name."""

    @classmethod
    def of(cls, world: World, bookie: str) -> Claims:
        return cls({one.name: one.uid for one in view.claims_of(world, bookie) if not one.foreign})

    @classmethod
    def read(cls, operation: Operation) -> Claims:
        pairs = (pair.partition("=") for pair in operation.saved.get(_CLAIMS, "").split(",") if pair)
        return cls({name: uid for name, _, uid in pairs})

    def saved(self) -> dict[str, str]:
        return {_CLAIMS: ",".join(f"{name}={uid}" for name, uid in sorted(self.uids.items()))}

    def left(self, world: World) -> list[ClaimView]:
        """Return those that are still there."""
        return [one for one in view.claims(world) if self.uids.get(one.name) == one.uid]
