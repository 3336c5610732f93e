"""The interface of a storage engine for ledgers, server, replay and checkpoints.

Invariants
- Nothing on the event-loop side blocks: it touches memory only.
- `NoSuchEntry` and `NoSuchLedger` are raised only when the engine knows. Every fault is another
  `StorageFault`; a ledger in limbo raises `LedgerStateUnknown` where it would otherwise say "no such entry".
- When `flush` has returned, everything put, set or deleted before it was called is durable.

Putting entries
    if storage.is_full(ledger_id): storage.request_flush(ledger_id), wait for `on_space`, or reject
    entries = storage.active_entries(ledger_id)     # may be kept until the next `on_swap`
    entries[entry_id] = entry                       # once per entry
    storage.account(ledger_id, nbytes, count)       # once per chunk, before the event loop turns
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from bookie_pod.storage.index.ledger_data import LedgerRecord, LedgerRecords
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.errors import StorageFault

OnLoop = Callable[[Callable[[], None]], None]
"""Runs a function on the event loop's thread and returns when it has run; raises what it raised. Called from
background threads. Before the loop serves, and in tests, a function that simply calls its argument will
do."""


Consent = Callable[[bool], bool]
"""Decides on the event loop whether a ledger is deleted, right before the deletion.

The argument is True if no entries of the ledger have been put since `watch`.
"""


def always(untouched: bool) -> bool:
    """Consent to any deletion, for a caller who knows that no client adds entries."""
    return True


OnDeleted = Callable[[int, bool, int], None]
"""Called for each deleted ledger with its id, whether it was fenced, and the first log that its next life may have.

