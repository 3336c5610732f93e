"""The state that probes of a node ask for, by HTTP and by gRPC. The node implements it."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class NodeState(NamedTuple):
    """The four flags of `/api/v1/bookie/state`."""

    running: bool
    read_only: bool
    shutting_down: bool
    available_for_high_priority_writes: bool


class NodeStatus(Protocol):
    """Asked on the event loop, at every probe: must be cheap and must not block."""

    def state(self) -> NodeState:
        """The bookie's flags."""
        ...

    def unhealthy_reason(self) -> str | None:
        """Return why the process should be restarted, in one line; None if it should not."""
        ...

    def complaint(self) -> str | None:
        """Return what fails beside the bookie but is no reason to restart it, in one line; None if nothing does."""
        ...

    def unready_reason(self) -> str | None:
        """Return why clients should not be sent here, in one line; None if the bookie serves. Read-only is ready."""
        ...
