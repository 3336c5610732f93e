"""When the next ledger must begin."""

from hypothesis import given
from hypothesis import strategies as st

from bookie_client.streams import StreamSettings
from bookie_client.streams.rolling import Filling


def filling(**settings):
    return Filling(StreamSettings(**{"min_ledger_seconds": 0, **settings}), begun=100.0)


def test_age():
    each = filling(max_ledger_seconds=50)
    assert not each.is_old(1000.0)  # nothing is in it
    assert each.seconds_until_old(1000.0) is None
    each.add(1, 1)
    assert (each.is_old(149.0), each.is_old(150.0)) == (False, True)
    assert each.seconds_until_old(149.0) == 1.0
    young = filling(max_ledger_seconds=50, min_ledger_seconds=60)
    young.add(1, 1)
    assert (young.is_old(159.0), young.is_old(160.0)) == (False, True)


def test_nothing_counts_before_the_minimum_age():
    each = filling(max_ledger_entries=1, max_ledger_bytes=1, min_ledger_seconds=10)
    each.add(5, 500)
    assert not each.is_full(109.0, 100)
    assert each.is_full(110.0, 0)
    assert each.fitting(109.0, [b"xx"] * 7) == 7


@given(st.integers(1, 20), st.integers(1, 60), st.lists(st.integers(0, 30), min_size=1, max_size=40))
def test_what_is_sent_fits_and_no_more_would_have(entries, nbytes, sizes):
    """However entries are grouped: a ledger holds no more than both limits allow, but for one entry that is larger, and
    it ends only where the next entry would not have fitted."""
    payloads = [b"x" * size for size in sizes]
    each = filling(max_ledger_entries=entries, max_ledger_bytes=nbytes)
    while payloads:
        if each.is_full(100.0, len(payloads[0])):
            assert each.entries == entries or each.nbytes + len(payloads[0]) > nbytes
            each = filling(max_ledger_entries=entries, max_ledger_bytes=nbytes)
        count = each.fitting(100.0, payloads)
        assert count >= 1
        each.add(count, sum(map(len, payloads[:count])))
        payloads = payloads[count:]
        assert each.entries <= entries
        assert each.nbytes <= nbytes or each.entries == 1
