"""Fills the empty positions of an ensemble so that a rule holds: a random search that can turn back.

Drawing one bookie after the other can run into a dead end (the only bookie of a scarce rack is spent on a position
that did not need it) although an ensemble that obeys the rule exists. So the search goes back and tries another
kind of bookie; bookies of one kind (same place, same standing) are interchangeable, which keeps it short.

A rule that protects entries has to hold in every write set (`windows_of`), not only in the ensemble: entry e lies on
the positions e, e + 1, ... e + Qw - 1 (modulo E) and on no others.

Invariants
- A bookie is used once. What was already there is never touched.
- The same arguments and seed give the same result; nothing depends on the order of sets or dicts.
- At most `MAX_STEPS` bookies are tried, and half of what is left of the caller's `Effort`, which bounds all searches
  for one answer together; but always as many as there are positions. Giving up then means "not found", as a dead end
  does.

Pure; any thread.

Source: docs/internals/client-protocol.md, sections 4 and 16.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import ClassVar, Final, NamedTuple, Protocol

from bookie_client.distribution import Quorums
from bookie_client.placement.topology import Location

MAX_STEPS: Final = 2000
MAX_EFFORT: Final = 4000
"""Steps of all searches for one answer: the process that asks, and serves others, does nothing else meanwhile."""


WriteSet = tuple[int, ...]
Labels = Sequence[Location | None]
"""The location of the member at each position; None: no member is chosen yet."""


@dataclass(frozen=True, slots=True)
class Windows:
    """All different write sets, those through each position, and the other positions in these."""

    all: tuple[WriteSet, ...]
    through: tuple[tuple[WriteSet, ...], ...]
    neighbours: tuple[tuple[int, ...], ...]


def windows_of(quorums: Quorums) -> Windows:
    """Return the write sets that these quorums lead to."""
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
    """Return True if these members can reach `minimum` different parts; None is a member that is not chosen yet."""
    return len({part for part in parts if part is not None}) + parts.count(None) >= minimum


class Kind(NamedTuple):
    """The properties of a bookie that the search uses.

    Bookies that do not answer are drawn after all others, and quarantined ones after the others whose fault domain is
    as good."""

    unreachable: bool
    quarantined: bool
    label: Location


class Rule(Protocol):
    """A rule that must hold in an ensemble, and a preference among members that obey it."""

    domains: ClassVar[int]
    """Number of leading parts of a preference that describe fault domains."""

    def objection(self, labels: Labels, position: int) -> str | None:
        """Return why the member just put at `position` breaks the rule, or makes it impossible to obey; None if it does
        not."""
        ...

    def preference(self, labels: Labels, position: int, label: Location) -> tuple[int, ...]:
        """Smaller is drawn first; labels of equal preference are alike."""
        ...


class WriteSetRule(ABC):
    """A rule that each write set obeys or breaks by itself."""

    __slots__ = ()
    windows: Windows
    domains: ClassVar[int]

    def objection(self, labels: Labels, position: int) -> str | None:
        for write_set in self.windows.through[position]:
            problem = self.problem(labels, write_set)
            if problem is not None:
                return problem
        return None

    @abstractmethod
    def problem(self, labels: Labels, write_set: WriteSet) -> str | None:
        """Return why this write set cannot obey; None if it can."""


class Effort:
    """The steps that all searches for one answer may take together."""

    def __init__(self) -> None:
        self.left = MAX_EFFORT

    def spend(self, steps: int) -> None:
        self.left = max(0, self.left - steps)


class NoRule:
    """A rule that accepts every member."""

    domains: ClassVar[int] = 0

    def objection(self, labels: Labels, position: int) -> str | None:
        return None

    def preference(self, labels: Labels, position: int, label: Location) -> tuple[int, ...]:
        return ()


def fill(
    labels: Labels,
    holes: Sequence[int],
    candidates: Mapping[Kind, Sequence[str]],
    rule: Rule,
    random: Random,
    weights: Mapping[str, float],
    effort: Effort,
) -> dict[int, str] | None:
    """Return a bookie for each position of `holes`; None when the rule cannot be obeyed.

    `candidates`: ascending ids by kind, none of them in the ensemble. `weights`: relative likelihood of being drawn
    among those that are equally preferred; empty: all alike.
    """
    if sum(map(len, candidates.values())) < len(holes):
        return None
    steps = max(len(holes), min(MAX_STEPS, effort.left // 2))
    search = _Search(list(labels), holes, candidates, rule, random, weights, steps)
    found = search.fill(0)
    effort.spend(steps - search.steps_left)
    return search.chosen if found else None


class _Search:
    def __init__(
        self,
        labels: list[Location | None],
        holes: Sequence[int],
        candidates: Mapping[Kind, Sequence[str]],
        rule: Rule,
        random: Random,
        weights: Mapping[str, float],
        steps: int,
    ) -> None:
        self._labels = labels
        self._holes = holes
        self._free = {kind: list(candidates[kind]) for kind in sorted(candidates)}
        self._rule = rule
        self._random = random
        self._weights = weights
        self.steps_left = steps
        self.chosen: dict[int, str] = {}

    def fill(self, index: int) -> bool:
        """Fill the holes from `index` on."""
        if index == len(self._holes):
            return True
        position = self._holes[index]
        untried = {kind: self._preference(kind, position) for kind, free in self._free.items() if free}
        while untried and self.steps_left > 0:
            self.steps_left -= 1
            kind, bookie = self._draw(untried)
            del untried[kind]
            self._labels[position] = kind.label
            if self._rule.objection(self._labels, position) is None:
                self._free[kind].remove(bookie)
                self.chosen[position] = bookie
                if self.fill(index + 1):
                    return True
                del self.chosen[position]
                insort(self._free[kind], bookie)
            self._labels[position] = None
        return False

    def _preference(self, kind: Kind, position: int) -> tuple[int, ...]:
        liked, domains = self._rule.preference(self._labels, position, kind.label), self._rule.domains
        return (kind.unreachable, *liked[:domains], kind.quarantined, *liked[domains:])

    def _draw(self, untried: Mapping[Kind, tuple[int, ...]]) -> tuple[Kind, str]:
        best = min(untried.values())
        kinds = [kind for kind, liked in untried.items() if liked == best]
        if self._weights:
            drawn_from = [(kind, bookie) for kind in kinds for bookie in self._free[kind]]
            weights = [self._weights.get(bookie, 0.0) for _, bookie in drawn_from]
            if any(weights):
                return self._random.choices(drawn_from, weights)[0]
        index = self._random.randrange(sum(len(self._free[kind]) for kind in kinds))
        for kind in kinds:
            free = self._free[kind]
            if index < len(free):
                break
            index -= len(free)
        return kind, free[index]
