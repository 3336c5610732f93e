"""What servers note of a request that is traced. OpenTelemetry is not imported where it is off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bookie_protocol.trace_context import TraceParent

Attributes = Mapping[str, str | int]


class JoinedRequest(NamedTuple):
    """A request that is traced because its client traces it."""

    parent: TraceParent
    received: float
    """Time of `perf_counter` at which it was read from the socket."""
    attributes: Attributes
    """Attributes of its span."""
