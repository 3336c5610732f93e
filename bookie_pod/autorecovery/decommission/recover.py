"""Re-replicates everything that lost bookies held, by this very process: the reference's `recover`.

Unlike there, every ledger is worked on under its lock, so that neither workers nor the garbage collection of bookies
interfere, and a cookie goes only after a full listing showed that nothing names its bookie.

Invariants
- A ledger that is not closed and names one of the bookies in its last ensemble is recovered first, which fences its
  writer; with `skip_open` those in state OPEN are left alone.
- The first ledger that cannot be restored ends it, unless `skip_unrecoverable`; ledgers that another process has locked
  are waited for.

Threads: event loop.

Source: docs/internals/auto-recovery.md, section 9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

from bookie_pod.autorecovery.decommission.drain import DrainMeter, DrainOptions, LedgerDrain, Locked, drain_one
from bookie_pod.autorecovery.decommission.moving import ClientMover
from bookie_pod.autorecovery.decommission.proof import delete_unneeded_cookie
from bookie_pod.autorecovery.decommission.survey import all_ledgers, bytes_held, remedy_of
from bookie_protocol.errors import CouldNotTell, NotThere, Refused
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.together import bounded


@dataclass(frozen=True, slots=True)
class RecoverOptions:
    """The options of the reference's command; `ledger_id` None: all ledgers."""

    ledger_id: int | None = None
    skip_open: bool = False
    skip_unrecoverable: bool = False
    delete_cookies: bool = False
    drain: DrainOptions = field(default_factory=DrainOptions)


@dataclass(frozen=True, slots=True)
class FoundLedger:
    """A ledger that names a bookie. `nbytes`: an estimate of what the bookies hold of it."""

    ledger_id: int
    state: LedgerState
    bookies: frozenset[str]
    nbytes: int


@dataclass(slots=True)
class RecoverResult:
    """`skipped`: open ones that were left alone; `failed`: why others could not be restored."""

    restored: int = 0
    skipped: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    cookies_deleted: list[str] = field(default_factory=list)


async def find_ledgers(
    service: MetadataService,
    bookies: Collection[str],
    ledger_id: int | None = None,
    unreadable: dict[int, str] | None = None,
) -> list[FoundLedger]:
    """Return the ledgers that name one of these bookies, ascending.

    Ledgers that cannot be read are noted in `unreadable`; None: they raise. `MetadataNotFound`: there is no such
    ledger; `MetadataError`.
    """
    if ledger_id is not None:
        one = _found((await service.ledgers.read(ledger_id)).value, bookies)
        return [one] if one.bookies else []
    async with aclosing(all_ledgers(service, unreadable)) as ledgers:
        return [each async for metadata in ledgers if (each := _found(metadata, bookies)).bookies]


def _found(metadata: LedgerMetadata, bookies: Collection[str]) -> FoundLedger:
    named = metadata.all_bookies().intersection(bookies)
    nbytes = sum(bytes_held(metadata, bookie) for bookie in named)
    return FoundLedger(metadata.ledger_id, metadata.state, named, nbytes)


class Recover:
    """One run. `meter` and `result` may be read while it works."""

    def __init__(
        self, service: MetadataService, mover: ClientMover, bookies: Collection[str], options: RecoverOptions
    ) -> None:
        self._service = service
        self._bookies = frozenset(bookies)
        self._options = options
        self._drain = LedgerDrain(service, mover, bookies, replace(options.drain, open_grace=0.0, recover_open=True))
        self.meter = DrainMeter(asyncio.get_running_loop().time)
        self.result = RecoverResult()

    async def run(self, ledgers: Collection[FoundLedger] | None = None) -> RecoverResult:
        """Restore what `find_ledgers` found (None: find it). Raises `CouldNotTell` that names the first ledger that
        failed, `Refused` (a cookie cannot go), `MetadataError`."""
        options = self._options
        if ledgers is None:
            ledgers = await find_ledgers(self._service, self._bookies, options.ledger_id, self.result.failed)
        unreadable = dict(self.result.failed)
        todo = []
        for ledger in ledgers:
            if options.skip_open and ledger.state is LedgerState.OPEN:
                self.result.skipped.append(ledger.ledger_id)
            else:
                todo.append(ledger)
        self.meter.expect({ledger.ledger_id: ledger.nbytes for ledger in todo})
        await bounded((ledger.ledger_id for ledger in todo), self._restore, options.drain.ledgers_at_once)
        if unreadable and not options.skip_unrecoverable:
            raise CouldNotTell(remedy_of(*min(unreadable.items())))
        if options.delete_cookies:
            await self._delete_cookies()
        return self.result

    async def _restore(self, ledger_id: int) -> None:
        while isinstance(reason := await drain_one(ledger_id, self._drain, self.meter), Locked):  # noqa: ASYNC110 - a lock has no event
            await asyncio.sleep(self._options.drain.retry_interval)
        if reason is None:
            self.result.restored += 1
            return
        self.result.failed[ledger_id] = reason
        if not self._options.skip_unrecoverable:
            raise CouldNotTell(f"ledger {ledger_id} cannot be restored: {reason}")

    async def _delete_cookies(self) -> None:
        if self._options.ledger_id is not None or self.result.skipped or self.result.failed:
            raise Refused("cookies stay: not all ledgers were restored")
        for bookie_id in sorted(self._bookies):
            with suppress(NotThere):
                await delete_unneeded_cookie(self._service, bookie_id)
                self.result.cookies_deleted.append(bookie_id)
