"""After a scrub: entries that are damaged here are fetched from other bookies and stored anew.

Invariants
- An entry stays refused until its new copy is durable here and has a place of its own in the index.
- One repair at a time; what could not be fetched stays damaged, and the next pass asks for it again.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from bookie_pod.metrics.scrub import ScrubMetrics
from bookie_pod.node.integrity.local_copies import LocalCopies
from bookie_pod.node.integrity.preboot import key_of
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_pod.storage.integrity.scrub_part import ScrubPart
from bookie_protocol.errors import PodkeeperError

if TYPE_CHECKING:
    from bookie_pod.node.integrity.replicas import Replicas

_log = structlog.get_logger(__name__)

Found = Sequence[tuple[ScrubPart, Damage]]


class ScrubRepair:
    """`connect()` gives the replicas; `flush()` makes the index rows of new copies durable."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Replicas]],
        copies: LocalCopies,
        flush: Callable[[], None],
        metrics: ScrubMetrics,
    ) -> None:
        self._connect = connect
        self._copies = copies
        self._flush = flush
        self._metrics = metrics
        self._lock = asyncio.Lock()

    async def run(self, found: Found) -> None:
        """Repair what can be repaired. Never raises but for cancellation."""
        wanted: dict[int, list[tuple[ScrubPart, Damage]]] = defaultdict(list)
        for part, damage in found:
            if damage.kind is DamageKind.ENTRY:
                wanted[damage.ledger_id].append((part, damage))
        if not wanted or self._lock.locked():
            return
        async with self._lock:
            try:
                replicas = await self._connect()
            except PodkeeperError as error:
                _log.warning("damaged entries are not repaired now", reason=str(error))
                return
            for ledger_id, damages in wanted.items():
                try:
                    await self._ledger(replicas, ledger_id, damages)
                except PodkeeperError as error:
                    _log.warning("damaged entries of a ledger stay damaged", ledger=ledger_id, reason=str(error))

    async def _ledger(self, replicas: Replicas, ledger_id: int, damages: Found) -> None:
        by_entry = {damage.entry_id: (part, damage) for part, damage in damages}
        key = key_of(await replicas.metadata(ledger_id))
        stored: list[tuple[ScrubPart, Damage]] = []
        async for found in replicas.fetch(ledger_id, sorted(by_entry)):
            if found.entry is None:
                _log.warning(
                    "a damaged entry stays damaged", ledger=ledger_id, entry=found.entry_id, reason=str(found.error)
                )
                continue
            await self._copies.store(ledger_id, key, found.entry_id, found.entry)
            stored.append(by_entry[found.entry_id])
        await self._copies.settle()
        if not stored:
            return
        await asyncio.to_thread(self._flush)
        for part in {part for part, _ in stored}:
            mine = [damage for other, damage in stored if other is part]
            await asyncio.to_thread(part.repaired, mine)
        self._metrics.repaired(len(stored))
        _log.info("damaged entries were fetched from other bookies", ledger=ledger_id, entries=len(stored))
