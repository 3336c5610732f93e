"""Threads for what may touch a disk: one lane per thread, chosen by ledger id.

Invariants
- Work of one ledger runs in the order in which it was given, because a ledger always has the same lane.
- Each lane's queue is bounded by `pending_max` (0: not at all); beyond it `run` raises TooManyRequests and nothing is
  queued.
- A call-back that raises is logged, and costs no other client its answer.
- Results go back to the event loop in batches: one hop for everything that a lane finished within a short slice.
- A lane never dies: whatever the work raises is a result.
- Lanes with a `pace` begin a piece of work when it lets them; what is done meanwhile does not wait for that.
- `waited_s` tells for how long the work has been under way that its lane has now: waiting for its turn, or for the
  disk. It is what upkeep gives way to, so it is cheap to ask and never exact.

Reads of the traffic class `batch` are those of jobs, which may wait and must not make other clients wait.
- They run on lanes of their own (unless there are none), never on the event loop, whatever the caches hold: they
  overtake no read, and no other read queues behind them.
- While clients wait for the disks they go at a tenth of their speed: after a piece of work its lane rests for nine
  times as long, at most `REST_MAX_S`. The rest ends with the pressure.
- Giving way is bounded: a read that was given `PATIENCE_S` ago or earlier does not wait, so that it is answered long
  before its client gives it up. The limit in bytes per second is an operator's word and holds for it too.
- Every wait ends at once when the lanes are stopped.

Threads: `run` and the call-backs belong to the event loop, the work to `<name>-<n>`; any thread may ask `waited_s`.
`BatchPace` belongs to the lanes' threads; any thread may read its totals and stop it.

Source: docs/internals/wire-protocol.md, section 10.1; docs/internals/bookie-behaviour.md, section 1.2.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import structlog

from bookie_protocol.errors import TooManyRequests
from bookie_protocol.pace import Pace

Work = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]
_Item = tuple[float, Work, Done, int]
"""The time at which it was given (monotonic), the work, the callback for its result, and its number of reads."""
_Result = tuple[Done, Any, BaseException | None, int]

SLICE_S: Final = 0.001
"""A lane hands its results over at least this often while it has more to do, in seconds."""
REST_FACTOR: Final = 9.0
"""Seconds of rest for a second of work while clients wait: a tenth of the speed, as garbage collection has it."""
REST_MAX_S: Final = 0.25
PATIENCE_S: Final = 1.0
"""Seconds after which a read gives way no more; the clients' time-out of reads is 5 s."""
LOOK_S: Final = 0.01
"""Seconds between two looks of a resting lane at whether clients still wait."""
BURST_S: Final = 0.1
"""Seconds' worth of bytes that may be read at once after a pause, beside one piece of work."""

_log = structlog.get_logger(__name__)


