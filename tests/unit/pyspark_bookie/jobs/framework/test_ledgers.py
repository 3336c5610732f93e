"""Bundles: every ledger once, bounded, the largest first."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pyspark_bookie.jobs.framework.ledgers import LedgerRow, bundles


def row(ledger_id: int, nbytes: int) -> LedgerRow:
    return LedgerRow(ledger_id, "CLOSED", 1, nbytes, None, (3, 3, 2), {})


@given(st.lists(st.integers(0, 300)), st.integers(1, 10), st.integers(1, 8))
def test_every_ledger_once_and_bounded(sizes: list[int], max_ledgers: int, at_least: int) -> None:
    rows = [row(ledger_id, nbytes) for ledger_id, nbytes in enumerate(sizes)]
    made = bundles(rows, 100, max_ledgers, at_least)
    assert sorted(each.ledger_id for bundle in made for each in bundle) == list(range(len(rows)))
    assert all(len(bundle) <= max_ledgers for bundle in made)
    assert all(sum(each.nbytes for each in bundle) <= 100 or len(bundle) == 1 for bundle in made)
    largest = [bundle[0].nbytes for bundle in made]
    assert largest == sorted(largest, reverse=True)
    if len(rows) >= at_least * at_least:
        assert len(made) >= at_least


def test_a_ledger_has_a_life_of_its_own_only_where_more_than_its_size_tells_it() -> None:
    assert row(7, 10).life == ""
    known = [replace(row(7, 10), **told) for told in ({"token": 1}, {"token": 2}, {"created_ms": 1}, {"uuid": "a"})]
    assert len({"", *(each.life for each in known)}) == 5
