"""Who works on which streams, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

from bookie_client.streams.model import StreamSettings
from tests.support.simulation import scenario as plain
from tests.support.simulation.scenario import FaultPlan, Scenario

ROLES: Final = (
    "appender",
    "publisher",
    "consumer",
    "keeper",
    "recreator",
    "offloader",
    "restorer",
    "sweeper",
    "reuser",
)
WEIGHTS: Final = {
    "kill": 1,
    "reset": 1,
    "metadata answer": 3,
    "metadata connection": 2,
    "metadata session": 1,
    "metadata down": 1,
    "kill actor": 4,
    "hold": 4,
    "sleep": 4,
}
MOMENTS: Final = ("list", "list", "cursor", "metadata", "gone", "file", "record")
"""Events at which a fault may strike."""
RARE: Final = {"list": 15, "cursor": 8, "metadata": 20, "gone": 5, "file": 40, "record": 8}
"""Mean number of the event at which one strikes."""


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """`actors`: how many of each role. `appended`, `published`: so many streams have writers, or get closed ledgers."""

    actors: dict[str, int]
    appended: int
    published: int
    settings: StreamSettings = field(repr=False)
    keep_listed: bool
    """Whether `offload` takes what streams list out of the cluster."""
    delete_after: float
    """Seconds after which `offload` takes a ledger out of the cluster."""
    older_than: float
    """Seconds for which orphans are left alone."""
    file_seconds: float
    """Mean of each access to a file of the archive."""
    recreate_every: float
    """Mean seconds between two deletions of a stream by one actor."""
    replaces: float
    """Probability that a batch becomes the whole content."""
    shared: float = 0.3
    """Probability that a consumer moves the cursor that all of its stream have."""
    forgets: float = 0.1
    """Probability that it gives up the cursor behind that."""
    lingers: float = 0.0
    """Probability that a consumer stays where it is, and that a restorer keeps what it has made from its stream."""
    append_pause: float = 0.05
    """Mean seconds between two appends of a writer."""

    def __str__(self) -> str:
        actors = ", ".join(f"{number} {role}" for role, number in self.actors.items() if number)
        return f"{self.appended} appended and {self.published} published streams; {actors}"


def draw_streams(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(f"streams {seed}")
    horizon = plain._between(random, 4.0, 12.0)
    appended, published = random.choice(((1, 0), (0, 1), (1, 1), (2, 1), (1, 2)))
    actors = {
        "appender": appended * random.choice((1, 2, 3)),
        "publisher": published * random.choice((1, 2)),
        "consumer": random.choice((0, 1, 2, 3)),
        "keeper": random.choice((0, 1, 2)),
        "recreator": random.choice((0, 0, 1, 2)),
        "offloader": random.choice((0, 0, 1, 2)),
        "restorer": random.choice((0, 1)),
        "sweeper": random.choice((0, 0, 1)),
        "reuser": random.choice((0, 0, 1)),
    }
    allowed = [kind for kind in WEIGHTS if random.random() < 0.4]
    client = plain.replace(
        plain._client(random), protocol_version=3, add_quorum_timeout=None, explicit_lac_interval=None
    )
    return Scenario(
        seed,
        (2, 2, 2),
        3,
        horizon,
        (plain._ledger(random, horizon, False, ("plain",)),),
        _faults(random, allowed, horizon),
        plain._network(random),
        plain._metadata(random),
        plain.DiskOptions(sync_seconds=0.0005, read_seconds=0.0005),
        client,
        streams=StreamPlan(
            actors,
            appended,
            published,
            StreamSettings(
                ensemble=2,
                write_quorum=2,
                ack_quorum=2,
                max_ledger_entries=random.choice((2, 4, 8)),
                min_ledger_seconds=0.0,
                max_ledger_seconds=random.choice((0.5, 100.0)),
                retention_seconds=random.choice((None, 0.5, 2.0)),
                retention_bytes=random.choice((None, None, 200)),
                deletion_lag_seconds=random.choice((0.3, 1.0, 3.0)),
            ),
            keep_listed=random.random() < 0.7,
            delete_after=random.choice((0.0, 0.0, 1.0)),
            older_than=random.choice((0.5, 2.0)),
            file_seconds=random.choice((0.001, 0.01, 0.05)),
            recreate_every=random.choice((1.0, 3.0)),
            replaces=random.choice((0.0, 0.2, 0.7)),
        ),
    )


def _faults(random: Random, allowed: list[str], horizon: float) -> tuple[FaultPlan, ...]:
    if not allowed:
        return ()
    weights = [WEIGHTS[kind] for kind in allowed]
    faults: list[FaultPlan] = []
    for _ in range(random.choice((2, 5, 10, 20))):
        kind = random.choices(allowed, weights)[0]
        if random.random() < 0.3:
            faults.append(FaultPlan(kind, random.random() * horizon, "", 0, 0.0))
        else:
            moment = random.choice(MOMENTS)
            number = 1 + int(random.expovariate(1 / RARE[moment]))
            faults.append(FaultPlan(kind, None, moment, number, plain._between(random, 0.00001, 0.1)))
    return tuple(faults)