That log is 0 if any log may hold entries of the next life, or if it is not known.
"""


FLUSH_TRIES: Final = 10
"""The number of consecutive failed flushes of a directory after which its disk counts as failed."""


class DirectoryGivenUp(StorageFault):
    """The disk of this directory failed. A flush that raises it has made durable all that other directories hold."""


class Checkpointer(Protocol):
    """The checkpoints as an engine sees them; the engines must not import `checkpoint`."""

    def marks(self) -> Sequence[LogMark]:
        """The mark of every journal now: all records below were put into the storage before. Any thread."""
        ...

    def request(self, marks: Sequence[LogMark] | None = None) -> None:
        """Ask for a checkpoint of what lies below `marks` (None: below the marks of now). Never blocks."""
        ...


class LedgerStorage(Protocol):
    """The entries and ledgers of one bookie."""

    checkpoints_by_interval: bool
    """True if checkpoints come every `flushInterval`; False if they come only when the engine asks for them."""

    max_entry_id: int
    """The highest entry id that this engine, on these disks, can hold. To be compared before an add is journaled: what
    lies above it is refused as a `BadRequest`, since once it is acknowledged nothing can keep it. (What else has a
    limit is the same for every engine: `ledger_data.check_storable` of a master key and an explicit LAC.)"""

    write_caches: int
    """Ledgers whose ids agree modulo this number share a write cache: what `is_full` says of one holds for all."""

    @property
    def doubts(self) -> int:
        """Return a number that grows whenever the storage by itself puts ledgers in limbo. A caller that compared
        ledgers with other bookies before that has to compare them again. Any thread."""
        ...

    def start(self, checkpointer: Checkpointer) -> None:
        """The replay is over: background work may begin, and only the event loop puts from now on. Until then one
        thread puts, and nothing is frozen but by a `flush` of that thread."""
        ...

    # --- event loop; never blocks ---------------------------------------------------------------------------

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        """Key, fence, limbo and explicit LAC; None if the bookie does not know the ledger. Any thread may
        ask."""
        ...

    def set_ledger(self, ledger_id: int, record: LedgerRecord) -> None:
        """Make or replace the ledger: in memory at once, durable with the next flush."""
        ...

    def set_master_key(self, ledger_id: int, key: bytes) -> LedgerRecord:
        """Check the key that a request or a journal record presents, and make the ledger if it is unknown.

        An empty or all-zero stored key is replaced, an empty or all-zero `key` changes nothing.
        `Unauthorized` if both are known and differ; `BadRequest` for a key that is longer than a bookie takes. Neither
        changes anything.
        """
        ...

    def active_entries(self, ledger_id: int) -> dict[int, bytes]:
        """Return the dict to put the ledger's entries into, made if missing. Void after the next `on_swap` call."""
        ...

    def account(self, ledger_id: int, nbytes: int, count: int) -> bool:
        """Take note of `count` entries of `nbytes` in total that were put; True if its cache is full now."""
        ...

    def is_full(self, ledger_id: int) -> bool:
        """Return whether the write cache for this ledger's entries is full. An empty cache is never full."""
        ...

    def request_flush(self, ledger_id: int) -> None:
        """Start a flush of the ledger's directory in the background, unless one is already waiting to
        start."""
        ...

    def on_swap(self, callback: Callable[[], None]) -> None:
        """Call back on the loop whenever dicts from `active_entries` become void: after a swap, after a
        deletion."""
        ...

    def on_space(self, callback: Callable[[], None]) -> None:
        """Call back on the loop whenever a write cache may have stopped being full."""
        ...

    def flushing(self) -> Sequence[tuple[str, object | None]]:
        """The threads that flush, and what each is at: another one with everything that it has brought to the disks;
        None: nothing. Any thread."""
        ...

    def written(self) -> int:
        """Grows with everything that a flush or checkpoint brings to the disks. Any thread."""
        ...

    def on_flush_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Call back, on a background thread, when a flush that `request_flush` started has failed."""
        ...

    def on_directory_failure(self, callback: Callable[[int, StorageFault], None]) -> None:
        """Call back, on a background thread, once the writes of a ledger directory have failed `FLUSH_TRIES` times in a
        row, with its place in the configuration."""
        ...

    def fail_directory(self, index: int, failure: StorageFault) -> None:
        """The disk of one ledger directory failed; the others go on. No mark moves any more, so that the journals keep
        what the failed one owes its disk: the next start replays it, or finds the directory lost."""
        ...

    def on_ledger_deleted(self, callback: OnDeleted) -> None:
        """Call back on the loop after a ledger was deleted here."""
        ...

    def cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry if memory holds it (active half, half being flushed, read cache); None tells nothing."""
        ...

    def cached_each(self, ledger_id: int, entry_ids: Sequence[int]) -> list[bytes | None]:
        """Return what `cached` returns for each of these entries, with one look-up of the ledger."""
        ...

    def cached_run(self, ledger_id: int, entry_ids: range) -> list[bytes]:
        """Return the first of these entries, as far as memory holds them without a gap. Any thread."""
        ...

    # --- reader threads -------------------------------------------------------------------------------------

    def read(self, ledger_id: int, entry_id: int) -> bytes:
        """The entry; `LAST_ENTRY` for the one with the highest id.

        `NoSuchLedger`, `NoSuchEntry`: the store knows. `LedgerStateUnknown`: limbo. `StorageFault`: anything
        else.
        """
        ...

    def read_each(
        self, ledger_id: int, entry_ids: Sequence[int], *, apart: bool = False
    ) -> Iterator[bytes | Exception]:
        """Yield, for each of these entries in turn, what `read` returns or the error that it raises.

        `LAST_ENTRY` is not allowed. With `apart`, as for `read_apart`, flushed entries are read from disk and not kept.
        Entries may be looked up together, and adjacent ones may be read together. A caller that stops early may cause
        some unused reads, within the bounds of reading ahead.
        """
        ...

    def read_apart(self, ledger_id: int, first: int, count: int, max_bytes: int) -> list[bytes]:
        """Entry `first`, and of the following ones those that come with it at once: at most `count` entries in all,
        and about `max_bytes`.

        For checks and copies, which must not disturb others and have to know what the disk has: only what was not
        flushed yet comes from memory, and nothing that comes from disk is kept, nor anything read ahead of what is
        asked for. Raises what `read` does for the first entry.
        """
        ...

    def last_entry_id(self, ledger_id: int) -> int:
        """The highest entry id held; raises as `read` does."""
        ...

    def entry_ids(self, ledger_id: int, *, in_logs: bool = False) -> Iterator[int]:
        """Yield all entry ids held, ascending.

        Raises `NoSuchLedger` at once if the ledger is unknown, and at the end if it was deleted meanwhile, even if it
        was created again. With `in_logs`, leave out the entries that the index places into entry logs that are gone.
        """
        ...

    # --- any thread -----------------------------------------------------------------------------------------

    def ledger_ids(self) -> list[int]:
        """Ids of all ledgers, in no order."""
        ...

    def delete_ledger(self, ledger_id: int) -> None:
        """Forget a ledger: unknown when this returns, its rows gone with the next flush. No error if unknown.

        Runs partly on the event loop: not to be called there unless the `OnLoop` runner allows it.
        """
        ...

    def deleted_before(self, ledger_id: int, next_log: int) -> None:
        """An earlier process deleted the ledger, and said that its next life begins in this log at the earliest. In the
        replay. If it is known, it is of a later life: rows that lead to older logs go. `StorageFault`."""
        ...

    # --- background threads ---------------------------------------------------------------------------------

    def flags(self) -> int:
        """Return the persistent flags of the whole storage (`NEEDS_INTEGRITY_CHECK`). Raises `StorageFault`."""
        ...

    def set_flags(self, flags: int) -> None:
        """Replace the flags; durable on return. `StorageFault`."""
        ...

    def clear_flags(self, flags: int, doubts: int) -> bool:
        """Clear these flags, unless `doubts` is another number by now; durable on return. Return whether they are
        clear. `StorageFault`."""
        ...

    def flush(self) -> None:
        """Make everything put, set or deleted before the call durable. Never on the event loop.

        `NoWritableDirectory` if no entry log can be made, another `StorageFault` for other faults. What could
        not be written stays in memory and readable, and the next flush begins with it. `StorageFailed`: it did
        not, the process has to end.
        """
        ...

    def checkpoint(self, marks: Sequence[LogMark]) -> None:
        """Make durable at least what lies below `marks`, in the way that is cheapest. Raises as `flush` does.

        Never on the event loop.
        """
        ...

    def close(self) -> None:
        """Stop background work and close every file and database, without flushing the write cache."""
        ...


