"""The writer's state machine against model bookies that answer, fail and are replaced in any order.

Checked after every step: S5 (an acknowledged entry is held by Qa bookies of the ensemble that the metadata
assigns to it), S7 (order without gaps), L2 and L3 (every add ends once all requests are answered).
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bookie_client.distribution import Quorums
from bookie_client.writing.add_state import AddState, Outcome
from bookie_protocol.errors import BookieReadOnly, BookieUnavailable, LedgerFenced

ERRORS = [BookieUnavailable("no answer in time"), BookieReadOnly("disk full")]


class WriterModel(RuleBasedStateMachine):
    @initialize(
        shape=st.sampled_from([(3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 3, 2), (2, 2, 1), (5, 3, 2), (1, 1, 1)]),
        delay=st.booleans(),
        deferred=st.booleans(),
        limit=st.sampled_from([None, None, 3]),
    )
    def create(self, shape, delay, deferred, limit):
        self.quorums = Quorums(*shape)
        self.names = 0
        ensemble = tuple(self.new_bookie() for _ in range(shape[0]))
        self.machine = AddState(
            1,
            self.quorums,
            ensemble,
            delay_ensemble_change=delay,
            max_ensemble_changes=limit,
            deferred_sync=deferred,
        )
        self.deferred = deferred
        self.limit = limit
        self.stored_changes = 0
        self.forced = -1
        self.replaced: list[str] = []
        self.due = False
        self.segments = {0: ensemble}
        self.stored: dict[str, set[int]] = {}
        self.requests: list = []
        self.change = None
        self.delivered: list[int] = []
        self.failed: list[int] = []
        self.lengths: list[int] = []

    def new_bookie(self):
        self.names += 1
        return f"bookie-{self.names}"

    # --- what a driver does ---

    def carry_out(self, outcome: Outcome):
        self.failed += [add.entry_id for add, error in outcome.failed]
        for _, error in outcome.failed:
            assert "ledger 1" in str(error)
        if outcome.change is not None:
            assert self.change is None, "two changes at a time"
            assert outcome.change, "a change of nothing"
            self.change = dict(outcome.change)
        self.send(outcome.resend)
        if outcome.deliver:
            self.took(self.machine.deliver())

    def send(self, adds):
        for add, position in adds:
            add.waiting |= 1 << position
            self.requests.append((add, position, add.ensemble[position]))

    def refuse(self, add, bookie, error):
        self.deliver_due()
        self.carry_out(self.machine.refused(add, bookie, error))

    def deliver_due(self):
        if self.due:
            self.due = False
            self.took(self.machine.deliver())

    def took(self, adds):
        for add in adds:
            self.delivered.append(add.entry_id)
            ensemble = self.segments[max(k for k in self.segments if k <= add.entry_id)]
            holders = [
                p for p in self.quorums.write_set(add.entry_id) if add.entry_id in self.stored.get(ensemble[p], ())
            ]
            assert len(holders) >= self.quorums.ack, (add, ensemble, self.stored)

    @precondition(lambda self: self.machine.failure is None)
    @rule(size=st.integers(0, 9))
    def begin(self, size):
        add = self.machine.begin(size)
        self.lengths.append(size)
        assert add.length == sum(self.lengths)
        self.send((add, p) for p in self.machine.targets(add))
        if self.machine.late_failures:
            self.deliver_due()
            self.carry_out(self.machine.wanted_change())

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 10**6), lost=st.booleans(), at_once=st.booleans())
    def bookie_stores(self, which, lost, at_once):
        """Stored and acknowledged; or stored and the answer lost, which the writer sees as an error. What is
        complete is delivered at once, or together with what comes next."""
        add, _, bookie = self.requests.pop(which % len(self.requests))
        self.stored.setdefault(bookie, set()).add(add.entry_id)
        if lost:
            self.refuse(add, bookie, ERRORS[0])
        else:
            self.due |= self.machine.acknowledged(add, bookie)
            if at_once:
                self.deliver_due()

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 10**6), error=st.sampled_from(ERRORS))
    def bookie_fails(self, which, error):
        add, _, bookie = self.requests.pop(which % len(self.requests))
        self.refuse(add, bookie, error)

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 10**6))
    def bookie_dies(self, which):
        """Every request that a bookie has not answered fails."""
        _, _, dead = self.requests[which % len(self.requests)]
        lost = [r for r in self.requests if r[2] == dead]
        self.requests = [r for r in self.requests if r[2] != dead]
        for add, _, bookie in lost:
            self.refuse(add, bookie, ERRORS[0])

    @precondition(lambda self: self.change is not None and self.machine.failure is None)
    @rule(spares=st.integers(0, 2), again=st.booleans())
    def change_ends(self, spares, again):
        """`again`: bookies that were replaced before are taken again, perhaps for another position."""
        first = self.machine.lac + 1
        ensemble = list(self.segments[max(self.segments)])
        for position, bookie in self.change.items():
            if spares and ensemble[position] == bookie:
                known = [b for b in self.replaced if b not in ensemble and b not in self.change.values()]
                ensemble[position] = known[0] if again and known else self.new_bookie()
                self.replaced.append(bookie)
                spares -= 1
        if tuple(ensemble) != self.segments[max(self.segments)]:
            assert first >= max(self.segments)
            self.segments[first] = tuple(ensemble)
            self.stored_changes += 1
        self.change = None
        self.carry_out(self.machine.ensemble_changed(tuple(ensemble)))

    @precondition(lambda self: self.machine.failure is None)
    @rule()
    def retry(self):
        self.carry_out(self.machine.retry_degraded())

    @precondition(lambda self: self.machine.degraded)
    @rule()
    def comes_back(self):
        position, bookie = next(iter(self.machine.degraded.items()))
        self.carry_out(self.machine.restored(position, bookie))

    @precondition(lambda self: self.requests)
    @rule(rarely=st.integers(0, 9))
    def fenced(self, rarely):
        if rarely == 0:
            add, _, bookie = self.requests.pop()
            self.refuse(add, bookie, LedgerFenced("recovered"))

    @precondition(lambda self: self.due)
    @rule()
    def turn_ends(self):
        self.deliver_due()

    @precondition(lambda self: self.machine.failure is None)
    @rule()
    def force(self):
        """Every bookie syncs what it acknowledged."""
        self.forced = self.machine.delivered.entry_id
        self.machine.forced(self.machine.delivered)

    @precondition(lambda self: self.machine.failure is not None)
    @rule()
    def answers_after_the_end(self):
        """Nothing that arrives after a failure has an effect."""
        requests, self.requests = self.requests, []
        for add, _, bookie in requests:
            self.machine.acknowledged(add, bookie)
            assert not self.machine.deliver()
        assert self.machine.ensemble_changed(self.machine.ensemble) == Outcome()

    # --- what must hold ---

    @invariant()
    def adds_end_once_and_in_order(self):
        if not hasattr(self, "machine"):
            return
        assert self.delivered == list(range(len(self.delivered)))
        assert self.machine.lac == (self.forced if self.deferred else len(self.delivered) - 1)
        assert self.machine.confirmed_length == sum(self.lengths[: self.machine.lac + 1])
        if self.failed:
            assert self.delivered + self.failed == list(range(len(self.lengths)))

    @invariant()
    def the_ensemble_stays_where_it_must(self):
        if not hasattr(self, "machine"):
            return
        if self.deferred:
            assert list(self.segments) == [0]
        if self.limit is not None:
            assert self.stored_changes <= self.limit

    @invariant()
    def missing_answers_are_known(self):
        if not hasattr(self, "machine"):
            return
        for add, position, bookie in self.requests:
            if add.ensemble[position] == bookie and bookie not in self.replaced:
                assert add.waiting >> position & 1

    @invariant()
    def nothing_hangs(self):
        if not hasattr(self, "machine") or self.requests or self.change is not None or self.due:
            return
        if self.machine.failure is None:
            assert self.machine.idle
        assert len(self.delivered) + len(self.failed) == len(self.lengths)


class TestWriterModel(WriterModel.TestCase):
    settings = settings(stateful_step_count=60)


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestWriterModelAtLength(WriterModel.TestCase):
    settings = settings(max_examples=1200, stateful_step_count=60)
