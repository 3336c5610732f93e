"""Which positions of a writer's ensemble failed, and what a change has to replace."""

from bookie_client.distribution import Quorums
from bookie_client.writing.pending_add import PendingAdd
from bookie_client.writing.write_ensemble import WriteEnsemble
from bookie_protocol.errors import BookieTimeout, LedgerIdInUse, LedgerStateUnknown, QuorumLost

ABC = ("A", "B", "C")


def ensemble(max_changes=None):
    return WriteEnsemble(Quorums(3, 2, 1), ABC, max_changes)


def test_late_failures_are_replaced_by_the_next_change_and_only_once():
    made = ensemble()
    made.failed_late(1, "B")
    made.failed_late(0, "gone long ago")
    assert made.take_failed({2: "C"}) == {1: "B", 2: "C"}
    assert made.take_failed({}) == {}


def test_what_fails_while_a_change_runs_makes_another_round():
    made = ensemble()
    made.begin_round({1: "B"})
    made.failed_late(1, "B")
    assert made.failed_meanwhile(("A", "X", "C")) == {}
    made.failed_late(2, "C")
    made.join({0: "A"})
    assert made.failed_meanwhile(("A", "X", "C")) == {0: "A", 2: "C"}
    assert made.failed_meanwhile(("A", "X", "C")) == {}


def test_what_could_not_be_replaced_is_degraded_until_its_bookie_is_back():
    made = ensemble()
    made.begin_round({0: "A", 1: "B"})
    made.end_change(("A", "X", "C"), {}, 0)
    assert (made.bookies, made.degraded, made.changing) == (("A", "X", "C"), {0: "A"}, None)
    made.begin_round({2: "C"})
    made.restored(0, "A")
    assert made.degraded == {0: "A"}, "not while a change is under way"
    made.end_change(("A", "X", "C"), {}, 0)
    made.restored(0, "another")
    assert made.degraded == {0: "A", 2: "C"}
    made.restored(0, "A")
    assert made.degraded == {2: "C"}


def test_of_late_failures_only_those_are_left_that_no_change_has_dealt_with():
    made = ensemble()
    for position, bookie in enumerate(ABC):
        made.failed_late(position, bookie)
    made.begin_round({0: "A"})
    made.end_change(("X", "B", "C"), {1: "B"}, 0)
    assert (made.degraded, made.late) == ({1: "B"}, {2: "C"})


def test_a_new_add_skips_degraded_positions_and_asks_for_a_change_when_too_few_are_left():
    made = ensemble()
    made.begin_round({0: "A"})
    made.end_change(ABC, {}, 0)
    add = PendingAdd(0, 10, ABC)
    made.skip_degraded(add)
    assert (made.failed_positions(add), made.late) == ({0: "A"}, {})
    made.begin_round({1: "B"})
    made.end_change(ABC, {}, 0)
    add = PendingAdd(3, 20, ABC)
    made.skip_degraded(add)
    assert made.late == {0: "A", 1: "B"}


def test_a_bookie_that_was_taken_again_elsewhere_does_not_answer_for_its_old_position():
    made = ensemble()
    add = PendingAdd(0, 10, ("C", "B", "A"))
    assert made.position_of(add, "A") == 2, "no change yet: no bookie answers for what it was not sent"
    made.begin_round({0: "A"})
    made.end_change(("C", "B", "A"), {}, 0)
    assert made.position_of(add, "A") == -1
    assert made.position_of(add, "B") == 1
    assert made.position_of(add, "X") == -1


def test_the_number_of_changes_is_bounded():
    made = ensemble(max_changes=1)
    assert not made.is_exhausted
    made.begin_round({0: "A"})
    made.stored(ABC)  # no spare
    assert not made.is_exhausted
    made.stored(("X", "B", "C"))
    made.stored(("X", "B", "C"))
    assert made.is_exhausted
    assert not ensemble().is_exhausted


def test_the_error_of_a_lost_quorum_tells_why_each_bookie_failed():
    made = ensemble()
    made.note("A", BookieTimeout("no answer"))
    lost = made.quorum_lost(["A", "B"], "why")
    assert (type(lost), str(lost)) == (QuorumLost, "why (A: no answer; B: failed before)")


def test_each_failure_is_told_and_the_error_at_the_end_names_another_ledger_of_the_id():
    made = ensemble()
    told = []
    made.on_refused = lambda bookie, error: told.append((bookie, type(error)))
    made.note("A", LedgerStateUnknown("another is stored"))
    made.note("B", BookieTimeout("no answer"))
    assert told == [("A", LedgerStateUnknown), ("B", BookieTimeout)]
    assert type(made.quorum_lost(["A", "B"], "why")) is LedgerIdInUse


def test_a_bookie_that_is_left_out_is_never_restored():
    made = ensemble()
    made.leave_out(["B"])
    assert not made.restored(1, "B")
    assert made.degraded == {1: "B"}
