"""One pass over a running operation: what its steps look at, and how they say what comes next.

Threads: values and pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from bookie_operator.crds.cluster_status import Operation
from bookie_operator.planner import operations, view
from bookie_operator.planner.actions import Action
from bookie_operator.planner.decision import Act, Decision, Event, EventType, Finish, Record, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.gates import Obstacle
from bookie_operator.world.model import PodView, World


@dataclass(frozen=True)
class Run:
    """The input of a step."""

    world: World
    desired: Desired
    operation: Operation

    # --- what it is about ---------------------------------------------------------------------------------------------

    @property
    def bookie(self) -> str:
        """Name of the pod."""
        return self.operation.bookie

    @property
    def bookie_id(self) -> str:
        return self.desired.bookie_id(self.operation.bookie)

    @property
    def pod(self) -> PodView | None:
        return view.pod(self.world, self.operation.bookie)

    @property
    def patience(self) -> float:
        """Seconds for which a step that takes a bookie out makes no progress before it stalls."""
        return self.world.cluster.spec.decommission.stall_seconds

    @property
    def progress_deadline(self) -> float:
        """Seconds for which a step that changes bookies in place makes no progress before it stalls."""
        return self.world.cluster.spec.update.progress_deadline_seconds

    def saved(self, key: str) -> str:
        """Empty: nothing was saved."""
        return self.operation.saved.get(key, "")

    def saved_time(self, key: str) -> float:
        """Seconds since 1970; when the operation began, if nothing was saved."""
        return operations.read_time(self.saved(key) or self.operation.started_at)

    def forget(self, *keys: str) -> Run:
        return replace(self, operation=operations.forgotten(self.operation, *keys))

    def anew(self, *keys: str) -> Run:
        """Return it as if the step had not been tried: without these saved values, and without failures."""
        kept = operations.forgotten(self.operation, *keys).model_copy(update={"attempts": 0})
        return replace(self, operation=kept)

    def keep(self, **saved: str) -> Run:
        """Save these values; deadlines go on."""
        kept = self.operation.model_copy(update={"saved": {**self.operation.saved, **saved}})
        return replace(self, operation=kept)

    # --- what comes next ----------------------------------------------------------------------------------------------

    def go(
        self, step: str, reason: str, *, saved: Mapping[str, str] | None = None, event: Event | None = None
    ) -> Record:
        """Go on, or back, to another step."""
        return Record(operations.stepped(self.world, self.operation, step, saved=saved), reason, event)

    def act(
        self,
        action: Action,
        reason: str,
        *,
        then: str = "",
        saved: Mapping[str, str] | None = None,
        event: Event | None = None,
    ) -> Act:
        """Do this; once it is done the operation is at step `then` (empty: stays at this one)."""
        if then:
            operation = operations.stepped(self.world, self.operation, then, saved=saved)
        else:
            kept = {**self.operation.saved, **(saved or {})}
            operation = self.operation.model_copy(update={"saved": kept, "attempts": 0})
        return Act(action, reason, operation, event)

    def wait(self, reason: str, message: str, *, seconds: float = 5.0, stalled: bool = False) -> Wait:
        """Wait, and do nothing now. That it stalls is an event too, once."""
        waiting = operations.wait(self.operation, reason, message, seconds=seconds, stalled=stalled)
        if waiting.operation is None and self._changed:
            waiting = replace(waiting, operation=self.operation)
        if stalled and not self._was_stalled:
            waiting = replace(waiting, event=Event(reason, message, EventType.WARNING))
        return waiting

    def wait_at_most(self, deadline_s: float, reason: str, message: str) -> Wait:
        """Stalled once nothing has come nearer for so long; the message tells what is waited for."""
        return self.wait(reason, message, stalled=operations.overdue(self.world, self.operation, deadline_s))

    def blocked(self, obstacle: Obstacle, deadline_s: float) -> Wait:
        stalled = obstacle.needs_person or operations.overdue(self.world, self.operation, deadline_s)
        return self.wait(obstacle.reason, obstacle.message, seconds=obstacle.seconds, stalled=stalled)

    def in_time(self, wanted: Decision, why: str, deadline_s: float | None = None) -> Decision | None:
        """Return what the step wants; None once its time is over.

        A request that is refused again and again must not keep others from their work. But it may be that it could not
        be sent until now: then it has its time once more, for `why`.
        """
        if not operations.overdue(self.world, self.operation, deadline_s or self.progress_deadline):
            return wanted
        if self.operation.attempts or self.saved(operations.BEGUN_AGAIN):
            return None
        return Record(self.progressed(**operations.AGAIN).operation, why)

    def progressed(self, message: str = "", **saved: str) -> Run:
        return replace(self, operation=operations.progressed(self.world, self.operation, message, saved=saved))

    def finish(self, message: str, *, outcome: str = "Done", event: Event | None = None) -> Finish:
        return Finish(self.operation, outcome, message, event)

    @property
    def _changed(self) -> bool:
        return self.world.cluster.status.operation != self.operation

    @property
    def _was_stalled(self) -> bool:
        recorded = self.world.cluster.status.operation
        return recorded is not None and recorded.stalled


Step = Callable[[Run], Decision]


def take(steps: Mapping[str, Step], run: Run) -> Decision:
    """Return the decision of the step that the operation is at."""
    step = steps.get(run.operation.step)
    return unknown_step(run) if step is None else step(run)


def unknown_step(run: Run) -> Wait:
    return run.wait(
        "UnknownStep",
        f"this operator does not know step {run.operation.step} of {run.operation.id}: it was begun by another"
        " release, which has to finish it",
        stalled=True,
    )


def refused(obstacle: Obstacle) -> Wait:
    """Return the wait of an operation that may not begin."""
    return Wait(obstacle.reason, obstacle.message, obstacle.seconds, stalled=obstacle.needs_person)
