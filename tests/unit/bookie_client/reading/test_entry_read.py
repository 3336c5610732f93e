"""One entry: fall-over, speculation, all at once, given up. On a virtual clock."""

import asyncio

import pytest

from bookie_protocol.errors import (
    BadRequest,
    BookieUnavailable,
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    StorageFault,
)
from tests.unit.bookie_client.reading.rig import Rig, now, run_virtually


def read(rig, entry_id=0):
    async def main():
        return await rig.reader().read_entry(entry_id), now()

    return run_virtually(main)


def test_the_first_replica_serves_and_nobody_else_is_asked():
    rig = Rig()
    entry, seconds = read(rig)
    assert (entry.entry_id, entry.payload, entry.length) == (0, rig.payloads[0], 100)
    assert rig.asked() == {"A": 1, "B": 0, "C": 0}
    assert seconds == pytest.approx(0.001)
    assert rig.heard == [99]
    assert read(Rig(), 1)[0].entry_id == 1


def test_a_failed_replica_is_followed_by_the_next_at_once():
    rig = Rig()
    rig.bookies["A"].error = StorageFault
    rig.bookies["B"].error = BookieUnavailable
    entry, seconds = read(rig)
    assert entry.payload == rig.payloads[0]
    assert rig.asked() == {"A": 1, "B": 1, "C": 1}
    assert seconds == pytest.approx(0.003)


def test_a_replica_that_its_bookie_cannot_read_is_passed_over_and_logged_more_and_more_rarely(caplog):
    rig = Rig()
    rig.bookies["A"].error = StorageFault
    rig.bookies["B"].error = NoSuchEntry

    async def main():
        reader = rig.reader()
        return [await reader.read_entry(0) for _ in range(40)]

    assert {entry.payload for entry in run_virtually(main)} == {rig.payloads[0]}
    told = [record.getMessage() for record in caplog.records if "cannot read its replica" in record.getMessage()]
    assert len(told) == 12  # the first ten, the 16th, the 32nd
    assert all("bookie=A" in line and "ledger=7" in line for line in told), told
    assert "so_far=32" in told[-1]


def test_a_damaged_replica_is_passed_over_counted_and_logged(caplog):
    rig = Rig()
    rig.bookies["A"].damage(0)

    async def main():
        reader = rig.reader()
        entry = await reader.read_entry(0)
        return entry, reader.damaged_at, reader.served_by, rig.context.damaged_replicas

    entry, damaged, served, of_client = run_virtually(main)
    assert entry.payload == rig.payloads[0]
    assert damaged == of_client == {"A": 1}
    assert served == {"B": 1}
    [told] = [record.getMessage() for record in caplog.records if "damaged replica" in record.getMessage()]
    assert "entry=0" in told
    assert "bookie=A" in told


@pytest.mark.parametrize(
    ("errors", "counts"),
    [
        ((NoSuchEntry, NoSuchEntry, NoSuchLedger), NoSuchLedger),
        ((NoSuchEntry, StorageFault, NoSuchEntry), StorageFault),
        ((BookieUnavailable, NoSuchEntry, NoSuchEntry), BookieUnavailable),
    ],
)
def test_no_such_entry_only_when_everybody_says_so(errors, counts):
    rig = Rig()
    for name, error in zip("ABC", errors, strict=True):
        rig.bookies[name].error = error
    with pytest.raises(counts, match="entry 0 of ledger 7: no replica could serve it") as raised:
        read(rig)
    assert all(f"{name}: " in str(raised.value) for name in "ABC")


def test_the_next_replica_is_asked_after_the_delay_and_the_loser_is_dropped():
    rig = Rig(first_speculative_read_timeout=0.5)
    rig.bookies["A"].delay = 10.0

    async def main():
        reader = rig.reader()
        entry, seconds = await reader.read_entry(0), now()
        assert rig.health.slow() == {"A"}
        await asyncio.sleep(20)
        assert rig.bookies["A"].outstanding == 0
        return entry, seconds, dict(reader.served_by)

    entry, seconds, served = run_virtually(main)
    assert entry.payload == rig.payloads[0]
    assert seconds == pytest.approx(0.501)
    assert served == {"B": 1}
    assert rig.asked() == {"A": 1, "B": 1, "C": 0}


