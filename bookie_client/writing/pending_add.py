"""One add between its entry id and its last answer.

Invariants
- `waiting` has a bit for each position that was sent the add and has not answered: the add counts against the window
  until it is 0, even if it was acknowledged to the application long before.
- A re-sent add is the same bytes.

Used from the event loop of the ledger's writer only.

Source: docs/internals/client-protocol.md, sections 5 and 6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bookie_client.connection.request import Answer, BookieRequest, SplitAdd
from bookie_protocol.errors import PodkeeperError


@dataclass(slots=True)
class AddHandle:
    """The part that all adds of one writer handle share: the end of their frames, and what takes their answers."""

    ledger_id: int
    tail: bytes
    acknowledged: Callable[[PendingAdd, str], bool]
    """Count one acknowledgement. True: `deliver_soon` is to be called."""
    acknowledged_run: Callable[[PendingAdd, Sequence[BookieRequest], int, str], int]
    deliver_soon: Callable[[], None]
    answered: Callable[[PendingAdd], None]
    """A bookie answered an add that is `lingering`."""
    refused: Callable[[PendingAdd, str, PodkeeperError], None]
    is_retracted: bool = False
    """True if adds that still wait for a connection are not sent: the ledger is gone, and another one may have its
    id."""


class PendingAdd(SplitAdd):
    """An entry on its way; this one object waits in the connections to all its bookies. `acked`, `failed` and
    `waiting` are bit sets over positions of `ensemble`: acknowledged, failed, sent without an answer so far.

    `head` is made once, so a re-sent add is the same bytes (reference client protocol, section 5); `key` finds its
    answers; `nbytes` is what it takes of the window. `waiter` is what the driver tells the outcome to. A delivered
    add that still waits for answers is `lingering`.
    """

    __slots__ = (
        "acked",
        "acks",
        "ensemble",
        "entry_id",
        "failed",
        "handle",
        "length",
        "lingering",
        "nbytes",
        "waiter",
        "waiting",
    )

    handle: AddHandle
    nbytes: int

    def __init__(self, entry_id: int, length: int, ensemble: tuple[str, ...], waiter: Any = None) -> None:
        self.entry_id = entry_id
        self.length = length
        self.ensemble = ensemble
        self.waiter = waiter
        self.acked = 0
        self.failed = 0
        self.acks = 0
        self.waiting = 0
        self.lingering = False

    @property
    def frame(self) -> bytes:
        return b"".join((self.head, self.body, self.handle.tail))

    def forget(self, position: int) -> None:
        """The bookie at `position` was exchanged: what the former one answered, or will, does not count any
        more."""
        bit = 1 << position
        if self.acked & bit:
            self.acked &= ~bit
            self.acks -= 1
        self.failed &= ~bit
        self.waiting &= ~bit

    # --- BookieRequest --------------------------------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        return not self.handle.is_retracted

    def acknowledged(self, bookie: str) -> None:
        handle = self.handle
        if handle.acknowledged(self, bookie):
            handle.deliver_soon()
        if self.lingering:
            handle.answered(self)

    def acknowledged_run(self, run: Sequence[BookieRequest], at: int, bookie: str) -> int:
        return self.handle.acknowledged_run(self, run, at, bookie)

    def accepted(self, bookie: str, answer: Answer) -> None:
        self.acknowledged(bookie)

    def refused(self, bookie: str, error: PodkeeperError) -> None:
        self.handle.refused(self, bookie, error)

    def describe(self) -> str:
        return f"the add of entry {self.entry_id} of ledger {self.handle.ledger_id}"

    def __repr__(self) -> str:
        return f"PendingAdd(entry {self.entry_id}, acked {self.acked:b}, failed {self.failed:b})"


def count_together(first: PendingAdd, run: Sequence[BookieRequest], at: int, position: int) -> int:
    """The bookie at `position` stored `first`, which is `run[at]`, and what is behind it. Counts this for as many as
    are adds of the same handle, sent to the same ensemble; returns the index of the first that is not."""
    handle, ensemble = first.handle, first.ensemble
    bit = 1 << position
    others = ~bit
    for index in range(at, len(run)):
        add = run[index]
        if not isinstance(add, PendingAdd) or add.handle is not handle or add.ensemble is not ensemble:
            return index
        add.waiting &= others
        if not add.acked & bit:
            add.acked |= bit
            add.failed &= others
            add.acks += 1
    return len(run)
