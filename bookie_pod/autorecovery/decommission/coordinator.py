"""Carries a decommission out, step by step, until it is done.

A bookie that is stopped is audited first, as the reference does. Where auto-recovery runs, its workers and the
coordinator then share the ledgers by their locks; where it does not, the coordinator copies alone.

Invariants
- What the next step is depends on the stored record alone, so any process may go on at any time; every step may be
  repeated.
- The record is stored before the effects of a phase and after what it claims happened.
- Faults of the metadata service or of bookies are waited out and shown (`Watched.waiting_for`); what a person has to
  settle is raised.
- Once the record is taken over, or is being undone, this coordinator ends and touches nothing more.

Threads: event loop. Cancelling stops it at any point; the decommission can be resumed.

Source: docs/internals/auto-recovery.md, sections 3.3, 8 and 13.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from bookie_pod.autorecovery.auditor.runs import trigger_audit
from bookie_pod.autorecovery.decommission.drain import (
    DrainMeter,
    DrainOptions,
    LedgerDrain,
    Unreadable,
    drain_all,
    one_line,
)
from bookie_pod.autorecovery.decommission.moving import ClientMover
from bookie_pod.autorecovery.decommission.presence import BookieAdmin, Presence, Vigil, make_read_only
from bookie_pod.autorecovery.decommission.proof import Proving, prove, refuse_renamed, remove_cookie
from bookie_pod.autorecovery.decommission.state import (
    DecommissionRecord,
    Drained,
    Form,
    FormChanged,
    Phase,
    Quiesced,
    Quiescing,
    SeenWritable,
)
from bookie_pod.autorecovery.decommission.store import (
    DecommissionRequest,
    DecommissionStore,
    HeldRecord,
    TakenOver,
    now_ms,
)
from bookie_pod.autorecovery.decommission.survey import Claims, survey
from bookie_protocol.errors import CouldNotTell, Refused
from bookie_protocol.logs import get_logger
from bookie_protocol.metadata_service.interface import Identity
from bookie_protocol.metadata_service.tree.service import MetadataService

_log = get_logger(__name__)

NOTE_S: Final = 5.0
"""Seconds between two notes of the progress in the record."""
KEPT: Final = (
    "ledgers whose loss was accepted cannot be moved, but the bookie is up and can give their entries, so they are not"
    " given up: add a bookie; or stop this one, and they are"
)
SURVEY_S: Final = 600.0
"""Seconds after which the ledgers are listed again although some are still blocked."""


@dataclass(slots=True)
class Watched:
    """The state that a coordinator shows while it works; changed on the event loop."""

    record: DecommissionRecord | None = None
    meter: DrainMeter | None = None
    ledgers_read: int = 0
    """Ledgers read by the listing under way, or the last one."""
    waiting_for: str = ""
    """A fault that is waited out; empty: none."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a coordinator works with. `required`: refuse a bookie that is found in the other form."""

    service: MetadataService
    mover: ClientMover
    admin: BookieAdmin
    options: DrainOptions = field(default_factory=DrainOptions)
    required: Form | None = None
    on_step: Callable[[Phase], None] = lambda phase: None
    """Called with every phase before its work begins."""
    clock_ms: Callable[[], int] = now_ms
    """The time of day for the record."""


