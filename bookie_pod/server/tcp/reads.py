"""Reading: single entries, the last entry, batches, with or without fencing.

Invariants
- What a cache holds is answered at once on the event loop; everything else runs on a read lane.
- A fencing read is answered, with its entry or with the read's error, only after the fence is durable (the reference
  implementation answers a failed read without waiting; that is not copied).
- No digest goes with the LAC of an answer, so that of an entry's header is told only if it can be right: a header that
  names its own entry or a later one is damaged, and would lead a reader beyond what is confirmed.
- `NoSuchEntry` and `NoSuchLedger` come from the storage alone.

Threads: event loop, but for the functions that start with `_on_lane`.

Source: reference wire protocol, sections 3.6, 8.2 and 8.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final

from bookie_pod.ledgers.operations import LedgerOperations
from bookie_pod.ledgers.state import LAC_NONE, LedgerState
from bookie_pod.server.tcp.read_lanes import ReadLanes
from bookie_pod.server.tcp.requests import BatchReadRequest, ReadRequest, Reply
from bookie_protocol.entry import LAST_ENTRY, carried_lac
from bookie_protocol.errors import BookieUnavailable, NotThere, PodkeeperError, StorageFault

BATCH_HEADER_BYTES: Final = 36
"""Header, request id and length word, as the reference counts them against a batch read's size limit."""
_COUNT_UNLIMITED: Final = 2**31 - 1

Answer = Callable[[Any, BaseException | None], None]


class Reads:
    """Read requests of every connection."""

    def __init__(
        self,
        operations: LedgerOperations,
        lanes: ReadLanes,
        high_priority_lanes: ReadLanes,
        max_batch_bytes: int,
    ) -> None:
        self._operations = operations
        self._ledgers = operations.ledgers
        self._storage = operations.storage
        self._lanes = lanes
        self._high_priority_lanes = high_priority_lanes
        self._max_batch_bytes = max_batch_bytes

    def read(self, request: ReadRequest, reply: Reply) -> None:
        """An ordinary or a fencing read."""
        if request.fence_key is not None:
            self._fencing(
                request.ledger_id,
                request.fence_key,
                self._read_work(request, reply),
                self._entry_answer(reply),
                reply,
            )
            return
        try:
            state = self._ledgers.for_read(request.ledger_id)
            if request.entry_id >= 0 and (state.lac_known or not request.wants_lac):
                body = self._storage.cached(request.ledger_id, request.entry_id)
                if body is not None:
                    reply.entry(body, max_lac=state.lac)
                    return
            answer = self._entry_answer(reply, state if request.wants_lac else None)
            lanes = self._high_priority_lanes if request.high_priority else self._lanes
            lanes.run(request.ledger_id, self._read_work(request, reply, state), answer)
        except PodkeeperError as error:
            reply.error(error)

    def read_batch(self, request: BatchReadRequest, reply: Reply) -> None:
        """Consecutive entries, as many as count and size allow, at least one if it exists."""

        def work() -> list[bytes]:
            _stop_if_gone(reply)
            return self._on_lane_batch(request)

        def answer(entries: Any, error: BaseException | None) -> None:
            reply.error(error) if error is not None else reply.batch(entries)

        if request.fence_key is not None:
            self._fencing(request.ledger_id, request.fence_key, work, answer, reply)
            return
        try:
            self._ledgers.for_read(request.ledger_id)
            lanes = self._high_priority_lanes if request.high_priority else self._lanes
            lanes.run(request.ledger_id, work, answer)
        except PodkeeperError as error:
            reply.error(error)

    def _read_work(
        self, request: ReadRequest, reply: Reply, state: LedgerState | None = None
    ) -> Callable[[], tuple[bytes, int | None]]:
        """What runs on the lane: the entry, and the LAC of the last one if it is asked for and not known yet."""
        ledger_id, entry_id = request.ledger_id, request.entry_id
        wants_lac = request.wants_lac and state is not None and not state.lac_known

        def work() -> tuple[bytes, int | None]:
            _stop_if_gone(reply)
            body = self.on_lane_read(ledger_id, entry_id)
            return body, self.on_lane_last_lac(ledger_id) if wants_lac else None

        return work

    def on_lane_last_lac(self, ledger_id: int) -> int | None:
        """The LAC that the last stored entry carries; None if that cannot be told now (damage, limbo)."""
        try:
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

    def _fencing(self, ledger_id: int, key: bytes, work: Callable[[], Any], answer: Answer, reply: Reply) -> None:
        """Fence now, read on a high-priority lane, answer when both are done."""
        try:
            _, durable = self._operations.fence(ledger_id, key)
        except PodkeeperError as error:
            reply.error(error)
            return

        def read_done(result: Any, error: BaseException | None) -> None:
            reply.entry_read(success=error is None)
            if durable is None:
                reply.fenced(success=True)
                answer(result, error)
            else:
                durable.add_done_callback(lambda fence: _after_fence(fence, ledger_id, result, error, answer, reply))

        try:
            self._high_priority_lanes.run(ledger_id, work, read_done)
        except PodkeeperError as error:
            read_done(None, error)

    def on_lane_read(self, ledger_id: int, entry_id: int) -> bytes:
        if entry_id == LAST_ENTRY:
            entry_id = self._storage.last_entry_id(ledger_id)
        return self._storage.read(ledger_id, entry_id)

    def _on_lane_batch(self, request: BatchReadRequest) -> list[bytes]:
        """The selection rule of the reference, so that batches have the same sizes."""
        ledger_id, first = request.ledger_id, request.first_entry_id
        limit = min(request.max_size, self._max_batch_bytes)
        count = request.max_count if request.max_count > 0 else _COUNT_UNLIMITED
        entry = self.on_lane_read(ledger_id, first)
        entries = [entry]
        frame = BATCH_HEADER_BYTES + len(entry) + 4
        count = min(count, 1 + max(0, limit - frame) // max(1, len(entry) + 4))
        for entry in self._on_lane_following(ledger_id, first + 1, count - 1):
            frame += len(entry) + 4
            if frame > limit:
                break
            entries.append(entry)
        return entries

    def _on_lane_following(self, ledger_id: int, first: int, count: int) -> Iterator[bytes]:
        """Entries `first`, `first + 1`, ... until one cannot be read: from memory in one go as far as it has them."""
        done = 0
        while done < count:
            run = self._storage.cached_run(ledger_id, first + done, count - done)
            yield from run
            done += len(run)
            if done < count:
                try:
                    yield self.on_lane_read(ledger_id, first + done)
                except (NotThere, StorageFault):
                    return
                done += 1


def _lac_at_least(entry: bytes) -> int:
    lac = carried_lac(entry)
    return LAC_NONE if lac is None else lac


def _stop_if_gone(reply: Reply) -> None:
    """Drop a read that waited on its lane until its connection was closed."""
    if reply.gone:
        raise BookieUnavailable("the connection that asked is closed")


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