def each_alone(
    read: Callable[[int, int], bytes], ledger_id: int, entry_ids: Sequence[int]
) -> Iterator[bytes | Exception]:
    """`LedgerStorage.read_each` of an engine to which entries that are asked for together are no less work."""
    for entry_id in entry_ids:
        try:
            found: bytes | Exception = read(ledger_id, entry_id)
        except Exception as error:
            found = error
        yield found


class ListenedStorage(ABC):
    """The listeners of a storage, and the deletion of ledgers that received no entry meanwhile.

    It is the base of one ledger directory of DbLedgerStorage and of an engine with a memtable.

    Threads: event loop, but for `watch` and `delete_ledger`.
    """

    def __init__(self, on_loop: OnLoop) -> None:
        self._on_loop = on_loop
        self.died_before: Callable[[int, int], bool] = lambda ledger_id, log_id: False
        """Returns whether this log may hold entries of this ledger from before a deletion.

        Garbage collection remembers that for ledgers whose records do not name the log in which their life begins. Any
        thread.
        """
        self.unsynced: Container[int] = frozenset()
        """Places in entry logs where a power cut has left parts of an entry. No row leads there. Any thread."""
        self.doubts = 0
        """See `LedgerStorage.doubts`."""
        self._untouched: set[int] = set()
        """Ledgers of which no entry was put since they are watched. Event loop."""
        self._swap_callbacks: list[Callable[[], None]] = []
        self._space_callbacks: list[Callable[[], None]] = []
        self._deletion_callbacks: list[OnDeleted] = []

    @abstractmethod
    def _put_lately(self) -> Collection[int]:
        """Ledgers in the half that takes entries now."""

    @abstractmethod
    def _records(self) -> LedgerRecords:
        """The ledgers."""

    @abstractmethod
    def _delete(self, ledger_id: int) -> None:
        """Forget the ledger. Event loop."""

    def on_swap(self, callback: Callable[[], None]) -> None:
        self._swap_callbacks.append(callback)

    def on_space(self, callback: Callable[[], None]) -> None:
        self._space_callbacks.append(callback)

    def on_ledger_deleted(self, callback: OnDeleted) -> None:
        self._deletion_callbacks.append(callback)

    def _tell_swapped(self) -> None:
        """Dicts of entries that were handed out are not those that take entries now, and there is room."""
        for callback in (*self._swap_callbacks, *self._space_callbacks):
            callback()

    def _tell_deleted(self, ledger_id: int, *, handed_out: bool, fenced: bool, next_log: int) -> None:
        """`handed_out`: its dict of entries was."""
        if handed_out:
            for callback in self._swap_callbacks:
                callback()
        for deleted in self._deletion_callbacks:
            deleted(ledger_id, fenced, next_log)

    def put_in_limbo(self, ledger_ids: Collection[int]) -> None:
        """Deny no entry of these ledgers from now on, until they were compared with other bookies. Any thread.

        Durable with the next flush."""

        def put() -> None:
            self.doubts += 1  # also of those that are in limbo: they may be leaving it
            records = self._records()
            for ledger_id in ledger_ids:
                record = records.get(ledger_id)
                if record is not None and not record.limbo:
                    records.put(ledger_id, replace(record, limbo=True))

        self._on_loop(put)

    def watch(self, ledger_ids: Collection[int]) -> None:
        """Record from now on which of these ledgers, and of no others, receive entries. Any thread."""
        untouched = set(ledger_ids)

        def begin() -> None:
            self._untouched = untouched
            if not untouched.isdisjoint(self._put_lately()):
                for callback in self._swap_callbacks:
                    callback()

        self._on_loop(begin)

    def in_one_turn(self, work: Callable[[], None]) -> None:
        """Do all of it in one turn of the event loop, where several deletions cost one hand-over. Any thread."""
        self._on_loop(work)

    def delete_ledger(self, ledger_id: int, consent: Consent = always) -> None:
        """Forget the ledger if `consent` agrees, which gets whether no entry came since `watch`. Any thread."""

        def delete() -> None:
            if consent(ledger_id in self._untouched):
                self._delete(ledger_id)

        self._on_loop(delete)
