"""The writer's state machine against model bookies that answer, fail and are replaced in any order.

Checked after every step: S5 (an acknowledged entry is held by Qa bookies of the ensemble that the metadata
assigns to it), S7 (order without gaps), L2 and L3 (every add ends once all requests are answered).
"""

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
    )
    def create(self, shape, delay):
        self.quorums = Quorums(*shape)
        self.names = 0
        ensemble = tuple(self.new_bookie() for _ in range(shape[0]))
        self.machine = AddState(1, self.quorums, ensemble, delay_ensemble_change=delay)
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
        self.requests += [(add, p, add.ensemble[p]) for add, p in outcome.resend]
        self.took(outcome.delivered)

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
        self.requests += [(add, p, add.ensemble[p]) for p in self.machine.targets(add)]
        if self.machine.late_failures:
            self.carry_out(self.machine.wanted_change())

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 10**6), lost=st.booleans())
    def bookie_stores(self, which, lost):
        """Stored and acknowledged; or stored and the answer lost, which the writer sees as an error."""
        add, position, bookie = self.requests.pop(which % len(self.requests))
        self.stored.setdefault(bookie, set()).add(add.entry_id)
        if lost:
            self.carry_out(self.machine.refused(add, position, bookie, ERRORS[0]))
        else:
            self.took(self.machine.acknowledged(add, position, bookie))

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 10**6), error=st.sampled_from(ERRORS))
    def bookie_fails(self, which, error):
        add, position, bookie = self.requests.pop(which % len(self.requests))
        self.carry_out(self.machine.refused(add, position, bookie, error))

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 10**6))
    def bookie_dies(self, which):
        """Every request that a bookie has not answered fails."""
        _, _, dead = self.requests[which % len(self.requests)]
        lost = [r for r in self.requests if r[2] == dead]
        self.requests = [r for r in self.requests if r[2] != dead]
        for add, position, bookie in lost:
            self.carry_out(self.machine.refused(add, position, bookie, ERRORS[0]))

    @precondition(lambda self: self.change is not None and self.machine.failure is None)
    @rule(spares=st.integers(0, 2))
    def change_ends(self, spares):
        first = self.machine.lac + 1
        ensemble = list(self.segments[max(self.segments)])
        for position, bookie in self.change.items():
            if spares and ensemble[position] == bookie:
                ensemble[position] = self.new_bookie()
                spares -= 1
        if tuple(ensemble) != self.segments[max(self.segments)]:
            assert first >= max(self.segments)
            self.segments[first] = tuple(ensemble)
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
        self.machine.restored(position, bookie)

    @precondition(lambda self: self.requests)
    @rule(rarely=st.integers(0, 9))
    def fenced(self, rarely):
        if rarely == 0:
            add, position, bookie = self.requests.pop()
            self.carry_out(self.machine.refused(add, position, bookie, LedgerFenced("recovered")))

    @precondition(lambda self: self.machine.failure is not None)
    @rule()
    def answers_after_the_end(self):
        """Nothing that arrives after a failure has an effect."""
        for add, position, bookie in self.requests:
            assert not self.machine.acknowledged(add, position, bookie)
        assert self.machine.ensemble_changed(self.machine.ensemble) == Outcome()

    # --- what must hold ---

    @invariant()
    def adds_end_once_and_in_order(self):
        if not hasattr(self, "machine"):
            return
        assert self.delivered == list(range(len(self.delivered)))
        assert self.machine.lac == len(self.delivered) - 1
        assert self.machine.confirmed_length == sum(self.lengths[: len(self.delivered)])
        if self.failed:
            assert self.delivered + self.failed == list(range(len(self.lengths)))

    @invariant()
    def nothing_hangs(self):
        if not hasattr(self, "machine") or self.requests or self.change is not None:
            return
        if self.machine.failure is None:
            assert self.machine.idle
        assert len(self.delivered) + len(self.failed) == len(self.lengths)


WriterModel.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
TestWriterModel = WriterModel.TestCase
