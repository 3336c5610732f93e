"""The writer's state machine: worked examples of the reference, and a model with bookies that answer in any
order."""

import pytest

from bookie_client.distribution import Quorums
from bookie_client.writing.add_state import AddState
from bookie_protocol.errors import (
    BookieReadOnly,
    BookieUnavailable,
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
    QuorumLost,
    Unauthorized,
)

DOWN = BookieUnavailable("connection refused")


def state(quorums=(3, 3, 2), ensemble=("A", "B", "C"), **options):
    return AddState(7, Quorums(*quorums), ensemble, **options)


def acknowledge(machine, add, *bookies):
    delivered = []
    for bookie in bookies:
        if machine.acknowledged(add, bookie):
            delivered += ids(machine.deliver())
    return delivered


def refuse(machine, add, bookie, error=DOWN):
    return machine.refused(add, bookie, error)


def ids(adds):
    return [add.entry_id for add in adds]


def test_an_entry_is_delivered_at_its_ack_quorum_and_in_order():
    machine = state()
    first, second, third = (machine.begin(10) for _ in range(3))
    assert acknowledge(machine, second, "A", "B") == []
    assert machine.lac == -1
    assert acknowledge(machine, first, "C") == []
    assert acknowledge(machine, first, "A") == [0, 1]
    assert (machine.lac, machine.confirmed_length, machine.length) == (1, 20, 30)
    assert acknowledge(machine, first, "B") == []
    assert acknowledge(machine, third, "B", "C") == [2]
    assert machine.idle


def test_the_same_bookie_counts_once():
    machine = state()
    add = machine.begin(1)
    assert acknowledge(machine, add, "A", "A", "A") == []
    assert acknowledge(machine, add, "B") == [0]


def test_ensemble_change_of_the_reference_example():
    machine = state((3, 2, 2), lac=9)
    e10, e11, e12 = (machine.begin(1) for _ in range(3))
    assert [machine.targets(e) for e in (e10, e11, e12)] == [(1, 2), (2, 0), (0, 1)]
    assert acknowledge(machine, e10, "B") == []
    assert acknowledge(machine, e11, "A") == []
    assert refuse(machine, e10, "C").change == {2: "C"}
    assert acknowledge(machine, e12, "A", "B") == []
    outcome = machine.ensemble_changed(("A", "B", "D"))
    assert [(a.entry_id, p) for a, p in outcome.resend] == [(10, 2), (11, 2)]
    assert outcome.deliver
    assert not machine.deliver()
    assert not machine.acknowledged(e10, "C")
    assert acknowledge(machine, e10, "D") == [10]
    assert acknowledge(machine, e11, "D") == [11, 12]
    assert machine.lac == 12


def test_nothing_is_delivered_on_the_strength_of_a_replaced_bookie():
    """The order clear-all-then-deliver: e1 was complete with C, which the change replaced."""
    machine = state((3, 3, 2))
    e0, e1 = machine.begin(1), machine.begin(1)
    acknowledge(machine, e1, "C", "A")
    acknowledge(machine, e0, "A")
    assert refuse(machine, e0, "C").change == {2: "C"}
    acknowledge(machine, e0, "B")
    outcome = machine.ensemble_changed(("A", "B", "D"))
    assert ids(machine.deliver()) == [0]
    assert [(a.entry_id, p) for a, p in outcome.resend] == [(0, 2), (1, 2)]
    assert acknowledge(machine, e1, "D") == [1]


def test_adds_that_begin_during_a_change_move_to_the_new_ensemble():
    machine = state()
    e0 = machine.begin(1)
    assert refuse(machine, e0, "B").change == {1: "B"}
    e1 = machine.begin(1)
    assert e1.ensemble == ("A", "B", "C")
    acknowledge(machine, e1, "A", "B")
    outcome = machine.ensemble_changed(("A", "D", "C"))
    assert [(a.entry_id, p) for a, p in outcome.resend] == [(0, 1), (1, 1)]
    assert e1.acks == 1
    assert machine.begin(1).ensemble == ("A", "D", "C")


