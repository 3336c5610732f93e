"""Who holds what, seen by somebody who sees all disks.

Pure looks at the history and at the bookies' disks of this moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from bookie_client.distribution import Quorums
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.support.simulation.history import History, LedgerHistory

if TYPE_CHECKING:
    from tests.support.simulation.bookie import VirtualBookie

UNBOUNDED = 1 << 62
LEAST_SAMPLED = 20
"""Entries of a segment that has some between the first and the last one in every sample."""


class Part(NamedTuple):
    """A segment; `last` is `UNBOUNDED` where it may still grow."""

    first: int
    last: int
    members: tuple[str, ...]


def parts(metadata: LedgerMetadata) -> list[Part]:
    """The segments; of a closed ledger without what lies behind its end."""
    end = metadata.last_entry_id if metadata.is_closed else UNBOUNDED
    starts = (*metadata.first_entry_ids, UNBOUNDED)
    return [Part(first, min(after - 1, end), metadata.ensembles[first]) for first, after in pairwise(starts)]


def striped(metadata: LedgerMetadata, part: Part, position: int, last: int) -> Iterator[int]:
    """The entries up to `last` that striping puts at a position of a segment."""
    holds = quorums_of(metadata).holds
    return (entry for entry in range(part.first, min(part.last, last) + 1) if holds(position, entry))


def quorums_of(metadata: LedgerMetadata) -> Quorums:
    """Its striping."""
    return Quorums(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)


def missing(history: History) -> list[str]:
    """Copies of closed ledgers that are not where the metadata say, for people."""
    found = []
    for ledger in history.ledgers.values():
        metadata = ledger.metadata
        for part in parts(metadata) if metadata.is_closed else ():
            for position, bookie_id in enumerate(part.members):
                bookie = history.bookies[bookie_id]
                gone = [e for e in striped(metadata, part, position, part.last) if not bookie.has(ledger.ledger_id, e)]
                if gone or bookie.disk.lost:
                    found.append(f"ledger {ledger.ledger_id}, segment {part.first}: {bookie_id} lacks {gone}")
    return found


def lacks_what_it_had(ledger: LedgerHistory, part: Part, position: int, bookie: VirtualBookie) -> bool:
    """Whether a lost disk took entries of this segment that the bookie has not got again."""
    metadata, ledger_id = ledger.metadata, ledger.ledger_id
    last = max(ledger.payloads, default=-1)
    entries = striped(metadata, part, position, last)
    return any(bookie.had(ledger_id, entry) and not bookie.has(ledger_id, entry) for entry in entries)


def may_lose(history: History, bookie: VirtualBookie) -> bool:
    """Whether the disk of this bookie may be destroyed now: no write set loses its ack quorum of sound members."""
    for ledger in history.ledgers.values():
        metadata = ledger.metadata
        for part in parts(metadata):
            if bookie.bookie_id not in part.members:
                continue
            lost = [position for position, who in enumerate(part.members) if who == bookie.bookie_id]
            for position, who in enumerate(part.members):
                if position not in lost and _is_unsound(history.bookies[who], ledger, part, position):
                    lost.append(position)
            if len(lost) >= metadata.ack_quorum_size:
                return False
    return True


def _is_unsound(bookie: VirtualBookie, ledger: LedgerHistory, part: Part, position: int) -> bool:
    if any(ledger_id == ledger.ledger_id for ledger_id, _ in bookie.rotten):
        return True
    return bookie.disk.lost or bookie.is_held_back or lacks_what_it_had(ledger, part, position, bookie)


def may_rot(history: History, bookie: VirtualBookie) -> list[tuple[int, int]]:
    """Copies in the middle of closed segments on this bookie, which a look at first and last entries does not meet."""
    found = []
    for ledger in history.ledgers.values():
        metadata = ledger.metadata
        for part in parts(metadata) if metadata.is_closed else ():
            for position in (at for at, who in enumerate(part.members) if who == bookie.bookie_id):
                inside = list(striped(metadata, part, position, part.last))[1:-1]
                if len(inside) < LEAST_SAMPLED:
                    continue
                found += [(ledger.ledger_id, each) for each in inside if bookie.has(ledger.ledger_id, each)]
    return found


def ledgers_of(history: History, bookie: VirtualBookie) -> dict[int, None]:
    """Ledgers that have ever named the bookie: it may have said or promised something about them."""
    return {
        ledger.ledger_id: None
        for ledger in history.ledgers.values()
        if any(bookie.bookie_id in version.metadata.all_bookies() for version in ledger.versions)
    }


def may_come_back_empty(history: History, bookie: VirtualBookie, promised: Iterable[int]) -> bool:
    """Whether nobody counts on what it promised: none of these ledgers can still grow and ends on it."""
    ledgers = [history.ledgers[ledger_id].metadata for ledger_id in promised]
    return all(ledger.is_closed or bookie.bookie_id not in ledger.last_ensemble for ledger in ledgers)
