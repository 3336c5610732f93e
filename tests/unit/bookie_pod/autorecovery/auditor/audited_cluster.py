"""A cluster whose lost bookies are followed and audited on a virtual clock."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

from bookie_pod.autorecovery.auditor.bookie_audit import AuditResult
from bookie_pod.autorecovery.auditor.lost_bookies import (
    LostBookies,
)
from bookie_pod.autorecovery.auditor.runs import AuditRecords
from bookie_pod.autorecovery.auditor.schedule import Clock
from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable
from bookie_protocol.metadata_service.interface import BookieGroup, BookieSet
from bookie_protocol.metadata_service.subscription import Subscription
from tests.support.memory_records import MemoryRecords

NOW_MS = 1_700_000_000_000
ALL = frozenset({"a", "b", "c"})


class Cluster:
    """Three bookies with cookies, a delay and a switch, all of which can be followed; and what an audit finds."""

    def __init__(self, delay_s: int = 60, interval_s: int = 0) -> None:
        self.memory = MemoryRecords()
        service: Any = self
        self.kept = AuditRecords(service)
        self.bookies = self.under_replication = self.ledgers = self
        self.writable = ALL
        self.known = ALL
        self.stored_delay: int | None = None
        self.down: set[str] = set()
        self.damaged = False
        self.version = 0
        self._changed: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.followed: list[tuple[str, float]] = []
        self.is_on = True
        self.clock = Clock(lambda: NOW_MS)
        self.enabled = asyncio.Event()
        self.enabled.set()
        self.audits: list[float] = []
        self.finds = AuditResult()
        self.audit_takes = 0.0
        self.told: list[tuple[str, object]] = []
        self.returned: list[Mapping[str, int]] = []
        metrics: Any = self
        self.lost = LostBookies(
            service,
            self.kept,
            self.clock,
            self.enabled,
            metrics,
            auditor_id="a1",
            interval_s=interval_s,
            initial_delay_s=delay_s,
            on_return=self.returned.append,
        )
        audit: Any = SimpleNamespace(run=self._audit)
        self.lost.audit = audit

    def records(self, kind: str) -> object:
        return self.memory.of(kind)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def _check(self, what: str) -> None:
        if what in self.down:
            raise MetadataUnavailable(f"no answer to {what}")

    # --- bookies

    async def list(self, group: BookieGroup) -> BookieSet:
        self._check("list")
        found = {
            BookieGroup.WRITABLE: self.writable,
            BookieGroup.READ_ONLY: frozenset[str](),
            BookieGroup.ALL: self.known,
        }
        return BookieSet(found[group], self.version)

    def watch(self, group: BookieGroup) -> Subscription[BookieSet]:
        return self._follow(group.value, lambda: self.list(group))

    def _follow(self, what: str, read: Callable[[], Awaitable[Any]]) -> Subscription[Any]:
        async def feed(publish: Callable[[Any], None]) -> None:
            self.followed.append((what, self.now))
            while True:
                self._check(f"watch {what}")
                changed = self._changed[what]
                publish(await read())
                await changed.wait()

        return Subscription(feed)

    def change(self, *whats: str) -> None:
        """Who follows them hears of it."""
        self.version += 1
        for what in whats:
            self._changed.pop(what).set()

    def register(self, *bookies: str) -> None:
        self.writable = frozenset(bookies)
        self.change(*(group.value for group in (BookieGroup.WRITABLE, BookieGroup.READ_ONLY)))

    # --- marks

    async def initialize_lost_bookie_recovery_delay(self, seconds: int) -> None:
        self._check("initialize")
        self.stored_delay = seconds if self.stored_delay is None else self.stored_delay

    async def lost_bookie_recovery_delay(self) -> int | None:
        if self.damaged:
            raise MetadataDamaged("no delay")
        return self.stored_delay

    async def _delay(self) -> Any:
        return None if self.stored_delay is None else SimpleNamespace(value=self.stored_delay)

    def watch_lost_bookie_recovery_delay(self) -> Subscription[Any]:
        return self._follow("delay", self._delay)

    async def _enabled(self) -> bool:
        return self.is_on

    def watch_enabled(self) -> Subscription[bool]:
        return self._follow("enabled", self._enabled)

    # --- the audit and its metrics

    async def _audit(self, progress: Callable[[AuditResult], None]) -> AuditResult:
        self.audits.append(self.now)
        found = self.finds
        progress(found)
        await asyncio.sleep(self.audit_takes)
        self._check("audit")
        self.finds = AuditResult(named=found.named)
        return found

    def audit_ran(self, milliseconds: float, result: AuditResult | None) -> None:
        self.told.append(("audit", (milliseconds, result)))

    def audit_delayed(self) -> None:
        self.told.append(("delayed", self.now))

    def audit_cancelled(self) -> None:
        self.told.append(("cancelled", self.now))

    async def begin(self) -> asyncio.Task[None]:
        await self.lost.prepare()
        running = asyncio.create_task(self.lost.run())
        await asyncio.sleep(0.5)
        return running