def test_a_second_failure_during_a_change_is_replaced_before_anything_is_sent():
    machine = state(ensemble=("A", "B", "C"))
    e0 = machine.begin(1)
    assert refuse(machine, e0, "A").change == {0: "A"}
    assert refuse(machine, e0, "B").change is None
    again = machine.ensemble_changed(("D", "B", "C"))
    assert again.change == {1: "B"}
    assert not again.resend
    outcome = machine.ensemble_changed(("D", "E", "C"))
    assert [(a.entry_id, p) for a, p in outcome.resend] == [(0, 0), (0, 1)]
    assert acknowledge(machine, e0, "D", "E") == [0]


def test_a_failure_after_the_ack_quorum_waits_for_the_next_add():
    machine = state()
    e0 = machine.begin(1)
    acknowledge(machine, e0, "A", "B")
    assert refuse(machine, e0, "C").change is None
    assert machine.late_failures
    machine.begin(1)
    assert machine.wanted_change().change == {2: "C"}
    assert not machine.late_failures


def test_a_late_failure_of_a_bookie_that_was_replaced_is_nothing():
    machine = state()
    e0, e1 = machine.begin(1), machine.begin(1)
    acknowledge(machine, e0, "A", "B")
    refuse(machine, e1, "C")
    machine.ensemble_changed(("A", "B", "D"))
    assert machine.refused(e0, "C", DOWN).change is None
    assert not machine.late_failures


def test_without_a_spare_writing_goes_on_while_the_ack_quorum_is_reachable():
    machine = state()
    e0 = machine.begin(1)
    assert refuse(machine, e0, "C").change == {2: "C"}
    machine.ensemble_changed(("A", "B", "C"))
    assert machine.degraded == {2: "C"}
    e1 = machine.begin(1)
    assert 2 not in machine.targets(e1)
    assert acknowledge(machine, e0, "A", "B") == [0]
    assert acknowledge(machine, e1, "A", "B") == [1]
    assert machine.retry_degraded().change == {2: "C"}
    machine.ensemble_changed(("A", "B", "D"))
    assert machine.degraded == {}
    assert sorted(machine.targets(machine.begin(1))) == [0, 1, 2]


def test_a_degraded_bookie_that_came_back_gets_new_entries():
    machine = state()
    refuse(machine, machine.begin(1), "C")
    machine.ensemble_changed(("A", "B", "C"))
    machine.restored(2, "C")
    assert 2 in machine.targets(machine.begin(1))


def test_a_lost_quorum_fails_every_pending_add_once_in_order_and_says_where():
    machine = state()
    adds = [machine.begin(1) for _ in range(3)]
    refuse(machine, adds[0], "C")
    machine.ensemble_changed(("A", "B", "C"))
    assert refuse(machine, adds[1], "B", BookieReadOnly("read-only")).change == {1: "B"}
    refuse(machine, adds[1], "C")
    assert refuse(machine, adds[1], "B").change is None
    assert machine.ensemble_changed(("A", "B", "C")).change == {1: "B", 2: "C"}
    outcome = machine.ensemble_changed(("A", "B", "C"))
    assert [a.entry_id for a, _ in outcome.failed] == [0, 1, 2]
    error = outcome.failed[1][1]
    assert isinstance(error, QuorumLost)
    assert "ledger 7, entry 1 on B, C, A" in str(error)
    assert "connection refused" in str(error)
    assert machine.refused(adds[2], "A", DOWN).failed == []
    with pytest.raises(LedgerClosed, match="failed"):
        machine.begin(1)


def test_with_striping_a_degraded_position_ends_the_ledger_only_at_an_entry_that_needs_it():
    machine = AddState(7, Quorums(4, 2, 2), ("A", "B", "C", "D"))
    e0 = machine.begin(1)
    acknowledge(machine, e0, "A", "B")
    machine._ensemble.degraded = {3: "D"}
    machine.begin(1)
    assert not machine.late_failures
    machine.begin(1)
    assert machine.wanted_change().change == {3: "D"}
    assert [a.entry_id for a, _ in machine.ensemble_changed(("A", "B", "C", "D")).failed] == [1, 2]


