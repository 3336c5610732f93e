"""Entries that are read one by one, together: when the next replica is asked for which of them. On a virtual clock."""

import asyncio
from math import inf

import pytest

from bookie_client.reading.speculation import Speculator
from bookie_protocol.errors import BookieUnavailable, StorageFault
from tests.unit.bookie_client.reading.rig import Rig, now, run_virtually

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


def read(rig, order=None, *, look_at=0.0):
    """All entries of the ledger as one group. What each met, when the last one ended, and when the group was due, as
    told at `look_at`."""

    async def main():
        sources = rig.reader()._sources
        ended = asyncio.Event()
        group = sources.group(lambda _: ended.set())
        speculator = Speculator(asyncio.get_running_loop(), sources.served_by)
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
    answers, seconds, _ = read(rig, "ABC")
    assert asked(rig, 2) == [("A", 0), ("B", 2 * FIRST)]
    assert all(asked(rig, entry_id) == [("A", 0)] for entry_id in (0, 1, 3))
    assert {entry_id: entry.payload for entry_id, entry in answers.items()} == dict(enumerate(rig.payloads))
    assert seconds == pytest.approx(2 * FIRST + 0.001)


def test_a_bookie_that_goes_on_answering_is_spared_until_the_longest_delay():
    """Then another is asked for all that is still missing, and not for what came."""
    rig = rig_of(10)
    answers_after(rig, "A", {entry_id: 0.3 * entry_id for entry_id in range(1, 10)})
    answers_after(rig, "B", dict.fromkeys(range(10), 0.001))
    _, seconds, _ = read(rig, "ABC")
    assert all(asked(rig, entry_id) == [("A", 0), ("B", LONGEST)] for entry_id in (0, 7, 8, 9))
    assert all(asked(rig, entry_id) == [("A", 0)] for entry_id in range(1, 7))
    assert seconds == pytest.approx(LONGEST + 0.001)


def test_each_further_replica_has_longer_up_to_the_longest_delay():
    rig = rig_of(1, ensemble=5, write_quorum=5)
    answers_after(rig, "E", {0: 0.001})
    _, seconds, due = read(rig, "ABCDE", look_at=4.0)
    assert asked(rig, 0) == [("A", 0), ("B", 0.5), ("C", 1.5), ("D", 3.5), ("E", 5.5)]
    assert (seconds, due) == (pytest.approx(5.501), pytest.approx(5.5))


def test_nobody_looks_after_entries_of_which_all_replicas_were_asked():
    rig = rig_of(2, ensemble=2, write_quorum=2)
    answers_after(rig, "A", {0: 10.0, 1: 10.0})
    _, seconds, due = read(rig, "AB", look_at=0.6)
    assert (due, seconds) == (inf, pytest.approx(10.0))
    assert asked(rig, 1) == [("A", 0), ("B", 0.5)]


def test_a_look_that_asks_nobody_does_not_lengthen_the_delay():
    rig = rig_of(3)
    answers_after(rig, "A", {1: 0.4, 2: 0.9})  # alive at the looks after 0.5 s and 1.0 s
    answers_after(rig, "C", {0: 0.001})
    read(rig, "ABC")
    assert asked(rig, 0) == [("A", 0), ("B", 1.5), ("C", 2.5)]


@pytest.mark.parametrize(("lively", "after", "third"), [("A", {3: 1.2}, 1.5), ("B", {1: 0.4, 4: 1.2}, 2.5)])
def test_only_the_replica_asked_last_is_spared_for_answering(lively, after, third):
    """The first one was passed over: what it answers later, between the looks at 0.5 s and 1.5 s, keeps nobody waiting
    for the second."""
    rig = rig_of(6)
    answers_after(rig, lively, after)
    answers_after(rig, "C", dict.fromkeys(range(6), 0.001))
    read(rig)
    assert asked(rig, 0) == [("A", 0), ("B", 0.5), ("C", third)]


def test_an_entry_of_which_all_were_asked_does_not_lengthen_the_delay_of_others():
    rig = rig_of(9, write_quorum=2)
    answers_after(rig, "A", {2: 0.001})
    answers_after(rig, "B", {0: 5.0, 3: 5.0, 6: 5.0})
    answers_after(rig, "C", {1: 0.001, 4: 0.001, 5: 0.4, 7: 0.001, 8: 1.4})  # alive at the looks at 0.5 s and 1.5 s
    read(rig)
    assert asked(rig, 0) == [("A", 0), ("B", 0.5)]
    assert asked(rig, 2) == [("C", 0), ("A", 2.5)]


def test_a_failure_asks_the_next_at_once_and_only_for_the_entry_that_failed():
    rig = rig_of(2)
    rig.bookies["A"].error = StorageFault
    answers_after(rig, "A", {0: 0.1, 1: 0.3})
    answers_after(rig, "B", {0: 0.001, 1: 0.001})
    _, seconds, _ = read(rig, "ABC")
    assert asked(rig, 0) == [("A", 0), ("B", 0.1)]
    assert asked(rig, 1) == [("A", 0), ("B", 0.3)]
    assert seconds == pytest.approx(0.301)


def test_an_entry_that_nobody_serves_is_an_answer_beside_those_of_the_others():
    rig = rig_of(2)
    for name in "ABC":
        rig.bookies[name].delay = 0.01
        del rig.bookies[name].entries[0]
    rig.bookies["B"].error = BookieUnavailable
    answers, *_ = read(rig, "ABC")
    assert isinstance(answers[0], BookieUnavailable)
    assert answers[1].payload == rig.payloads[1]
    assert asked(rig, 1) == [("A", 0)]
