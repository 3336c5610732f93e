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

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bookie_pod.ledgers.state import LAC_NONE, LedgerState
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.gc.fenced_deleted import FencedAndDeleted
from bookie_pod.storage.index.ledger_data import LedgerRecord, check_storable
from bookie_protocol.entry import read_lac_packet
from bookie_protocol.errors import BadRequest, NoSuchLedger, Unauthorized
from bookie_protocol.keys import NO_LIFE, as_named, has_unnamed, is_named_by_copies, is_same_life, is_unknown_key

STATES_MAX: Final = 500_000
MOST_LOOKS: Final = 3
"""The number of looks at metadata during which unnamed requests may come where no life is stored. Each showed the same
ledger, and a busy writer that names no life must not keep it from being healed."""


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
        self._watches: dict[int, list[LedgerWatch]] = {}
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

    def has_another_key(self, ledger_id: int, key: bytes) -> bool:
        """Return whether the ledger exists here, and its key is known and not this one."""
        known = self.states.get(ledger_id) or self.storage.ledger(ledger_id)
        return known is not None and bool(known.key) and known.key != key

    def check_key(self, ledger_id: int, key: bytes) -> None:
        """Raise Unauthorized if the ledger exists here with another key."""
        if self.has_another_key(ledger_id, key):
            raise Unauthorized(f"ledger {ledger_id}: the master key is not the one it was created with")

    def life_of(self, ledger_id: int) -> bytes:
        """Return the life of a ledger; `NO_LIFE` if it is not here, or none was named yet."""
        known = self.states.get(ledger_id) or self.storage.ledger(ledger_id)
        return NO_LIFE if known is None else known.life

    def is_fenced(self, ledger_id: int) -> bool:
        """Return whether the ledger exists here and is fenced."""
        known = self.states.get(ledger_id) or self.storage.ledger(ledger_id)
        return known is not None and known.fenced

    @contextmanager
    def watch(self, ledger_id: int, life: bytes, key: bytes | None = None) -> Iterator[LedgerWatch]:
        """Watch a ledger while the metadata service is asked about this life of it. `key`: as `LedgerWatch.key`."""
        watches = self._watches.setdefault(ledger_id, [])
        watches.append(watch := LedgerWatch(self, ledger_id, life, key))
        try:
            yield watch
        finally:
            watches.remove(watch)
            if not watches:
                del self._watches[ledger_id]

    def note_unnamed(self, ledger_id: int, key: bytes) -> None:
        """Note that a fence came with this key, or that an entry or explicit LAC without a life is let in. Entries on
        the hot path are not noted (`cool_down`)."""
        if self._watches:
            for watch in self._watches.get(ledger_id, ()):
                watch.note_unnamed(key)

    def create_fenced(self, ledger_id: int, key: bytes) -> None:
        """Make a ledger that no client writes any more, unless it exists. Raises BadRequest."""
        if not self.is_known(ledger_id):
            self._create(ledger_id, key, fenced=True)

    def for_read(self, ledger_id: int) -> LedgerState:
        """Return the state of a ledger that exists here; raises NoSuchLedger otherwise."""
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
        """Return the state of a ledger, made if missing, after checking the master key.

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
            life = as_named(state.life)  # it must be named, though copies of other clients are taken without it
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
        for watch in self._watches.get(ledger_id, ()):
            watch.note_deleted()
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


class LedgerWatch:
    """Sees what comes to a ledger here while the metadata service is asked about it, as the answer may be older.

    with ledgers.watch(ledger_id, life) as watch:
        while True:
            watch.begin()
            metadata = await look(ledger_id)
            if not watch.is_outdated and not watch.must_look_again(is_open=...):
                break
    """

    def __init__(self, ledgers: Ledgers, ledger_id: int, life: bytes, key: bytes | None) -> None:
        self.key = key
        """The master key of the ledger that is asked about; None: it is not known. Requests with another key are a
        stranger's."""
        self._ledgers = ledgers
        self._ledger_id = ledger_id
        self._life = life
        self._looks = 0
        """The number of looks during which something unnamed came."""
        self._is_deleted = self._is_touched = False
        self._before = self._what_is_here()

    def begin(self) -> None:
        """Begin another look."""
        self._is_deleted = self._is_touched = False
        self._ledgers.cool_down(self._ledger_id)  # else entries that name no life come in unnoticed
        self._before = self._what_is_here()

    def note_unnamed(self, key: bytes) -> None:
        """Do as `Ledgers.note_unnamed`."""
        if self.key is None or key == self.key:
            self._is_touched = True

    def note_deleted(self) -> None:
        """Note that the ledger was deleted here: an answer from before that could let a late add in."""
        self._is_deleted = True

    @property
    def stores_another(self) -> bool:
        """Return whether the ledger that was stored when the look began can be proven dead: it has another life, and
        nothing unnamed came under it."""
        _, stored = self._before
        return bool(stored) and not is_same_life(stored, self._life) and not has_unnamed(stored)

    @property
    def is_outdated(self) -> bool:
        """Return whether the ledger was deleted, begun or named here since the look began: it may be a later one than
        that of the answer."""
        return self._is_deleted or self._before != self._what_is_here()

    def must_look_again(self, *, is_open: bool) -> bool:
        """Return whether something unnamed came since the look began that may be of a later ledger than the answer.
        `is_open`: the answer says that the ledger of this life is open. Then this is asked for as long as it takes, if
        the bookie may have, or remember the fence of, another ledger of the id.
        """
        if not self._is_touched:
            return False
        self._looks += 1
        if is_open and (self.stores_another or self._ledgers.fenced_and_deleted.was_fenced(self._ledger_id)):
            return True
        _, stored = self._before
        return bool(self._life) and not stored and self._looks < MOST_LOOKS

    def _what_is_here(self) -> tuple[bool, bytes]:
        return self._ledgers.is_known(self._ledger_id), self._ledgers.life_of(self._ledger_id)
