"""Who heals, and how."""

from __future__ import annotations

from dataclasses import dataclass, field

from bookie_pod.autorecovery.decommission.drain import DrainOptions
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig


@dataclass(frozen=True, slots=True)
class HealingPlan:
    """`healers`: hosts with an auditor and a worker each. `drains`: seconds after which a bookie is decommissioned.

    `collect_every`: mean seconds between two looks of a bookie for surplus entries; None: it keeps them.
    `racks`: bookies stand in so many, of which writers know nothing and whoever copies does; None: in none.
    """

    healers: int
    drains: tuple[float, ...]
    collect_every: float | None
    config: AutoRecoveryConfig = field(repr=False)
    drain: DrainOptions = field(repr=False)
    racks: int | None = None
    drain_rate: float | None = None
    """Bytes per second at which drains copy; None: at once."""
    ids_used_again: bool = False
    """Bookies that were decommissioned come back, empty and with another cookie."""

    def __str__(self) -> str:
        config, seconds = self.config, ", ".join(f"{at:.1f}" for at in self.drains)
        return (
            f"{self.healers} healers, delay {config.lost_bookie_recovery_delay_s} s, grace "
            f"{config.open_ledger_grace_period_ms} ms, checks {config.auditor_verification_percentage}%, drains at "
            f"{seconds or 'no time'}, racks: {self.racks or 'none'}"
        )