@pytest.mark.parametrize("error", [LedgerFenced("fenced"), Unauthorized("wrong key")])
def test_fencing_and_a_wrong_key_end_the_handle_at_once(error):
    machine = state()
    first, second = machine.begin(1), machine.begin(1)
    acknowledge(machine, first, "A", "B")
    outcome = refuse(machine, second, "A", error)
    assert [(a.entry_id, type(e)) for a, e in outcome.failed] == [(1, type(error))]
    assert machine.lac == 0
    assert acknowledge(machine, second, "A", "B", "C") == []
    assert machine.lac == 0


def test_an_error_of_the_metadata_service_during_a_change_is_the_end():
    machine = state()
    refuse(machine, machine.begin(1), "A")
    outcome = machine.abandon(NotEnoughBookies("none"))
    assert [type(e) for _, e in outcome.failed] == [NotEnoughBookies]
    assert machine.ensemble_changed(("D", "B", "C")).resend == []


def test_delayed_ensemble_change_waits_until_the_ack_quorum_is_out_of_reach():
    machine = state(delay_ensemble_change=True)
    add = machine.begin(1)
    assert refuse(machine, add, "A").change is None
    assert refuse(machine, add, "B").change == {0: "A", 1: "B"}


def test_delayed_ensemble_change_replaces_a_read_only_bookie_at_once():
    machine = state(delay_ensemble_change=True)
    assert refuse(machine, machine.begin(1), "A", BookieReadOnly("full")).change == {0: "A"}


def test_too_many_changes_end_the_handle():
    machine = state(max_ensemble_changes=1)
    add = machine.begin(1)
    refuse(machine, add, "A")
    machine.ensemble_changed(("D", "B", "C"))
    assert not refuse(machine, add, "D").failed  # the others still make a quorum
    assert machine.degraded == {0: "D"}
    assert machine.retry_degraded().change is None
    [(_, error)] = refuse(machine, add, "C").failed
    assert isinstance(error, QuorumLost)
    assert "more than 1 ensemble changes (max_ensemble_changes), bookies failed (D: connection refused" in str(error)


def test_every_round_of_a_change_counts_against_the_limit():
    machine = state(max_ensemble_changes=2)
    add = machine.begin(1)
    assert refuse(machine, add, "A").change
    refuse(machine, add, "B")
    assert machine.ensemble_changed(("D", "B", "C")).change == {1: "B"}
    refuse(machine, add, "C")
    assert not machine.ensemble_changed(("D", "E", "C")).failed
    assert machine.degraded == {2: "C"}
    assert [type(e) for _, e in refuse(machine, add, "D").failed] == [QuorumLost]


def test_a_round_that_changed_nothing_does_not_count_against_the_limit():
    machine = state(max_ensemble_changes=1)
    for _ in range(3):
        refuse(machine, machine.begin(1), "A")
        machine.ensemble_changed(("A", "B", "C"))  # no spare
        machine.restored(0, "A")
    refuse(machine, machine.begin(1), "A")
    machine.ensemble_changed(("A", "B", "C"))
    assert machine.retry_degraded().change == {0: "A"}
    machine.ensemble_changed(("D", "B", "C"))
    assert machine.failure is None
    assert not machine.may_change


def test_a_bookie_that_returned_is_sent_what_is_pending():
    machine = state()
    first, second = machine.begin(1), machine.begin(1)
    acknowledge(machine, second, "A")
    refuse(machine, first, "A")
    machine.ensemble_changed(("A", "B", "C"))
    third = machine.begin(1)
    acknowledge(machine, first, "B")
    assert machine.restored(0, "A").resend == [(first, 0), (third, 0)]
    assert machine.restored(0, "A").resend == []
    refuse(machine, first, "C")
    machine.ensemble_changed(("A", "B", "C"))
    assert machine.failure is None
    assert acknowledge(machine, first, "A") == [0]


