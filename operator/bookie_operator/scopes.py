"""One operator to a namespace: what it keeps there it claims by a Lease in that namespace, before its first pass.

The Lease by which one of several processes leads is in the namespace of the operator. Operators of two releases, each
in a namespace of its own, or one of all namespaces beside another, know nothing of each other by that. So each of them
takes the Lease of every namespace that has something to keep, by the name of its own namespace, which all its processes
share. Who finds it taken stays out, and says so.

Invariants
- As in `lease`: what is another's is taken only after it was seen unchanged for its whole duration.
- It is not given back at the end: a restart is no reason for another operator to take over. One that was uninstalled
  has lost it after `DURATION_S`.
- Where the Lease may not be read or written (a Role of an earlier release) nothing is claimed, and work goes on; unless
  another operator was seen to hold it.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from bookie_operator.api.errors import Forbidden
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.lease import LeaderElection, uptime

_log = structlog.get_logger(__name__)
LEASE: Final = "podkeeper-operator-clusters"
DURATION_S: Final = 300.0
_VALID_S: Final = 240.0
"""After the last renewal, by this process's own clock."""
_RENEW_S: Final = 60.0
_ASK_S: Final = 10.0
_FORBIDDEN_S: Final = 600.0
_UNASKED_S: Final = 180.0
"""Nobody asks for so long only of a namespace that has nothing to keep any more, or where another process leads."""
_UNKNOWN: Final = "(nobody could tell which)"


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
        """`installation`: what this operator is told apart by, the same in all its processes; empty: nothing is
        claimed."""
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
        """Who keeps what is in this namespace; empty: this operator, from now on."""
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
            LEASE,
            self._installation,
            monotonic=self._monotonic,
            duration_s=DURATION_S,
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
