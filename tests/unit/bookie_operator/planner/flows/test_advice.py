"""Whatever a message advises is done in the state in which it is told, and helps: the cluster comes to rest.

`test_advice_list` reads from the source what is advised, and asks for a row in `advice_table` or for a test elsewhere.
"""

from __future__ import annotations

import pytest

from tests.support.operator_sim.going import settled
from tests.unit.bookie_operator.planner.flows.advice_table import TABLE, Advice, told


@pytest.mark.parametrize("one", TABLE, ids=[f"{one.reason}: {one.words[:40]}" for one in TABLE])
def test_it_helps(one: Advice) -> None:
    sim = settled(**one.of)
    one.state(sim)
    told(sim, one.reason, one.words)
    one.done(sim)
    sim.run_until_rest(most=900)
    assert not sim.accidents
    assert sim.status.operation is None
    assert len(sim.bookkeeper.writable) == sim.spec.replicas == len(sim.kubernetes.pods)
