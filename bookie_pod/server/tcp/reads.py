"""Reading: single entries, the last entry, batches, with or without fencing.

Invariants
- What a cache holds is answered at once on the event loop; everything else runs on a read lane.
- Reads of the traffic class `batch` run on the lanes of that class, cached or not, and leave the caches as they are.
- A fencing read is answered, with its entry or with the read's error, only after the fence is durable (the reference
  implementation answers a failed read without waiting; that is not copied).
- No digest goes with the LAC of an answer, so the LAC of an entry's header is sent only if it can be right: a header
  that names its own entry or a later one is damaged, and would lead a reader beyond what is confirmed.
- `NoSuchEntry` and `NoSuchLedger` come from the storage alone.

Threads: event loop, but for the functions that start with `_on_lane`.

Source: docs/internals/wire-protocol.md, sections 3.6, 8.2 and 8.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from bookie_pod.ledgers.operations import LedgerOperations
from bookie_pod.ledgers.state import LAC_NONE, LedgerState
from bookie_pod.server.tcp import lane_reads
from bookie_pod.server.tcp.lane_reads import TOGETHER, LaneReads, PlainRead, ReadDialect
from bookie_pod.server.tcp.read_lanes import BatchPace, ReadLanes
from bookie_pod.server.tcp.requests import BatchReadRequest, ReadRequest, Reply
from bookie_pod.server.tcp.wire import Wire
from bookie_protocol.entry import LAST_ENTRY, carried_lac
from bookie_protocol.errors import BadRequest, LedgerStateUnknown, NotThere, PodkeeperError, StorageFault
from bookie_protocol.keys import NO_LIFE

BATCH_HEADER_BYTES: Final = 36
"""Header, request id and length word, as the reference counts them against a batch read's size limit."""
RUN: Final = 4096
"""Entries that memory is asked for together: no other thread runs meanwhile, the event loop neither."""
_COUNT_UNLIMITED: Final = 2**31 - 1
_ONE_LAST: Final = range(LAST_ENTRY, LAST_ENTRY + 1)

Answer = Callable[[Any, BaseException | None], None]
ReadRun = Callable[[int, range, int], list[bytes]]
"""Entries of a ledger from one on, at least that one: ledger, entry, most entries, about how many bytes at most."""


