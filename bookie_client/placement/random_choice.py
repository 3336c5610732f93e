"""Uniformly random placement over the writable bookies.

Pure: the candidates and the source of randomness are arguments. Policies that know racks or regions have the
same two functions.

Source: reference client protocol, sections 3 and 16 (default placement policy).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from random import Random
from typing import Protocol

from bookie_protocol.errors import NotEnoughBookies


class PlacementPolicy(Protocol):
    """What the write path asks of a placement policy."""

    def new_ensemble(
        self, size: int, writable: Collection[str], random: Random, excluded: Collection[str] = ()
    ) -> tuple[str, ...]:
        """`size` different bookies; raises `NotEnoughBookies`."""

    def replacement(self, writable: Collection[str], random: Random, excluded: Collection[str]) -> str | None:
        """One bookie outside `excluded`, or None when there is no spare."""


class RandomPlacement:
    """Every writable bookie is as likely as any other."""

    def new_ensemble(
        self, size: int, writable: Collection[str], random: Random, excluded: Collection[str] = ()
    ) -> tuple[str, ...]:
        candidates = _candidates(writable, excluded)
        if len(candidates) < size:
            # Quarantined bookies are better than none.
            candidates = _candidates(writable, ())
        if len(candidates) < size:
            raise NotEnoughBookies(
                f"an ensemble of {size} needs {size} writable bookies and there are {len(candidates)}"
                f" ({', '.join(candidates) or 'none'}); start more bookies or ask for a smaller ensemble"
            )
        return tuple(random.sample(candidates, size))

    def replacement(self, writable: Collection[str], random: Random, excluded: Collection[str]) -> str | None:
        candidates = _candidates(writable, excluded)
        return random.choice(candidates) if candidates else None


def _candidates(writable: Iterable[str], excluded: Collection[str]) -> list[str]:
    # Sorted, so that one seed gives one choice whatever order the metadata service lists bookies in.
    return sorted(set(writable).difference(excluded))
