"""Facts from the cluster's pods over their admin API, asked at once and with a bound.

Invariants
- Facts about the cluster come from one pod: what a pass decides by is one view.
- No pod is asked twice for the same in a pass.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bookie_operator.api.admin import Admin, AdminError, Endpoint
from bookie_operator.builders.container import ADMIN_TLS
from bookie_operator.crds import names
from bookie_operator.observe.times import condition
from bookie_operator.observe.workloads import component_of, is_bookie
from bookie_operator.planner.decision import Needs
from bookie_operator.world.facts import BookieFacts, ClusterFacts, DrainFacts, Outlook, Proof, SafetyFacts

_AT_ONCE: Final = 32
_ASKED: Final = 12
AUTORECOVERY: Final = "autorecovery"


@dataclass(frozen=True)
class Told:
    """The answers to the planner's needs."""

    proofs: Mapping[str, Proof | None]
    drains: Mapping[str, DrainFacts | None]
    outlooks: Mapping[str, Outlook | None]
    safety: Mapping[frozenset[str], SafetyFacts | None]


def endpoints(pods: Sequence[Mapping[str, Any]], port: int) -> dict[str, Endpoint]:
    """The endpoints by pod name, of the pods that may answer: they have an address, and are not over. Those that were
    taken over and not restarted yet are other programs, which get no token."""
    found = {}
    for pod in pods:
        status = pod.get("status") or {}
        if names.TAKEN_OVER in (pod["metadata"].get("annotations") or {}):
            continue
        if not status.get("podIP") or status.get("phase") in ("Succeeded", "Failed"):
            continue
        if is_bookie(pod) or component_of(pod) == AUTORECOVERY:
            name = pod["metadata"]["name"]
            found[name] = Endpoint(name, status["podIP"], port, _secret(pod))
    return found


def _secret(pod: Mapping[str, Any]) -> str:
    """The Secret with which the pod serves HTTPS; empty: it was made to serve HTTP, now or before
    `spec.tls.adminApi` was changed."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return next((str(each["secret"]["secretName"]) for each in volumes if each.get("name") == ADMIN_TLS), "")


def tellers(pods: Sequence[Mapping[str, Any]], reachable: Mapping[str, Endpoint]) -> list[Endpoint]:
    """Return the pods that may answer for the cluster: bookies before auto-recovery, those that are ready before the
    others."""

    def rank(pod: Mapping[str, Any]) -> tuple[bool, bool, str]:
        not_ready = condition(pod, "Ready").get("status") != "True" or "deletionTimestamp" in pod["metadata"]
        return not_ready, not is_bookie(pod), pod["metadata"]["name"]

    ordered = sorted(pods, key=rank)
    return [reachable[pod["metadata"]["name"]] for pod in ordered if pod["metadata"]["name"] in reachable]


async def cluster_facts(
    admin: Admin, candidates: Sequence[Endpoint]
) -> tuple[ClusterFacts | None, Endpoint | None, str]:
    """Return the facts, and the pod that gave them; or why no pod did."""
    if not candidates:
        return None, None, "no bookie and no auto-recovery pod has an address"
    first, others = candidates[0], candidates[1:_ASKED]
    try:
        return await admin.cluster_facts(first), first, ""
    except AdminError as exc:
        problem = f"{first.pod}: {exc}"
    answers = await asyncio.gather(*(admin.cluster_facts(at) for at in others), return_exceptions=True)
    for at, answer in zip(others, answers, strict=True):
        if isinstance(answer, ClusterFacts):
            return answer, at, ""
        if not isinstance(answer, AdminError):
            raise answer
    return None, None, problem[:500]


async def bookie_facts(admin: Admin, bookies: Mapping[str, Endpoint | None]) -> dict[str, BookieFacts | None]:
    """Return the facts of every bookie; None for one without an address."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(at: Endpoint | None) -> BookieFacts | None:
        if at is None:
            return None
        async with gate:
            return await admin.bookie_facts(at)

    found = await asyncio.gather(*(ask(at) for at in bookies.values()))
    return dict(zip(bookies, found, strict=True))


async def needed(admin: Admin, teller: Endpoint | None, needs: Needs) -> Told:
    """One listing after the other: each one reads every ledger's metadata. None of it is known without `teller`."""
    if teller is None:
        return Told(
            proofs=dict.fromkeys(needs.proofs),
            drains=dict.fromkeys(needs.drains),
            outlooks=dict.fromkeys(needs.outlooks),
            safety=dict.fromkeys(needs.safety),
        )
    return Told(
        proofs={each: await admin.proof(teller, each, needs.accepted_losses) for each in sorted(needs.proofs)},
        drains={each: await admin.drain(teller, each) for each in sorted(needs.drains)},
        outlooks={each: await admin.outlook(teller, each) for each in sorted(needs.outlooks)},
        safety={each: await admin.safety(teller, each) for each in sorted(needs.safety, key=sorted)},
    )