class Coordinator:
    """Works on one decommission. `watched` may be read at any time."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._service = parts.service
        self._store = DecommissionStore(parts.service, parts.clock_ms)
        self._claims = Claims(parts.service)
        self._cookie: Identity | None = None
        """The cookie that this coordinator's own proof was made for."""
        self._told_kept = False
        self.watched = Watched()
        self.begun = asyncio.Event()
        """Set once the record is this coordinator's."""

    async def run(self, request: DecommissionRequest) -> DecommissionRecord:
        """Begin or resume, and go on to the end; returns the final record.

        Raises `Refused` (the bookie is writable and cannot be made read-only; it is not in the required form),
        `TakenOver`, and for the first steps `MetadataUnavailable`.
        """
        async with Vigil(self._service, request.bookie_id, self._parts.options.settle) as vigil:
            presence = await vigil.check()
            await self._check_form(presence)
            await refuse_renamed(self._service, request.bookie_id)
            held = await self._store.begin(replace(request, was_writable=presence is Presence.WRITABLE))
            self.watched.record = held.record
            self.begun.set()
            notes = asyncio.get_running_loop().create_task(self._take_notes(held))
            work = asyncio.get_running_loop().create_task(self._work(held, vigil))
            try:
                await asyncio.wait((work, notes), return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    await notes  # raises: another coordinator has the record
                return await work
            finally:
                for task in (work, notes):
                    task.cancel()
                await asyncio.wait((work, notes))
                with suppress(asyncio.CancelledError, Exception):
                    notes.exception()

    async def _check_form(self, presence: Presence) -> None:
        required = self._parts.required
        if required is Form.STOPPED and presence is not Presence.ABSENT:
            raise Refused(f"the bookie is registered ({presence.value}): stop it first, or drain it while it is up")
        if required is Form.LIVE and presence is Presence.ABSENT:
            raise Refused("the bookie is not registered: start it, or decommission it as a stopped one")

    async def _work(self, held: HeldRecord, vigil: Vigil) -> DecommissionRecord:
        drain = LedgerDrain(self._service, self._parts.mover, (held.record.bookie_id,), self._parts.options)
        return await self._steps(held, vigil, drain)

    async def _steps(self, held: HeldRecord, vigil: Vigil, drain: LedgerDrain) -> DecommissionRecord:
        while True:
            phase = held.phase
            self._parts.on_step(phase)
            _log.info("decommission", bookie=held.record.bookie_id, phase=phase.value)
            try:
                await self._step(held, vigil, drain)
                self.watched.waiting_for = ""
                if phase is Phase.DONE:
                    return held.record
            except CouldNotTell as error:
                await self._wait(one_line(error))
            self.watched.record = held.record

    async def _wait(self, reason: str) -> None:
        """Show what is waited for, until it is time to look again."""
        if self.watched.waiting_for != reason:
            self.watched.waiting_for = reason
            _log.warning("decommission waits", reason=reason)
        await asyncio.sleep(self._parts.options.retry_interval)

    async def _step(self, held: HeldRecord, vigil: Vigil, drain: LedgerDrain) -> None:
        match held.phase:
            case Phase.REQUESTED:
                await self._quiesce(held, vigil)
            case Phase.DRAINING:
                await self._drain(held, vigil, drain)
            case Phase.PROVING:
                record = held.record
                clock, end = self._store.clock_ms, drain.end_recovery
                parts = Proving(self._service, vigil, self._claims, end, self._wait, clock, self._count)
                event, self._cookie = await prove(parts, record.bookie_id, record.accepted_losses)
                await held.advance(event)
            case Phase.REMOVING:
                await held.advance(await remove_cookie(self._service, vigil, held.record, self._cookie))
            case Phase.DONE:
                await held.archive()
            case _:
                raise TakenOver(f"the decommission of {held.record.bookie_id} is {held.phase.value}")

    # --- no new data ------------------------------------------------------------------------------------------

    async def _quiesce(self, held: HeldRecord, vigil: Vigil) -> None:
        try:
            await refuse_renamed(self._service, held.record.bookie_id)  # a rename looks for this record
        except Refused:
            if held.record.form is None:
                await held.remove()  # nothing has happened
            raise
        presence = await vigil.check()
        if presence is Presence.ABSENT:
            await self._ask_for_audit()
        else:
            if presence is Presence.WRITABLE and not held.record.read_only_by_us:
                await held.advance(Quiescing())
            await held.note(held.record.progress)  # who was away for long may have been undone: then it stays writable
            await self._make_read_only(held, vigil, presence)
        vigil.reset()
        self._claims.reset()
        presence = await vigil.check()
        if not vigil.seen_writable:
            await held.advance(Quiesced(_form(presence)))

    async def _make_read_only(self, held: HeldRecord, vigil: Vigil, presence: Presence) -> None:
        record, admin = held.record, self._parts.admin
        try:
            await make_read_only(self._service, admin, record.bookie_id, presence, record.started_ms)
        except Refused:
            if await vigil.check() is not Presence.WRITABLE:
                return  # it was stopped meanwhile, or did it without an answer
            if held.record.form is None:
                await held.remove()  # nothing has happened
            raise

    async def _ask_for_audit(self) -> None:
        """The reference's first step for a stopped bookie; here a help only, the copies are made all the same."""
        try:
            await trigger_audit(self._service)
        except Refused as error:
            self.watched.notes.append(f"{error}; the coordinator copies alone")

    # --- draining ---------------------------------------------------------------------------------------------

    async def _drain(self, held: HeldRecord, vigil: Vigil, drain: LedgerDrain) -> None:
        loop, options = asyncio.get_running_loop(), self._parts.options
        meter = self.watched.meter = self.watched.meter or DrainMeter(loop.time)

        while True:
            found = await survey(self._service, held.record.bookie_id, progress=self._count, keep_unreadable=True)
            surveyed = loop.time()
            sizes = {ledger_id: ledger.nbytes for ledger_id, ledger in found.ledgers.items()}
            sizes |= dict.fromkeys(found.marks - found.ledgers.keys(), 0)
            meter.expect(sizes)
            await held.note(meter.progress())
            pending = set(sizes)
            while pending:
                if not await self._is_quiet(held, vigil):
                    return
                await drain_all(
                    sorted(pending), drain, meter, options.ledgers_at_once, stop=lambda: vigil.seen_writable
                )
                await held.note(meter.progress())
                pending = set(meter.blocked)
                if not pending - self._given_up(held.record, meter):
                    break
                await asyncio.sleep(options.retry_interval)
                if loop.time() - surveyed > SURVEY_S:
                    break
            if sizes.keys() <= self._given_up(held.record, meter):
                break
        if await self._is_quiet(held, vigil):
            await held.advance(Drained())

    def _given_up(self, record: DecommissionRecord, meter: DrainMeter) -> set[int]:
        """Return ledgers whose loss was accepted, and that could not be moved for minutes.

        A bookie that is up keeps what it can give: there is no haste.
        """
        given_up, kept = set[int](), set[int]()
        for ledger_id in record.accepted_losses:
            why = meter.lasting(ledger_id, self._parts.options.give_up_after)
            if why is not None:
                (given_up if record.form is Form.STOPPED or isinstance(why, Unreadable) else kept).add(ledger_id)
        if kept and not self._told_kept:
            self._told_kept = True
            self.watched.notes.append(KEPT)
        return given_up

    async def _is_quiet(self, held: HeldRecord, vigil: Vigil) -> bool:
        """Store what became of the bookie; whether the drain may go on."""
        presence = await vigil.check()
        if vigil.seen_writable:
            await held.advance(SeenWritable())
            return False
        if _form(presence) is not held.record.form:
            await held.advance(FormChanged(_form(presence)))
        return True

    # --- telling ----------------------------------------------------------------------------------------------

    def _count(self, ledgers: int) -> None:
        self.watched.ledgers_read = ledgers

    async def _take_notes(self, held: HeldRecord) -> None:
        """Ends only by raising `TakenOver`."""
        while True:
            await asyncio.sleep(NOTE_S)
            meter = self.watched.meter
            with suppress(CouldNotTell):
                if meter is not None:
                    await held.note(meter.progress())
                self.watched.record = held.record


def _form(presence: Presence) -> Form:
    return Form.STOPPED if presence is Presence.ABSENT else Form.LIVE
