"""Draws a scenario with healing from a seed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from bookie_pod.autorecovery.decommission.drain import DrainOptions
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from tests.support.simulation import scenario as plain
from tests.support.simulation.healing.plan import HealingPlan
from tests.support.simulation.scenario import LedgerPlan, Scenario

QUORUMS = ((2, 2, 2), (3, 2, 2), (3, 2, 2), (3, 3, 2), (3, 3, 2), (3, 3, 2), (3, 3, 3), (4, 3, 2), (4, 4, 3), (5, 3, 2))
"""(E, Qw, Qa)."""
LOSSES = ("lost disk", "emptied", "late", "kill healer")
"""At least one of these may happen in each run."""
WEIGHTS = {
    "kill": 3,
    "power": 2,
    "partition": 2,
    "one-way": 2,
    "reset": 3,
    "slow link": 1,
    "slow disk": 2,
    "read-only": 1,
    "metadata answer": 2,
    "metadata connection": 2,
    "metadata session": 3,
    "metadata down": 1,
    "kill writer": 1,
    "recover": 1,
    "bad reads": 1,
    "flush": 1,
    "lost disk": 4,
    "emptied": 4,
    "late": 4,
    "kill healer": 4,
    "stop healer": 2,
    "freeze healer": 3,
    "kill drainer": 3,
    "second drainer": 1,
    "disable": 1,
    "audit": 1,
}
MOMENTS = ("put", "metadata", "segment", "in recovery", "mark", "mark", "lock", "lock", "exchange", "copy", "copy")
"""Events at which a fault may strike; the last ones are those of healing."""
STEPS = ("segment", "in recovery", "mark", "lock", "exchange", "copy", "draining", "proving", "removing")
"""Events at which a step may begin to take long."""
RARE = {"metadata": 10, "segment": 3, "in recovery": 2, "mark": 3, "lock": 3, "exchange": 3, "copy": 20, "put": 60}
"""Mean number of the event at which one strikes."""


def draw_healing(seed: int) -> Scenario:
    """The scenario of a seed."""
    return _with_long_steps(seed, draw_calm(seed))


def draw_calm(seed: int) -> Scenario:
    """The same, but for requests that are held back, processes that sleep, ids that are used again, and collectors that
    run all the time: what is looked for in it is found by what it needs, and by nothing else."""
    random = Random(f"healing {seed}")
    quorums = random.choice(QUORUMS)
    horizon = plain._between(random, 6.0, 20.0)
    allowed = [kind for kind in WEIGHTS if random.random() < 0.35]
    allowed += [random.choice(LOSSES)]
    client = plain.with_adaptive_timeouts(seed, replace(plain._client(random), add_quorum_timeout=None))
    ledgers = tuple(_ledger(random, horizon) for _ in range(random.choice((1, 2, 3, 4))))
    drains = tuple(random.random() * horizon for _ in range(random.choice((0, 0, 1, 1, 2))))
    return _with_commands(
        seed,
        Scenario(
            seed,
            quorums,
            quorums[0] + random.choice((0, 1, 2, 3)),
            horizon,
            ledgers,
            _faults(random, sorted(set(allowed)), horizon),
            plain._network(random),
            plain._metadata(random),
            plain._disk(random),
            client,
            HealingPlan(
                healers=random.choice((1, 2, 2, 3)),
                drains=drains,
                collect_every=random.choice((None, 1.0, 3.0)),
                config=_config(random),
                drain=DrainOptions(
                    ledgers_at_once=random.choice((1, 4)),
                    open_grace=random.choice((0.0, 1.0, 3.0)),
                    recover_open=random.random() < 0.7,
                    retry_interval=random.choice((0.3, 1.0)),
                    settle=2.0,
                ),
            ),
        ),
    )


def _with_long_steps(seed: int, scenario: Scenario) -> Scenario:
    random = Random(f"long steps {seed}")
    faults: list[plain.FaultPlan] = []
    if random.random() < 0.5:
        faults += [_long_step("hold", random) for _ in range(random.choice((1, 3, 6)))]
    if random.random() < 0.3:
        faults += [_long_step("sleep", random) for _ in range(random.choice((1, 2)))]
    plan = scenario.healing
    assert plan is not None
    plan = replace(plan, ids_used_again=random.random() < 0.5, collect_every=random.choice((0.1, 0.5, 1.0)))
    return replace(scenario, faults=scenario.faults + tuple(faults), healing=plan)


def _long_step(kind: str, random: Random) -> plain.FaultPlan:
    moment = random.choice(STEPS)
    number = 1 + int(random.expovariate(1 / RARE.get(moment, 1)))
    return plain.FaultPlan(kind, None, moment, number, plain._between(random, 0.0001, 0.3))


def _with_commands(seed: int, scenario: Scenario) -> Scenario:
    """Operators undo decommissions and recover bookies that are lost; bookies stand in racks."""
    random = Random(f"commands {seed}")
    faults: list[plain.FaultPlan] = []
    if random.random() < 0.3:
        faults += [_command("undo", random, ("draining", "proving", "removing")) for _ in range(random.choice((1, 3)))]
    if random.random() < 0.3:
        faults += [_command("restore", random, ("lost",)) for _ in range(random.choice((1, 2)))]
    plan = scenario.healing
    assert plan is not None
    if random.random() < 0.2:
        config = replace(
            plan.config, repair_placement=True, auditor_placement_check_interval_s=random.choice((2, 5, 10))
        )
        plan = replace(plan, racks=random.choice((3, 4)), config=config)
    return replace(scenario, faults=scenario.faults + tuple(faults), healing=plan)


def _command(kind: str, random: Random, moments: tuple[str, ...]) -> plain.FaultPlan:
    number = 1 + int(random.expovariate(1.0))
    return plain.FaultPlan(kind, None, random.choice(moments), number, plain._between(random, 0.0001, 3.0))


def _ledger(random: Random, horizon: float) -> LedgerPlan:
    plan = plain._ledger(random, horizon, False, ("plain", "plain", "bulk", "advanced"))
    return replace(plan, start=random.random() * 0.6 * horizon, recoverers=random.choice((0, 0, 1)))


def _faults(random: Random, allowed: list[str], horizon: float) -> tuple[plain.FaultPlan, ...]:
    weights = [WEIGHTS[kind] for kind in allowed]
    faults: list[plain.FaultPlan] = []
    for _ in range(random.choice((2, 4, 8, 12))):
        at, moment, number = None, "", 0
        if random.random() < 0.5:
            at = random.random() * horizon
        else:
            moment = random.choice(MOMENTS)
            number = 1 + int(random.expovariate(1 / RARE[moment]))
        kinds = random.choices(allowed, weights, k=random.choice((1, 1, 2)))
        faults += [plain.FaultPlan(kind, at, moment, number, plain._between(random, 0.0001, 0.5)) for kind in kinds]
    return tuple(faults)


def _config(random: Random) -> AutoRecoveryConfig:
    # Writers leave holes behind that the first and last entries do not tell of: with every entry read, or with lists
    # of what is stored, they are found.
    reads_all = random.random() < 0.5
    return AutoRecoveryConfig(
        daemon_enabled=True,
        lost_bookie_recovery_delay_s=random.choice((0, 1, 2, 4)),
        auditor_bookie_check_interval_s=random.choice((10, 60)),
        auditor_check_interval_s=random.choice((4, 10)),
        auditor_replicas_check_interval_s=0 if reads_all else random.choice((4, 10)),
        auditor_verification_percentage=100 if reads_all else random.choice((0, 0, 20)),
        auditor_max_concurrent_opens=random.choice((1, 10)),
        auditor_second_look_s=1,
        checker_reads_in_flight=random.choice((-1, 1, 10)),
        open_ledger_grace_period_ms=random.choice((0, 500, 2000)),
        failed_ledger_lock_release_ms=random.choice((500, 3000)),
        worker_backoff_ms=random.choice((100, 1000)),
        ledgers_at_once=random.choice((1, 3)),
        entry_batch_size=random.choice((1, 3, 10, 100)),
        rate_by_bytes=random.choice((-1, -1, 20_000)),
        batch_read=random.random() < 0.7,
        store_mark_time=random.random() < 0.8,
    )
