"""Following ledgers that a test makes up."""

from __future__ import annotations

import pytest

from bookie_protocol.versioned import Identity
from pyspark_bookie.common.errors import DATA_LOSS, OPTION, PodkeeperSparkError
from pyspark_bookie.source.streaming.admission import Limit
from pyspark_bookie.source.streaming.offsets import OFFSET, Start, parse_offset
from pyspark_bookie.source.streaming.progress import TriggerLimit
from tests.unit.pyspark_bookie.source.streaming.checkpoints import ALL, EARLIEST, LATEST, again
from tests.unit.pyspark_bookie.source.streaming.made_up_ledgers import closed, opened, progress


def spans(found):
    return [(each.ledger_id, each.first, each.last) for each in found]


def test_batches_follow_each_other_and_are_the_same_when_made_again():
    followed, tails = progress(closed(1, 5), opened(2, 4), closed(4, 3))
    limit = TriggerLimit(Limit(entries=6), ledgers=2)
    offset, read = EARLIEST, []
    while (document := followed.latest(offset, limit)) is not None:
        end = again(document)
        batch = spans(followed.ranges(offset, end))
        tails.extents = (closed(1, 5), closed(2, 9), closed(3, 2), closed(4, 3))
        assert spans(followed.ranges(offset, end)) == batch
        assert len(batch) <= 3
        offset, read = end, read + batch
    entries = [(ledger_id, entry) for ledger_id, first, last in read for entry in range(first, last + 1)]
    assert sorted(entries) == [
        (each, entry) for each, count in ((1, 5), (2, 9), (3, 2), (4, 3)) for entry in range(count)
    ]
    assert len(set(entries)) == len(entries)
    assert followed.tail(None) is None
    assert followed.tail(EARLIEST)["w"] == followed.tail(offset)["w"] == 5


def test_a_query_from_latest_pins_its_start_with_an_empty_batch():
    followed, tails = progress(closed(1, 5), opened(2, 4))
    document = followed.latest(LATEST, ALL)
    assert document.pop("sel").startswith("scope:")
    assert document == {"v": 1, "w": 3, "o": {"2": 4}, "from": {"w": 3, "o": {"2": 4}}}
    assert followed.ranges(LATEST, again(document)) == []
    tails.extents = (closed(1, 5), closed(2, 6), closed(3, 1))
    later = again(followed.latest(again(document), ALL))
    assert spans(followed.ranges(again(document), later)) == [(2, 4, 5), (3, 0, 0)]


def test_a_run_that_ends_by_itself_reads_nothing_that_came_later():
    followed, tails = progress(closed(1, 5), opened(2, 4))
    followed.stop_here()
    tails.extents = (closed(1, 5), closed(2, 6), closed(3, 1))
    end = again(followed.latest(EARLIEST, ALL))
    assert spans(followed.ranges(EARLIEST, end)) == [(1, 0, 4), (2, 0, 3)]
    assert followed.latest(end, ALL) is None


def test_the_next_run_goes_on_with_what_that_one_left():
    first, _ = progress(closed(1, 5), opened(2, 4))
    first.stop_here()
    end = again(first.latest(EARLIEST, ALL))
    second, _ = progress(closed(1, 5), closed(2, 6), closed(3, 1))
    second.stop_here()
    assert spans(second.ranges(end, again(second.latest(end, ALL)))) == [(2, 4, 5), (3, 0, 0)]


def test_an_open_ledger_is_read_as_far_as_the_offset_says():
    followed, tails = progress(opened(2, 9))
    end = again(followed.latest(EARLIEST, ALL))
    tails.told = {2: 5}  # the bookie that knew more is away
    (found,) = followed.ranges(EARLIEST, end)
    assert (found.first, found.last, found.ledger.last_entry_id) == (0, 8, 8)


def test_a_ledger_that_was_deleted_under_the_query_is_a_loss():
    followed, tails = progress(closed(1, 5), opened(2, 4))
    end = again(followed.latest(EARLIEST, TriggerLimit(Limit(entries=6))))
    tails.extents = (closed(1, 5),)
    with pytest.raises(PodkeeperSparkError, match=r"BOOKIE_DATA_LOSS\] ledger 2 .*deleted"):
        followed.latest(end, ALL)
    with pytest.raises(PodkeeperSparkError, match=r"ledger 2 .*deleted .*entries 0 to"):
        followed.ranges(EARLIEST, end)
    lenient, tails = progress(closed(1, 5), failOnDataLoss="false")
    assert [each.ledger_id for each in lenient.ranges(EARLIEST, end)] == [1]
    later = again(lenient.latest(end, ALL))
    assert {each.ledger_id for each in lenient.ranges(end, later)} == {1}


def test_an_offset_of_streams_is_refused():
    followed, _ = progress(closed(1, 5))
    with pytest.raises(PodkeeperSparkError, match="of ledgers"):
        followed.latest(parse_offset({"v": 1, "s": {}}), ALL)
    of_streams, end = parse_offset({"v": 1, "s": {}}), again(followed.latest(EARLIEST, ALL))
    for given in ((of_streams, end), (EARLIEST, of_streams)):
        with pytest.raises(PodkeeperSparkError, match=r"\"s\": ?\{\}"):
            followed.ranges(*given)