def test_the_delay_grows_with_each_replica_and_late_answers_still_count():
    rig = Rig(first_speculative_read_timeout=0.5)
    rig.bookies["A"].delay = 1.7
    rig.bookies["B"].delay = rig.bookies["C"].delay = None
    entry, seconds = read(rig)
    assert entry.payload == rig.payloads[0]
    assert seconds == pytest.approx(1.7)
    assert rig.asked() == {"A": 1, "B": 1, "C": 1}  # B after 0.5 s, C another 1.0 s later


def test_a_replica_that_was_asked_early_and_failed_late_is_not_the_end():
    rig = Rig(first_speculative_read_timeout=0.5)
    rig.bookies["A"].delay, rig.bookies["A"].error = 0.7, StorageFault
    rig.bookies["B"].delay = 0.6
    entry, seconds = read(rig)
    assert entry.payload == rig.payloads[0]
    assert seconds == pytest.approx(1.1)
    assert rig.asked() == {"A": 1, "B": 1, "C": 0}


def test_only_who_has_not_answered_counts_as_outrun():
    """A bookie that has an entry not says so at once; that makes it no slow one."""
    rig = Rig(first_speculative_read_timeout=0.5)
    rig.bookies["A"].error = NoSuchEntry
    rig.bookies["B"].delay = None

    async def main():
        await rig.reader().read_entry(0)
        return rig.health.slow()

    assert run_virtually(main) == {"B"}


def test_without_speculation_nobody_else_is_asked():
    rig = Rig(first_speculative_read_timeout=0)
    rig.bookies["A"].delay = 10.0
    assert read(rig)[1] == pytest.approx(10.0)
    assert rig.asked() == {"A": 1, "B": 0, "C": 0}


def test_parallel_reads_ask_everybody_at_once():
    rig = Rig(parallel_reads=True)
    rig.bookies["A"].delay = None
    rig.bookies["B"].error = StorageFault
    rig.bookies["C"].delay = 0.2

    async def main():
        entry = await rig.reader().read_entry(0)
        assert rig.health.slow() == frozenset()
        return entry, now()

    entry, seconds = run_virtually(main)
    assert entry.payload == rig.payloads[0]
    assert seconds == pytest.approx(0.2)
    assert rig.asked() == {"A": 1, "B": 1, "C": 1}


def test_a_parallel_read_fails_after_the_last_answer():
    rig = Rig(parallel_reads=True)
    for name, delay in zip("ABC", (0.1, 0.3, 0.2), strict=True):
        rig.bookies[name].delay, rig.bookies[name].error = delay, NoSuchEntry

    async def main():
        with pytest.raises(NoSuchEntry):
            await rig.reader().read_entry(0)
        return now()

    assert run_virtually(main) == pytest.approx(0.3)


def test_a_read_that_is_given_up_asks_nobody_any_more():
    rig = Rig(first_speculative_read_timeout=0.5)
    rig.bookies["A"].delay, rig.bookies["A"].error = 2.0, StorageFault

    async def main():
        reading = asyncio.create_task(rig.reader().read_entry(0))
        await asyncio.sleep(0.1)
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()
        await asyncio.sleep(10)

    run_virtually(main)
    assert rig.asked() == {"A": 1, "B": 0, "C": 0}


def test_striped_ledgers_ask_only_the_write_set():
    rig = Rig(ensemble=4, write_quorum=2)
    rig.bookies["C"].error = StorageFault
    assert read(rig, 2)[0].payload == rig.payloads[2]
    assert rig.asked() == {"A": 0, "B": 0, "C": 1, "D": 1}
    rig.bookies["C"].error = NoSuchEntry
    rig.bookies["D"].damage(2)
    with pytest.raises(DigestMismatch):
        read(rig, 2)
    assert rig.asked() == {"A": 0, "B": 0, "C": 2, "D": 2}


def test_no_entry_has_a_negative_id():
    with pytest.raises(BadRequest, match="-1 is not an entry id"):
        read(Rig(), -1)
