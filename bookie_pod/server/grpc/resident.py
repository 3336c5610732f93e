"""The last bound of a process that serves gRPC: its resident memory, of any origin.

gRPC's C core keeps headers, settings and frames that no governor sees, some hundred megabytes for a connection in a
second, while the event loop may be at work for seconds. So a thread of its own looks, and resets connections.

Invariants
- Where the process grows by more than `GROWTH` faster than `DRIFT_PER_S`, the connections of strangers that have sent
  `ALLOWED` are reset, far below the bound: gRPC takes twenty bytes for one of a header that is short, frees them late,
  and goes on with what it has received after the reset.
- Above the bound the connections of strangers are reset at each look, but for those that have sent less than `FIRST`:
  they may be those of honest clients that come back. If the process is not below it though no connection was reset for
  `SETTLE_S`, or has grown by a quarter, all are. Where strangers were reset, all are if it is beyond the bound by
  two fifths, but not again within `SETTLE_S` unless it has grown by a quarter.
- If that does not help, and the process is beyond the bound by two fifths, `give_up` is called: it ends the process,
  and a supervisor starts it again.
- What gRPC frees lies between what others hold, so it is given back by a trim (`trim`), which follows each cut, and now
  and then as long as the process is above its bound, and once more when it is below it again.
- Nothing here waits for the event loop. A look that fails is not the last one.

Threads: one of its own, `resident-bound`; `start` and `stop` on any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

import structlog

from bookie_pod.callers import Address, connections, received, reset
from bookie_pod.logs import FewLines

GROWTH: Final = 8 * 1024 * 1024
DRIFT_PER_S: Final = 4 * 1024 * 1024
"""Growth in a second that has other reasons than a flood."""
ALLOWED: Final = 128 * 1024
"""Bytes of a stranger's connection: a handshake, headers, and a first window of HTTP/2 (64 KB) before its call is let
in."""
LOOK_S: Final = 0.02
SHORT_LOOK_S: Final = 0.005
"""Above the bound, and where it grows."""
MAX_REST_S: Final = 0.1
"""The longest rest after a look that took long: it may have been the machine that was slow."""
SETTLE_S: Final = 1.0
"""Seconds for gRPC to free the memory of closed connections."""
TRIM_S: Final = 0.25
FIRST: Final = 8 * 1024
"""Bytes of a handshake and a first call, at most. What makes gRPC hold much is longer."""
_NAME: Final = "resident-bound"
_NEVER: Final = float("inf")


Known = Callable[[], Collection[Address]]


class ResidentBound:
    """`start` before use. `resident`: bytes of the process. `known`: connections of which a call was let in; None:
    every caller is let in, and no connection is a stranger's."""

    def __init__(
        self,
        most: int,
        resident: Callable[[], int],
        trim: Callable[[], None] | None,
        known: Known | None,
        give_up: Callable[[], None] | None = None,
    ) -> None:
        self._most = most
        self._last = most * 7 // 5
        self._give_up = give_up
        self._resident = resident
        self._trim = trim or (lambda: None)
        self._known = known
        self._lines = FewLines(structlog.get_logger(__name__))
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._began: float | None = None
        """The time since which the process is above its bound, without a stranger and without a reset."""
        self._held_then = 0
        self._usual: float = 0
        """The size from which the process grows; it follows slowly."""
        self._looked_at = -_NEVER
        self._grows = False
        self._trim_due = _NEVER
        """The time at which a process that is below its bound again gives back the memory freed last."""
        self._strangers_at = -_NEVER
        """The time at which a stranger was last reset."""
        self._all_at = -_NEVER
        """The time at which all connections were last reset."""
        self._trimmed_at = -_NEVER
        self.port = 0

    def start(self, port: int) -> None:
        """Watch the connections to this port."""
        self.port = port
        self._thread = threading.Thread(target=self._run, name=_NAME, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """May be called more than once."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        took = 0.0  # by the last look, which costs more the more connections there are
        while not self._stopping.wait(
            max(min(took, MAX_REST_S), LOOK_S if self._began is None and not self._grows else SHORT_LOOK_S)
        ):
            began = time.monotonic()
            try:
                self.look(began)
            except OSError:
                continue  # no descriptor is left to look with
            except Exception:  # such as a MemoryError, which is what this is for
                with suppress(Exception):  # which the line may raise, too
                    self._lines.error("the memory of gRPC could not be looked at", exc_info=True)
            finally:
                took = time.monotonic() - began

    def look(self, now: float) -> None:
        """One look."""
        held = self._resident()
        self._note(held, now)
        if held <= self._most:
            if self._began is not None:
                self._began, self._trim_due = None, now + SETTLE_S
            if now >= self._trim_due:
                self._trim_due = _NEVER
                self._trim()
            if self._grows and self._known is not None and (ended := self._reset(self._known(), ALLOWED)):
                self._tell(ended, held)
            return
        if self._began is None:
            self._began, self._held_then = now, held
        # Known clients are spared, unless that does not help: nothing shows which client's memory it is.
        ended = self._reset(() if self._known is None else self._known(), FIRST)
        if ended:
            self._began = self._strangers_at = now
        strangers = now - self._strangers_at < SETTLE_S
        too_much = self._held_then + self._most // 4
        if strangers and now - self._all_at >= SETTLE_S:
            too_much = self._last
        if now - self._began >= SETTLE_S or held >= too_much:
            ended += self._reset(())
            self._began = self._all_at = now
            self._held_then = held
        if held > self._last and self._give_up is not None:
            self._give_up()
        if ended:
            self._tell(ended, held)
        if now - self._trimmed_at >= TRIM_S:
            self._trimmed_at = now
            self._trim()

    def _note(self, held: int, now: float) -> None:
        self._usual = min(held, self._usual + (now - self._looked_at) * DRIFT_PER_S)
        self._looked_at = now
        self._grows = held > self._usual + GROWTH

    def _tell(self, ended: int, held: int) -> None:
        self._lines.warning(
            "memory is short: connections of gRPC were reset", connections=ended, resident_mb=held >> 20
        )

    def _reset(self, spared: Collection[Address], least: int = 0) -> int:
        """Reset the connections that have sent at least `least` bytes, and return how many they were."""
        ended = 0
        for address, descriptor in connections(self.port):
            if address in spared:
                continue
            came = received(descriptor, address) if least else None
            if came is None or came >= least:
                reset(descriptor, address)
                ended += 1
        return ended


MakeBound = Callable[[Known], ResidentBound]
