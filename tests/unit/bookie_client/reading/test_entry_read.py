"""One entry: fall-over, speculation, all at once, given up. On a virtual clock.

Entries that are read one by one, together: when the next replica is asked for which of them. On a virtual clock.

Which of several errors counts.
"""

import asyncio
from math import inf

import pytest

from bookie_client.reading.entry_read import may_pass, outcome_of, read_failure
from bookie_client.reading.speculation import Speculator
from bookie_protocol.errors import (
    BadRequest,
    BookieUnavailable,
    DigestMismatch,
    NoSuchEntry,
    NoSuchLedger,
    StorageFault,
    TooManyRequests,
)
from tests.unit.bookie_client.reading.rig import Channel, Rig, now, run_virtually


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
    with pytest.raises(counts, match="entry 0 of ledger 7") as raised:
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
    with pytest.raises(BadRequest, match="-1 is"):
        read(Rig(), -1)


FIRST, LONGEST = 0.5, 2.0
"""Seconds: what the first replica has, and the most that any has."""


def rig_of(entries, **shape):
    """Every replica answers nothing that `answers_after` does not name."""
    options = {"first_speculative_read_timeout": FIRST, "max_speculative_read_timeout": LONGEST, **shape}
    rig = Rig(entries, batch_reads=False, **options)
    for bookie in rig.bookies.values():
        bookie.delay = None
    return rig


def answers_after(rig, name, seconds):
    """The bookie answers these entries so long after it is asked."""
    rig.bookies[name].slow_entries.update(seconds)


def read_of_entry_group(rig, order=None, *, look_at=0.0):
    """All entries of the ledger as one group. What each met, when the last one ended, and when the group was due, as
    told at `look_at`."""

    async def main():
        sources = rig.reader()._sources
        ended = asyncio.Event()
        group = sources.group(lambda _: ended.set())
        speculator = Speculator(asyncio.get_running_loop(), sources.choice.served_by)
        sources.send(group, range(len(rig.payloads)), order)
        speculator.watch(group)
        due = []
        asyncio.get_running_loop().call_at(look_at, lambda: due.append(group.due))
        await ended.wait()
        speculator.stop()
        return group.answers, now(), *due

    return run_virtually(main)


def asked(rig, entry_id):
    return [(name, pytest.approx(at)) for name, at in rig.times_of(entry_id)]


def test_one_slow_entry_asks_nobody_for_its_neighbours():
    """Its bookie answered the neighbours just before the first look, so it is given until the second one."""
    rig = rig_of(4)
    answers_after(rig, "A", {0: 0.001, 1: 0.001, 3: 0.001})
    answers_after(rig, "B", {2: 0.001})
    answers, seconds, _ = read_of_entry_group(rig, "ABC")
    assert asked(rig, 2) == [("A", 0), ("B", 2 * FIRST)]
    assert all(asked(rig, entry_id) == [("A", 0)] for entry_id in (0, 1, 3))
    assert {entry_id: entry.payload for entry_id, entry in answers.items()} == dict(enumerate(rig.payloads))
    assert seconds == pytest.approx(2 * FIRST + 0.001)


def test_a_bookie_that_goes_on_answering_is_spared_until_the_longest_delay():
    """Then another is asked for all that is still missing, and not for what came."""
    rig = rig_of(10)
    answers_after(rig, "A", {entry_id: 0.3 * entry_id for entry_id in range(1, 10)})
    answers_after(rig, "B", dict.fromkeys(range(10), 0.001))
    _, seconds, _ = read_of_entry_group(rig, "ABC")
    assert all(asked(rig, entry_id) == [("A", 0), ("B", LONGEST)] for entry_id in (0, 7, 8, 9))
    assert all(asked(rig, entry_id) == [("A", 0)] for entry_id in range(1, 7))
    assert seconds == pytest.approx(LONGEST + 0.001)


def test_each_further_replica_has_longer_up_to_the_longest_delay():
    rig = rig_of(1, ensemble=5, write_quorum=5)
    answers_after(rig, "E", {0: 0.001})
    _, seconds, due = read_of_entry_group(rig, "ABCDE", look_at=4.0)
    assert asked(rig, 0) == [("A", 0), ("B", 0.5), ("C", 1.5), ("D", 3.5), ("E", 5.5)]
    assert (seconds, due) == (pytest.approx(5.501), pytest.approx(5.5))


def test_nobody_looks_after_entries_of_which_all_replicas_were_asked():
    rig = rig_of(2, ensemble=2, write_quorum=2)
    answers_after(rig, "A", {0: 10.0, 1: 10.0})
    _, seconds, due = read_of_entry_group(rig, "AB", look_at=0.6)
    assert (due, seconds) == (inf, pytest.approx(10.0))
    assert asked(rig, 1) == [("A", 0), ("B", 0.5)]


def test_a_look_that_asks_nobody_does_not_lengthen_the_delay():
    rig = rig_of(3)
    answers_after(rig, "A", {1: 0.4, 2: 0.9})  # alive at the looks after 0.5 s and 1.0 s
    answers_after(rig, "C", {0: 0.001})
    read_of_entry_group(rig, "ABC")
    assert asked(rig, 0) == [("A", 0), ("B", 1.5), ("C", 2.5)]


