"""Steps of a workload whose storage dies on the way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fence:
    ledger_id: int


@dataclass(frozen=True)
class Delete:
    """Not journaled: it counts once a checkpoint covers it, and may be forgotten before."""

    ledger_id: int


@dataclass(frozen=True)
class Checkpoint:
    pass
