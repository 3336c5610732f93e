"""The means of an action, and the ways in which it may end without being done.

Threads: values; `ask_speakers` on the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bookie_operator.api.admin import Admin, AdminUnreachable, Endpoint
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders.desired_objects import DesiredObjects
from bookie_operator.planner.decision import Plan
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import ClusterView, World

if TYPE_CHECKING:
    from bookie_operator.api.etcd import Etcd

_SPEAKERS: Final = 3


class Outdated(Exception):
    """The action relied on something that is no longer so: not an error, the next pass looks again."""


class RefusedNow(Exception):
    """The action is refused now, such as an eviction that the PodDisruptionBudget forbids, and is tried again."""


class Prohibited(Exception):
    """The action breaks an invariant: it is not carried out, whatever planned it."""


@dataclass(frozen=True)
class Execution:
    kubernetes: Kubernetes
    admin: Admin
    world: World
    endpoints: Mapping[str, Endpoint]
    """Endpoints by pod name."""
    tellers: Sequence[Endpoint]
    """Pods that speak for the cluster, the one that did so in this pass first."""
    objects: DesiredObjects
    desired: Desired
    plan: Plan
    own_etcd: Etcd | None = None
    """The etcd that the operator runs; None: it runs none."""
    members: Mapping[str, str] = field(default_factory=dict)
    """Addresses of its members by pod name."""

    def etcd(self) -> Etcd:
        """Raises Outdated: the operator runs no etcd."""
        if self.own_etcd is None:
            raise Outdated("the operator runs no etcd for this cluster")
        return self.own_etcd

    @property
    def cluster(self) -> ClusterView:
        return self.world.cluster

    @property
    def namespace(self) -> str:
        return self.world.cluster.namespace

    def endpoint(self, pod: str) -> Endpoint:
        """Raises Outdated: it has no address."""
        found = self.endpoints.get(pod)
        if found is None:
            raise Outdated(f"pod {pod} has no address")
        return found

    async def ask_speakers(
        self, call: Callable[[Endpoint], Awaitable[None]], speakers: Iterable[Endpoint] | None = None
    ) -> None:
        """Ask a pod that speaks for the cluster; the next one if it does not answer. What is asked may be repeated.

        Raises AdminRefused as the first one that answers does, AdminUnreachable if none does.
        """
        problem = AdminUnreachable("no bookie and no auto-recovery pod can be asked")
        for at in list(self.tellers if speakers is None else speakers)[:_SPEAKERS]:
            try:
                return await call(at)
            except AdminUnreachable as exc:
                problem = exc
        raise problem
