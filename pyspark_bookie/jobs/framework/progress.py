"""What is shown while a job runs, on standard error: a line on a terminal that is drawn again and again, elsewhere a
line at most every two seconds, so that a pod's log stays short. How much there is to do of a new part of the work is
shown at once: its first piece may take minutes.

Any thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Final, TextIO

INTERVAL_S: Final = 2.0
_REDRAW_S: Final = 0.1


class Progress:
    """Called with how much is done of how much; `close` ends the line."""

    def __init__(
        self, job: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic, quiet: bool = False
    ) -> None:
        self._job = job
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._quiet = quiet
        self._terminal = self._stream.isatty()
        self._lock = threading.Lock()
        self._began = clock()
        self._shown_at = float("-inf")
        self._part: tuple[float | None, str] | None = None
        self._last: str | None = None
        self._drawn = False

    def __call__(self, done: float, total: float | None = None, unit: str = "", note: str = "") -> None:
        """Tell how much is done. `total` None: the end is not known. `unit` "bytes" is shown in MB."""
        with self._lock:
            self._last = self._text(done, total, unit, note)
            now = self._clock()
            begins = total is not None and self._part != (total, unit)
            self._part = total, unit
            if begins or now - self._shown_at >= (_REDRAW_S if self._terminal else INTERVAL_S):
                self._shown_at = now
                self._show()

    def close(self) -> None:
        """Show what was not shown yet, and end a line that was drawn."""
        with self._lock:
            if self._last is not None:
                self._show()
            if self._drawn:
                self._write("\n")
                self._drawn = False

    def _show(self) -> None:
        text, self._last = self._last, None
        if self._terminal:
            self._write(f"\r\x1b[2K{text}")
            self._drawn = True
        else:
            self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        if not self._quiet:
            self._stream.write(text)
            self._stream.flush()

    def _text(self, done: float, total: float | None, unit: str, note: str) -> str:
        elapsed = max(self._clock() - self._began, 1e-9)
        scale, label = (1e6, "MB") if unit == "bytes" else (1, unit)
        text = f"{self._job}: {done / scale:,.0f}"
        if total is not None:
            text += f" of {total / scale:,.0f}"
        text += f" {label}".rstrip()
        if total:
            text += f" ({100 * done / total:.0f} %)"
            if 0 < done < total and elapsed > INTERVAL_S:
                text += f", {(total - done) * elapsed / done:,.0f} s to go"
        return f"{text}, {note}" if note else text
