"""One pass of a check over all ledgers: a window of ledgers at a time, second looks, and a cursor.

Invariants
- Nothing is concluded from one look: what a look suspects is looked at again after `second_look_s`, and only then
  marked. At most `MAX_PENDING` second looks wait; then the pass waits for them.
- The cursor names a ledger below which everything is done, second looks too, and the counts belong to exactly these. So
  another auditor goes on from it and ends with the counts of one whole pass.
- While auto-recovery is disabled no ledger is begun.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Protocol

from bookie_protocol.metadata_service.findings import Finding
from bookie_protocol.together import read_ahead

MAX_PENDING: Final = 1000
MAX_LOOKS: Final = 12
"""Second looks at one ledger that others keep locked; after that it is counted as locked."""
SAVE_SECONDS: Final = 15.0

Suspect = tuple[int, Finding]
"""First entry of a segment, and what was seen of a bookie's copies there."""


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a look at one ledger. `suspects`: worth a second look. `later`: a worker has the ledger."""

    counts: Mapping[str, int] = field(default_factory=dict)
    suspects: frozenset[Suspect] = frozenset()
    later: bool = False


class LedgerCheck(Protocol):
    """A check of single ledgers. Raises `MetadataUnavailable`, which ends the pass; all else it counts."""

    async def look(self, ledger_id: int) -> Look: ...
    async def look_again(self, ledger_id: int, suspects: frozenset[Suspect]) -> Look: ...
    async def finish(self) -> Mapping[str, int]:
        """Further counts, once all ledgers are done."""
        ...


@dataclass(frozen=True, slots=True)
class Cursor:
    """All ledgers below `next_ledger` are done, and `counts` are theirs."""

    next_ledger: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Pending:
    ledger_id: int
    suspects: frozenset[Suspect]
    due: float
    counts_before: Counter[str]
    looks: int = 1


class Sweep:
    """One pass; `cursor` may be asked for at any time."""

    def __init__(
        self,
        ids: Callable[[int], AsyncGenerator[int, None]],
        check: LedgerCheck,
        save: Callable[[Cursor], Awaitable[None]],
        enabled: asyncio.Event,
        *,
        window: int,
        second_look_s: float,
    ) -> None:
        self._ids = ids
        self._check = check
        self._save = save
        self._enabled = enabled
        self._window = window
        self._second_look_s = second_look_s
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_Pending] = deque()
        self._counts: Counter[str] = Counter()
        self._next = 0
        self._saved_at = self._loop.time()

    @property
    def counts(self) -> Mapping[str, int]:
        """The counts of everything looked at so far."""
        return self._counts

    @property
    def cursor(self) -> Cursor:
        """Return the place where another auditor has to go on."""
        if not self._pending:
            return Cursor(self._next, dict(self._counts))
        first = min(self._pending, key=lambda pending: pending.ledger_id)
        return Cursor(first.ledger_id, dict(first.counts_before))

    async def run(self, start: Cursor) -> Mapping[str, int]:
        """Look at every ledger from the cursor on; returns the counts of the whole pass."""
        self._next, self._counts = start.next_ledger, Counter(start.counts)
        async with aclosing(read_ahead(self._ids(start.next_ledger), self._look, self._window)) as looks:
            async for ledger_id, look in looks:
                if look.suspects:
                    due = self._loop.time() + self._second_look_s
                    self._pending.append(_Pending(ledger_id, look.suspects, due, self._counts.copy()))
                self._counts.update(look.counts)
                self._next = ledger_id + 1
                await self._second_looks(all_of_them=False)
                await self._save_now_and_then()
        await self._second_looks(all_of_them=True)
        return {**self._counts, **await self._check.finish()}

    async def _look(self, ledger_id: int) -> tuple[int, Look]:
        await self._enabled.wait()
        return ledger_id, await self._check.look(ledger_id)

    async def _second_looks(self, *, all_of_them: bool) -> None:
        while self._pending:
            wait = self._pending[0].due - self._loop.time()
            if wait > 0:
                if not all_of_them and len(self._pending) < MAX_PENDING:
                    return
                await asyncio.sleep(wait)
            await self._enabled.wait()
            await self._second_look(self._pending[0])
            await self._save_now_and_then()

    async def _second_look(self, pending: _Pending) -> None:
        look = await self._check.look_again(pending.ledger_id, pending.suspects)
        self._pending.popleft()
        if look.later and pending.looks < MAX_LOOKS:
            pending.looks += 1
            pending.due = self._loop.time() + self._second_look_s
            self._pending.append(pending)
            return
        counts = {**look.counts, "locked": 1} if look.later else look.counts
        for other in self._pending:
            if other.ledger_id > pending.ledger_id:
                other.counts_before.update(counts)
        self._counts.update(counts)

    async def _save_now_and_then(self) -> None:
        if self._loop.time() - self._saved_at >= SAVE_SECONDS:
            self._saved_at = self._loop.time()
            await self._save(self.cursor)
