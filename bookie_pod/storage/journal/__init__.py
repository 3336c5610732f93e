"""The journal: write-ahead log with group commit, its replay and its marks.

format       bytes of headers, records, padding and group checks
batch        `JournalBatch`, the unit of work
journal      `Journal`: journal thread; with sync_thread, group_commit, journal_file, file_supply
marks        `LogMark` and the `lastMark` files
reader       stepping through a file; survey: what of it is sound
replay       `replay_journal` into a `ReplaySink`
directory    names, listing, trimming
options, metrics
"""

from bookie_pod.storage.journal.batch import Deliver, JournalBatch
from bookie_pod.storage.journal.journal import Journal
from bookie_pod.storage.journal.marks import LogMark, MarkFiles
from bookie_pod.storage.journal.metrics import JournalMetrics
from bookie_pod.storage.journal.options import JournalOptions
from bookie_pod.storage.journal.replay import ReplayOptions, ReplaySink, replay_journal
from bookie_pod.storage.journal.survey import read_records

__all__ = [
    "Deliver",
    "Journal",
    "JournalBatch",
    "JournalMetrics",
    "JournalOptions",
    "LogMark",
    "MarkFiles",
    "ReplayOptions",
    "ReplaySink",
    "read_records",
    "replay_journal",
]
