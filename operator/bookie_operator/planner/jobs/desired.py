"""What should be of a BookieJob, as far as a plan depends on it, and the plan itself.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bookie_operator.crds.job_status import Run
from bookie_operator.planner.decision import Event


@dataclass(frozen=True)
class DesiredJob:
    """Names and hashes of the objects that the builders make."""

    support: Mapping[str, str]
    """`Kind/name` to hash, in the order in which they are applied."""
    runner: str
    """`CronJob/name`, or `Job/name` of one that runs once."""
    runner_hash: str
    template_hash: str
    """Of the specification of the runs."""
    inputs: str = ""
    """Of what people asked for, as far as the one run is made of it; empty: there is a schedule."""


@dataclass(frozen=True)
class Suspension:
    """The runner is to be stopped, or to go on."""

    key: str
    uid: str
    suspended: bool


@dataclass(frozen=True)
class Removal:
    """Nobody needs this object any more."""

    key: str
    uid: str


@dataclass(frozen=True)
class Blocker:
    """Why no run can begin."""

    reason: str
    """One word in camel case."""
    message: str
    stalled: bool = False
    """It needs a person."""


@dataclass(frozen=True)
class JobPlan:
    """Everything of it is safe to be done again: names are fixed, deletions and changes name the UID."""

    apply: tuple[str, ...] = ()
    """Keys of desired objects, in this order."""
    suspension: Suspension | None = None
    removals: tuple[Removal, ...] = ()
    blocker: Blocker | None = None
    ended: tuple[Run, ...] = ()
    """Runs that are over, and do not stand in `status.history` yet; the oldest first."""
    result: Mapping[str, object] | None = None
    """The result row of the newest of them that gave one."""
    events: tuple[Event, ...] = ()
    seconds: float = 30.0
    """Until the next pass, if nothing is heard before."""