@pytest.mark.parametrize(("lively", "after", "third"), [("A", {3: 1.2}, 1.5), ("B", {1: 0.4, 4: 1.2}, 2.5)])
def test_only_the_replica_asked_last_is_spared_for_answering(lively, after, third):
    """The first one was passed over: what it answers later, between the looks at 0.5 s and 1.5 s, keeps nobody waiting
    for the second."""
    rig = rig_of(6)
    answers_after(rig, lively, after)
    answers_after(rig, "C", dict.fromkeys(range(6), 0.001))
    read_of_entry_group(rig)
    assert asked(rig, 0) == [("A", 0), ("B", 0.5), ("C", third)]


def test_an_entry_of_which_all_were_asked_does_not_lengthen_the_delay_of_others():
    rig = rig_of(9, write_quorum=2)
    answers_after(rig, "A", {2: 0.001})
    answers_after(rig, "B", {0: 5.0, 3: 5.0, 6: 5.0})
    answers_after(rig, "C", {1: 0.001, 4: 0.001, 5: 0.4, 7: 0.001, 8: 1.4})  # alive at the looks at 0.5 s and 1.5 s
    read_of_entry_group(rig)
    assert asked(rig, 0) == [("A", 0), ("B", 0.5)]
    assert asked(rig, 2) == [("C", 0), ("A", 2.5)]


def test_a_failure_asks_the_next_at_once_and_only_for_the_entry_that_failed():
    rig = rig_of(2)
    rig.bookies["A"].error = StorageFault
    answers_after(rig, "A", {0: 0.1, 1: 0.3})
    answers_after(rig, "B", {0: 0.001, 1: 0.001})
    _, seconds, _ = read_of_entry_group(rig, "ABC")
    assert asked(rig, 0) == [("A", 0), ("B", 0.1)]
    assert asked(rig, 1) == [("A", 0), ("B", 0.3)]
    assert seconds == pytest.approx(0.301)


def test_an_entry_that_nobody_serves_is_an_answer_beside_those_of_the_others():
    rig = rig_of(2)
    for name in "ABC":
        rig.bookies[name].delay = 0.01
        del rig.bookies[name].entries[0]
    rig.bookies["B"].error = BookieUnavailable
    answers, *_ = read_of_entry_group(rig, "ABC")
    assert isinstance(answers[0], BookieUnavailable)
    assert answers[1].payload == rig.payloads[1]
    assert asked(rig, 1) == [("A", 0)]


@pytest.mark.parametrize(
    ("errors", "counts"),
    [
        ([NoSuchEntry, NoSuchEntry], NoSuchEntry),
        ([NoSuchEntry, StorageFault], StorageFault),
        ([NoSuchEntry, BookieUnavailable], BookieUnavailable),
        ([BookieUnavailable, NoSuchEntry], BookieUnavailable),
        ([BookieUnavailable, DigestMismatch], DigestMismatch),
        ([BookieUnavailable, NoSuchLedger, TooManyRequests], TooManyRequests),
        ([DigestMismatch, NoSuchEntry, BookieUnavailable], DigestMismatch),
    ],
)
def test_no_such_entry_needs_everybody_to_say_so(errors, counts):
    said = {f"b{i}": error("x") for i, error in enumerate(errors)}
    assert type(outcome_of(said)) is counts


def test_the_failure_names_entry_and_replicas():
    failure = read_failure(3, 4, {"A": BookieUnavailable("refused"), "B": DigestMismatch("bits")})
    assert isinstance(failure, DigestMismatch)
    assert "entry 4 of ledger 3" in str(failure)
    assert "A: refused; B: bits" in str(failure)


@pytest.mark.parametrize(
    ("errors", "passes"),
    [
        ([DigestMismatch, DigestMismatch], False),
        ([DigestMismatch, NoSuchEntry], False),
        ([DigestMismatch], False),
        ([DigestMismatch, BookieUnavailable], True),
        ([TooManyRequests, DigestMismatch, NoSuchEntry], True),
        ([BookieUnavailable], True),
    ],
)
def test_waiting_helps_while_some_replica_was_not_heard(errors, passes):
    failure = read_failure(3, 4, {f"b{i}": error("x") for i, error in enumerate(errors)})
    assert may_pass(failure) is passes


def test_somebody_has_to_be_asked():
    with pytest.raises(ValueError, match="replica"):
        outcome_of({})


def test_nobody_waits_for_replicas_any_more_once_one_has_served(monkeypatch):
    """So that a connection which has not sent the others' requests yet need not."""
    rig = Rig(first_speculative_read_timeout=0.0005)
    requests, send = [], Channel.send_read

    def noting(self, frame, key, request):
        requests.append(request)
        send(self, frame, key, request)

    async def main():
        reading = asyncio.ensure_future(rig.reader().read_entry(0))
        await asyncio.sleep(0.0007)
        wanted = [request.is_wanted for request in requests]
        await reading
        return wanted, [request.is_wanted for request in requests], {request.describe() for request in requests}

    monkeypatch.setattr(Channel, "send_read", noting)
    assert run_virtually(main) == ([True, True], [False, False], {"the read of entry 0 of ledger 7"})
