"""Which creations are those of one thing."""

from __future__ import annotations

import time

from bookie_protocol.versioned import LedgerLife, is_moved, may_be_one_life, moved

FIRST, SECOND = 0x1_0000_0007, 0x1_0000_0009
"""Transactions of ZooKeeper."""


def test_of_one_service_creations_decide() -> None:
    assert may_be_one_life(FIRST, FIRST)
    assert not may_be_one_life(FIRST, SECOND)
    assert may_be_one_life(moved(FIRST), moved(FIRST))
    assert not may_be_one_life(moved(FIRST), moved(SECOND))


def test_of_two_services_they_say_nothing() -> None:
    now = int(time.time() * 1000)
    for creation in (0, FIRST, now):
        assert is_moved(moved(creation))
        assert moved(moved(creation)) == creation
        assert may_be_one_life(FIRST, moved(creation))
        assert may_be_one_life(moved(creation), FIRST)


def test_tokens_decide_where_there_are_some() -> None:
    assert LedgerLife(7, FIRST, token=1) == LedgerLife(7, moved(5), token=1)
    assert LedgerLife(7, FIRST, token=1) != LedgerLife(7, moved(5), token=2)
    assert LedgerLife(7, FIRST) == LedgerLife(7, moved(5), token=2)
    assert LedgerLife(7, FIRST) != LedgerLife(7, SECOND, token=2)
