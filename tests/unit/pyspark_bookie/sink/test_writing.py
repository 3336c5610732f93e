from __future__ import annotations

from concurrent.futures import Future

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.errors import MetadataUnavailable, QuorumLost
from pyspark_bookie.sink.writing import WriteLimits, write_ledgers


class Ledgers:
    """In memory. Appends end when `delay` later ones have come, and fail from entry `fail_at` on."""

    def __init__(self, delay=0, fail_at=None, deletion_fails=False):
        self.entries: dict[int, list[bytes]] = {}
        self.closed: set[int] = set()
        self.deleted: list[int] = []
        self.waiting: list[tuple[Future, int]] = []
        self.most_waiting = 0
        self.delay, self.fail_at, self.deletion_fails = delay, fail_at, deletion_fails

    def create(self):
        ledger_id = 100 - len(self.entries)
        self.entries[ledger_id] = []
        return Ledger(self, ledger_id)

    def delete(self, ledger_id):
        if self.deletion_fails:
            raise MetadataUnavailable("away")
        self.deleted.append(ledger_id)

    def settle(self, keep):
        while len(self.waiting) > keep:
            self.waiting.pop(0)[0].set_result([])


class Ledger:
    def __init__(self, ledgers, ledger_id):
        self.ledgers, self.ledger_id = ledgers, ledger_id

    def submit_many(self, payloads):
        future: Future = Waited(self.ledgers)
        payloads = list(payloads)
        self.ledgers.entries[self.ledger_id] += payloads
        if self.ledgers.fail_at is not None and sum(map(len, self.ledgers.entries.values())) > self.ledgers.fail_at:
            future.set_exception(QuorumLost("too few bookies"))
            return future
        self.ledgers.waiting.append((future, sum(map(len, payloads))))
        self.ledgers.most_waiting = max(self.ledgers.most_waiting, sum(nbytes for _, nbytes in self.ledgers.waiting))
        self.ledgers.settle(self.ledgers.delay)
        return future

    def close(self):
        assert not self.ledgers.waiting, "closed with appends under way"
        self.ledgers.closed.add(self.ledger_id)


class Waited(Future):
    """Whoever waits for the oldest append gets it."""

    def __init__(self, ledgers):
        super().__init__()
        self.ledgers = ledgers

    def result(self, timeout=None):
        while not self.done():
            self.ledgers.settle(len(self.ledgers.waiting) - 1)
        return super().result(timeout)


BIG = WriteLimits(ledger_bytes=1 << 30, inflight_bytes=1 << 24)


@given(
    st.lists(st.lists(st.binary(max_size=30), max_size=12), max_size=5),
    st.integers(1, 100),
    st.integers(1, 80),
    st.integers(0, 5),
)
def test_every_value_is_an_entry_in_order(columns, ledger_bytes, inflight_bytes, delay):
    ledgers = Ledgers(delay)
    arrays = [pa.array(column, pa.binary()) for column in columns]
    written = write_ledgers(arrays, ledgers, WriteLimits(ledger_bytes, inflight_bytes))
    values = [value for column in columns for value in column]
    assert [value for ledger in written.ledgers for value in ledgers.entries[ledger.ledger_id]] == values
    assert written.rows == len(values)
    assert written.checksum == sum(map(google_crc32c.value, values))
    assert ledgers.closed == set(ledgers.entries) == {ledger.ledger_id for ledger in written.ledgers}
    assert not ledgers.deleted
    for ledger in written.ledgers:
        entries = ledgers.entries[ledger.ledger_id]
        assert (ledger.entries, ledger.nbytes) == (len(entries), sum(map(len, entries)))
        assert ledger.crc == google_crc32c.value(b"".join(entries))
        assert entries
        assert ledger.nbytes <= ledger_bytes or len(entries) == 1
    largest = max(map(len, values), default=0)
    assert ledgers.most_waiting <= max(inflight_bytes, largest)


