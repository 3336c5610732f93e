"""Failures that a writer knows already: no second change for the same bookie, no acknowledgement lost."""

import pytest

from bookie_client.distribution import Quorums
from bookie_client.writing.add_state import AddState
from bookie_protocol.errors import BookieTimeout

ABC = ("A", "B", "C")
SILENT = BookieTimeout("no answer")


def state(**options):
    return AddState(7, Quorums(3, 3, 2), ABC, **options)


def test_adds_that_fail_at_a_bookie_while_it_is_replaced_make_no_further_round():
    machine = state()
    adds = [machine.begin(1) for _ in range(3)]
    assert machine.refused(adds[0], "C", SILENT).change == {2: "C"}
    for add in adds[1:]:
        assert machine.refused(add, "C", SILENT).change is None
    outcome = machine.ensemble_changed(ABC)  # there is no spare
    assert outcome.change is None
    assert machine.degraded == {2: "C"}
    assert machine.ensemble_changes == 1


@pytest.mark.parametrize("is_complete", [False, True])
def test_what_a_degraded_bookie_still_fails_asks_for_no_further_change(is_complete):
    """Ten thousand adds may be on their way to it."""
    machine = state()
    first, other = machine.begin(1), machine.begin(1)
    machine.refused(first, "C", SILENT)
    machine.ensemble_changed(ABC)
    for bookie in "AB" if is_complete else "A":
        machine.acknowledged(other, bookie)
    assert machine.refused(other, "C", SILENT).change is None
    assert not machine.late_failures
    machine.begin(1)
    assert machine.wanted_change().change is None


def test_with_delayed_changes_a_failure_behind_the_ack_quorum_is_forgotten():
    machine = state(delay_ensemble_change=True)
    add = machine.begin(1)
    for bookie in "AB":
        machine.acknowledged(add, bookie)
    assert machine.deliver() == [add]
    machine.refused(add, "C", SILENT)
    assert not machine.late_failures


def test_a_bookie_that_has_an_add_keeps_it_whatever_becomes_of_a_second_request():
    """An add that was sent there twice: as to the bookie of another position, or again to a bookie that came back."""
    machine = state()
    add = machine.begin(1)
    machine.acknowledged(add, "C")
    assert machine.refused(add, "C", SILENT).change is None
    assert machine.acknowledged(add, "A")
    assert machine.deliver() == [add]
    assert not machine.late_failures
