"""What the steps of a decommission share: what is saved, and the ways back.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.cluster_spec import DecommissionMode
from bookie_operator.planner import auditing, draining, operations
from bookie_operator.planner.decision import Decision, Record
from bookie_operator.planner.run import Run

MAKES_ROOM: Final = "makesRoom"
"""Set if it is stopped for another bookie that no node takes."""
MODE: Final = "mode"
ORDINAL: Final = "ordinal"
SET: Final = "statefulSet"
WAS_READ_ONLY: Final = "wasReadOnly"
WHY_BACK: Final = "whyBack"
WITHDRAWN: Final = "withdrawn"
"""Set if it never served."""


def patience(run: Run) -> float:
    return run.world.cluster.spec.decommission.stall_seconds


def stops_first(mode: str) -> bool:
    return mode == DecommissionMode.STOP_FIRST.value


def back(run: Run, why: str) -> Decision:
    """Drain it once more: it may have got data."""
    scaling = operations.planned_replicas(run.saved(SET), 0)
    return run.forget(*auditing.KEYS, *draining.KEYS, *scaling).go("ReadOnly", why)


def stays(run: Run, why: str) -> Record:
    """Given back: whatever was done to it is undone."""
    return run.go("Undo", why, saved={WHY_BACK: why})


def until_settled(run: Run) -> Decision:
    return run.wait_at_most(
        patience(run),
        "StatefulSetNotObserved",
        f"waits until {run.saved(SET)} is there and its controller has seen it",
    )
