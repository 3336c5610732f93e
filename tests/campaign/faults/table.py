"""All faults, and how a seed draws them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.campaign.faults import clients, damage, disks, links, membership, processes
from tests.campaign.faults.kind import Fault

ALL: Final[tuple[Fault, ...]] = (
    *processes.FAULTS,
    *links.FAULTS,
    *disks.FAULTS,
    *damage.FAULTS,
    *membership.FAULTS,
    *clients.FAULTS,
)


@dataclass(frozen=True, slots=True)
class Strike:
    """`after`: seconds behind the one before. `bookie`: its number, from 0. `seed`: of what is drawn meanwhile."""

    after: float
    fault: Fault
    bookie: int
    seed: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One round: what happens, and to whom copies may be destroyed."""

    strikes: Sequence[Strike]
    victims: tuple[int, ...]
    seconds: float
    last: Fault | None
    """What happens to all bookies at once when all ledgers have been closed; None: those that are up stay up, so that
    what they have kept of the round is seen."""


AT_THE_END: Final = ("SIGKILL of all", "power lost by all")
NAMES: Final = frozenset(fault.name for fault in ALL)
FOR_JAVA: Final = frozenset(fault.name for fault in ALL if not fault.needs_checks)
"""For the reference's bookies, unless others are asked for."""


def draw(random: Random, bookies: int, seconds: float, names: Collection[str] = NAMES) -> Plan:
    """The victims are one bookie as a rule: then whatever was acknowledged by two survives. `names`: of the faults to
    draw from."""
    some = [fault for fault in ALL if fault.name in names]
    victims = tuple(random.sample(range(bookies), random.choice((0, 1, 1, 1, 1, 2))))
    strikes, at = [], 0.0
    while True:
        after = random.expovariate(1 / 2.2)
        at += after
        if at > seconds:
            break
        (fault,) = random.choices(some, [fault.weight for fault in some])
        bookie = random.randrange(bookies)
        if fault.destroys:
            if not victims:
                continue
            bookie = random.choice(victims)
        strikes.append(Strike(after, fault, bookie, random.randrange(1 << 30)))
    last = random.choice([None, *(each for each in some if each.name in AT_THE_END)])
    return Plan(strikes, victims, seconds, last)
