"""One add between its entry id and its last answer."""

from __future__ import annotations

from typing import Any


class PendingAdd:
    """An entry on its way. `acked`, `failed` and `waiting` are bit sets over positions of `ensemble`:
    acknowledged, failed, sent without an answer so far.

    `frame` is built once and shared by all replicas, so a re-sent add is the same bytes (reference client
    protocol, section 5); `key` finds its answers; `nbytes` is what it takes of the window. `waiter` is what
    the driver tells the outcome to. A delivered add that still waits for answers is `lingering`.
    """

    __slots__ = (
        "acked",
        "acks",
        "ensemble",
        "entry_id",
        "failed",
        "frame",
        "key",
        "length",
        "lingering",
        "nbytes",
        "waiter",
        "waiting",
    )

    frame: bytes
    key: bytes

    def __init__(self, entry_id: int, length: int, ensemble: tuple[str, ...], waiter: Any = None) -> None:
        self.entry_id = entry_id
        self.length = length
        self.ensemble = ensemble
        self.waiter = waiter
        self.nbytes = 0
        self.acked = 0
        self.failed = 0
        self.acks = 0
        self.waiting = 0
        self.lingering = False

    def forget(self, position: int) -> None:
        """The bookie at `position` was exchanged: what the former one answered, or will, does not count any
        more."""
        bit = 1 << position
        if self.acked & bit:
            self.acked &= ~bit
            self.acks -= 1
        self.failed &= ~bit
        self.waiting &= ~bit

    def __repr__(self) -> str:
        return f"PendingAdd(entry {self.entry_id}, acked {self.acked:b}, failed {self.failed:b})"