def test_a_checkpoint_of_another_selection_is_refused():
    """Its watermark would pass over ledgers that nobody has read."""
    narrow, _ = progress(*(closed(each, 10) for each in range(100, 201)), scope=None, ledgers="100-200")
    end = again(narrow.latest(EARLIEST, ALL))
    wide, _ = progress(*(closed(each, 10) for each in range(50, 201)), scope=None, ledgers="50-200")
    for refused in (lambda: wide.latest(end, ALL), lambda: wide.tail(end), lambda: wide.ranges(EARLIEST, end)):
        with pytest.raises(PodkeeperSparkError) as told:
            refused()
        assert told.value.code == OFFSET
    same, _ = progress(*(closed(each, 10) for each in range(100, 202)), scope=None, ledgers="100-200")
    assert spans(same.ranges(end, again(same.latest(end, ALL)))) == [(201, 0, 9)]


def test_an_offset_of_an_earlier_release_goes_on_and_is_bound_from_then_on():
    before = parse_offset({"v": 1, "w": 2, "o": {"1": 5}, "f": [1]})
    followed, _ = progress(closed(1, 5), closed(2, 3))
    end = again(followed.latest(before, ALL))
    assert spans(followed.ranges(before, end)) == [(2, 0, 2)]
    other, _ = progress(closed(1, 5), closed(2, 3), scope=None, ledgerPattern="application=x")
    with pytest.raises(PodkeeperSparkError):
        other.latest(end, ALL)


def test_a_checkpoint_does_not_go_on_in_another_ledger_of_the_same_number():
    followed, tails = progress(closed(5, 10, (1, 77)), closed(6, 3, (2, 78)))
    end = again(followed.latest(EARLIEST, TriggerLimit(Limit(entries=7))))
    tails.extents = (closed(5, 25, (9, 99)), closed(6, 3, (2, 78)))
    with pytest.raises(PodkeeperSparkError) as told:
        followed.latest(end, ALL)
    assert told.value.code == DATA_LOSS
    lenient, _ = progress(*tails.extents, failOnDataLoss="false")
    later = again(lenient.latest(end, ALL))
    assert {each.ledger_id for each in lenient.ranges(end, later)} == {6}


def test_a_ledger_that_was_finished_and_made_again_is_told_and_not_taken_for_read():
    followed, tails = progress(closed(5, 10, (1, 77)))
    end = again(followed.latest(EARLIEST, ALL))
    tails.extents = (closed(5, 25, (9, 99)),)
    with pytest.raises(PodkeeperSparkError) as told:
        followed.latest(end, ALL)
    assert told.value.code == DATA_LOSS


def test_a_client_that_dropped_the_token_has_not_made_another_ledger():
    followed, tails = progress(closed(5, 10, (1, 77)))
    end = again(followed.latest(EARLIEST, TriggerLimit(Limit(entries=4))))
    tails.extents = (closed(5, 10, (1, 0)),)
    assert spans(followed.ranges(end, again(followed.latest(end, ALL)))) == [(5, 4, 9)]


def test_a_ledger_that_was_restored_under_its_number_is_read_on():
    followed, tails = progress(closed(5, 10, (1, 77)))
    end = again(followed.latest(EARLIEST, TriggerLimit(Limit(entries=4))))
    tails.extents, tails.in_archive = (closed(5, 10, (9, 99)),), (closed(5, 10),)
    assert spans(followed.ranges(end, again(followed.latest(end, ALL)))) == [(5, 4, 9)]


def test_a_batch_that_was_planned_before_its_ledger_was_replaced_reads_nothing_of_the_other_one():
    followed, tails = progress(closed(5, 10, (1, 77)))
    end = again(followed.latest(EARLIEST, ALL))
    tails.lives = {5: (Identity(0, 9), 99)}
    with pytest.raises(PodkeeperSparkError) as told:
        followed.ranges(EARLIEST, end)
    assert told.value.code == DATA_LOSS
    tails.in_archive = (closed(5, 10),)
    (found,) = followed.ranges(EARLIEST, end)
    assert found.ledger.archive is not None


def test_a_start_in_a_ledger_that_is_not_selected_is_refused():
    followed, _ = progress(closed(1, 5))
    with pytest.raises(PodkeeperSparkError) as told:
        followed.latest(Start('{"999": 5}'), ALL)
    assert told.value.code == OPTION


def test_a_named_ledger_that_was_read_to_its_end_may_go():
    followed, _ = progress(closed(5, 3), closed(7, 2), ledgers="5,7", scope=None)
    end = again(followed.latest(EARLIEST, ALL))
    for stops in (False, True):
        later, tails = progress(closed(7, 2), ledgers="5,7", scope=None)
        tails.missing = frozenset({5})
        if stops:
            later.stop_here()
        assert later.latest(end, ALL) is None
        with pytest.raises(PodkeeperSparkError, match=r"\[BOOKIE_NO_SUCH_LEDGER\] ledger 5"):
            later.latest(EARLIEST, ALL)


def test_a_query_may_begin_behind_what_bookies_tell_of_an_open_ledger():
    start = Start('{"7": 4}')
    followed, tails = progress(opened(7, 3))
    assert followed.latest(start, ALL) is None
    tails.extents = [opened(7, 6)]
    end = again(followed.latest(start, ALL))
    assert spans(followed.ranges(start, end)) == [(7, 4, 5)]


def test_a_batch_waits_for_the_least_number_of_entries_also_of_ledgers_that_it_would_not_begin():
    followed, tails = progress(closed(1, 3), closed(2, 3))
    waiting = TriggerLimit(ledgers=1, least=7)
    assert followed.latest(EARLIEST, waiting) is None
    assert followed.latest(LATEST, waiting) is not None, "where it begins is written down at once"
    tails.extents = (*tails.extents, closed(3, 1))
    end = parse_offset(followed.latest(EARLIEST, waiting))
    assert [each.ledger_id for each in followed.ranges(EARLIEST, end)] == [1]
