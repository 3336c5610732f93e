"""The journal: write-ahead log with group commit, its replay and its marks.

format       bytes of headers, records, padding and group checks
batch_queue  `JournalBatch`, the unit of work, and how batches become groups
journal      `Journal`: journal thread; with sync_thread and journal_file
marks        `LogMark` and the `lastMark` files
reader       stepping through a file; survey: what of it is sound
replay       `replay_journal` into a `ReplaySink`
directory    names, listing, trimming

A directory is the `current` folder. After replay the storage must be flushed *and* the returned mark written, or the
start fails: the next journal file may hold records only if the torn tail of the previous one is below the mark.
Journals carry a checksum of each group inside the padding that the reference ignores (`journal.format`); with it replay
tells a torn tail from damage. It covers every byte that decides where a replay goes next, each group names the one
before it, and each file the file before it and where that one ends: a file that is missing, emptied or cut is damage.
Mark files carry a checksum behind the 16 bytes that the reference reads. A mark is valid only where a record begins.
The newest copy with a checksum counts; of copies without one the oldest that is valid; and if there is no sound copy,
all journals that are there are replayed.

`deliver(batches, error)` is called once per synced (or flushed) set of groups, in order, on a thread of the journal
(two threads if there are deferred-sync batches); after a failure never again. The node passes a function that hops to
the event loop once. Special records are built by `journal.format`: `key_record`, `fence_record`, `explicit_lac_record`,
each returning `[length prefix, body]`.
"""

from bookie_pod.storage.journal.batch_queue import Deliver, JournalBatch
from bookie_pod.storage.journal.journal import Journal
from bookie_pod.storage.journal.marks import LogMark, MarkFiles
from bookie_pod.storage.journal.replay import ReplayOptions, ReplaySink, replay_journal
from bookie_pod.storage.journal.survey import read_records

__all__ = [
    "Deliver",
    "Journal",
    "JournalBatch",
    "LogMark",
    "MarkFiles",
    "ReplayOptions",
    "ReplaySink",
    "read_records",
    "replay_journal",
]