def test_the_checksum_does_not_depend_on_the_order():
    values = [b"%d" % number for number in range(100)]
    forwards = write_ledgers([pa.array(values, pa.binary())], Ledgers(), BIG)
    backwards = write_ledgers([pa.array(values[::-1], pa.binary())], Ledgers(), WriteLimits(7, 100))
    assert forwards.checksum == backwards.checksum
    assert forwards.checksum != write_ledgers([pa.array(values[1:], pa.binary())], Ledgers(), BIG).checksum


def test_no_rows_leave_nothing_behind():
    ledgers = Ledgers()
    written = write_ledgers([pa.array([], pa.binary())], ledgers, BIG)
    assert (written.ledgers, written.rows, written.checksum) == ((), 0, 0)
    assert not ledgers.entries


def test_a_failed_attempt_deletes_its_ledgers():
    ledgers = Ledgers(fail_at=25)
    with pytest.raises(QuorumLost):
        write_ledgers([pa.array([b"x" * 10] * 40, pa.binary())], ledgers, WriteLimits(100, 50))
    assert sorted(ledgers.deleted) == sorted(ledgers.entries)
    assert len(ledgers.deleted) == 3


def test_so_does_one_whose_rows_end_with_an_error():
    ledgers = Ledgers()

    def columns():
        yield pa.array([b"x"], pa.binary())
        raise RuntimeError("of the query")

    with pytest.raises(RuntimeError, match="query"):
        write_ledgers(columns(), ledgers, BIG)
    assert ledgers.deleted == list(ledgers.entries)


def test_a_deletion_that_fails_does_not_hide_the_error():
    ledgers = Ledgers(fail_at=0, deletion_fails=True)
    with pytest.raises(QuorumLost):
        write_ledgers([pa.array([b"x"], pa.binary())], ledgers, BIG)


@pytest.mark.parametrize(("second", "ledgers"), [(10, 1), (11, 2)])
def test_a_ledger_takes_as_much_as_it_may(second, ledgers):
    made = Ledgers()
    columns = [pa.array([b"x" * size], pa.binary()) for size in (10, second)]
    written = write_ledgers(columns, made, WriteLimits(20, 100))
    assert (len(written.ledgers), made.closed) == (ledgers, set(made.entries))


@pytest.mark.parametrize(("window", "under_way"), [(20, [0, 1, 1, 1, 1]), (19, [0] * 5), (30, [0, 1, 2, 2, 2])])
def test_as_much_is_under_way_as_may_be(monkeypatch, window, under_way):
    made, submit, before = Ledgers(delay=100), Ledger.submit_many, []

    def noting(self, payloads):
        before.append(len(made.waiting))
        return submit(self, payloads)

    monkeypatch.setattr(Ledger, "submit_many", noting)
    write_ledgers([pa.array([b"x" * 10], pa.binary()) for _ in range(5)], made, WriteLimits(1000, window))
    assert before == under_way


def test_a_ledger_that_cannot_be_closed_is_deleted_all_the_same(monkeypatch):
    made = Ledgers(fail_at=0)

    def close(_):
        raise QuorumLost("too few bookies")

    monkeypatch.setattr(Ledger, "close", close)
    with pytest.raises(QuorumLost):
        write_ledgers([pa.array([b"x"], pa.binary())], made, BIG)
    assert made.deleted == list(made.entries)


def test_an_attempt_of_which_one_deletion_fails_tries_no_more(monkeypatch):
    """The metadata service is away, and each would take its time to fail."""
    made, asked = Ledgers(fail_at=2), []

    def delete(ledger_id):
        asked.append(ledger_id)
        raise MetadataUnavailable("away")

    monkeypatch.setattr(made, "delete", delete)
    with pytest.raises(QuorumLost):
        write_ledgers([pa.array([b"x"], pa.binary()) for _ in range(3)], made, WriteLimits(1, 100))
    assert (len(made.entries), len(asked)) == (3, 1)
