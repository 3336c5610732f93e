"""What a run with ids that are used again is made of, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tests.support.simulation import scenario as plain
from tests.support.simulation.disk import DiskOptions
from tests.support.simulation.scenario import Scenario


@dataclass(frozen=True, slots=True)
class LivesPlan:
    """Who works on which ids."""

    ids: tuple[int, ...]
    authors: int
    recoverers: int
    readers: int
    deleters: int
    own_passwords: bool
    """Each life has a password of its own and the digest type MAC, so that bookies and readers can tell the lives
    apart, and its writers and recoverers go on while it is deleted and made anew. Without it bookies tell the lives
    apart by what writers present, which only version 3 has a place for; recoverers and readers present nothing. Then a
    ledger is deleted only while nobody adds to it, recovers or reads it, though adds may be on their way still, and an
    id is used again only when every bookie has collected it. Handles are closed later in both."""
    entries: int
    """At most, of one life."""
    lingers: float
    """Mean seconds after which a writer closes a ledger that it has filled."""
    delete_every: float
    """Mean seconds."""
    patience: float
    """Probability that an author waits until every bookie has collected the life before."""

    def __str__(self) -> str:
        passwords = "own passwords" if self.own_passwords else "one password"
        return (
            f"ids {', '.join(map(str, self.ids))}: {self.authors} authors, {self.recoverers} recoverers,"
            f" {self.readers} readers, {self.deleters} deleters, {passwords}"
        )


def draw_lives(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(f"lives {seed}")
    horizon = plain._between(random, 3.0, 8.0)
    quorums = random.choice(((2, 2, 1), (2, 2, 2), (3, 2, 2), (3, 3, 2), (3, 3, 2)))
    allowed = [kind for kind in plain.FAULTS if kind not in _LOSSES and random.random() < 0.3]
    client = replace(plain._client(random), add_quorum_timeout=3.0)
    return Scenario(
        seed,
        quorums,
        quorums[0] + random.choice((1, 2, 3)),
        horizon,
        (plain._ledger(random, horizon, False, ("plain",)),),
        plain._faults(random, allowed, horizon),
        plain._network(random),
        plain._metadata(random),
        DiskOptions(sync_seconds=0.0005, read_seconds=0.0005),
        client,
        lives=LivesPlan(
            ids=tuple(range(7, 7 + random.choice((1, 2, 4)))),
            authors=random.choice((2, 3, 4)),
            recoverers=random.choice((0, 1, 2)),
            readers=random.choice((0, 1, 2)),
            deleters=random.choice((1, 2)),
            own_passwords=random.random() < 0.5 or client.protocol_version == 2,
            entries=random.choice((3, 8, 20)),
            lingers=random.choice((0.05, 0.3, 1.0)),
            delete_every=random.choice((0.2, 0.6)),
            patience=random.choice((1.0, 0.8)),
        ),
    )


_LOSSES = frozenset({"lost disk", "replaced disk", "recover"})
"""Faults that are of other simulations, or begin what this one begins by itself."""
