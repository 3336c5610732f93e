"""The write sets of a striped ensemble: which positions hold an entry together.

A rule that protects entries has to hold in every write set, not only in the ensemble: entry e lies on the positions
e, e + 1, ... e + Qw - 1 (modulo E) and on no others.

Pure; any thread.

Source: reference client protocol, sections 4 and 16.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from bookie_client.distribution import Quorums

WriteSet = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Windows:
    """All different write sets, those through each position, and the other positions in these."""

    all: tuple[WriteSet, ...]
    through: tuple[tuple[WriteSet, ...], ...]
    neighbours: tuple[tuple[int, ...], ...]


def windows_of(quorums: Quorums) -> Windows:
    """The write sets that these quorums lead to."""
    return _windows(quorums.ensemble, quorums.write)


@lru_cache(maxsize=256)
def _windows(ensemble: int, write: int) -> Windows:
    sets = [tuple(sorted((start + i) % ensemble for i in range(write))) for start in range(ensemble)]
    different = tuple(dict.fromkeys(sets))
    through = tuple(tuple(one for one in different if position in one) for position in range(ensemble))
    neighbours = tuple(
        tuple(sorted({other for one in through[position] for other in one if other != position}))
        for position in range(ensemble)
    )
    return Windows(different, through, neighbours)


def can_span(parts: Sequence[Hashable | None], minimum: int) -> bool:
    """Whether these members, None standing for one not yet chosen, can come to `minimum` different parts."""
    return len({part for part in parts if part is not None}) + parts.count(None) >= minimum
