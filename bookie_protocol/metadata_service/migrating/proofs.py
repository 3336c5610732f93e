"""Proofs that ZooKeeper has the metadata, and the watches that end them.

ZooKeeper tells of a change before it answers what was asked later on the same connection. So what was read stays so
until its watch fires, or the connection is lost. A read that a proof comes from sets the watch in the same request.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Proofs:
    """The proofs of one tree."""

    __slots__ = ("forgotten", "last")

    def __init__(self) -> None:
        self.last: Sequence[Proof] = ()
        """The proofs that the last look found."""
        self.forgotten = 0
        """Number of calls of `forget`. The result of a look counts only if there was no call since the look began."""

    @property
    def hold(self) -> bool:
        """Return True if one of the last look's holds."""
        return any(each.holds for each in self.last)

    def forget(self) -> None:
        """Let no proof hold that there is, because the connection was lost, or the metadata moved."""
        self.forgotten += 1


class Proof:
    """Holds until it is ended, or until all are forgotten."""

    __slots__ = ("_forgotten", "_is_ended", "_proofs")

    def __init__(self, proofs: Proofs) -> None:
        self._proofs = proofs
        self._forgotten = proofs.forgotten
        self._is_ended = False

    @property
    def holds(self) -> bool:
        return not self._is_ended and self._forgotten == self._proofs.forgotten

    def end(self) -> None:
        self._is_ended = True


class ProvingWatch:
    """The watch of a node, which ends the proof that is the last one when it fires.

    Each read sets the same one, of which ZooKeeper's client keeps one only, however many reads there are before it
    fires. `tell`: called when it fires.
    """

    __slots__ = ("_proofs", "_tell", "proof")

    def __init__(self, proofs: Proofs, tell: Callable[[], None]) -> None:
        self._proofs = proofs
        self._tell = tell
        self.proof = Proof(proofs)
        self.proof.end()

    def __call__(self) -> None:
        self.proof.end()
        self._tell()

    def renewed(self) -> Proof:
        """Return the proof of a read that is sent now with this watch.

        It is the one before if that holds: then nothing has changed since. It proves something once the read is
        answered.
        """
        if not self.proof.holds:
            self.proof = Proof(self._proofs)
        return self.proof
