"""All ledger states of a bookie, made on demand from what the storage knows.

Invariants
- One `LedgerState` per ledger. A state that has waiters, a fence on its way to the disk, or adds in the active half
  of the write cache is never evicted; any other may be, because storage and journal can rebuild it.
- The first key presented for a ledger whose key is unknown, which is stored as no bytes, becomes its key; from then on
  every key must be equal. A client without a key presents `NO_KEY`: a ledger that it began has that one.
- No ledger with a negative id is made: such ids mean something else in entry logs and in the ledger index.
- That a deleted ledger was fenced is remembered for seven days (`FencedAndDeleted`), so that a late writer cannot make
  it again. Copies, and the adds of a recovery, can: they make it fenced. The memory must not keep a ledger from being
  healed here.
- A ledger leaves limbo by `leave_limbo` alone. The storage may put one there by itself: what a state says of that never
  takes it out again.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, section 8; docs/internals/bookie-behaviour.md, section 13.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bookie_pod.ledgers.state import LAC_NONE, LedgerState
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.gc.fenced_deleted import FencedAndDeleted
from bookie_pod.storage.index.ledger_data import LedgerRecord, check_storable
from bookie_protocol.entry import read_lac_packet
from bookie_protocol.errors import BadRequest, NoSuchLedger, Unauthorized
from bookie_protocol.keys import NO_LIFE, is_named_by_copies, is_unknown_key

STATES_MAX: Final = 500_000


class Ledgers:
    """The registry. `states` is public because the hot add path looks it up by itself."""

    def __init__(
        self,
        storage: LedgerStorage,
        journals: int,
        *,
        journaled_keys: set[int] | None = None,
        states_max: int = STATES_MAX,
        fenced_and_deleted: FencedAndDeleted | None = None,
    ) -> None:
        self.storage = storage
        self.states: dict[int, LedgerState] = {}
        self._journals = journals
        self._journaled_keys = journaled_keys or set()
        """Ledgers whose key record was replayed: they need none in this process's journal."""
        self._states_max = states_max
        self._hot: set[LedgerState] = set()
        self.fenced_and_deleted = fenced_and_deleted or FencedAndDeleted()
        self.on_unnamed: Callable[[int, bytes], None] = _nobody
        """Called with ledger and key when a fence of a ledger comes, or a copy that names no life."""
        self.alive: int | None = None
        """The ledger that is open, as the metadata service has just said, for this turn of the event loop: the fence of
        a deleted ledger of its id is not its own."""
        storage.on_swap(self._cool_down_all)

    def journal_of(self, ledger_id: int) -> int:
        """Index of the journal that owns a ledger (never negative, also for negative ids)."""
        return ledger_id % self._journals

    def is_known(self, ledger_id: int) -> bool:
        """Return whether the ledger exists here."""
        return ledger_id in self.states or self.storage.ledger(ledger_id) is not None

    def has_key(self, ledger_id: int, key: bytes) -> bool:
        """Return whether the ledger exists here and this is its key."""
        state = self.states.get(ledger_id) or self.storage.ledger(ledger_id)
        return state is not None and state.key == key

    def check_key(self, ledger_id: int, key: bytes) -> None:
        """Raise Unauthorized if the ledger exists here with another key."""
        known = self.states.get(ledger_id) or self.storage.ledger(ledger_id)
        if known is not None and known.key and known.key != key:
            raise Unauthorized(f"ledger {ledger_id}: the master key is not the one it was created with")

    def life_of(self, ledger_id: int) -> bytes:
        """Return the life of a ledger; `NO_LIFE` if it is not here, or none was named yet."""
        known = self.states.get(ledger_id) or self.storage.ledger(ledger_id)
        return NO_LIFE if known is None else known.life

    def is_fenced(self, ledger_id: int) -> bool:
        """Return whether the ledger exists here and is fenced."""
        known = self.states.get(ledger_id) or self.storage.ledger(ledger_id)
        return known is not None and known.fenced

    def create_fenced(self, ledger_id: int, key: bytes) -> None:
        """Make a ledger that no client writes any more, unless it exists. Raises BadRequest."""
        if not self.is_known(ledger_id):
            self._create(ledger_id, key, fenced=True)

    def for_read(self, ledger_id: int) -> LedgerState:
        """The state of a ledger that exists here; raises NoSuchLedger otherwise."""
        state = self.states.get(ledger_id)
        if state is not None:
            return state
        record = self.storage.ledger(ledger_id)
        if record is None:
            raise NoSuchLedger(f"ledger {ledger_id} is not stored on this bookie")
        return self._load(ledger_id, record)

    def for_write(
        self, ledger_id: int, key: bytes, *, deleted: type[Exception] = NoSuchLedger, recovery: bool = False
    ) -> LedgerState:
        """The state of a ledger, made if missing, after checking the master key.

        Raises Unauthorized for another key, BadRequest for a negative id or a key that is too long, and `deleted` if
        the ledger was fenced and then deleted lately; with `recovery` it is made in that case too, fenced.
        """
        state = self.states.get(ledger_id)
        if state is None:
            record = self.storage.ledger(ledger_id)
            if record is None:
                was_fenced = ledger_id != self.alive and self.fenced_and_deleted.was_fenced(ledger_id)
                if was_fenced and not recovery:
                    raise deleted(f"ledger {ledger_id} was fenced and then deleted on this bookie")
                state = self._create(ledger_id, key, fenced=was_fenced)
            else:
                state = self._load(ledger_id, record)
        if state.key != key:
            self._learn_key(state, key)
        return state

    def record(self, state: LedgerState) -> None:
        """Tell the storage what this state holds; durable with the journal record at once, there at the next flush."""
        stored = self.storage.ledger(state.ledger_id)
        if stored is not None and stored.limbo and not state.limbo:
            state.limbo = True
        self._store(state)

    def leave_limbo(self, ledger_id: int) -> None:
        """All that this bookie ought to hold of the ledger is durable here. Raises NoSuchLedger."""
        state = self.for_read(ledger_id)
        state.limbo = False
        self._store(state)

    def _store(self, state: LedgerState) -> None:
        record = LedgerRecord(state.key, state.fenced, state.limbo, state.explicit_lac or None, life=state.life)
        self.storage.set_ledger(state.ledger_id, record)

    def heat(self, state: LedgerState, life: bytes = NO_LIFE, *, copy: bool = False) -> None:
        """Let the next adds of this ledger that name this life, as the last one did, take the hot path, if nothing
        speaks against it. Those of the writer take it before copies."""
        if not life and not is_named_by_copies(state.life):
            life = state.life  # it must be named, though copies of other clients are taken without it
        hot_key = state.hot_key
        if (hot_key is None or (not copy and hot_key != state.key + life)) and not (
            state.fenced or state.waiters or not state.key_journaled or is_unknown_key(state.key)
        ):
            state.heat(self.storage.active_entries(state.ledger_id), life)
            self._hot.add(state)

    def cool_down(self, ledger_id: int) -> None:
        """Send the next add of this ledger through the slow branch."""
        state = self.states.get(ledger_id)
        if state is not None:
            state.cool_down()

    def forget(self, ledger_id: int, fenced: bool, next_log: int = 0) -> None:
        """The storage deleted this ledger; `fenced`: as its record said. See `LedgerOperations.forget`."""
        self._journaled_keys.discard(ledger_id)
        if fenced:
            self.fenced_and_deleted.add(ledger_id)
        state = self.states.pop(ledger_id, None)
        if state is not None:
            state.cool_down()
            state.release_waiters()

    def _create(self, ledger_id: int, key: bytes, *, fenced: bool) -> LedgerState:
        if ledger_id < 0:
            raise BadRequest(f"ledger id {ledger_id} is negative")
        check_storable(key)
        state = self._remember(LedgerState(ledger_id, key, self.journal_of(ledger_id)))
        state.lac, state.lac_known = LAC_NONE, True
        state.fenced = fenced
        self.record(state)
        return state

    def _load(self, ledger_id: int, record: LedgerRecord) -> LedgerState:
        state = self._remember(LedgerState(ledger_id, record.key, self.journal_of(ledger_id)))
        state.fenced, state.limbo, state.life = record.fenced, record.limbo, record.life
        state.key_journaled = ledger_id in self._journaled_keys
        if record.explicit_lac:
            state.explicit_lac = record.explicit_lac
            state.lac = read_lac_packet(record.explicit_lac).lac
        return state

    def _learn_key(self, state: LedgerState, key: bytes) -> None:
        self.check_key(state.ledger_id, key)
        check_storable(key)
        state.key = key
        state.key_journaled = False
        self.record(state)

    def _remember(self, state: LedgerState) -> LedgerState:
        if len(self.states) >= self._states_max:
            self._evict()
        self.states[state.ledger_id] = state
        return state

    def _evict(self) -> None:
        """Drop the oldest tenth of the states that nothing holds; the walk is bounded by the table itself."""
        wanted = self._states_max // 10 + 1
        victims: list[int] = []
        for ledger_id, state in self.states.items():
            fence = state.fence_durable
            if state.hot_key is None and not state.waiters and (fence is None or fence.done()):
                victims.append(ledger_id)
                if len(victims) >= wanted:
                    break
        for ledger_id in victims:
            del self.states[ledger_id]

    def _cool_down_all(self) -> None:
        for state in self._hot:
            state.cool_down()
        self._hot.clear()


def _nobody(ledger_id: int, key: bytes) -> None:
    """Do nothing: no question about the ledger is under way."""
