"""The effect of a request on a ledger: add, fence, explicit LAC, force. Wire-neutral.

What the requests of one socket read hand to the journals gathers in lanes, one for each journal: journal records and
answers of all adds of the read that belong to it, so that the journal acknowledges them as one batch and the connection
writes their answers at once.

Invariants
- An entry is put into the write cache before its record is queued for the journal, and answered after the journal
  said so (with `journalWriteData` off: at once).
- A ledger's key record precedes every other record of that ledger in this process's journal, fences and explicit LACs
  included, so that replay can always place them.
- A fence shows at once: after `fence` returned, no ordinary add of that ledger is admitted.

Threads: event loop only. Call-backs come on the event loop.

Source: docs/internals/wire-protocol.md, sections 8.1, 8.3, 8.5 to 8.7 and 10.2; docs/internals/on-disk-formats.md,
section 2.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from bookie_pod.ledgers.registry import Ledgers
from bookie_pod.ledgers.state import LedgerState
from bookie_pod.storage.index.ledger_data import check_storable
from bookie_pod.storage.journal.batch_queue import JournalBatch
from bookie_pod.storage.journal.format import (
    deletion_record,
    entry_record,
    explicit_lac_record,
    fence_record,
    key_record,
)
from bookie_pod.storage.journal.journal import Journal
from bookie_pod.telemetry.tracing import JoinedRequest
from bookie_protocol.entry import is_possible_lac, read_lac_packet
from bookie_protocol.errors import (
    BadRequest,
    LedgerFenced,
    LedgerStateUnknown,
    NoSuchLedger,
    StorageFault,
    Unauthorized,
)
from bookie_protocol.keys import (
    NO_LIFE,
    has_unnamed,
    is_named_by_copies,
    is_same_life,
    is_unknown_key,
    named_again,
    with_unnamed,
)

Done = Callable[[BaseException | None], None]


class WriteLane:
    """Records for one journal, and the answers to send when they are durable."""

    __slots__ = ("answers", "counted", "data", "joined", "journal", "specials")

    def __init__(self, journal: int) -> None:
        self.journal = journal
        self.specials: list[bytes] = []
        """Ledger-key records: length prefix, body, ... They go into the journal before `data`, always."""
        self.data: list[bytes] = []
        """Data records: length prefix, entry, ... They stay out of the journal if `journalWriteData` is off."""
        self.answers: list[bytes] = []
        """Pieces of the answers, in the order of the adds."""
        self.counted = 0
        """Adds of this batch that count as in progress already, because they were admitted one by one."""
        self.joined: tuple[JoinedRequest, ...] = ()
        """Adds of this batch that are traced because their clients trace them."""

    def clear(self) -> None:
        """Start the next batch; the lists handed over before are never touched again."""
        self.specials, self.data, self.answers = [], [], []
        self.counted = 0
        self.joined = ()


class LedgerOperations:
    """Operations on ledgers, on top of one registry and the journals."""

    def __init__(
        self,
        ledgers: Ledgers,
        journals: Sequence[Journal],
        *,
        write_data: bool = True,
    ) -> None:
        self.ledgers = ledgers
        self.storage = ledgers.storage
        self.write_data = write_data
        self._journals = journals
        self.on_full: Callable[[int], None] = self.storage.request_flush
        """Called when an add has filled the write cache of its ledger's directory."""
        self.on_acknowledged: Callable[[], None] = _nobody
        """Called when a journal has acknowledged a record that is not a client's add, and so has room for adds."""

    def lanes(self) -> list[WriteLane]:
        return [WriteLane(index) for index in range(len(self._journals))]

    def add(
        self,
        lanes: Sequence[WriteLane],
        ledger_id: int,
        entry_id: int,
        lac: int,
        key: bytes,
        entry: bytes,
        *,
        recovery: bool,
        life: bytes = NO_LIFE,
    ) -> WriteLane:
        """Admit one entry: into the write cache now, into its lane for the journal.

        Returns the lane, to which the caller adds its answer, and which it submits before this ledger's next fence,
        explicit LAC or force: the lane may hold the ledger's key record. An entry whose LAC cannot be right is stored
        (its digest is the reader's to judge), and its LAC is not passed on. `life`: the metadata service confirmed it.
        Raises LedgerFenced, LedgerStateUnknown, Unauthorized, or BadRequest for what the storage cannot hold; then
        nothing is stored.
        """
        if entry_id < 0:
            # Negative ids are the journal's own record kinds: storing one would change the meaning of the journal.
            raise BadRequest(f"ledger {ledger_id}: entry id {entry_id} is negative")
        if entry_id > self.storage.max_entry_id:
            most = self.storage.max_entry_id
            raise BadRequest(f"ledger {ledger_id}: entry id {entry_id} is beyond {most}, the most that is stored here")
        state = self.ledgers.for_write(ledger_id, key, deleted=LedgerFenced, recovery=recovery)
        if recovery:
            self._let_copy_in(state, life)
        elif state.fenced or state.life != life or not life:
            self._let_writer_in(state, life)
        lane = lanes[state.journal]
        entries = self.storage.active_entries(ledger_id)  # first: what it refuses brings no key record to the journal
        self._journal_key(state, lane.specials)
        entries[entry_id] = entry
        if self.storage.account(ledger_id, len(entry), 1):
            self.on_full(ledger_id)
        lane.data += entry_record(entry)
        if is_possible_lac(lac, entry_id):
            if not recovery:
                # A writer's LAC never goes back, so this one covers all that is stored; a recovery's does not.
                state.lac_known = True
            state.raise_lac(lac)
        self.ledgers.heat(state, life, copy=recovery)
        return lane

    def forget(self, ledger_id: int, fenced: bool, next_log: int) -> None:
        """The storage deleted this ledger. A replay must not bring it back into a later ledger of the same id, nor its
        key or fence, so the deletion is journaled, before whatever that ledger journals."""
        self.ledgers.forget(ledger_id, fenced)
        record = deletion_record(ledger_id, next_log)
        with suppress(StorageFault):  # the journal has failed and the bookie is about to stop
            self._journals[self.ledgers.journal_of(ledger_id)].append(
                JournalBatch.of(record, sync=False, on_done=self._then(_nothing))
            )

    def submit(self, lane: WriteLane, entries: int, done: Done, *, sync: bool = True) -> int:
        """Hand a lane to its journal and empty it; `done` follows when its records are as durable as configured.

        Returns the bytes of the data records, length prefixes included.
        """
        nbytes = sum(map(len, lane.data))
        pieces, journaled = (lane.specials + lane.data, nbytes) if self.write_data else (lane.specials, 0)
        if lane.specials:
            journaled += sum(map(len, lane.specials))
        lane.clear()  # first: `done` may come at once, and admit adds that waited into this same lane
        if pieces or self.write_data:
            on_done = done if self.write_data else self._then(_nothing)
            batch = JournalBatch(pieces, entries, journaled, sync, on_done)
            try:
                self._journals[lane.journal].append(batch)
            except StorageFault as error:
                # The journal has failed and the bookie is about to stop: nothing is answered.
                done(error)
                return nbytes
        if not self.write_data:
            done(None)
        return nbytes

    def fence(self, ledger_id: int, key: bytes, life: bytes = NO_LIFE) -> asyncio.Future[None]:
        """Fence a ledger, creating it if unknown. The future resolves when the fence is durable.

        A fence that this process did not journal is journaled once more: a copy of a fenced ledger may have been
        written a moment ago, and be in memory only.

        Raises Unauthorized without a key or with another one, NoSuchLedger if it was fenced and deleted lately. A key
        of zeros counts as none, unless it is this very ledger's own: else that ledger could never be closed.
        Raises LedgerStateUnknown if another ledger of the id is stored here than the one of this `life`: which of them
        lives is not known here. What came under that one without a life may be this one's: then the fence counts.
        """
        stored = self.ledgers.life_of(ledger_id)
        if life and stored and not is_same_life(stored, life) and not has_unnamed(stored):
            raise another_is_stored(ledger_id)
        if is_unknown_key(key) and not (key and self.ledgers.has_key(ledger_id, key)):
            raise Unauthorized(f"ledger {ledger_id}: fencing needs the master key")
        # A fence that is refused counts, because the refusal tells a recovery that nothing is here.
        self.ledgers.note_unnamed(ledger_id, key)
        state = self.ledgers.for_write(ledger_id, key, deleted=NoSuchLedger)
        if state.fence_durable is not None:
            return state.fence_durable
        if not state.fenced:
            state.fenced = True
            state.cool_down()
            self.ledgers.record(state)
            state.release_waiters()
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        state.fence_durable = durable
        record = fence_record(ledger_id) if state.key_journaled else []  # it goes with the key
        try:
            self._journal_special(state, record, 1, lambda error: resolve(durable, error))
        except StorageFault as error:
            # The journal has failed: those that wait for this fence get the error, the ledger stays fenced.
            resolve(durable, error)
        return durable

    def write_lac(self, ledger_id: int, key: bytes, packet: bytes, done: Done, *, life: bytes = NO_LIFE) -> None:
        """Store an explicit LAC packet (the last one wins). Allowed on fenced ledgers.

        Raises BadRequest for a packet that is too short, too long or of another ledger, Unauthorized, NoSuchLedger
        (memo).
        """
        packet_ledger, lac = read_lac_packet(packet)
        if packet_ledger != ledger_id:
            raise BadRequest(f"the LAC packet is of ledger {packet_ledger}, the request of ledger {ledger_id}")
        check_storable(key, packet)
        state = self.ledgers.for_write(ledger_id, key, deleted=NoSuchLedger)
        if state.life != life or not life:
            self._take_life(state, life, NoSuchLedger)
        state.explicit_lac = packet
        self.ledgers.record(state)
        state.raise_lac(lac)
        self._journal_special(state, explicit_lac_record(ledger_id, packet), 1, done)

    def force(self, ledger_id: int, done: Done) -> None:
        """`done` follows when everything journaled for this ledger before is durable."""
        journal = self._journals[self.ledgers.journal_of(ledger_id)]
        journal.append(JournalBatch([], 1, 0, True, self._then(done)))

    def _journal_special(self, state: LedgerState, record: list[bytes], entries: int, done: Done) -> None:
        pieces: list[bytes] = []
        self._journal_key(state, pieces)
        pieces += record
        batch = JournalBatch(pieces, entries, sum(map(len, pieces)), True, self._then(done))
        self._journals[state.journal].append(batch)

    def _let_writer_in(self, state: LedgerState, life: bytes) -> None:
        """Check a writer whose ledger is fenced, or has another life, as far as this bookie knows."""
        # The fence of another ledger does not count: the writer replaces this bookie, and looks at the metadata.
        is_its_own = not life or not state.life or is_same_life(state.life, life)
        if state.fenced and is_its_own and not (life and self._is_fence_of_former(state)):
            raise LedgerFenced(f"ledger {state.ledger_id} is fenced")
        self._take_life(state, life, LedgerFenced)

    def _take_life(self, state: LedgerState, life: bytes, gone: type[LedgerFenced] | type[NoSuchLedger]) -> None:
        """Take the life that a writer presents if no other is known, and refuse it otherwise.

        A ledger has one writer, which always presents the life or never. Raises `gone` to a writer that presents none
        where the writer has presented one, LedgerStateUnknown to the writer of the living ledger if another one of its
        id is still stored here.
        """
        if life:
            self._name(state, life)
        elif not state.life or is_named_by_copies(state.life):
            self._let_unnamed_in(state)
        else:
            raise gone(f"ledger {state.ledger_id}: its writer is another client")

    def _let_copy_in(self, state: LedgerState, life: bytes) -> None:
        """Check a copy."""
        if life:
            self._name(state, life)
        else:
            self._let_unnamed_in(state)

    def _let_unnamed_in(self, state: LedgerState) -> None:
        """Note that something came that names no life: it may be of any ledger of this id."""
        self.ledgers.note_unnamed(state.ledger_id, state.key)
        self._note_life(state, with_unnamed(state.life))

    def _is_fence_of_former(self, state: LedgerState) -> bool:
        """Return whether a former ledger of the id is fenced here: the living one is open, so no client fenced it."""
        return state.fenced and not state.life and self.ledgers.alive == state.ledger_id

    def _name(self, state: LedgerState, life: bytes) -> None:
        """Note the life. Raises LedgerStateUnknown if another one, or the fence of another one, is stored here."""
        if state.life and not is_same_life(state.life, life):
            raise another_is_stored(state.ledger_id)
        if self._is_fence_of_former(state):
            # With the life, the fence would be that of the living ledger, and end it.
            raise LedgerStateUnknown(f"ledger {state.ledger_id}: a deleted ledger of the same id is fenced here")
        self._note_life(state, named_again(state.life, life))

    def _note_life(self, state: LedgerState, life: bytes) -> None:
        if state.life == life:
            return
        state.cool_down()  # what was admitted before may not be any more
        state.life = life
        state.key_journaled = False  # the life is journaled with the key, before the first entry
        self.ledgers.record(state)

    def _then(self, done: Done) -> Done:
        def acknowledged(error: BaseException | None) -> None:
            done(error)
            self.on_acknowledged()

        return acknowledged

    def _journal_key(self, state: LedgerState, pieces: list[bytes]) -> None:
        # An unknown key is journaled as well: without a key record, replay would take the ledger for deleted.
        if not state.key_journaled:
            pieces += key_record(state.ledger_id, state.key, state.life)
            if state.fenced:
                pieces += fence_record(state.ledger_id)  # of a ledger that was made fenced nothing else tells
            state.key_journaled = True


def another_is_stored(ledger_id: int) -> LedgerStateUnknown:
    """Return the error for a client that names another life than the stored one: it replaces this bookie."""
    return LedgerStateUnknown(f"ledger {ledger_id}: another ledger of the same id is stored here")


def resolve(future: asyncio.Future[None], error: BaseException | None) -> None:
    """Hand the journal's result for a batch to the future, unless its owner has given up."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _nobody() -> None:
    """Do nothing: no request waits for room in the journals."""


def _nothing(error: BaseException | None) -> None:
    """Do nothing: no request waits for this record, and a journal that fails ends the bookie by itself."""
