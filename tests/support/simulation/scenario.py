"""What one run is made of, drawn from its seed.

Which kinds of faults may happen at all is drawn first, then how often: runs with few kinds and many faults find what
runs with a little of everything do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from bookie_client.options import ClientOptions
from bookie_protocol.digest import DigestType
from tests.support.simulation.disk import DiskOptions
from tests.support.simulation.healing.plan import HealingPlan
from tests.support.simulation.metadata import MetadataOptions
from tests.support.simulation.network import NetworkOptions

if TYPE_CHECKING:
    from tests.support.simulation.lives.plan import LivesPlan
    from tests.support.simulation.streams.plan import StreamPlan

QUORUMS = (
    (1, 1, 1),
    (2, 2, 1),
    (2, 2, 2),
    (3, 2, 1),
    (3, 2, 2),
    (3, 2, 2),
    (3, 3, 2),
    (3, 3, 2),
    (3, 3, 2),
    (3, 3, 3),
    (4, 2, 2),
    (4, 3, 2),
    (4, 4, 3),
    (5, 3, 2),
    (5, 5, 3),
)
"""(E, Qw, Qa); those of most installations several times."""

FAULTS = (
    "kill",
    "power",
    "partition",
    "one-way",
    "reset",
    "slow link",
    "repeated answers",
    "slow disk",
    "read-only",
    "metadata answer",
    "metadata connection",
    "metadata session",
    "metadata down",
    "kill writer",
    "kill recoverer",
    "recover",
    "lost disk",
    "replaced disk",
    "bad reads",
    "flush",
)
WEIGHTS = {
    "kill": 3,
    "power": 2,
    "partition": 3,
    "one-way": 3,
    "reset": 4,
    "slow link": 2,
    "repeated answers": 3,
    "slow disk": 2,
    "read-only": 1,
    "metadata answer": 3,
    "metadata connection": 2,
    "metadata session": 1,
    "metadata down": 1,
    "kill writer": 2,
    "kill recoverer": 1,
    "recover": 4,
    "lost disk": 1,
    "replaced disk": 2,
    "bad reads": 2,
    "flush": 2,
}
MOMENTS = (
    "put",
    "put",
    "sync",
    "metadata",
    "segment",
    "in recovery",
    "in recovery",
    "fence",
    "negative",
    "connect",
    "acknowledged",
)
"""Events at which a fault may strike; see `faults`."""
RARE = {"metadata": 4, "segment": 1, "in recovery": 1, "fence": 4, "negative": 4}
"""Mean number of the event at which one strikes, where it is not 20."""


@dataclass(frozen=True, slots=True)
class LedgerPlan:
    """One ledger and who works on it."""

    entries: int
    pause: float
    """Mean seconds between appends; 0: as fast as the window allows."""
    kind: str
    """plain, bulk, advanced or deferred."""
    readers: int
    tailers: int
    recoverers: int
    closes: bool
    """Whether its writer closes it in the end, or just stops."""
    digest: DigestType
    payload: int
    """Largest payload in bytes."""
    force_every: int
    start: float


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """A fault at a time (seconds after the start), or at the `number`-th event of a kind."""

    kind: str
    at: float | None
    moment: str
    number: int
    delay: float
    """Seconds after that."""


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    quorums: tuple[int, int, int]
    bookies: int
    horizon: float
    """Seconds after which everything is mended."""
    ledgers: tuple[LedgerPlan, ...]
    faults: tuple[FaultPlan, ...]
    network: NetworkOptions
    metadata: MetadataOptions
    disk: DiskOptions
    client: ClientOptions = field(repr=False)
    healing: HealingPlan | None = None
    """Who restores lost copies; None: nobody does."""
    streams: StreamPlan | None = None
    """Who works on streams, instead of `ledgers`; None: nobody does."""
    lives: LivesPlan | None = None
    """Who works on ids that are used again, instead of `ledgers`; None: nobody does."""

    def __str__(self) -> str:
        kinds = sorted({fault.kind for fault in self.faults})
        ledgers = "; ".join(
            f"{plan.entries} entries {plan.kind}, {plan.readers} readers, {plan.tailers} tailers, "
            f"{plan.recoverers} recoverers"
            for plan in self.ledgers
        )
        client = self.client
        time_outs = f"{client.add_timeout:g}/{client.read_timeout:g} s"
        if client.adaptive_timeouts:
            time_outs += f" adapting in {client.min_adaptive_timeout:g} to {client.max_adaptive_timeout:g} s"
        return (
            f"seed {self.seed}: E/Qw/Qa {'/'.join(map(str, self.quorums))}, {self.bookies} bookies, "
            f"ledgers: {ledgers}; v{client.protocol_version}, time-outs {time_outs}, "
            f"faults: {len(self.faults)} of {', '.join(kinds) or 'no kind'}"
            + (f"; {self.healing}" if self.healing is not None else "")
            + (f"; {self.streams}" if self.streams is not None else "")
            + (f"; {self.lives}" if self.lives is not None else "")
        )


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(seed)
    quorums = random.choice(QUORUMS)
    horizon = _between(random, 1.0, 6.0)
    allowed = [kind for kind in FAULTS if random.random() < 0.4]
    recovering = random.random() < 0.6
    client = _client(random)
    kinds = ("plain", "plain", "plain", "bulk", "advanced", "deferred")[: 6 if client.protocol_version == 3 else 5]
    ledgers = tuple(_ledger(random, horizon, recovering, kinds) for _ in range(random.choice((1, 2, 3))))
    return Scenario(
        seed,
        quorums,
        quorums[0] + random.choice((0, 1, 1, 2, 3)),
        horizon,
        ledgers,
        _faults(random, allowed, horizon),
        _network(random),
        _metadata(random),
        _disk(random),
        with_adaptive_timeouts(seed, client),
    )


def _between(random: Random, low: float, high: float) -> float:
    """Evenly on a logarithmic scale."""
    return low * math.exp(random.random() * math.log(high / low))


def _ledger(random: Random, horizon: float, recovering: bool, kinds: tuple[str, ...]) -> LedgerPlan:
    entries = random.choice((1, 5, 15, 30, 60))
    pause = 0.0 if random.random() < 0.2 else _between(random, 0.1, 1.0) * horizon / entries
    return LedgerPlan(
        entries=entries,
        pause=pause,
        kind=random.choice(kinds),
        readers=random.choice((0, 0, 1)),
        tailers=random.choice((0, 1, 1)),
        recoverers=random.choice((0, 1, 1, 2, 3)) if recovering else 0,
        closes=random.random() < 0.6,
        digest=random.choice((DigestType.CRC32C, DigestType.CRC32C, DigestType.CRC32, DigestType.MAC)),
        payload=random.choice((0, 10, 200)),
        force_every=random.choice((1, 3, 10)),
        start=random.random() * 0.3,
    )


def _faults(random: Random, allowed: list[str], horizon: float) -> tuple[FaultPlan, ...]:
    """In a few clusters: what strikes together finds more than what strikes alone."""
    if not allowed:
        return ()
    weights = [WEIGHTS[kind] for kind in allowed]
    faults: list[FaultPlan] = []
    for _ in range(random.choice((1, 3, 6, 12))):
        at, moment, number = None, "", 0
        if random.random() < 0.4:
            at = random.random() * horizon
        else:
            moment = random.choice(MOMENTS)
            number = 1 + int(random.expovariate(1 / RARE.get(moment, 20)))
        kinds = random.choices(allowed, weights, k=random.choice((1, 1, 2, 3)))
        faults += [FaultPlan(kind, at, moment, number, _between(random, 0.0001, 0.3)) for kind in kinds]
    return tuple(faults)


def _network(random: Random) -> NetworkOptions:
    return NetworkOptions(
        base_delay=_between(random, 0.0001, 0.002),
        jitter=_between(random, 0.1, 5.0),
        spread=random.choice((0.0, 1.0, 5.0)),
        split_chance=random.choice((0.0, 0.0, 0.1)),
        straggler_chance=random.choice((0.0, 0.0, 0.02)),
    )


def _metadata(random: Random) -> MetadataOptions:
    return MetadataOptions(
        lag=random.choice((0.0, 0.0, 0.02, 0.2)),
        lost_answer_chance=random.choice((0.0, 0.0, 0.05)),
        session_timeout=random.choice((1.0, 2.0)),
    )


def _disk(random: Random) -> DiskOptions:
    return DiskOptions(
        sync_seconds=_between(random, 0.0002, 0.01),
        read_seconds=_between(random, 0.0001, 0.005),
        stall_chance=random.choice((0.0, 0.0, 0.05)),
        stall_seconds=random.choice((0.05, 0.3, 1.0)),
        spread=random.choice((1.0, 30.0)),
    )


def _client(random: Random) -> ClientOptions:
    version = 2 if random.random() < 0.15 else 3
    return ClientOptions(
        protocol_version=version,
        connect_timeout=random.choice((0.5, 2.0)),
        add_timeout=random.choice((0.2, 0.5, 1.0)),
        read_timeout=random.choice((0.2, 0.5, 1.0)),
        reconnect_delay=0.05,
        max_reconnect_delay=0.5,
        failure_history=2.0,
        quarantine_errors=random.choice((3, 100)),
        quarantine_interval=2.0,
        quarantine_time=3.0,
        channels_per_bookie=random.choice((1, 1, 2)),
        max_ensemble_changes=random.choice((None, None, None, 2)),
        write_window_entries=random.choice((1, 4, 16, 100)),
        read_window_entries=random.choice((1, 10, 100)),
        batch_reads=random.random() < 0.5,
        batch_read_entries=random.choice((2, 10, 100)),
        parallel_reads=random.random() < 0.1,
        sticky_reads=random.random() < 0.2,
        reorder_reads=random.random() < 0.8,
        first_speculative_read_timeout=random.choice((None, None, 0.0, 0.05)),
        recovery_window_entries=random.choice((1, 4, 16)),
        delay_ensemble_change=random.random() < 0.3,
        degraded_retry_interval=0.3,
        add_quorum_timeout=random.choice((None, None, None, 3.0)),
        explicit_lac_interval=random.choice((None, 0.1)) if version == 3 else None,
    )


def with_adaptive_timeouts(seed: int, client: ClientOptions) -> ClientOptions:
    """In some runs. Drawn apart, so that nothing else of a scenario depends on it."""
    random = Random(f"adaptive {seed}")
    if random.random() < 0.7:
        return client
    return replace(
        client,
        adaptive_timeouts=True,
        min_adaptive_timeout=random.choice((0.02, 0.1, 0.4)),
        max_adaptive_timeout=random.choice((0.5, 1.0, 3.0)),
    )
