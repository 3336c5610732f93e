"""The weight of a ledger's metadata: strangers choose how much it holds, and each part costs time and memory to show.

Threads: event loop; what is heavy is made on a thread, for one caller at a time (`Weighed`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from bookie_protocol.aside import Aside
from bookie_protocol.ledger_metadata.model import Ensemble, LedgerMetadata

T = TypeVar("T")
HEAVY: Final = 500
"""Weight of a ledger that the event loop does not deal with; most have less than ten."""
AT_A_TIME: Final = 10
"""Ledgers whose metadata is read at the same time, while they are light."""
_BYTES: Final = 64
"""Bytes of custom metadata that weigh as much as one bookie."""


def weight_of(metadata: LedgerMetadata) -> int:
    """Return the number of bookies in all ensembles, and of custom metadata by their sizes."""
    custom = sum(1 + (len(name) + len(value)) // _BYTES for name, value in metadata.custom_metadata.items())
    return sum(map(len, metadata.ensembles.values())) + len(metadata.ensembles) + custom


def beginning_of(custom: Mapping[str, bytes], most: int) -> dict[str, bytes]:
    """Return the first custom metadata, which weigh `most` at most."""
    found: dict[str, bytes] = {}
    for name, value in custom.items():
        most -= 1 + (len(name) + len(value)) // _BYTES
        if most < 0:
            break
        found[name] = value
    return found


def end_of(metadata: LedgerMetadata, most: int) -> dict[int, Ensemble]:
    """Return the last ensembles, which weigh `most` at most."""
    first = len(metadata.first_entry_ids)
    while first > 0 and (most := most - 1 - len(metadata.ensembles[metadata.first_entry_ids[first - 1]])) >= 0:
        first -= 1
    return {each: metadata.ensembles[each] for each in metadata.first_entry_ids[first:]}


class Weighed:
    """Makes parts of answers from ledgers, at once or aside."""

    def __init__(self) -> None:
        self._aside = Aside()

    async def make(self, metadata: LedgerMetadata, make: Callable[[LedgerMetadata], T]) -> T:
        """Return `make(metadata)`; on a thread if the ledger is heavy."""
        if weight_of(metadata) <= HEAVY:
            return make(metadata)
        return await self._aside.run(lambda: make(metadata))


class Window:
    """The number of ledgers that are read at the same time: one after a heavy one, and more as they turn out light."""

    def __init__(self) -> None:
        self.size = 1

    def seen(self, heaviest: int) -> None:
        self.size = 1 if heaviest > HEAVY else min(AT_A_TIME, self.size * 2)
