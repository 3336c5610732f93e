"""Who counts as lost: the pure machine against a model that remembers everything."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bookie_pod.autorecovery.auditor.membership import LATE_MS, Membership

BOOKIES = tuple(f"bookie-{n}:3181" for n in range(5))
START = 1_700_000_000_000


class MembershipAgainstModel(RuleBasedStateMachine):
    """The model: who is there, since when who is absent, and who was absent when an audit was demanded."""

    @initialize(delay=st.integers(0, 100), cookies=st.sets(st.sampled_from(BOOKIES)))
    def begin(self, delay: int, cookies: set[str]) -> None:
        self.now = START
        self.delay = delay
        self.machine = Membership(delay)
        self.there: frozenset[str] = frozenset()
        self.absent: dict[str, int] = {}
        self.demanded: set[str] = set()
        self.audited: set[str] = set()
        self.machine.expect(cookies, self.now)
        self.absent = dict.fromkeys(cookies, self.now)

    @rule(there=st.frozensets(st.sampled_from(BOOKIES)))
    def observe(self, there: frozenset[str]) -> None:
        change = self.machine.observe(there, self.now)
        assert change.left == self.there - there
        returned = self.absent.keys() & there
        assert change.returned_audited == returned & self.audited
        assert change.returned_in_time == returned - self.audited
        for bookie in returned:
            del self.absent[bookie]
            self.demanded.discard(bookie)
            self.audited.discard(bookie)
        self.absent |= dict.fromkeys(self.there - there, self.now)
        self.there = there

    @rule(ms=st.integers(0, 60_000))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(delay=st.integers(0, 100))
    def another_delay(self, delay: int) -> None:
        self.delay = self.machine.delay_s = delay

    @rule()
    def demand(self) -> None:
        self.machine.demand(self.machine.absences)
        self.demanded = set(self.absent)
        self.audited.clear()

    @rule(bookies=st.sets(st.sampled_from(BOOKIES)))
    def expect(self, bookies: set[str]) -> None:
        new = bookies - self.there - self.absent.keys()
        assert self.machine.expect(bookies, self.now) == new
        self.absent |= dict.fromkeys(new, self.now)

    @precondition(lambda self: self.machine.lost(self.now) - self.audited)
    @rule()
    def audit(self) -> None:
        lost = self.machine.lost(self.now)
        self.machine.audited(self.machine.since_ms(lost))
        self.audited |= lost

    @rule()
    def another_auditor(self) -> None:
        """It knows the times of loss, and neither demands nor what was audited."""
        since = self.machine.since_ms()
        self.machine = Membership(self.delay)
        self.machine.observe(self.there, self.now)
        self.machine.restore(since)
        self.demanded.clear()
        self.audited.clear()

    @invariant()
    def lost_are_those_past_their_delay(self) -> None:
        due = {b for b, since in self.absent.items() if b in self.demanded or since + self.delay * 1000 <= self.now}
        lost = self.machine.lost(self.now)
        assert lost == (due if self.there else frozenset())
        assert not lost & self.there
        assert self.machine.waiting(self.now) == self.absent.keys() - lost

    @invariant()
    def the_next_deadline_is_when_somebody_is_lost(self) -> None:
        deadline = self.machine.next_deadline_ms()
        if deadline is None:
            assert not self.there or self.absent.keys() <= self.audited
        elif deadline > self.now:
            assert not self.machine.lost(deadline - 1) - self.audited
            assert self.machine.lost(deadline) - self.audited
        else:
            assert self.machine.lost(self.now) - self.audited


TestMembership = MembershipAgainstModel.TestCase
TestMembership.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_bookie_that_flaps_during_an_audit_is_audited_again() -> None:
    machine = Membership(0, frozenset({"a", "b"}))
    machine.observe(frozenset({"a"}), 1000)
    covered = machine.since_ms(machine.lost(1000))
    machine.observe(frozenset({"a", "b"}), 1500)
    machine.observe(frozenset({"a"}), 1600)
    machine.audited(covered)
    assert machine.lost(1600) == {"b"}
    assert machine.next_deadline_ms() == 1600  # it is not taken for audited


def test_whom_nobody_needs_is_looked_for_once_more_and_then_forgotten() -> None:
    machine = Membership(0, frozenset({"a"}))
    machine.expect({"b", "c"}, 0)
    machine.audited(machine.since_ms())
    assert not machine.unneeded({"b", "c"}, 10)
    assert machine.next_deadline_ms() == 10 + LATE_MS
    assert not machine.unneeded(
        {"b"}, LATE_MS
    )  # something names the other one by now, and it is too early for this one
    assert machine.unneeded({"b"}, 10 + LATE_MS)
    assert machine.absences.keys() == {"c"}
    assert machine.next_deadline_ms() is None


def test_what_is_asked_of_whom_nobody_misses_is_nothing() -> None:
    machine = Membership(60, frozenset({"a"}))
    machine.expect({"b"}, 1000)
    machine.demand(["a", "nobody", "b"])
    machine.audited({"a": 1, "nobody": 1})
    assert machine.absences.keys() == {"b"}
    assert (machine.deadline_ms("a"), machine.deadline_ms("nobody"), machine.deadline_ms("b")) == (None, None, 1000)
    assert machine.is_lost("b", 1000)
    assert not machine.is_lost("a", 1000)


@pytest.mark.parametrize(("late", "forgotten"), [(LATE_MS - 1, False), (LATE_MS, True)])
def test_how_late_the_last_look_is(late: int, forgotten: bool) -> None:
    machine = Membership(0, frozenset({"a"}))
    machine.expect({"b"}, 0)
    assert not machine.unneeded(["b"], 10)
    assert machine.unneeded(["b"], 10 + late) == forgotten
    assert ("b" in machine.absences) != forgotten


def test_a_delay_is_over_to_the_millisecond() -> None:
    machine = Membership(60, frozenset({"a", "b"}))
    change = machine.observe(frozenset({"a"}), 1000)
    assert (change.left, bool(change)) == ({"b"}, True)
    assert not machine.observe(frozenset({"a"}), 1500)
    assert (machine.is_lost("b", 60_999), machine.is_lost("b", 61_000)) == (False, True)
    assert (machine.waiting(60_999), machine.waiting(61_000)) == ({"b"}, frozenset())
    assert machine.next_deadline_ms() == 61_000
    back = machine.observe(frozenset({"a", "b"}), 70_000)
    assert (back.returned_in_time, back.returned_audited, back.since_ms) == ({"b"}, frozenset(), {"b": 1000})


def test_the_next_look_is_the_earliest_of_all_that_are_due() -> None:
    machine = Membership(60, frozenset({"a"}))
    machine.restore({"b": 5000, "c": 2000, "d": 1000})
    machine.audited({"d": 1000, "c": 1})
    assert machine.next_deadline_ms() == 62_000, "one whose time of loss is another is not audited"
    machine.unneeded(["d"], 0)
    assert machine.next_deadline_ms() == 62_000
    machine.audited({"c": 2000, "b": 5000})
    assert machine.next_deadline_ms() == LATE_MS
    machine.observe(frozenset(), 9000)
    assert machine.next_deadline_ms() is None, "while nobody at all is registered"
    assert machine.since_ms(["b"]) == {"b": 5000}
