"""Following streams whose manifests a test makes up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_client.streams.model import StreamPosition
from bookie_protocol.errors import MetadataUnavailable, StreamPositionGone
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.source.streaming.admission import Limit
from pyspark_bookie.source.streaming.offsets import Start, parse_offset
from pyspark_bookie.source.streaming.progress import TriggerLimit
from tests.unit.pyspark_bookie.source.streaming.checkpoints import ALL, EARLIEST, LATEST, again
from tests.unit.pyspark_bookie.source.streaming.made_up_streams import entries_of, progress, view


def test_batches_follow_each_other_and_are_the_same_when_made_again():
    followed, tails = progress(view([5, 5], 2))
    limit = TriggerLimit(Limit(entries=4))
    offset, read = EARLIEST, []
    while (document := followed.latest(offset, limit)) is not None:
        end = again(document)
        batch = entries_of(followed.ranges(offset, end))
        tails.seen = view([5, 5, 6], 3)  # the writer has gone on to the next ledger
        assert entries_of(followed.ranges(offset, end)) == batch
        offset, read = end, read + batch
    assert len(read) == len(set(read)) == 19
    assert (followed.tail(None), followed.tail(offset)) == (None, offset.document())
    assert read == sorted(read, key=lambda each: (-each[0], each[1]))


def test_a_query_from_latest_pins_its_start_with_an_empty_batch():
    followed, tails = progress(view([5]))
    document = followed.latest(LATEST, ALL)
    assert document == {
        "v": 1,
        "s": {"orders": {"l": 100, "e": 5, "n": 5}},
        "from": {"orders": {"l": 100, "e": 5, "n": 5}},
    }
    assert followed.ranges(LATEST, again(document)) == []
    tails.seen = view([5, 3])
    after, _ = progress(tails.seen)
    assert entries_of(after.ranges(again(document), again(after.latest(again(document), ALL)))) == [
        (99, 0),
        (99, 1),
        (99, 2),
    ]


def test_the_first_batch_is_the_same_after_a_crash_although_the_stream_has_grown():
    """Spark keeps no start of the first batch, and asks a new reader again."""
    followed, _ = progress(view([5], 3))
    end = again(followed.latest(Start('{"100": 2}'), ALL))
    batch = entries_of(followed.ranges(Start('{"100": 2}'), end))
    after, _ = progress(view([5, 9], 3), startingPosition="latest")
    assert entries_of(after.ranges(LATEST, end)) == batch
    assert len(batch) == 6


def test_nothing_new_is_no_offset():
    followed, _ = progress(view([5], 0))
    assert progress(view([]))[0].latest(EARLIEST, ALL) is None
    end = again(followed.latest(EARLIEST, ALL))
    assert followed.latest(end, ALL) is None


def test_a_run_that_ends_by_itself_reads_nothing_that_came_later():
    followed, tails = progress(view([5], 1))
    followed.stop_here()
    tails.seen = view([5, 8], 7)
    end = again(followed.latest(EARLIEST, ALL))
    assert len(entries_of(followed.ranges(EARLIEST, end))) == 6
    assert followed.latest(end, ALL) is None
    assert followed.tail(end)["s"] == end.document()["s"]


def test_a_loss_ends_the_query_or_is_passed_over():
    end = again(progress(view([5, 5]))[0].latest(EARLIEST, TriggerLimit(Limit(entries=3))))
    truncated = view([4], base=5, first_id=99)
    with pytest.raises(PodkeeperSparkError, match=r"BOOKIE_DATA_LOSS\].* 2 entries .*100:3"):
        progress(truncated)[0].latest(end, ALL)
    followed, _ = progress(truncated, failOnDataLoss="false")
    later = again(followed.latest(end, ALL))
    assert entries_of(followed.ranges(end, later)) == [(99, 0), (99, 1), (99, 2), (99, 3)]


def test_a_stream_that_was_made_anew_is_read_from_its_beginning_if_losses_are_accepted():
    end = again(progress(view([5, 5]))[0].latest(EARLIEST, ALL))
    followed, _ = progress(view([3], first_id=50), failOnDataLoss="false")
    later = again(followed.latest(end, ALL))
    assert entries_of(followed.ranges(end, later)) == [(50, 0), (50, 1), (50, 2)]


def test_a_batch_that_was_truncated_before_it_was_made_again_is_a_loss():
    followed, tails = progress(view([5, 5]))
    end = again(followed.latest(EARLIEST, ALL))
    tails.seen = view([5], base=5, first_id=99)
    with pytest.raises(PodkeeperSparkError, match=r"5 of .* 0 to 9 are"):
        followed.ranges(EARLIEST, end)
    left, _ = progress(tails.seen, failOnDataLoss="false")
    assert entries_of(left.ranges(EARLIEST, end)) == [(99, entry) for entry in range(5)]
    left, _ = progress(replace(view([5, 5]), unreadable=frozenset({100})), failOnDataLoss="false")
    assert entries_of(left.ranges(EARLIEST, end)) == [(99, entry) for entry in range(5)]


def test_the_cursor_is_told_once_and_only_with_a_name(caplog):
    followed, tails = progress(view([5]), cursor="etl")
    end = again(followed.latest(EARLIEST, ALL))
    assert tails.cursor == [("orders", 0)], "so that retention waits from the beginning"
    for _ in range(3):
        followed.passed(end)
    assert tails.cursor == [("orders", 0), ("orders", 5)]
    assert caplog.text == ""
    nameless, tails = progress(view([5]))
    nameless.passed(end)
    assert tails.cursor == []


def test_a_query_whose_cursor_cannot_be_made_does_not_begin():
    """Without it retention may take what the first batch is about."""
    followed, tails = progress(view([5]), cursor="etl")
    tails.failing = MetadataUnavailable("away")
    with pytest.raises(PodkeeperSparkError, match="away"):
        followed.latest(EARLIEST, ALL)
    tails.failing = None
    assert followed.latest(EARLIEST, ALL) is not None
    assert tails.cursor == [("orders", 0)] * 2


def test_a_cursor_that_stays_behind_is_told_again_only_if_that_may_help():
    followed, tails = progress(view([5]), cursor="etl")
    end = again(followed.latest(EARLIEST, ALL))
    for error, times in ((MetadataUnavailable("away"), 3), (StreamPositionGone("gone"), 1)):
        tails.failing, tails.cursor = error, []
        for _ in range(3):
            followed.passed(end)
        assert len(tails.cursor) == times


def test_a_cursor_that_is_farther_than_the_query_is_told(caplog):
    followed, tails = progress(view([5]), cursor="etl")
    tails.stands_at = 4
    assert followed.latest(EARLIEST, ALL) is not None
    assert "cursor etl of stream orders is 4 entries farther than where the query begins" in caplog.text


def test_the_place_in_front_of_a_stream_that_was_truncated_is_a_position():
    begin = view([5], base=7).place(7)
    assert view([5], base=7).manifest.ordinal(StreamPosition(*begin.position)) == 7


def test_a_stream_that_is_gone_is_a_loss_however_the_run_ends():
    end = again(progress(view([5, 5]))[0].latest(EARLIEST, TriggerLimit(Limit(entries=3))))
    for ends_by_itself in (False, True):
        followed, tails = progress(view([5, 5]))
        tails.seen = None
        if ends_by_itself:
            followed.stop_here()
        with pytest.raises(PodkeeperSparkError, match=r"orders.*selected"):
            followed.latest(end, ALL)


def test_a_batch_is_not_made_again_of_another_stream_of_the_name():
    end = again(progress(view([5]))[0].latest(EARLIEST, ALL))
    anew = view([5, 5], first_id=50)
    with pytest.raises(PodkeeperSparkError, match="deleted"):
        progress(anew)[0].ranges(EARLIEST, end)
    assert progress(anew, failOnDataLoss="false")[0].ranges(EARLIEST, end) == []


def test_an_offset_of_ledgers_is_refused():
    followed, _ = progress(view([5]))
    with pytest.raises(PodkeeperSparkError, match="of streams"):
        followed.latest(parse_offset({"v": 1, "w": 0, "o": {}}), ALL)
    of_ledgers, end = parse_offset({"v": 1, "w": 0, "o": {}}), again(followed.latest(EARLIEST, ALL))
    for given in ((of_ledgers, end), (EARLIEST, of_ledgers)):
        with pytest.raises(PodkeeperSparkError, match=r"\"o\": ?\{\}"):
            followed.ranges(*given)


def test_a_batch_waits_for_the_least_number_of_entries():
    followed, tails = progress(view([5], 1))
    assert followed.latest(EARLIEST, TriggerLimit(least=7)) is None
    pinned = followed.latest(LATEST, TriggerLimit(least=7))
    assert followed.ranges(LATEST, again(pinned)) == [], "where it begins is written down at once"
    tails.seen = view([5], 2)
    end = again(followed.latest(EARLIEST, TriggerLimit(Limit(entries=7), least=7)))
    assert len(entries_of(followed.ranges(EARLIEST, end))) == 7
