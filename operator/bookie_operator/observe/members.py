"""Pods of the etcd that the operator runs, and what its members report.

Threads: one event loop; `member_view` is a pure function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bookie_operator.builders import etcd, naming
from bookie_operator.crds import names
from bookie_operator.observe.faults import bookie_runs
from bookie_operator.observe.workloads import component_of, pod_view
from bookie_operator.planner.desired import Desired
from bookie_operator.world.facts import EtcdFacts
from bookie_operator.world.model import PodView

if TYPE_CHECKING:
    from bookie_operator.api.etcd import Etcd


def members(pods: Iterable[Mapping[str, Any]], desired: Desired) -> tuple[tuple[PodView, ...], dict[str, str]]:
    """Return the pods of members of etcd, and the addresses of those that run."""
    if desired.members is None:
        return (), {}
    found = {
        view.name: (view, (pod.get("status") or {}).get("podIP", ""))
        for pod in pods
        if component_of(pod) == naming.METADATA and (view := member_view(pod)) is not None
        if view.name in desired.members.peer_urls
    }
    ordered = sorted((view for view, _ in found.values()), key=lambda pod: pod.ordinal)
    return tuple(ordered), {name: host for name, (view, host) in found.items() if host and view.bookie_runs}


async def facts(own: Etcd | None, hosts: Mapping[str, str]) -> EtcdFacts | None:
    """Return the facts that the members report; None: unknown, or the operator runs no etcd."""
    return await own.look(hosts) if own is not None and hosts else None


def member_view(obj: Mapping[str, Any]) -> PodView | None:
    """Return the pod of a member of etcd; None if it is not of a StatefulSet."""
    view = pod_view(obj)
    if view is None:
        return None
    told = names.ETCD_START in (obj["metadata"].get("annotations") or {})
    status = obj.get("status") or {}
    looks = [each for each in status.get("initContainerStatuses") or () if each.get("name") == etcd.LOOK]
    empty = any(_exit_code(each, when) == etcd.EMPTY for each in looks for when in ("state", "lastState"))
    # A member that ran in this pod has data by now, whatever its volume was before.
    ran = any(each.get("started") or each.get("lastState") for each in status.get("containerStatuses") or ())
    runs = bookie_runs(obj, etcd.NAME)
    return replace(view, bookie_runs=runs, awaits_start=empty and not (told or ran or runs), told_start=told)


def _exit_code(status: Mapping[str, Any], when: str) -> int | None:
    ended = (status.get(when) or {}).get("terminated")
    return ended.get("exitCode") if ended else None
