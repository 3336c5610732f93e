"""Placement weighted by free disk space: a wrapper around any policy, and the free space, asked for now and then.

The wrapped policy's rules decide who may be chosen; among those that it likes equally, a bookie is drawn in proportion
to its weight, its free bytes. A weight is at most `max_multiple` times the median, so that an empty new bookie does not
get everything; a full one, or one that did not answer, counts as the smallest that is known.

Invariants
- At most `MAX_ASKED` bookies are asked at once. Each is asked when it appears, then every `interval`; one that does not
  answer, after `retry_interval`.
- The answer of a bookie is forgotten when it is not writable any more.

The policy is pure, for any thread; `FreeSpace` belongs to the event loop.

Source: docs/internals/client-protocol.md, section 16.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import replace
from statistics import median
from typing import Final

from bookie_client.bookies import Bookies
from bookie_client.distribution import Quorums
from bookie_client.placement.policy import (
    AcknowledgementRule,
    AdherenceReport,
    ClusterView,
    EnsembleRequest,
    Placement,
    PlacementPolicy,
    ReplacementRequest,
)
from bookie_client.placement.topology import Topology
from bookie_protocol.errors import BadRequest, PodkeeperError
from bookie_protocol.logs import get_logger
from bookie_protocol.together import bounded

_log = get_logger(__name__)
MAX_ASKED: Final = 8
AskFreeBytes = Callable[[str], Awaitable[int]]
"""Bookie id -> free bytes. Raises what operations on bookies raise."""


class WeightedPlacement:
    """`max_multiple`: `bookieMaxMultipleForWeightBasedPlacement`; 0 for no limit."""

    def __init__(self, policy: PlacementPolicy, *, max_multiple: float = 3.0) -> None:
        if max_multiple < 0:
            raise BadRequest(f"bookieMaxMultipleForWeightBasedPlacement must not be negative: {max_multiple}")
        self.policy = policy
        self.max_multiple = max_multiple

    @property
    def name(self) -> str:
        return f"{self.policy.name}, weighted"

    @property
    def rule(self) -> str:
        return f"{self.policy.rule}; weighted by free disk space"

    def new_ensemble(self, request: EnsembleRequest) -> Placement:
        return self.policy.new_ensemble(replace(request, cluster=self._weighted(request.cluster)))

    def replacement(self, request: ReplacementRequest) -> Placement:
        return self.policy.replacement(replace(request, cluster=self._weighted(request.cluster)))

    def mend(self, request: ReplacementRequest) -> Placement:
        return self.policy.mend(replace(request, cluster=self._weighted(request.cluster)))

    def check(self, ensemble: tuple[str, ...], quorums: Quorums, cluster: ClusterView) -> AdherenceReport:
        return self.policy.check(ensemble, quorums, cluster)

    def refusals(self, cluster: ClusterView) -> Mapping[str, str]:
        return self.policy.refusals(cluster)

    def objection(
        self, ensemble: tuple[str, ...], position: int, bookie: str, quorums: Quorums, cluster: ClusterView
    ) -> str | None:
        return self.policy.objection(ensemble, position, bookie, quorums, cluster)

    def acknowledgements_suffice(self, bookies: frozenset[str], quorums: Quorums, topology: Topology) -> bool:
        inner = self.policy
        return not isinstance(inner, AcknowledgementRule) or inner.acknowledgements_suffice(bookies, quorums, topology)

    def _weighted(self, cluster: ClusterView) -> ClusterView:
        candidates = cluster.writable - cluster.excluded.keys()
        return replace(cluster, weights=weights_of(candidates, cluster.free_bytes, self.max_multiple))


def weights_of(bookies: Collection[str], free_bytes: Mapping[str, int], max_multiple: float) -> Mapping[str, float]:
    """Return the weight of each bookie; empty (all equal) if no bookie's free space is known."""
    known = {bookie: free_bytes.get(bookie, 0) for bookie in bookies}
    told = [free for free in known.values() if free > 0]
    if not told:
        return {}
    smallest = min(told)
    weights = {bookie: float(free if free > 0 else smallest) for bookie, free in known.items()}
    if max_multiple:
        most = max_multiple * median(weights.values())
        weights = {bookie: min(weight, most) for bookie, weight in weights.items()}
    return weights


async def ask_free_bytes(
    bookies: Iterable[str], ask: AskFreeBytes, told: MutableMapping[str, int]
) -> Mapping[str, PodkeeperError]:
    """Ask each bookie once, at most `MAX_ASKED` at a time. `told` gets its free bytes as soon as it answers; returned
    is why others did not tell."""
    silent: dict[str, PodkeeperError] = {}

    async def ask_one(bookie: str) -> None:
        try:
            told[bookie] = max(0, await ask(bookie))
        except PodkeeperError as error:
            silent[bookie] = error

    await bounded(sorted(bookies), ask_one, MAX_ASKED)
    return silent


class FreeSpace:
    """`interval` and `retry_interval` in seconds; `start` before use."""

    def __init__(self, bookies: Bookies, ask: AskFreeBytes, *, interval: float, retry_interval: float) -> None:
        self._bookies = bookies
        self._ask = ask
        self._interval = interval
        self._retry_interval = retry_interval
        self._told: dict[str, int] = {}
        self._due: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def known(self) -> Mapping[str, int]:
        """Return the free bytes of the bookies that reported them."""
        return self._told

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="free space of bookies")

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            writable = self._bookies.known_writable
            for gone in self._due.keys() - writable:
                del self._due[gone]
                self._told.pop(gone, None)
            now = loop.time()
            await self._refresh([bookie for bookie in writable if self._due.get(bookie, now) <= now])
            if self._bookies.known_writable == writable:
                next_due = min(self._due.values(), default=loop.time() + self._interval)
                await self._bookies.changed(max(0.0, next_due - loop.time()))

    async def _refresh(self, bookies: list[str]) -> None:
        silent = await ask_free_bytes(bookies, self._ask, self._told)
        now = asyncio.get_running_loop().time()
        for bookie in bookies:
            error = silent.get(bookie)
            self._due[bookie] = now + (self._interval if error is None else self._retry_interval)
            if error is not None:
                _log.info("bookie does not tell its free space", bookie=bookie, error=str(error))
