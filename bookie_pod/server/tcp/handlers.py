"""The work of each request, in terms of the ledgers; neutral of the wire version.

Invariants
- Every handler answers its reply exactly once, or leaves that to a call-back; none raises for what a client can do.
- Version and authentication were checked before.

Threads: event loop only; what may touch a disk runs on a lane.

Source: docs/internals/wire-protocol.md, section 8.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bookie_pod.server.tcp import lane_reads
from bookie_pod.server.tcp.connection_stalls import Stall
from bookie_pod.server.tcp.context import ServerContext
from bookie_pod.server.tcp.long_poll import LongPolls
from bookie_pod.server.tcp.metadata_questions import Asker, MetadataQuestions, refused_as
from bookie_pod.server.tcp.parked_adds import ParkedAdds
from bookie_pod.server.tcp.read_lanes import ReadLanes
from bookie_pod.server.tcp.reads import Reads
from bookie_pod.server.tcp.requests import AddRequest, BatchReadRequest, ReadRequest, Reply
from bookie_pod.server.tcp.wire import Wire
from bookie_pod.storage.files import storage_fault
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import (
    BadRequest,
    BookieReadOnly,
    LedgerFenced,
    LedgerStateUnknown,
    NoSuchEntry,
    NoSuchLedger,
    NotThere,
    PodkeeperError,
    StorageFault,
    TooManyRequests,
)
from bookie_protocol.wire.availability import encode_availability

DiskSpace = Callable[[], tuple[int, int]]
"""Total and free bytes over the distinct file systems of the ledger directories."""

_Admit = Callable[[Wire, AddRequest, Reply], None]


class RequestHandlers:
    """One per bookie."""

    def __init__(
        self, context: ServerContext, reads: Reads, polls: LongPolls, lanes: ReadLanes, disk_space: DiskSpace
    ) -> None:
        self._context = context
        self._operations = context.operations
        self._ledgers = context.operations.ledgers
        self._storage = context.storage
        self._admission = context.admission
        self.reads = reads
        self._polls = polls
        self._lanes = lanes
        self._disk_space = disk_space
        self.questions: MetadataQuestions | None = None
        """None: there is no metadata service to ask."""

    # --- writing --------------------------------------------------------------------------------------------

    def add(self, wire: Wire, request: AddRequest, reply: Reply) -> None:
        """Admit an add, or park it while there is no room; if the metadata service has to be asked, after that."""
        parked = wire.parked
        if parked and parked.holds(request.ledger_id):
            self._add(wire, request, reply)  # it waits behind others, and may ask when it leaves
        else:
            self._when_open(wire, request, reply, self._add)

    def _when_open(self, wire: Wire, request: AddRequest, reply: Reply, go_on: _Admit) -> None:
        questions, life = self.questions, request.life
        if questions is None or not questions.must_ask(request.ledger_id, life):
            go_on(wire, request, reply)
            return

        def over() -> None:
            if request.recovery:
                try:
                    self._ledgers.create_fenced(request.ledger_id, request.key)
                except PodkeeperError as error:
                    self._refuse_add(error, reply)
                else:
                    go_on(wire, request, reply)
            else:
                self._refuse_add(refused_as(LedgerFenced, request.ledger_id), reply)

        def gone() -> None:
            if request.recovery and life:
                self._refuse_add(refused_as(NoSuchLedger, request.ledger_id), reply)
            else:
                over()

        def refuse(error: PodkeeperError) -> None:
            self._refuse_add(error, reply)

        try:
            self._check_before_question(request.ledger_id, request.key, life, high_priority=request.high_priority)
        except PodkeeperError as error:
            refuse(error)
            return
        admit = partial(go_on, wire, request, reply)
        asker = Asker(wire, request.key, len(request.entry), request.entry_id, admit, over, gone, refuse)
        questions.when_open(request.ledger_id, life, asker)

    def _check_before_question(self, ledger_id: int, key: bytes, life: bytes, *, high_priority: bool) -> None:
        """Raise what costs no question: each of those is a request to the metadata service, which a client causes.

        A key that is stored may be another ledger's, or a stranger's, if a life is named: the answer tells.
        """
        self._check_mode(ledger_id, high_priority=high_priority)
        if not life:
            self._ledgers.check_key(ledger_id, key)

    def _check_mode(self, ledger_id: int, *, high_priority: bool) -> None:
        if self._admission.refuses(high_priority=high_priority):
            raise BookieReadOnly(f"ledger {ledger_id}: this bookie is read-only")

    def _add(self, wire: Wire, request: AddRequest, reply: Reply) -> None:
        try:
            self._check_mode(request.ledger_id, high_priority=request.high_priority)
            parked = wire.parked
            if not self._admission.has_room(request.ledger_id) or (parked and parked.holds(request.ledger_id)):
                self._parked_adds_of(wire).park(request, reply)
                return
        except PodkeeperError as error:
            self._refuse_add(error, reply)
            return
        self._admit(wire, request, reply)

    def _admit(self, wire: Wire, request: AddRequest, reply: Reply) -> None:
        deferred = request.deferred_sync and not request.recovery
        if deferred:
            wire.submit_lanes()
        try:
            lane = self._operations.add(
                wire.lanes,
                request.ledger_id,
                request.entry_id,
                request.lac,
                request.key,
                request.entry,
                recovery=request.recovery,
                life=request.life,
            )
        except PodkeeperError as error:
            self._refuse_add(error, reply)
            return
        lane.answers.append(reply.added())
        if (joined := reply.joined) is not None:
            lane.joined += (joined,)
        lane.counted += 1
        self._admission.started(1)
        if deferred:
            wire.submit_lanes(sync=False)

    def _refuse_add(self, error: PodkeeperError, reply: Reply) -> None:
        if isinstance(error, TooManyRequests):
            self._context.metrics.add_rejected()
        self._context.metrics.add_refused(0.0)
        reply.error(error)

    def _parked_adds_of(self, wire: Wire) -> ParkedAdds:
        if wire.parked is None:
            config, memory = self._context.config, self._context.memory

            def on_change(stop: bool) -> None:
                wire.stall(Stall.ADDS_PARKED) if stop else wire.unstall(Stall.ADDS_PARKED)

            def hold(nbytes: int) -> None:
                wire.share.hold(nbytes)
                if nbytes < 0:
                    self._context.frame_rooms.given_back()

            wire.parked = ParkedAdds(
                self._admission,
                self._context.loop,
                adds_max=config.threads.max_pending_adds,
                timeout_ms=config.db_storage.max_throttle_time_ms,
                # While it was parked its ledger may have been deleted here.
                admit=lambda request, reply: self._when_open(wire, request, reply, self._admit),
                refuse=self._refuse_add,
                waited=self._context.metrics.add_waited,
                on_change=on_change,
                on_admitted=wire.submit_lanes,
                hold=hold,
                is_short=lambda: memory.total > memory.most_kept,
            )
        return wire.parked

    def write_lac(self, wire: Wire, ledger_id: int, key: bytes, life: bytes, packet: bytes, reply: Reply) -> None:
        """Store an explicit LAC; answered when it is durable."""
        questions = self.questions
        if questions is None or not questions.must_ask(ledger_id, life):
            self._write_lac(wire, ledger_id, key, life, packet, reply)
            return
        try:
            self._check_before_question(ledger_id, key, life, high_priority=False)
        except PodkeeperError as error:
            reply.error(error)
            return

        def over() -> None:
            reply.error(refused_as(NoSuchLedger, ledger_id))

        def go_on() -> None:
            self._write_lac(wire, ledger_id, key, life, packet, reply)

        asker = Asker(wire, key, len(packet), None, go_on, over, over, reply.error)
        questions.when_open(ledger_id, life, asker)

    def _write_lac(self, wire: Wire, ledger_id: int, key: bytes, life: bytes, packet: bytes, reply: Reply) -> None:
        try:
            self._check_mode(ledger_id, high_priority=False)
            done = self._special(wire, reply, reply.lac_written)
            self._operations.write_lac(ledger_id, key, packet, done, life=life)
        except PodkeeperError as error:
            reply.error(error)
        else:
            self._context.specials_in_progress += 1

    def force(self, wire: Wire, ledger_id: int, reply: Reply) -> None:
        """Answer when everything journaled before is durable."""
        self._context.metrics.forced()
        try:
            self._operations.force(ledger_id, self._special(wire, reply, reply.forced))
        except PodkeeperError as error:
            reply.error(error)
        else:
            self._context.specials_in_progress += 1

    def _special(self, wire: Wire, reply: Reply, answer: Callable[[], None]) -> Callable[[BaseException | None], None]:
        """Return the callback for when the journal has a special record.

        The adds that came before it go into the journal first.
        """
        wire.submit_lanes()

        def done(error: BaseException | None) -> None:
            self._context.specials_in_progress -= 1
            if error is None:
                answer()

        return done

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, wire: Wire, request: ReadRequest, reply: Reply) -> None:
        if request.fence_key is not None:
            wire.submit_lanes()  # the ledger's key record may be among them
            self.reads.read(request, reply)
        elif request.previous_lac is not None:
            self._polls.poll(request, reply, wire)
        else:
            self.reads.read(request, reply)

    def read_batch(self, wire: Wire, request: BatchReadRequest, reply: Reply) -> None:
        if request.fence_key is not None:
            wire.submit_lanes()
        self.reads.read_batch(request, reply)

    def read_lac(self, ledger_id: int, reply: Reply) -> None:
        """The explicit LAC packet and the last stored entry, each if there is one."""
        try:
            state = self._ledgers.for_read(ledger_id)
        except NoSuchLedger:
            reply.lac_read(NoSuchEntry(f"ledger {ledger_id} is not stored here"), None, None)
            return
        packet = state.explicit_lac or None

        def answer(last_entry: Any, error: BaseException | None) -> None:
            record = self._storage.ledger(ledger_id)
            limbo = record is not None and record.limbo
            reply.lac_read(_read_lac_status(packet, error, limbo), packet, last_entry)

        self._on_lane(ledger_id, lambda: self.reads.on_lane_read(ledger_id, LAST_ENTRY), answer, reply)

    def entry_list(self, ledger_id: int, reply: Reply) -> None:
        """Answer with the ids of all entries of the ledger that are stored here, memory included.

        A ledger in limbo has no such list: a reader that took it for complete would miss entries that exist.
        """

        def answer(availability: Any, error: BaseException | None) -> None:
            reply.error(error) if error is not None else reply.entry_list(availability)

        longest = self._context.max_entry_bytes  # a client takes no larger frame, and closes its connection

        def work() -> bytes:
            try:
                availability = encode_availability(self._storage.entry_ids(ledger_id), longest)
            except BadRequest as error:
                raise StorageFault(f"ledger {ledger_id}: {error}") from None
            record = self._storage.ledger(ledger_id)
            if record is not None and record.limbo:
                raise LedgerStateUnknown(f"ledger {ledger_id} is in limbo: entries of it may have been lost here")
            return availability

        try:
            self._ledgers.for_read(ledger_id)
        except NoSuchLedger as error:
            reply.error(error)
            return
        self._on_lane(ledger_id, work, answer, reply, 2 * longest)  # as much as its encoding may take meanwhile

    def bookie_info(self, *, total: bool, free: bool, reply: Reply) -> None:
        def answer(space: Any, error: BaseException | None) -> None:
            if error is not None:
                what = "disk space of the ledger directories"
                reply.error(storage_fault(what, error) if isinstance(error, OSError) else error)
            else:
                reply.bookie_info(space[0] if total else None, space[1] if free else None)

        self._on_lane(0, self._disk_space, answer, reply)

    def _on_lane(
        self,
        ledger_id: int,
        work: Callable[[], Any],
        answer: Callable[[Any, BaseException | None], None],
        reply: Reply,
        most: int = 0,
    ) -> None:
        try:
            lane_reads.run(self._lanes, ledger_id, work, answer, reply, most)
        except TooManyRequests as error:
            answer(None, error)


def _read_lac_status(packet: bytes | None, error: BaseException | None, limbo: bool) -> BaseException | None:
    """READ_LAC's status: what is missing matters only if both are, but doubt always shows.

    The reference reports a missing last entry beside an explicit LAC as an I/O error; clients take the packet all
    the same, so this does too.
    """
    if error is None:
        return None
    if not isinstance(error, NotThere):
        return error
    if packet is None:
        return NoSuchEntry("neither an explicit LAC nor an entry is stored here")
    return LedgerStateUnknown("the ledger is in limbo") if limbo else StorageFault("no entry is stored beside the LAC")
