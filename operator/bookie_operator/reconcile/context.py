"""What all passes of one operator share.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from bookie_operator.api.errors import KubernetesError
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders.build import Builds
from bookie_operator.builders.context import BuildContext
from bookie_operator.metrics import OperatorMetrics
from bookie_operator.observe.surroundings import Surroundings
from bookie_operator.reconcile.admin_certificate import AdminCertificates
from bookie_operator.reconcile.back_off import BackOff, Repairs
from bookie_operator.status.events import Events

_AT_ONCE: Final = 8
_GROUPS_S: Final = 300.0
"""How long the list of API groups counts: a PodMonitor's definition may be installed later."""


@dataclass(frozen=True)
class Settings:
    image_repository: str = "podkeeper"
    """Of the bookies' images, without a tag."""
    operator_namespace: str = ""
    admin_port: int = 8000
    admin_timeout_s: float = 5.0
    reads_nodes: bool = True
    """Ask for nodes and storage classes; a 403 is taken as an answer."""
    rest_s: float = 30.0
    """Between two passes over a cluster at rest of which nothing was heard."""


async def _nobody_else(namespace: str) -> str:
    return ""


@dataclass
class OperatorContext:
    kubernetes: Kubernetes
    session: aiohttp.ClientSession
    events: Events
    metrics: OperatorMetrics = field(default_factory=OperatorMetrics)
    settings: Settings = Settings()
    leading: Callable[[], bool] = lambda: True
    """Whether this process may act; asked again right before every side effect."""
    now: Callable[[], float] = time.time
    """Seconds since 1970."""
    builds: Builds = field(default_factory=Builds)
    back_off: BackOff = field(default_factory=BackOff)
    repairs: Repairs = field(default_factory=Repairs)
    certificates: AdminCertificates = field(default_factory=AdminCertificates)
    other_operator: Callable[[str], Awaitable[str]] = _nobody_else
    """Who else keeps what is in this namespace; empty: nobody does."""
    passes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    """Passes that run at once: what each has read is in memory until it ends."""
    surroundings: Surroundings | None = None
    _groups: frozenset[str] = frozenset()
    _groups_until: float = 0.0

    def __post_init__(self) -> None:
        if self.settings.reads_nodes and self.surroundings is None:
            self.surroundings = Surroundings(self.kubernetes)

    async def building(self) -> BuildContext:
        """Raises KubernetesError only if no list of API groups was ever had."""
        if self.now() >= self._groups_until:
            try:
                self._groups = await self.kubernetes.groups()
                self._groups_until = self.now() + _GROUPS_S
            except KubernetesError:
                if not self._groups:
                    raise
        return BuildContext(
            image_repository=self.settings.image_repository,
            api_groups=self._groups,
            operator_namespace=self.settings.operator_namespace,
        )
