"""The Lease (`coordination.k8s.io`) that decides which of several operators works.

There is one operator to a namespace (`Scopes`): it claims what it keeps there by a Lease in that namespace, before its
first pass.

The Lease by which one of several processes leads is in the namespace of the operator. Operators of two releases, each
in a namespace of its own, or one of all namespaces beside another, know nothing of each other by that. So each of them
takes the Lease of every namespace that has something to keep, by the namespace and the name of the Lease by which it
leads, which all its processes share. An operator that finds it taken stays out, and says so.

Invariants
- `leading` is a matter of this process's own monotonic clock: it ends `renew_s` after the last renewal was *sent*,
  whether or not anything runs by then. That is before another process may take the Lease (`duration_s`).
- Another's Lease is taken only after it was seen unchanged for its whole duration by this process's own clock: clocks
  of nodes are never compared.
- The claim to a namespace is not given back at the end: a restart is no reason for another operator to take over. One
  that was uninstalled has lost it after `SCOPE_DURATION_S`.
- Where the Lease of a namespace may not be read or written (a Role of an earlier release) nothing is claimed, and work
  goes on; unless another operator was seen to hold it.

Threads: one event loop; `leading` from any.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from bookie_operator.api.errors import Conflict, Forbidden, KubernetesError
from bookie_operator.api.kinds import LEASE, KubernetesObject
from bookie_operator.api.kubernetes import Kubernetes

_log = structlog.get_logger(__name__)
DURATION_S: Final = 15.0
RENEW_S: Final = 10.0
RETRY_S: Final = 2.0
SCOPE_LEASE: Final = "podkeeper-operator-clusters"
SCOPE_DURATION_S: Final = 300.0
_VALID_S: Final = 240.0
"""Seconds after the last renewal, by this process's own clock."""
_RENEW_S: Final = 60.0
_ASK_S: Final = 10.0
_FORBIDDEN_S: Final = 600.0
_UNASKED_S: Final = 180.0
"""Seconds after which a namespace counts as unasked: it has nothing to keep any more, or another process leads."""
_UNKNOWN: Final = "(unknown)"


