"""Racks of the virtual cluster. Writers place ledgers without regard to them; whoever copies knows them.

The rule is the default one of the rack-aware policy, in words of its own: each write set spans two racks. Fewer than
three racks cannot obey it with an odd ensemble and a write quorum of two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bookie_client.placement.options import PlacementOptions
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.support.simulation.healing.copies import Part, parts, quorums_of
from tests.support.simulation.history import History

if TYPE_CHECKING:
    from tests.support.simulation.bookie import VirtualBookie

MOST_BOOKIES = 200


class Racks:
    """`count` None: there are none, and everything obeys."""

    def __init__(self, count: int | None) -> None:
        self._count = count

    def placement(self, *, knows_them: bool) -> PlacementOptions | None:
        """What a client places by; None: the default."""
        if self._count is None:
            return None
        if not knows_them:
            return PlacementOptions(policy="random")
        hosts = (f"bookie-{number}" for number in range(MOST_BOOKIES))
        return PlacementOptions(policy="rack-aware", locations={host: f"/{self._rack(host)}" for host in hosts})

    def _rack(self, bookie: str) -> str:
        assert self._count is not None
        return f"rack-{int(bookie.partition(':')[0].removeprefix('bookie-')) % self._count}"

    def obeyed(self, metadata: LedgerMetadata, part: Part) -> bool:
        """By all write sets of a segment."""
        if self._count is None:
            return True
        write_set = quorums_of(metadata).write_set
        turns = range(metadata.ensemble_size)
        return all(len({self._rack(part.members[at]) for at in write_set(turn)}) > 1 for turn in turns)

    def disobeyed(self, history: History) -> list[str]:
        """Segments of closed ledgers that store something in one rack, for people."""
        return [
            f"ledger {ledger.ledger_id}: one rack has a whole write set of {part}"
            for ledger in history.ledgers.values()
            if ledger.metadata.is_closed
            for part in parts(ledger.metadata)
            if part.first <= part.last and not self.obeyed(ledger.metadata, part)
        ]

    def suffice(self, bookies: Iterable[VirtualBookie], each: int) -> bool:
        """Whether so many bookies stand in each rack that every ensemble can be mended."""
        if self._count is None:
            return True
        found = Counter(self._rack(bookie.bookie_id) for bookie in bookies)
        return all(found[f"rack-{number}"] >= each for number in range(self._count))