class ReadLanes:
    """A fixed number of single-thread lanes."""

    def __init__(
        self,
        name: str,
        threads: int,
        pending_max: int,
        loop: asyncio.AbstractEventLoop,
        on_waited: Callable[[float], None] | None = None,
        pace: BatchPace | None = None,
    ) -> None:
        """`on_waited` hears on the lane's thread how many seconds a piece of work has waited for it."""
        self.pace = pace
        self._loop = loop
        self._on_waited = on_waited
        self._since: list[float | None] = [None] * threads
        """The time at which the work was given that each lane is at now."""
        self._pending_max = pending_max
        self._pending = [0] * threads
        self._queues: list[queue.SimpleQueue[_Item | None]] = [queue.SimpleQueue() for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._work, args=(index,), name=f"{name}-{index}", daemon=True)
            for index in range(threads)
        ]
        self.rejected = 0
        for thread in self._threads:
            thread.start()

    @property
    def pending(self) -> int:
        """Reads queued or running."""
        return sum(self._pending)

    @property
    def waited_s(self) -> float:
        """Seconds that what the slowest lane is at has been under way; 0: all are idle."""
        now = time.monotonic()
        return max((now - since for since in list(self._since) if since is not None), default=0.0)

    def steps(self) -> Iterator[tuple[str, object | None]]:
        """The threads, and what each is at: another one with each piece of work; None: it waits for some, or for its
        pace. Any thread."""
        for thread, since in zip(self._threads, self._since, strict=True):
            yield thread.name, since

    def room(self, ledger_id: int, wanted: int) -> int:
        """Return how many of `wanted` reads the ledger's lane would take now."""
        if not self._pending_max:
            return wanted
        return min(wanted, max(0, self._pending_max - self._pending[ledger_id % len(self._queues)]))

    def run(self, ledger_id: int, work: Work, done: Done, reads: int = 1) -> None:
        """Run `work`, which stands for so many reads, on the ledger's lane, then `done(result, error)` on the event
        loop. Raises TooManyRequests if there is no room for them."""
        if self.room(ledger_id, reads) < reads:
            self.rejected += reads
            raise TooManyRequests(f"ledger {ledger_id}: {self._pending_max} reads are waiting already")
        lane = ledger_id % len(self._queues)
        self._pending[lane] += reads
        self._queues[lane].put((time.monotonic(), work, done, reads))

    def stop(self) -> None:
        """Let each lane finish what it has and end. Blocks for as long as that takes."""
        if self.pace is not None:
            self.pace.stop()
        for lane in self._queues:
            lane.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, index: int) -> None:
        lane = self._queues[index]
        running = True
        while running:
            item: _Item | None = lane.get()
            results: list[_Result] = []
            deadline = time.monotonic() + SLICE_S
            while True:
                if item is None:
                    running = False
                    break
                given, work, done, reads = item
                if self.pace is not None and self.pace.must_wait(given):
                    self._since[index] = None
                    if results:
                        self._hand_over(index, results)
                        results = []
                    self.pace.wait(given)
                self._since[index] = given
                if self._on_waited is not None:
                    self._on_waited(time.monotonic() - given)
                result, error = _attempt(work) if self.pace is None else _paced(work, self.pace)
                results.append((done, result, error, reads))
                if time.monotonic() >= deadline:
                    break
                try:
                    item = lane.get_nowait()
                except queue.Empty:
                    break
            self._since[index] = None
            if results:
                self._hand_over(index, results)
                # While it waits for work a lane keeps nothing of what it did last, which may be megabytes.
                del results, item, work, done, result, error

    def _hand_over(self, index: int, results: list[_Result]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, index, results)
        except RuntimeError:
            # The loop is closed: the bookie is gone and so are those who asked.
            return

    def _deliver(self, index: int, results: list[_Result]) -> None:
        for done, result, error, reads in results:
            self._pending[index] -= reads
            try:
                done(result, error)
            except Exception as defect:
                _log.error("unexpected error while a read was answered", error=repr(defect), exc_info=defect)


def _paced(work: Work, pace: BatchPace) -> tuple[Any, BaseException | None]:
    began = time.monotonic()
    result = _attempt(work)
    pace.worked(time.monotonic() - began)
    return result


def _attempt(work: Work) -> tuple[Any, BaseException | None]:
    try:
        return work(), None
    except BaseException as error:
        return None, error


class BatchPace:
    """The pace of the lanes of the class. `bytes_per_second` is for all of them together; 0: no limit."""

    def __init__(
        self,
        under_pressure: Callable[[], bool] = lambda: False,
        bytes_per_second: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
        stopped: threading.Event | None = None,
    ) -> None:
        self._under_pressure = under_pressure
        self._clock = clock
        self._stopped = stopped or threading.Event()
        self._of_lane = _OfLane()
        self._lock = threading.Lock()
        self._bytes = Pace(bytes_per_second, BURST_S, clock())
        self.entries = 0
        """Entries read since the start."""
        self.nbytes = 0
        """Bytes of these."""
        self.yielded_s = 0.0
        """Seconds that lanes rested while clients waited, since the start."""
        self.limited_s = 0.0
        """Seconds that lanes waited for the limit in bytes, since the start."""

    def must_wait(self, given: float) -> bool:
        """Return whether a read that was given at `given` may not begin yet."""
        return not self._stopped.is_set() and (self._rests(given) or self._clock() < self._bytes.free_at)

    def wait(self, given: float) -> None:
        """Wait until that read may begin."""
        began = self._clock()
        while self._rests(given) and not self._stopped.wait(LOOK_S):
            pass
        rested = self._clock()
        while (left := self._bytes.free_at - self._clock()) > 0 and not self._stopped.wait(left):
            pass
        with self._lock:
            self.yielded_s += rested - began
            self.limited_s += self._clock() - rested

    def worked(self, seconds: float) -> None:
        """A lane has done a piece of work."""
        self._of_lane.rest_until = self._clock() + min(REST_FACTOR * seconds, REST_MAX_S)

    def has_read(self, entries: int, nbytes: int) -> None:
        """Count what was read; what comes next may have to wait for it."""
        with self._lock:
            self.entries += entries
            self.nbytes += nbytes
            self._bytes.use(nbytes, self._clock())

    def stop(self) -> None:
        """End all waits, now and later."""
        self._stopped.set()

    def _rests(self, given: float) -> bool:
        now = self._clock()
        return now < min(self._of_lane.rest_until, given + PATIENCE_S) and self._under_pressure()


class _OfLane(threading.local):
    """The state of each lane's own thread."""

    rest_until = 0.0
