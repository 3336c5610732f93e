"""The vote on a ledger's last add confirmed: what the bookies of an ensemble know, and whether that is enough.

Sans I/O: fed with the answer of each position, in any order.

Invariants
- Covered means: in every write set that the ensemble can have, fewer than Qa positions are unknown. So every
  entry that was acknowledged is known to a position that answered; and where the answers were given behind a
  fence, no writer can ever again collect Qa acknowledgements.
- Known is a position that served its last entry, or said in so many words that it has none. A time-out, a fault
  or a ledger in limbo is unknown, never "has none".
- The outcome, once it is not `OPEN`, never changes: later answers are dropped.

Pure; one request uses it.

Source: reference client protocol, sections 12, 14.2 and 14.3.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple

from bookie_client.distribution import Quorums
from bookie_protocol.digest import DigestManager
from bookie_protocol.entry import NO_LAC, read_header
from bookie_protocol.errors import NoSuchEntry, NoSuchLedger, PodkeeperError, Unauthorized


def is_negative(error: PodkeeperError) -> bool:
    """Whether a bookie promised that it has not got what was asked for. A metadata service's "not found" is not
    a bookie's word."""
    return isinstance(error, (NoSuchEntry, NoSuchLedger))


def is_covered(quorums: Quorums, known: Collection[int]) -> bool:
    """Whether fewer than Qa positions of every possible write set are missing from `known`."""
    unknown = {position for position in range(quorums.ensemble) if position not in known}
    return all(len(unknown.intersection(quorums.write_set(start))) < quorums.ack for start in range(quorums.ensemble))


class LastEntry(NamedTuple):
    """What an undamaged last entry tells."""

    entry_id: int
    lac: int
    length: int
    """Payload bytes of the ledger up to and including this entry."""
    payload_size: int

    @classmethod
    def of(cls, digest: DigestManager, ledger_id: int, entry: bytes) -> LastEntry:
        """Verify an entry that was read as the last one. Raises `DigestMismatch`."""
        payload = digest.verify(entry, ledger_id, None)
        header = read_header(entry)
        return cls(header.entry_id, header.lac, header.length, len(payload))


class VoteOutcome(Enum):
    """OPEN: more answers are needed. COVERED: `lac` may be relied on. FAILED: see `error`."""

    OPEN = "open"
    COVERED = "covered"
    FAILED = "failed"


class LacVote:
    """One question to all positions of an ensemble. Each position answers once, by one of the four methods."""

    def __init__(self, quorums: Quorums) -> None:
        self._quorums = quorums
        self._known: set[int] = set()
        self._missing = set(range(quorums.ensemble))
        self._valid = False
        self._lengths: dict[int, int] = {-1: 0}
        self.outcome = VoteOutcome.OPEN
        self.lac = NO_LAC
        """The highest LAC heard; a lower bound of the ledger's."""
        self.length_heard = 0
        """The length in the header that carried this LAC: that of an entry behind it, so rather too large."""
        self.errors: dict[int, PodkeeperError] = {}
        """Why positions are unknown, or damaged, in the order of their answers."""

    def served(self, position: int, last: LastEntry | None, explicit_lac: int = NO_LAC) -> None:
        """The position told what it has: its last entry (None: it has none), and an explicit LAC if it has
        one."""
        if not self._count(position):
            return
        self._heard(last, explicit_lac)
        self._known.add(position)
        self._valid = True
        self._decide()

    def hinted(self, position: int, explicit_lac: int, error: PodkeeperError) -> None:
        """The position has an explicit LAC, and could not tell its last entry: a hint, and an unknown
        position."""
        if not self._count(position):
            return
        self._heard(None, explicit_lac)
        self.errors[position] = error
        self._decide()

    def damaged(self, position: int, error: PodkeeperError) -> None:
        """The position answered, and its last entry is damaged. It counts as known where that is a matter of
        fencing alone, but it alone never completes the vote."""
        if not self._count(position):
            return
        self.errors[position] = error
        self._known.add(position)
        self._decide()

    def failed(self, position: int, error: PodkeeperError) -> None:
        """The position refused, failed, or did not answer."""
        if is_negative(error):
            self.served(position, None)
            return
        if not self._count(position):
            return
        self.errors[position] = error
        if isinstance(error, Unauthorized):
            self.outcome = VoteOutcome.FAILED
        else:
            self._decide()

    def exact_length(self, lac: int) -> int | None:
        """Payload bytes of entries 0 to `lac`, if a last entry was close enough to tell."""
        return self._lengths.get(lac)

    @property
    def error(self) -> PodkeeperError | None:
        """The error that ended the vote: a refusal, else the last one heard."""
        refusals = [error for error in self.errors.values() if isinstance(error, Unauthorized)]
        return next(iter(refusals), None) or next(reversed(self.errors.values()), None)

    def _count(self, position: int) -> bool:
        if self.outcome is not VoteOutcome.OPEN or position not in self._missing:
            return False
        self._missing.discard(position)
        return True

    def _heard(self, last: LastEntry | None, explicit_lac: int) -> None:
        self.lac = max(self.lac, explicit_lac)
        if last is not None:
            if last.lac >= self.lac:
                self.lac, self.length_heard = last.lac, last.length
            self._lengths[last.entry_id] = last.length
            self._lengths.setdefault(last.entry_id - 1, last.length - last.payload_size)

    def _decide(self) -> None:
        if self._valid and is_covered(self._quorums, self._known):
            self.outcome = VoteOutcome.COVERED
        elif not self._missing:
            self.outcome = VoteOutcome.FAILED
