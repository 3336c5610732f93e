"""What a fault is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from tests.campaign.world import Bookie, World

OnBookie = Callable[[World, Bookie, Random], Awaitable[str]]
"""Does it to one bookie, which is held, and ends it; gives what is worth noting of it. The bookie may be down after."""
OnCluster = Callable[[World, Random], Awaitable[str]]
"""Does it to whatever it chooses, and holds bookies itself."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind. `weight`: how often it is drawn, compared with others."""

    name: str
    weight: float
    on_bookie: OnBookie | None = None
    on_cluster: OnCluster | None = None
    destroys: bool = False
    """Copies may be gone or damaged by it: only the victims of a round may meet it."""
    needs_checks: bool = False
    """Only files with checks of our kind can tell it: with others it is found anew in every round."""
