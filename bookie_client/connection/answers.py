"""What a bookie's answers carry, by operation.

Immutable; any thread.

Source: reference wire protocol, sections 3, 4.4 and 8.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_LAC = -1
"""The last add confirmed of a ledger in which nothing is confirmed."""


@dataclass(frozen=True, slots=True)
class EntryAnswer:
    """The answer to a read of one entry."""

    entry: bytes
    """The stored entry, header and digest included; not verified."""
    max_lac: int | None
    """The highest LAC that this bookie knows of the ledger. None: it does not say (v2, fencing reads)."""


@dataclass(frozen=True, slots=True)
class LacAnswer:
    """The answer to READ_LAC. At least one of the two is there; neither is verified."""

    explicit: bytes | None
    """The explicit LAC's packet, as its writer sent it."""
    last_entry: bytes | None
    """The entry with the highest id that this bookie stores."""
    complete: bool = True
    """False: there is an explicit LAC, and about its last entry the bookie could not tell, or it has none (the
    reference answers both alike; reference wire protocol, section 8.6). Then the explicit LAC is a lower bound and
    nothing more."""


@dataclass(frozen=True, slots=True)
class LongPollAnswer:
    """The answer to a long poll."""

    max_lac: int
    """The highest LAC that this bookie knows; `NO_LAC` when it knows of none."""
    entry: bytes | None
    """The entry behind the LAC polled for, or the one asked for. None: the time was up, or it is not stored
    here."""


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """Space on the file systems of the ledger directories, each counted once."""

    total_bytes: int
    free_bytes: int
