"""The state that all passes of one operator share.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from bookie_operator.api.errors import KubernetesError
from bookie_operator.api.etcd import Etcd
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
"""Seconds for which the list of API groups counts: a PodMonitor's definition may be installed later."""


@dataclass(frozen=True)
class Settings:
    image_repository: str = "podkeeper"
    """Image of the bookies, without a tag."""
    own_image: str = ""
    """Image of the operator, which has the commands of the bookies too; empty: not known."""
    release: str = ""
    """Release of the operator."""
    operator_namespace: str = ""
    admin_port: int = 8000
    admin_timeout_s: float = 5.0
    reads_nodes: bool = True
    """Ask for nodes and storage classes; a 403 is taken as an answer."""
    rest_s: float = 30.0
    """Seconds between two passes over a cluster at rest of which nothing was heard."""
    peek_s: float = 10.0
    """Seconds between two questions whether the metadata service of a cluster still answers, while no pass is due."""


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
    """Returns whether this process may act; asked again right before every side effect."""
    now: Callable[[], float] = time.time
    """Seconds since 1970."""
    builds: Builds = field(default_factory=Builds)
    back_off: BackOff = field(default_factory=BackOff)
    repairs: Repairs = field(default_factory=Repairs)
    certificates: AdminCertificates = field(default_factory=AdminCertificates)
    etcd: Callable[[Mapping[str, str] | None, str], Etcd] = Etcd
    """Makes what speaks to the etcd of a cluster, of the certificate's files and the name of its members."""
    other_operator: Callable[[str], Awaitable[str]] = _nobody_else
    """Returns the other operator that keeps what is in this namespace; empty: there is none."""
    passes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    """Passes that run at once: what each has read is in memory until it ends."""
    surroundings: Surroundings | None = None
    peeks: dict[tuple[str, str], Callable[[], Awaitable[bool]]] = field(default_factory=dict)
    """Functions that tell whether a metadata service that answered still does, by namespace and name of the cluster."""
    silent: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)
    """Auditors that do not list the bookies that they look at, with the time at which this process first saw each. The
    status does not have it, because an earlier definition would drop it there."""
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
            own_image=self.settings.own_image,
            release=self.settings.release,
            operator_namespace=self.settings.operator_namespace,
            reads_nodes=self.settings.reads_nodes,
        )
