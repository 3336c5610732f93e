"""Following a topic of Pulsar, whose list of ledgers keeps no count of what was in front of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_client.streams.model import StreamPosition
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.source.streaming.admission import Limit
from pyspark_bookie.source.streaming.offsets import Start
from pyspark_bookie.source.streaming.progress import TriggerLimit
from pyspark_bookie.source.streaming.streams import StreamsProgress, Topic
from tests.unit.pyspark_bookie.source.streaming.checkpoints import ALL, EARLIEST, LATEST, again
from tests.unit.pyspark_bookie.source.streaming.made_up_streams import entries_of, progress, view


def topic(sizes, tail=None, *, removed=0, left=None):
    """A topic of which the first ledgers were removed; the ledgers of `sizes` begin with number 100, downwards."""
    listed = view(sizes[removed:], tail, first_id=100 - removed)
    return replace(listed, is_counted=False, left=left)


def read(followed: StreamsProgress, start, limit=ALL):
    """The next batch, and where it ends."""
    end = again(followed.latest(start, limit))
    return entries_of(followed.ranges(start, end)), end


def test_ledgers_that_were_read_may_leave_the_list():
    followed, tails = progress(topic([5, 5, 5]))
    first, offset = read(followed, EARLIEST, TriggerLimit(Limit(entries=7)))
    tails.seen = topic([5, 5, 5, 4], 2, removed=1)
    second, offset = read(followed, offset)
    after, _ = progress(topic([5, 5, 5, 4], 6, removed=3))
    third, offset = read(after, offset)
    assert first + second + third == [(100 - at, e) for at, size in enumerate((5, 5, 5, 4, 6)) for e in range(size)]
    assert after.latest(offset, ALL) is None


def test_a_batch_is_the_same_when_it_is_made_again_without_the_ledgers_before_it():
    followed, tails = progress(topic([5, 5, 5]))
    _, start = read(followed, EARLIEST, TriggerLimit(Limit(entries=5)))
    batch, end = read(followed, start, TriggerLimit(Limit(entries=7)))
    tails.seen = topic([5, 5, 5, 5], removed=1)
    assert entries_of(followed.ranges(start, end)) == batch
    tails.seen = topic([5, 5, 5, 5], removed=2)
    with pytest.raises(PodkeeperSparkError, match=r"5 of .* 5 to 11 are"):
        followed.ranges(start, end)


def test_a_ledger_of_the_number_0_is_a_ledger():
    _, offset = read(progress(replace(view([4, 5], first_id=1), is_counted=False))[0], EARLIEST)
    assert progress(replace(view([5], first_id=0), is_counted=False))[0].latest(offset, ALL) is None
    with pytest.raises(PodkeeperSparkError, match=r"ledger 0 .*listed"):
        progress(replace(view([4], first_id=7), is_counted=False))[0].latest(offset, ALL)


def test_what_left_the_list_unread_is_a_loss():
    _, offset = read(progress(topic([5, 5, 5]))[0], EARLIEST, TriggerLimit(Limit(entries=3)))
    shorter = topic([5, 5, 5], removed=1, left=StreamPosition(100, 5))
    with pytest.raises(PodkeeperSparkError, match=r"DATA_LOSS\] .* ledger 100 .*listed .* 100:3"):
        progress(shorter)[0].latest(offset, ALL)
    followed, _ = progress(shorter, failOnDataLoss="false")
    left, offset = read(followed, offset)
    assert left == [(ledger_id, entry) for ledger_id in (99, 98) for entry in range(5)]
    assert followed.latest(offset, ALL) is None, "and nothing is read twice"


def test_the_ledger_that_was_read_last_may_leave_the_list_while_it_is_watched():
    _, offset = read(progress(topic([5, 5]))[0], EARLIEST)
    assert progress(topic([5, 5], 0, removed=2, left=StreamPosition(99, 5)))[0].latest(offset, ALL) is None
    watched = progress(topic([5, 5], 3, removed=2, left=StreamPosition(99, 5)))[0]
    assert read(watched, offset)[0] == [(98, 0), (98, 1), (98, 2)]
    for left in (None, StreamPosition(99, 6), StreamPosition(98, 4)):
        with pytest.raises(PodkeeperSparkError, match="whether"):
            progress(topic([5, 5], 3, removed=2, left=left))[0].latest(offset, ALL)


def test_only_the_end_of_a_ledger_that_was_seen_closed_is_known():
    seen = Topic()
    assert seen.left_by(view([5, 6], 3).manifest) is None
    assert seen.left_by(view([6], 3, first_id=99).manifest) == StreamPosition(100, 5)
    assert seen.left_by(view([6], 4, first_id=99).manifest) == StreamPosition(100, 5), "as long as nothing else leaves"
    assert seen.left_by(view([9], first_id=97).manifest) is None, "98 was open when it was seen last"


@pytest.mark.parametrize("name", ["public/default/persistent/orders", "persistent://public/default/orders"])
def test_a_run_that_ends_by_itself_ends_there_although_ledgers_left_the_list(name):
    followed, tails = progress(topic([5, 5], 1))
    tails.views = lambda *, fresh=False: {name: tails.seen}
    followed.stop_here()
    first, offset = read(followed, EARLIEST, TriggerLimit(Limit(entries=6)))
    tails.seen = topic([5, 5, 8], 7, removed=1)
    second, offset = read(followed, offset)
    assert (len(first), second) == (6, [(99, 1), (99, 2), (99, 3), (99, 4), (98, 0)])
    assert followed.latest(offset, ALL) is None
    assert followed.tail(offset)["s"] == offset.document()["s"]


def test_a_query_from_latest_or_from_a_position_goes_on_as_well():
    for begin, rest in ((LATEST, []), (Start('{"99": 2}'), [(99, 2), (99, 3), (99, 4)])):
        followed, tails = progress(topic([5, 5]))
        batch, offset = read(followed, begin)
        tails.seen = topic([5, 5, 2], removed=1)
        assert batch + read(followed, offset)[0] == [*rest, (98, 0), (98, 1)]
