"""Some entries of one ledger, each read by a request of its own.

Invariants
- `done` is called exactly once, when every entry was answered or failed, unless the group was abandoned.
- Each entry is looked after for speculation by itself: one slow entry asks nobody for its neighbours. The delay is the
  group's: it grows whenever somebody was asked for one of its entries.

Event loop only.

Source: reference client protocol, section 11.2.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Mapping, Sequence
from math import inf

from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.entry_read import EntryRead, ReadPath
from bookie_client.reading.origins import Origins
from bookie_client.reading.speculation import SpeculationPolicy
from bookie_protocol.entry import ENTRY_HEADER
from bookie_protocol.errors import PodkeeperError

Question = tuple[int, Sequence[str], tuple[bytes, bytes]]
"""(entry id, order of replicas, key and frame)."""


class EntryGroup:
    """`known`: replicas that failed before this group, for the error of an entry that nobody serves."""

    def __init__(
        self,
        ledger_id: int,
        path: ReadPath,
        policy: SpeculationPolicy,
        done: Callable[[EntryGroup], None],
        known: Mapping[str, PodkeeperError] | None = None,
        origins: Origins | None = None,
    ) -> None:
        self.due = inf
        self.answers: dict[int, LedgerEntry | PodkeeperError] = {}
        """By entry id, in the order in which they came."""
        self._ledger_id = ledger_id
        self._path = path
        self._policy = policy
        self._done = done
        self._known = known
        self._origins = origins
        self._reads: list[EntryRead] = []
        self._started = 0.0
        self._delay = 0.0

    def send(self, questions: Sequence[Question], now: float, delay: float) -> None:
        """Ask for all of them. `now` is the event loop's time; `delay`: seconds that the first replicas have."""
        self._started, self._delay = now, delay
        self.due = inf if self._policy.is_off else now + delay
        ledger_id, path, took, known = self._ledger_id, self._path, self._took, self._known
        self._reads = [
            EntryRead((ledger_id, entry_id), order, key_and_frame, path, took, known)
            for entry_id, order, key_and_frame in questions
        ]
        for read in self._reads:
            read.send()

    def abandon(self) -> None:
        """Nobody waits any more."""
        self.due = inf
        for read in self._reads:
            read.abandon()

    def speculate(self, now: float, alive: frozenset[str]) -> None:
        """See `speculation.Waiting`."""
        is_patient = now < self._started + self._policy.longest
        waits, asked = False, False
        for read in self._reads:
            if not read.may_speculate:
                continue
            if not (is_patient and read.latest in alive):
                asked = True
                read.speculate()
            waits = waits or read.may_speculate
        if asked:
            self._delay = self._policy.next_delay(self._delay)
        self.due = now + self._delay if waits else inf

    def _took(self, entry_id: int, payload: bytes | None, entry: bytes, error: PodkeeperError | None) -> None:
        if error is not None:
            self.answers[entry_id] = error
        else:
            assert payload is not None
            _, _, lac, length = ENTRY_HEADER.unpack_from(entry)
            self.answers[entry_id] = LedgerEntry(self._ledger_id, entry_id, length, payload, lac)
            if self._origins is not None:
                self._origins.took(entry_id, get_running_loop().time() - self._started)
        if len(self.answers) == len(self._reads):
            self.due = inf
            self._done(self)
