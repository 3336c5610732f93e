"""What handlers reach. Event loop only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bookie_pod.metrics.registry import Registry
from bookie_pod.server.http.api.workers import Workers
from bookie_pod.server.status import NodeStatus

if TYPE_CHECKING:
    from bookie_pod.server.http.admin.ports import AdminPorts


class Context:
    """One per server."""

    def __init__(
        self, status: NodeStatus, registry: Registry, find_admin: Callable[[], AdminPorts | None], workers: Workers
    ) -> None:
        self.status = status
        self.registry = registry
        self.workers = workers
        self._find_admin = find_admin

    @property
    def is_serving(self) -> bool:
        """Whether `admin` can be used."""
        return self._find_admin() is not None

    @property
    def admin(self) -> AdminPorts:
        """The bookie's parts; only while it serves."""
        found = self._find_admin()
        assert found is not None, "the dispatcher asks before"
        return found
