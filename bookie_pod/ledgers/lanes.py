"""What the requests of one socket read hand to the journals: one lane per journal.

A lane gathers the journal records and the answers of all adds of one read that belong to one journal, so that the
journal acknowledges them as one batch and the connection writes their answers at once.

Threads: event loop only.
"""

from __future__ import annotations


class WriteLane:
    """Records for one journal, and the answers to send when they are durable."""

    __slots__ = ("answers", "counted", "data", "journal", "specials")

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

    def clear(self) -> None:
        """Start the next batch; the lists handed over before are never touched again."""
        self.specials, self.data, self.answers = [], [], []
        self.counted = 0