def test_a_bookie_that_was_exchanged_and_taken_again_elsewhere_does_not_count_for_its_old_position():
    machine = state((4, 2, 2), ("A", "B", "C", "D"))
    e0 = machine.begin(1)
    refuse(machine, e0, "B")
    machine.ensemble_changed(("A", "E", "C", "D"))
    refuse(machine, machine.begin(1), "C")
    machine.ensemble_changed(("A", "E", "B", "D"))
    acknowledge(machine, e0, "A")
    assert acknowledge(machine, e0, "B") == []  # its late answer: position 2 does not hold entry 0
    assert refuse(machine, e0, "B").change is None
    assert acknowledge(machine, e0, "E") == [0]


def test_complete_adds_are_delivered_together():
    machine = state()
    adds = [machine.begin(1) for _ in range(3)]
    assert [machine.acknowledged(add, "A") for add in adds] == [False] * 3
    assert [machine.acknowledged(add, "C") for add in adds] == [True, False, False]
    assert machine.lac == -1
    assert ids(machine.deliver()) == [0, 1, 2]
    assert not machine.deliver()


def test_answers_that_are_missing_are_known():
    machine = state()
    e0 = machine.begin(1)
    e0.waiting = 0b111
    acknowledge(machine, e0, "A", "B")
    assert e0.waiting == 0b100
    refuse(machine, e0, "C")
    assert e0.waiting == 0


# --- deferred sync ------------------------------------------------------------------------------------------


def test_with_deferred_sync_the_lac_waits_for_a_force():
    machine = state(deferred_sync=True)
    adds = [machine.begin(10) for _ in range(3)]
    for add in adds[:2]:
        acknowledge(machine, add, "A", "B")
    assert (machine.lac, machine.confirmed_length, machine.delivered) == (-1, 0, (1, 20))
    point = machine.delivered
    acknowledge(machine, adds[2], "A", "C")
    machine.forced(point)
    assert (machine.lac, machine.confirmed_length, machine.length) == (1, 20, 30)
    machine.begin(1)
    assert machine.piggy_back() == machine.piggy_backed == 1


def test_forces_that_end_out_of_order_never_move_the_lac_back():
    machine = state(deferred_sync=True)
    first, second = machine.begin(10), machine.begin(10)
    acknowledge(machine, first, "A", "B")
    early = machine.delivered
    acknowledge(machine, second, "A", "B")
    machine.forced(machine.delivered)
    machine.forced(early)
    assert (machine.lac, machine.confirmed_length) == (1, 20)


def test_a_failed_bookie_ends_a_ledger_with_deferred_sync_whose_ensemble_never_changes():
    machine = state(deferred_sync=True)
    first, second = machine.begin(1), machine.begin(1)
    acknowledge(machine, first, "A", "B")
    outcome = refuse(machine, second, "C")
    assert outcome.change is None
    [(add, error)] = outcome.failed
    assert (add, type(error)) == (second, QuorumLost)
    assert "the ensemble stays, and bookies failed (C: connection refused)" in str(error)


def test_with_deferred_sync_a_late_failure_counts_at_the_next_add():
    machine = state(deferred_sync=True)
    first = machine.begin(1)
    acknowledge(machine, first, "A", "B")
    assert refuse(machine, first, "C").failed == []
    assert machine.failure is None
    second = machine.begin(1)
    assert ids(add for add, _ in machine.wanted_change().failed) == [1]
    assert machine.failure is not None
    assert not machine.acknowledged(second, "A")


def test_a_closed_handle_takes_no_adds_and_keeps_its_pending_ones():
    machine = state()
    add = machine.begin(5)
    machine.stop()
    with pytest.raises(LedgerClosed, match="a new"):
        machine.begin(1)
    assert not machine.idle
    assert acknowledge(machine, add, "A", "C") == [0]
    assert machine.idle
    assert machine.confirmed_length == 5


def test_striped_adds_can_do_without_bookies_of_different_write_sets():
    machine = AddState(7, Quorums(6, 3, 2), tuple("ABCDEF"))
    assert machine.can_do_without({0, 3}, machine.ensemble)
    assert not machine.can_do_without({0, 2}, machine.ensemble)
    assert not AddState(7, Quorums(3, 2, 2), tuple("ABC")).can_do_without({1}, tuple("ABC"))
