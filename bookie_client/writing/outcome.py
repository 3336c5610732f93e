"""What the writer's state machine asks its driver to do.

Used from the event loop of the ledger's writer only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bookie_client.distribution import Quorums
from bookie_client.writing.pending_add import PendingAdd
from bookie_protocol.errors import PodkeeperError


@dataclass(slots=True)
class Outcome:
    """What the driver has to do now, in this order: tell failures, start a change, send, deliver."""

    failed: list[tuple[PendingAdd, PodkeeperError]] = field(default_factory=list)
    change: Mapping[int, str] | None = None
    """Start an ensemble change that replaces these bookies (position -> bookie id)."""
    resend: list[tuple[PendingAdd, int]] = field(default_factory=list)
    """Send the add to `add.ensemble[position]`."""
    deliver: bool = False
    """`AddState.deliver` may have something now."""


def failure_of(add: PendingAdd, ledger_id: int, quorums: Quorums, error: PodkeeperError) -> PodkeeperError:
    """What the application is told about one add: an error of the same type that names the entry and its bookies."""
    bookies = [add.ensemble[position] for position in quorums.write_set(add.entry_id)]
    own = type(error)(f"ledger {ledger_id}, entry {add.entry_id} on {', '.join(bookies)}: {error}")
    own.__cause__ = error
    return own
