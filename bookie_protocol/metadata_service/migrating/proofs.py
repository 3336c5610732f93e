"""Proofs that ZooKeeper has the metadata, and the watches that end them.

ZooKeeper tells of a change before it answers what was asked later on the same connection. So what was read stays so
until its watch fires, or the connection is lost.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Forgetful(Protocol):
    forgotten: int
    """Number of times that all earlier proofs were to hold no more."""


class Proof:
    """Holds until it is ended, or until the gate forgets."""

    __slots__ = ("_forgotten", "_gate", "_is_ended")

    def __init__(self, gate: Forgetful) -> None:
        self._gate = gate
        self._forgotten = gate.forgotten
        self._is_ended = False

    @property
    def holds(self) -> bool:
        return not self._is_ended and self._forgotten == self._gate.forgotten

    def end(self) -> None:
        self._is_ended = True


class ProvingWatch:
    """The watch of a node, which ends the proof that is the last one when it fires.

    Each read sets the same one, of which ZooKeeper's client keeps one only, however many reads there are before it
    fires. `tell`: called when it fires.
    """

    __slots__ = ("_gate", "_tell", "proof")

    def __init__(self, gate: Forgetful, tell: Callable[[], None]) -> None:
        self._gate = gate
        self._tell = tell
        self.proof = Proof(gate)

    def __call__(self) -> None:
        self.proof.end()
        self._tell()

    def renewed(self) -> ProvingWatch:
        """Return this one for a read. If the last proof does not hold any more, another one begins."""
        if not self.proof.holds:
            self.proof = Proof(self._gate)
        return self