class Reads:
    """Read requests of every connection."""

    def __init__(
        self,
        operations: LedgerOperations,
        lanes: ReadLanes,
        high_priority_lanes: ReadLanes,
        max_batch_bytes: int,
        batch_class_lanes: ReadLanes | None = None,
    ) -> None:
        """Make the reads; without `batch_class_lanes`, reads of that class run on `lanes`."""
        self._operations = operations
        self._ledgers = operations.ledgers
        self._storage = operations.storage
        self._lanes = lanes
        self._high_priority_lanes = high_priority_lanes
        self._batch_class_lanes = batch_class_lanes or lanes
        self._max_batch_bytes = max_batch_bytes
        self.batch_pace = (batch_class_lanes and batch_class_lanes.pace) or BatchPace()
        """The pace that counts reads of that class, wherever they run."""

    def read(self, request: ReadRequest, reply: Reply) -> None:
        """An ordinary or a fencing read."""
        if request.fence_key is not None:
            self._fencing(
                request.ledger_id,
                request.fence_key,
                self._read_work(request),
                self._entry_answer(reply),
                reply,
                life=request.life,
            )
            return
        try:
            state = self._ledgers.for_read(request.ledger_id)
            apart = _is_apart(request)
            if not apart and request.entry_id >= 0 and (state.lac_known or not request.wants_lac):
                body = self._storage.cached(request.ledger_id, request.entry_id)
                if body is not None:
                    reply.entry(body, max_lac=state.lac)
                    return
            answer = self._entry_answer(reply, state if request.wants_lac else None)
            work = self._read_work(request, state, apart=apart)
            lane_reads.run(self._lanes_for(request), request.ledger_id, work, answer, reply)
        except PodkeeperError as error:
            reply.error(error)

    def read_run(
        self,
        wire: Wire,
        dialect: ReadDialect,
        state: LedgerState,
        reads: Sequence[PlainRead],
        *,
        high_priority: bool,
    ) -> None:
        """Ordinary reads of single entries of one ledger, which memory did not answer when it was looked at."""
        lanes = self._high_priority_lanes if high_priority else self._lanes
        for first in range(0, len(reads), TOGETHER):
            its = reads[first : first + TOGETHER]
            LaneReads(wire, lanes, self._storage.read_each, dialect, state, its).begin()

    def read_batch(self, request: BatchReadRequest, reply: Reply) -> None:
        """Consecutive entries, or every so many-th, as many as count and size allow, at least one if it exists."""
        if request.step < 1 or (request.step > 1 and request.first_entry_id < 0):
            reply.error(BadRequest(f"a batch read from entry {request.first_entry_id} on with step {request.step}"))
            return
        apart = _is_apart(request)
        most = min(request.max_size, self._max_batch_bytes)

        def work() -> list[bytes]:
            if not apart:
                return self._on_lane_batch(request, self._on_lane_run)
            entries = self._on_lane_batch(request, self._on_lane_apart)
            self.batch_pace.has_read(len(entries), sum(map(len, entries)))
            return entries

        def answer(entries: Any, error: BaseException | None) -> None:
            reply.error(error) if error is not None else reply.batch(entries)

        if request.fence_key is not None:
            self._fencing(request.ledger_id, request.fence_key, work, answer, reply, most)
            return
        try:
            self._ledgers.for_read(request.ledger_id)
            lane_reads.run(self._lanes_for(request), request.ledger_id, work, answer, reply, most)
        except PodkeeperError as error:
            reply.error(error)

    def _lanes_for(self, request: ReadRequest | BatchReadRequest) -> ReadLanes:
        if request.high_priority:
            return self._high_priority_lanes
        return self._batch_class_lanes if request.batch_class else self._lanes

    def _read_work(
        self, request: ReadRequest, state: LedgerState | None = None, *, apart: bool = False
    ) -> Callable[[], tuple[bytes, int | None]]:
        """Return work for the lane: it returns the entry, and the last entry's LAC if that is wanted and unknown."""
        ledger_id, entry_id = request.ledger_id, request.entry_id
        wants_lac = request.wants_lac and state is not None and not state.lac_known

        def work() -> tuple[bytes, int | None]:
            if apart:
                body = self._on_lane_apart(ledger_id, range(entry_id, entry_id + 1), 0)[0]
                self.batch_pace.has_read(1, len(body))
            else:
                body = self.on_lane_read(ledger_id, entry_id)
            return body, self.on_lane_last_lac(ledger_id, apart=apart) if wants_lac else None

        return work

    def on_lane_last_lac(self, ledger_id: int, *, apart: bool = False) -> int | None:
        """Return the LAC that the last stored entry carries; None if that cannot be determined now (damage, limbo)."""
        try:
            if apart:
                return carried_lac(self._on_lane_apart(ledger_id, _ONE_LAST, 0)[0])
            return carried_lac(self.on_lane_read(ledger_id, LAST_ENTRY))
        except NotThere:
            return LAC_NONE
        except PodkeeperError:
            return None

    def _entry_answer(self, reply: Reply, state: LedgerState | None = None) -> Answer:
        def answer(result: Any, error: BaseException | None) -> None:
            if error is not None:
                reply.error(error)
                return
            body, last_lac = result
            if state is None:
                reply.entry(body)
                return
            if last_lac is not None:
                state.learn_lac(last_lac)
            # If the last entry cannot be read, this one still says how far the ledger is confirmed at least.
            reply.entry(body, max_lac=state.lac if state.lac_known else max(state.lac, _lac_at_least(body)))

        return answer

    def _fencing(
        self,
        ledger_id: int,
        key: bytes,
        work: Callable[[], Any],
        answer: Answer,
        reply: Reply,
        most: int = 0,
        life: bytes = NO_LIFE,
    ) -> None:
        """Fence now, read on a high-priority lane, answer when both are done."""
        try:
            durable = self._operations.fence(ledger_id, key, life)
        except PodkeeperError as error:
            reply.error(error)
            return

        def read_done(result: Any, error: BaseException | None) -> None:
            reply.entry_read(success=error is None)
            durable.add_done_callback(lambda fence: _after_fence(fence, ledger_id, result, error, answer, reply))

        try:
            lane_reads.run(self._high_priority_lanes, ledger_id, work, read_done, reply, most)
        except PodkeeperError as error:
            read_done(None, error)

    def on_lane_read(self, ledger_id: int, entry_id: int) -> bytes:
        if entry_id == LAST_ENTRY:
            entry_id = self._storage.last_entry_id(ledger_id)
        return self._storage.read(ledger_id, entry_id)

    def _on_lane_run(self, ledger_id: int, ids: range, max_bytes: int) -> list[bytes]:
        """Return at least the first of these entries, and those behind it that memory has, or that come with it."""
        run = self._storage.cached_run(ledger_id, ids[:RUN]) if ids.start >= 0 else []
        if run:
            return run
        if ids.step > 1:
            return _up_to_a_fault(self._storage.read_each(ledger_id, ids[:TOGETHER]), max_bytes)
        return [self.on_lane_read(ledger_id, ids.start)]

    def _on_lane_apart(self, ledger_id: int, ids: range, max_bytes: int) -> list[bytes]:
        """The same for the class `batch`: what comes from disk is not kept."""
        if ids.step > 1:
            return _up_to_a_fault(self._storage.read_each(ledger_id, ids[:TOGETHER], apart=True), max_bytes)
        first = ids.start
        if first == LAST_ENTRY:
            first = self._storage.last_entry_id(ledger_id)
        return self._storage.read_apart(ledger_id, first, len(ids), max_bytes)

    def _on_lane_batch(self, request: BatchReadRequest, read_run: ReadRun) -> list[bytes]:
        """Return the selection rule of the reference, so that batches have the same sizes."""
        ledger_id, first, step = request.ledger_id, request.first_entry_id, request.step
        limit = min(request.max_size, self._max_batch_bytes)
        count = request.max_count if request.max_count > 0 else _COUNT_UNLIMITED
        entry = read_run(ledger_id, range(first, first + 1, step), 0)[0]
        entries = [entry]
        frame = BATCH_HEADER_BYTES + len(entry) + 4
        most = 1 + max(0, limit - frame) // max(1, len(entry) + 4)
        # There is no id behind the last one.
        count = min(count, most, (self._storage.max_entry_id - first) // step + 1)
        for run in _following(read_run, ledger_id, range(first + step, first + count * step, step), limit - frame):
            frame += sum(map(len, run)) + 4 * len(run)
            entries += run
            if frame > limit:
                break
        while frame > limit and len(entries) > 1:
            frame -= len(entries.pop()) + 4
        return entries


def _is_apart(request: ReadRequest | BatchReadRequest) -> bool:
    """Return whether the read is of the class `batch`; a read that others wait for is not."""
    return request.batch_class and request.fence_key is None and not request.high_priority


def _following(read_run: ReadRun, ledger_id: int, ids: range, max_bytes: int) -> Iterator[list[bytes]]:
    """Runs of these entries until one cannot be read."""
    while ids:
        try:
            run = read_run(ledger_id, ids, max_bytes)
        except (NotThere, LedgerStateUnknown, StorageFault):
            return
        yield run
        ids = ids[len(run) :]
        max_bytes -= sum(map(len, run))


def _up_to_a_fault(found: Iterator[bytes | Exception], max_bytes: int) -> list[bytes]:
    """The entries in front of the first that cannot be read, about `max_bytes` of them; raises if there are none."""
    entries: list[bytes] = []
    for entry in found:
        if not isinstance(entry, bytes):
            if not entries:
                try:
                    raise entry
                finally:
                    del entry  # else it would hold this frame, which holds it, until the collector of cycles comes
            break
        entries.append(entry)
        max_bytes -= len(entry)
        if max_bytes < 0:
            break
    return entries


def _lac_at_least(entry: bytes) -> int:
    lac = carried_lac(entry)
    return LAC_NONE if lac is None else lac


def _after_fence(
    fence: asyncio.Future[None],
    ledger_id: int,
    result: Any,
    error: BaseException | None,
    answer: Answer,
    reply: Reply,
) -> None:
    durable = not fence.cancelled() and fence.exception() is None
    reply.fenced(success=durable)
    if not durable:
        answer(None, StorageFault(f"ledger {ledger_id}: the fence could not be made durable"))
    else:
        answer(result, error)
