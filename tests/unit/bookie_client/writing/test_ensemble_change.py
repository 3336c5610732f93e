"""Segments after a change, and who may still write the metadata."""

from random import Random

import pytest

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import ClusterView
from bookie_client.placement.random_choice import RandomPlacement
from bookie_client.writing.ensemble_change import (
    change_needed,
    close_needed,
    replace_bookies,
    with_new_ensemble,
)
from bookie_protocol.errors import LedgerClosed, LedgerFenced, MetadataVersionConflict
from bookie_protocol.ledger_metadata.model import LedgerMetadata

OPEN = LedgerMetadata(7, 3, 2, 2, {0: ("A", "B", "C")})


def replace(failed, writable, ensemble=("A", "B", "C")):
    cluster = ClusterView(writable=frozenset(writable))
    return replace_bookies(ensemble, failed, Quorums(3, 2, 2), cluster, RandomPlacement(), Random(1)).ensemble


def test_a_failed_bookie_is_replaced_at_its_position():
    assert replace({2: "C"}, {"A", "B", "C", "D"}) == ("A", "B", "D")


def test_a_replacement_is_neither_a_member_nor_a_failed_bookie():
    assert replace({0: "A", 2: "C"}, {"A", "B", "C", "D"}) == ("D", "B", "C")
    assert replace({2: "C"}, {"A", "B", "C"}) == ("A", "B", "C")
    assert set(replace({0: "A", 2: "C"}, {"D", "E"})) == {"D", "B", "E"}


def test_a_position_that_was_exchanged_already_is_left():
    assert replace({2: "old"}, {"D"}) == ("A", "B", "C")


def test_segments_of_the_reference_example():
    changed = with_new_ensemble(OPEN, 9, ("A", "B", "D"))
    assert dict(changed.ensembles) == {0: ("A", "B", "C"), 10: ("A", "B", "D")}
    again = with_new_ensemble(changed, 9, ("A", "B", "E"))
    assert dict(again.ensembles) == {0: ("A", "B", "C"), 10: ("A", "B", "E")}
    assert dict(with_new_ensemble(OPEN, -1, ("A", "B", "D")).ensembles) == {0: ("A", "B", "D")}
    with pytest.raises(MetadataVersionConflict, match="starts at entry 10, above"):
        with_new_ensemble(changed, 8, ("A", "B", "D"))


def test_a_change_is_needed_while_a_failed_bookie_is_in_the_last_ensemble():
    assert change_needed(OPEN, {2: "C"})
    assert not change_needed(OPEN.with_ensemble(4, ("A", "B", "D")), {2: "C"})


def test_a_ledger_that_others_took_is_not_changed():
    with pytest.raises(LedgerFenced, match="being recovered"):
        change_needed(OPEN.in_recovery(), {2: "C"})
    with pytest.raises(LedgerClosed, match="at entry 5"):
        change_needed(OPEN.closed(5, 10), {2: "C"})


def test_closing_is_idempotent_and_never_moves_an_end():
    assert close_needed(OPEN, 5, 10)
    assert close_needed(OPEN.in_recovery(), 5, 10)
    assert not close_needed(OPEN.closed(5, 10), 5, 10)
    for other in (OPEN.closed(4, 10), OPEN.closed(5, 9)):
        with pytest.raises(MetadataVersionConflict, match="closed by another client"):
            close_needed(other, 5, 10)
