"""Looks at the copies of bookies that were away, as soon as they are back.

While a bookie is away, the others acknowledge entries that it should store too. Nothing is lost, but these entries are
a copy short, and no mark says so. So the auditor looks at a bookie that comes back, and does not wait for the next
check of replicas: it asks the bookie what it stores of each ledger that names it, and marks what is missing for the
workers.

A record lists the bookies that wait for their look (`AuditRecords.returned`). The auditor adds each bookie that it saw
leave and come back. The operator adds each bookie that it restarts, because the auditor may miss a short absence.

Invariants
- A bookie waits until a pass that began after its request has asked it about every ledger that names it, it answered
  each time, and each ledger of which it lacks entries is marked. A bookie that is away, or does not answer, waits on.
  So does a bookie with a ledger that cannot be marked: others keep it locked, its mark is unreadable, or the check does
  not mark.
- Nothing waits for ever: after `MAX_AGE_MS` of one auditor's clock, or without a cookie, a bookie is left to the check
  of replicas. The requester's clock does not count. Each round begins with that, so a full record stops no look. While
  auto-recovery is disabled, requests wait until it is enabled.
- Requests of passes are paced like those of the periodic checks, but passes do not take turns with these: the check
  of all ledgers may take days.
- Ledgers with unreadable metadata are left out: no worker could repair them.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

import structlog

from bookie_pod.autorecovery.auditor.bookie_audit import ledger_ids
from bookie_pod.autorecovery.auditor.marking import Known
from bookie_pod.autorecovery.auditor.periodic import FIRST_PAUSE, LONGEST_PAUSE
from bookie_pod.autorecovery.auditor.replicas_check import ReplicasCheck
from bookie_pod.autorecovery.auditor.runs import AuditRecords, Returned, decode_returned
from bookie_pod.autorecovery.auditor.schedule import Clock
from bookie_pod.autorecovery.auditor.sweep import Cursor, Sweep
from bookie_protocol.errors import MetadataError, PodkeeperError
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.tree.service import MetadataService

_log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 60.0
MAX_AGE_MS: Final = 3_600_000


class Returns:
    """`run` until cancelled. `make`: a check of ledgers that name these bookies."""

    def __init__(
        self,
        service: MetadataService,
        records: AuditRecords,
        make: Callable[[frozenset[str]], ReplicasCheck],
        known: Known,
        clock: Clock,
        enabled: asyncio.Event,
        *,
        auditor_id: str,
        term: str,
        window: int,
        second_look_s: float,
    ) -> None:
        self._service = service
        self._records = records
        self._make = make
        self._known = known
        self._clock = clock
        self._enabled = enabled
        self._auditor_id = auditor_id
        self._term = term
        self._window = window
        self._second_look_s = second_look_s
        self._came: set[str] = set()
        self._seen_ms: dict[tuple[str, int], int] = {}
        """Time at which this auditor first saw each request, by its own clock."""
        self._wake = asyncio.Event()

    def request(self, bookies: Iterable[str]) -> None:
        """Have these bookies looked at: they were away, and are back."""
        self._came.update(bookies)
        self._wake.set()

    async def run(self) -> None:
        """Look at each bookie that waits, until cancelled."""
        pause = FIRST_PAUSE
        watcher = asyncio.create_task(self._watch())
        try:
            while True:
                self._wake.clear()
                try:
                    is_done = await self._round()
                    pause = FIRST_PAUSE if is_done else pause
                except PodkeeperError as error:
                    _log.warning("returned bookies could not be looked at", reason=str(error), again_in_s=pause)
                    is_done = False
                if is_done:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(POLL_SECONDS):
                            await self._wake.wait()
                else:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])

    async def _watch(self) -> None:
        while True:
            with suppress(MetadataError):  # the poll looks too
                async with self._records.watch_returned() as changes:
                    async for found in changes:
                        waiting = {} if found is None else decode_returned(found.value).waiting
                        if waiting.items() - self._seen_ms.keys():
                            self._wake.set()
            await asyncio.sleep(POLL_SECONDS)

    async def _round(self) -> bool:
        """Look at the bookies that wait; return False if the round should be repeated soon."""
        given_up = await self._given_up((await self._records.returned()).waiting)
        came, now = frozenset(self._came), self._clock.now_ms()

        def change(before: Returned) -> Returned:
            after = Returned(self._auditor_id, before.answered(given_up).waiting, self._term).asked(came, now)
            self._seen_ms = {request: self._seen_ms.get(request, now) for request in after.waiting.items()}
            return after

        waiting = (await self._records.change_returned(change)).waiting
        self._came -= came
        here = {bookie: ms for bookie, ms in waiting.items() if self._known.is_available(bookie)}
        if not here:
            return True
        await self._enabled.wait()
        untold = await self._pass(frozenset(here))
        looked_at = {bookie: ms for bookie, ms in here.items() if bookie not in untold}
        await self._records.change_returned(lambda before: before.answered(looked_at))
        return not untold

    async def _given_up(self, waiting: Mapping[str, int]) -> dict[str, int]:
        """Return the requests that are too old, and those for bookies without a cookie."""
        if not waiting:
            return {}
        now = self._clock.now_ms()
        known = (await self._service.bookies.list(BookieGroup.ALL)).bookies
        late = {bookie for bookie, ms in waiting.items() if now - self._seen_ms.get((bookie, ms), now) >= MAX_AGE_MS}
        if late:
            _log.warning("copies of returned bookies could not be looked at in time", bookies=sorted(late))
        return {bookie: ms for bookie, ms in waiting.items() if bookie in late or bookie not in known}

    async def _pass(self, bookies: frozenset[str]) -> set[str]:
        """Look at each ledger that names one of them; return the bookies that need another look."""
        check, began = self._make(bookies), self._clock.now_ms()

        def ids(first: int) -> AsyncGenerator[int, None]:
            return ledger_ids(self._service.ledgers, first)

        async def save(cursor: Cursor) -> None:
            """Save nothing: the next auditor repeats a pass from its beginning."""

        sweep = Sweep(ids, check, save, self._enabled, window=self._window, second_look_s=self._second_look_s)
        counts = await sweep.run(Cursor())
        seconds = round((self._clock.now_ms() - began) / 1000, 1)
        untold = check.untold & bookies
        _log.info(
            "copies of returned bookies were looked at",
            bookies=sorted(bookies),
            untold=sorted(untold),
            seconds=seconds,
            **counts,
        )
        return untold
