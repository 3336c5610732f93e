"""The scrubber: one thread that reads everything now and then, before a client needs it.

Invariants
- One pass at a time, over one directory after the other; between two passes lies the interval times 0.5 to 1.5, counted
  across restarts. A pass that a stop or a crash interrupted is taken up where it was.
- Damage ends nothing: it is registered, counted, logged, and refused to readers. What cannot be checked at all is
  counted as fatal, and looked at again by the next pass. (The reference stops the bookie there; one that still serves
  most of what it holds is worth more than one that does not.)
- Between two passes damage that a read found is handed on for repair after `REPAIR_PACE_S`, also where no passes are
  planned, and what is still damaged every `RETRY_S`.
- The event loop is never waited for and never held up.

Threads: `scrubber` runs passes; everything public may be called by any thread.

Source: docs/internals/bookie-behaviour.md, sections 8.2 and 11.7.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import structlog

from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.scrub import ScrubMetrics
from bookie_pod.storage.gc.schedule import steady_now_ms
from bookie_pod.storage.gc.throttle import ScrubStopped
from bookie_pod.storage.integrity.quarantine import Damage
from bookie_pod.storage.integrity.scrub_part import PartState, ScrubPart

_log = structlog.get_logger(__name__)

REPAIR_PACE_S: Final = 1.0
RETRY_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class ScrubState:
    """The current work of the scrubber, for the admin API."""

    enabled: bool
    """Passes come by themselves (`localScrubInterval` > 0)."""
    running: bool
    next_pass_ms: int | None
    """The time at which the next pass begins, ms since the epoch; None if one runs, or none is planned."""
    parts: tuple[PartState, ...]
    damages: tuple[Damage, ...]
    overflowed: int
    """Damages that were found and did not fit the register."""


class Scrubber:
    """See the module."""

    def __init__(
        self,
        parts: Sequence[ScrubPart],
        stopped: threading.Event,
        *,
        interval_s: float,
        after_pass: Callable[[Sequence[tuple[ScrubPart, Damage]]], None] | None = None,
        metrics: ScrubMetrics | None = None,
        now_ms: Callable[[], int] = steady_now_ms,
        random: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        turns: Callable[[], int] = lambda: 0,
    ) -> None:
        """`stopped` is the event that the parts' pace listens to. `interval_s` 0: passes only on request.

        `after_pass` gets all damage that is known when a pass has ended, or a read has found some; it must not block
        for long. `turns` grows as the parts are paced.
        """
        self._turns = turns
        self.parts = tuple(parts)
        self._stopped = stopped
        self._interval_ms = interval_s * 1000
        self._after_pass = after_pass
        self._metrics = metrics or ScrubMetrics(Registry())
        self._now_ms = now_ms
        self._random = random or Random()
        self._wake = threading.Condition()
        self._requested = False
        self._running = False
        self._due_ms: int | None = None
        self._clock = clock
        self._tell_at: float | None = None
        """The time, on `clock`, at which damage is handed on without a pass; None if there is none."""
        self._thread: threading.Thread | None = None
        for part in self.parts:
            part.on_met = self._met

    # --- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to wait for the first pass."""
        self._plan()
        with self._wake:
            self._tell_again()
        self._thread = threading.Thread(target=self._run, name="scrubber", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End at the next entry, store the position, and wait for that."""
        self._stopped.set()
        with self._wake:
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()

    def request(self) -> bool:
        """Ask for a pass now; False if one runs or was asked for."""
        with self._wake:
            if self._running or self._requested:
                return False
            self._requested = True
            self._wake.notify_all()
        return True

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._has_to_act():
                    self._wake.wait(self._wait_s())
                if self._stopped.is_set():
                    return
                due = self._requested or (self._due_ms is not None and self._now_ms() >= self._due_ms)
                self._requested = False
            try:
                if due:
                    self.run_pass()
                elif self._is_time_to_tell():
                    self._tell()
            except ScrubStopped:
                return
            except Exception as error:  # the thread must outlive a fault of ours; the next pass goes on
                _log.exception("scrub failed", reason=str(error))
            if due:
                self._plan()
                with self._wake:
                    self._tell_again()

    def _has_to_act(self) -> bool:
        return self._requested or self._stopped.is_set() or self._is_time_to_tell()

    def _is_time_to_tell(self) -> bool:
        return self._tell_at is not None and self._clock() >= self._tell_at

    def _wait_s(self) -> float | None:
        waits = [] if self._tell_at is None else [self._tell_at - self._clock()]
        if self._due_ms is not None:
            # Bounded, because the clock of the plan may be set back or forth.
            waits.append(min(60.0, (self._due_ms - self._now_ms()) / 1000))
        return max(0.0, min(waits)) if waits else None

    # --- what reads find ------------------------------------------------------------------------------------

    def _met(self) -> None:
        with self._wake:
            soon = self._clock() + REPAIR_PACE_S
            self._tell_at = soon if self._tell_at is None else min(self._tell_at, soon)
            self._wake.notify_all()

    def _tell(self) -> None:
        with self._wake:
            self._tell_at = self._clock() + RETRY_S
        self._hand_on()

    def _hand_on(self) -> None:
        for part in self.parts:
            part.tidy()
        if self._after_pass is not None:
            self._after_pass(self.damages_by_part())
        # Behind it: one disk that fails must not hold up the repair of what lies on others.
        for part in self.parts:
            part.look_again()

    def _tell_again(self) -> None:
        self._tell_at = self._clock() + RETRY_S if any(len(part.register) for part in self.parts) else None

    def _plan(self) -> None:
        if self._interval_ms <= 0:
            self._due_ms = None
        elif any(part.is_interrupted for part in self.parts):
            self._due_ms = self._now_ms()
        else:
            now = self._now_ms()
            done = min((part.position.completed_ms for part in self.parts), default=0)
            since = done if 0 < done <= now else now
            self._due_ms = max(now, since + int(self._interval_ms * self._random.uniform(0.5, 1.5)))

    def step(self) -> object | None:
        """Return a value that changes with everything that the running pass pays for; None if none runs. Any thread."""
        return self._turns() if self._running else None

    # --- one pass -------------------------------------------------------------------------------------------

    def run_pass(self) -> bool:
        """Make one pass on the calling thread; whether everything could be checked. Raises `ScrubStopped`."""
        self._running = True
        began = time.perf_counter()
        complete = False
        try:
            complete = self._pass()
            _log.info("scrub complete", damages=len(self.damages()), checked_all=complete)
        finally:
            self._running = False
            if not self._stopped.is_set():
                self._metrics.ran((time.perf_counter() - began) * 1000, complete)
        self._hand_on()
        return complete

    def _pass(self) -> bool:
        # After an interruption only what is left of that pass: directories before it are done.
        interrupted = [index for index, part in enumerate(self.parts) if part.is_interrupted]
        first = interrupted[0] if interrupted else 0
        complete = [part.run() for part in self.parts[first:]]
        return all(complete)

    # --- what can be asked ----------------------------------------------------------------------------------

    def state(self) -> ScrubState:
        return ScrubState(
            self._interval_ms > 0,
            self._running,
            None if self._running else self._due_ms,
            tuple(part.state() for part in self.parts),
            tuple(self.damages()),
            sum(part.register.overflowed for part in self.parts),
        )

    def damages(self) -> list[Damage]:
        """Return all known damage."""
        return [damage for _, damage in self.damages_by_part()]

    def damages_by_part(self) -> list[tuple[ScrubPart, Damage]]:
        """The same, with the directory."""
        return [(part, damage) for part in self.parts for damage in part.register.damages()]