def uptime() -> float:
    """Seconds on a clock that goes on while the machine is suspended, which `time.monotonic` does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderElection:
    def __init__(
        self,
        kubernetes: Kubernetes,
        namespace: str,
        name: str,
        identity: str,
        *,
        monotonic: Callable[[], float] = uptime,
        duration_s: float = DURATION_S,
        renew_s: float = RENEW_S,
    ) -> None:
        self._kubernetes = kubernetes
        self._namespace, self._name, self._identity = namespace, name, identity
        self._monotonic = monotonic
        self._duration_s, self._renew_s = duration_s, renew_s
        self._renewed_at: float | None = None
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = 0.0
        self._led = False
        self.holder = ""
        """Holder of the Lease when it was looked at last, unless that is this candidate."""
        self.problem: KubernetesError | None = None
        """Reason why the last turn could not be taken."""

    @property
    def leading(self) -> bool:
        """Return whether this process may act, now."""
        return self._renewed_at is not None and self._monotonic() - self._renewed_at < self._renew_s

    async def run(self) -> None:
        """Work until cancelled; then give the Lease back."""
        try:
            while True:
                await self.turn()
                await asyncio.sleep(RETRY_S)
        finally:
            await asyncio.shield(self.release())

    async def turn(self) -> None:
        """Try once to get or to renew the Lease."""
        sent = self._monotonic()
        self.problem = None
        try:
            held = await self._try(sent)
        except KubernetesError as exc:
            _log.warning("the lease could not be renewed", lease=self._name, error=str(exc))
            self.problem, held = exc, False
        except Exception:  # such as credentials that cannot be read now: a candidate that gives up never leads again
            _log.exception("the lease could not be renewed", lease=self._name)
            held = False
        if held:
            self._renewed_at = sent
        if self.leading != self._led:
            self._led = self.leading
            word = "leading" if self._led else "not leading"
            _log.info(word, lease=f"{self._namespace}/{self._name}", identity=self._identity)

    async def release(self) -> None:
        """Give the lease back, so that another one need not wait for the duration."""
        if self._renewed_at is None:
            return
        self._renewed_at, self._led = None, False
        try:
            found = await self._kubernetes.find(LEASE, self._namespace, self._name)
            if found is not None and found["spec"].get("holderIdentity") == self._identity:
                spec = {**found["spec"], "holderIdentity": "", "renewTime": _now(), "leaseDurationSeconds": 1}
                await self._kubernetes.replace({**found, "spec": spec})
        except KubernetesError as exc:
            _log.info("the lease was not given back", lease=self._name, error=str(exc))

    async def _try(self, now: float) -> bool:
        found = await self._kubernetes.find(LEASE, self._namespace, self._name)
        try:
            if found is None:
                await self._kubernetes.create(self._lease({}, transitions=0))
                return True
            spec = found.get("spec") or {}
            holder = spec.get("holderIdentity") or ""
            self.holder = holder if holder != self._identity else ""
            if holder not in ("", self._identity) and not self._is_stale(spec, now):
                self._renewed_at = None
                return False
            transitions = int(spec.get("leaseTransitions") or 0) + (holder != self._identity)
            await self._kubernetes.replace(self._lease(found, transitions=transitions))
        except Conflict:  # another candidate was faster
            return False
        return True

    def _is_stale(self, spec: dict[str, Any], now: float) -> bool:
        seen = (str(spec.get("holderIdentity")), str(spec.get("renewTime")))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        return now - self._seen_at > float(spec.get("leaseDurationSeconds") or self._duration_s)

    def _lease(self, found: KubernetesObject, *, transitions: int) -> KubernetesObject:
        before = found.get("spec") or {}
        same = before.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration_s)),
            "acquireTime": before["acquireTime"] if same and before.get("acquireTime") else _now(),
            "renewTime": _now(),
            "leaseTransitions": transitions,
        }
        metadata = found.get("metadata") or {"name": self._name, "namespace": self._namespace}
        return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class _Scope:
    election: LeaderElection
    turn_at: float
    asked_at: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    other: str = ""
    told: str = ""


class Scopes:
    def __init__(self, kubernetes: Kubernetes, installation: str, *, monotonic: Callable[[], float] = uptime) -> None:
        """`installation`: the name of this operator, the same in all its processes; empty: nothing is claimed."""
        self._kubernetes = kubernetes
        self._installation = installation
        self._monotonic = monotonic
        self._scopes: dict[str, _Scope] = {}

    @property
    def kept_by_others(self) -> dict[str, str]:
        """Namespaces that this operator stays out of, with whose they are."""
        since = self._monotonic() - _UNASKED_S
        asked = ((namespace, scope) for namespace, scope in self._scopes.items() if scope.asked_at >= since)
        return {namespace: scope.other for namespace, scope in asked if scope.other}

    async def other(self, namespace: str) -> str:
        """Return the operator that keeps what is in this namespace; empty: this operator, from now on."""
        if not self._installation:
            return ""
        now = self._monotonic()
        scope = self._scopes.get(namespace)
        if scope is None:
            scope = self._scopes[namespace] = _Scope(self._election(namespace), now, now)
        scope.asked_at = now
        async with scope.lock:  # a namespace whose Lease is slow holds up no other
            now = self._monotonic()
            if now >= scope.turn_at:
                await self._turn(namespace, scope, now)
            return scope.other

    def _election(self, namespace: str) -> LeaderElection:
        return LeaderElection(
            self._kubernetes,
            namespace,
            SCOPE_LEASE,
            self._installation,
            monotonic=self._monotonic,
            duration_s=SCOPE_DURATION_S,
            renew_s=_VALID_S,
        )

    async def _turn(self, namespace: str, scope: _Scope, now: float) -> None:
        election = scope.election
        await election.turn()
        if election.leading:
            scope.other, scope.turn_at = "", now + (_ASK_S if election.problem else _RENEW_S)
        elif isinstance(election.problem, Forbidden) and not election.holder:
            scope.other, scope.turn_at = "", now + _FORBIDDEN_S
        else:
            scope.other = election.holder or _UNKNOWN
            scope.turn_at = now + _ASK_S
        if scope.other != scope.told:
            scope.told = scope.other
            if scope.other:
                _log.warning("another operator keeps this namespace: stays out", namespace=namespace, other=scope.other)
            else:
                _log.info("keeps this namespace", namespace=namespace)
