"""Each rule of the history can be broken, and what is allowed breaks none."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from bookie_client.reading.entry import LedgerEntry
from tests.campaign.faults.table import ALL, draw
from tests.campaign.history import History, Ledger, payload
from tests.campaign.judge import at_rest
from tests.campaign.planting.defects import DEFECTS


def length(last: int) -> int:
    return sum(len(payload(5, entry)) for entry in range(last + 1))


@pytest.fixture
def history() -> History:
    made = History()
    made.ledgers[1] = Ledger(1, 5, (3, 3, 2), "CRC32C", "v3", sent=10)
    for entry_id in range(5):
        made.acknowledged(made.ledgers[1], entry_id)
    return made


def test_a_sound_life_breaks_nothing(history: History) -> None:
    ledger = history.ledgers[1]
    history.read_entry(ledger, 4, payload(5, 4), "a reader")
    history.heard_lac(ledger, 4, 3)
    history.ended(ledger, 6, length(6), "a recoverer")
    history.ended(ledger, 6, length(6), "another")
    history.acknowledged(ledger, 5)
    assert history.breaches == []


BROKEN: dict[str, Callable[[History, Ledger], None]] = {
    "order": lambda history, ledger: history.acknowledged(ledger, 6),
    "durability": lambda history, ledger: history.ended(ledger, 3, length(3), "a recoverer"),
    "recovery": lambda history, ledger: [history.ended(ledger, last, length(last), "one") for last in (5, 6)],
    "content": lambda history, ledger: history.read_entry(ledger, 2, payload(5, 3), "a reader"),
    "LAC": lambda history, ledger: history.heard_lac(ledger, 3, 4),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_can_be_broken(history: History, rule: str) -> None:
    BROKEN[rule](history, history.ledgers[1])
    assert set(history.rules) == {rule}
    assert history.breached.is_set()


def test_an_append_behind_a_recovery_that_is_acknowledged(history: History) -> None:
    ledger = history.ledgers[1]
    history.ended(ledger, 4, length(4), "a recoverer")
    ledger.fenced_from = 5
    history.acknowledged(ledger, 5)
    assert set(history.rules) == {"fence", "durability"}


@pytest.mark.parametrize("ids", [[], [0, 1, 2, 3], [0, 1, 3, 4], [0, 1, 2, 2, 3, 4], [1, 0, 2, 3, 4]])
def test_a_range_that_is_not_whole(history: History, ids: list[int]) -> None:
    ledger = history.ledgers[1]
    history.read_range(ledger, (0, 4), [LedgerEntry(1, each, 0, payload(5, each), -1) for each in ids], "a reader")
    assert set(history.rules) == {"order"}


def test_what_is_lost_counts_only_beyond_the_ack_quorum(history: History) -> None:
    ledger = history.ledgers[1]
    ledger.destroyed = {"bookie-1", "bookie-2"}
    history.ended(ledger, 3, length(3), "a recoverer")
    assert history.breaches == []
    ledger.destroyed = {"bookie-1"}
    history.lost(ledger, "entry 4")
    assert set(history.rules) == {"durability"}


def test_a_seed_draws_the_same_plan_and_strikes_victims_only() -> None:
    for seed in range(50):
        plan = draw(Random(seed), 5, 60.0)
        assert plan == draw(Random(seed), 5, 60.0)
        assert {each.bookie for each in plan.strikes if each.fault.destroys} <= set(plan.victims)
    names = [fault.name for fault in ALL]
    assert len(set(names)) == len(names)
    assert all(set(defect.faults) <= set(names) for defect in DEFECTS.values())


def test_gauges_at_rest() -> None:
    levels = ("ADD_ENTRY_IN_PROGRESS", "ADD_ENTRY_BLOCKED", "READ_ENTRY_IN_PROGRESS", "READ_ENTRY_BLOCKED")
    gauges = [*levels, "LONG_POLLS_WAITING", "LONG_POLL_READS_BLOCKED", "CLIENT_MEMORY_BYTES"]
    text = "\n".join(f"bookkeeper_server_{name} {int(name == 'LONG_POLLS_WAITING')}.0" for name in gauges)
    assert at_rest(text) == {"LONG_POLLS_WAITING": 1.0}
    with pytest.raises(AssertionError):
        at_rest("")
