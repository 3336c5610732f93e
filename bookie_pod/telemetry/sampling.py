"""The bound of traces that clients ask for: what they sample is traced, so many in a second at most.

A flag in a request costs its sender nothing, and each span costs an export here. So it is this process that decides.
A call may have any number of requests inside, of which the first few have spans.

Any thread.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry.context import Context, attach, create_key, detach, get_value, set_value
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from bookie_protocol.pace import Pace

BURST_S: Final = 1.0
MOST_INSIDE: Final = 4
"""Spans inside one call at most."""
_LEFT: Final = create_key("podkeeper-spans-left")


class TracePace:
    """A limit of `per_s` traces in a second for all clients together; 0 allows none."""

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace = Pace(per_s, BURST_S)
        self._clock = clock
        self._lock = threading.Lock()

    def takes(self) -> bool:
        """Return whether there is room for one more, and use it."""
        if not self._pace.rate:
            return False
        with self._lock:
            now = self._clock()
            if self._pace.free_at > now:
                return False
            self._pace.use(1, now)
            return True


class _WhileThereIsRoom(Sampler):
    """Takes spans while there is room for them."""

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """See `Sampler`."""
        decision = Decision.RECORD_AND_SAMPLE if self._takes(parent_context) else Decision.DROP
        state = get_current_span(parent_context).get_span_context().trace_state
        return SamplingResult(decision, attributes, state)

    def get_description(self) -> str:
        """See `Sampler`."""
        return type(self).__name__

    @abstractmethod
    def _takes(self, parent_context: Context | None) -> bool:
        """Return whether there is room for one more, and use it."""


class ClientsSampled(_WhileThereIsRoom):
    """Takes the spans whose remote parent is sampled, as far as the pace allows."""

    def __init__(self, pace: TracePace) -> None:
        self._pace = pace

    def _takes(self, parent_context: Context | None) -> bool:
        return self._pace.takes()


@contextmanager
def call_begins() -> Iterator[None]:
    """Let `FewInside` take the first spans within this context."""
    token = attach(set_value(_LEFT, _Left()))
    try:
        yield
    finally:
        detach(token)


class FewInside(_WhileThereIsRoom):
    """Takes the first spans inside a call."""

    def _takes(self, parent_context: Context | None) -> bool:
        left = get_value(_LEFT, parent_context)
        return isinstance(left, _Left) and left.takes()


class _Left:
    """The number of spans that a call may still have inside."""

    def __init__(self) -> None:
        self._number = MOST_INSIDE

    def takes(self) -> bool:
        self._number -= 1
        return self._number >= 0
