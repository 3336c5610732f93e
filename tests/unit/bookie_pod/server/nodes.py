"""A node whose probes a test sets by hand."""

from __future__ import annotations

from bookie_pod.server.status import NodeState


class FakeNode:
    """Implements `NodeStatus`."""

    def __init__(self) -> None:
        self.unhealthy: str | None = None
        self.unready: str | None = None
        self.complains: str | None = None
        self.flags = NodeState(True, False, False, True)

    def state(self) -> NodeState:
        return self.flags

    def unhealthy_reason(self) -> str | None:
        return self.unhealthy

    def complaint(self) -> str | None:
        return self.complains

    def unready_reason(self) -> str | None:
        return self.unready
