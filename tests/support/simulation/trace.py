"""What happened, in order, for people.

A run keeps no trace unless asked: the same seed gives the same run, so the trace of a failed one is made by running
it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from tests.support.simulation.clock import START


class Trace:
    """Lines with their virtual time, in seconds since the start."""

    def __init__(self, *, keep: bool, echo: Callable[[str], None] | None = None) -> None:
        self.on = keep or echo is not None
        self._keep = keep
        self._echo = echo
        self.lines: list[str] = []
        self.clock: Callable[[], float] = lambda: START
        """The loop's; set by whoever runs it."""

    def __call__(self, who: str, what: str) -> None:
        """Callers look at `on` first when making `what` costs something."""
        if not self.on:
            return
        line = f"{self.clock() - START:12.6f}  {who:<12} {what}"
        if self._keep:
            self.lines.append(line)
        if self._echo is not None:
            self._echo(line)

    def digest(self) -> str:
        """Equal for equal runs."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()
