"""Clusters at rest, with which flows begin."""

from __future__ import annotations

import pytest

from tests.support.operator_sim import Simulation
from tests.support.operator_sim.going import settled


@pytest.fixture
def four() -> Simulation:
    return settled()


@pytest.fixture
def five() -> Simulation:
    return settled(replicas=5)
