"""What the progress of a query says it is behind."""

from __future__ import annotations

from pyspark_bookie.source.streaming.admission import Limit
from pyspark_bookie.source.streaming.lag import behind
from pyspark_bookie.source.streaming.progress import TriggerLimit
from tests.unit.pyspark_bookie.source.streaming import made_up_ledgers as ledgers
from tests.unit.pyspark_bookie.source.streaming import made_up_streams as streams
from tests.unit.pyspark_bookie.source.streaming.checkpoints import EARLIEST, LATEST, again

FOUR = TriggerLimit(Limit(entries=4))


def left(followed, start):
    """What is behind the start, and behind the batch that begins there."""
    tail = again(followed.tail(start))
    end = again(followed.latest(start, FOUR))
    return behind(start, tail), behind(end, tail), end


def test_streams_are_counted_by_name():
    followed, _ = streams.progress(streams.view([5, 5], 2))
    before, after, end = left(followed, EARLIEST)
    assert before == {"entries": 12, "streams": {"orders": 12}}
    assert after == {"entries": 8, "streams": {"orders": 8}}
    assert left(followed, end)[1]["entries"] == 4


def test_ledgers_are_counted_together():
    followed, _ = ledgers.progress(ledgers.closed(1, 5), ledgers.opened(2, 4), ledgers.closed(4, 3))
    before, after, end = left(followed, EARLIEST)
    assert (before, after) == ({"entries": 12}, {"entries": 8})
    assert left(followed, end)[0] == {"entries": 8}


def test_nothing_is_behind_at_the_end():
    for followed, start in (
        (streams.progress(streams.view([5]))[0], LATEST),
        (ledgers.progress(ledgers.closed(1, 5))[0], LATEST),
    ):
        assert left(followed, start)[1]["entries"] == 0
