"""Each rule can fail: small histories that break exactly one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.ledger_metadata.codec import encode_ledger_metadata
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.tree.paths import long_path, short_path
from tests.support.simulation import checks
from tests.support.simulation.history import History
from tests.support.simulation.metadata import ANY_VERSION, NEW_NODE
from tests.support.simulation.trace import Trace

ABC = ("a", "b", "c")
OPEN = LedgerMetadata(0, 3, 3, 2, {0: ABC}, digest_type=DigestType.CRC32C, password=b"")
DIGEST = digest_manager(DigestType.CRC32C, b"")


class FakeBookie:
    def __init__(self) -> None:
        self.held: set[int] = set()

    def holds(self, ledger_id: int, entry_id: int) -> bytes | None:
        return b"held" if entry_id in self.held else None


class Told:
    """A history of one ledger in three bookies."""

    def __init__(self, metadata: LedgerMetadata = OPEN) -> None:
        self.history = History("/ledgers", Trace(keep=False), checks)
        self.bookies = {name: FakeBookie() for name in ("a", "b", "c", "d")}
        self.history.bookies.update(self.bookies)  # type: ignore[arg-type]
        self.write(metadata)
        self.ledger = self.history.ledgers[0]
        self.ledger.payloads = dict.fromkeys(range(10), b"payload")

    def write(self, metadata: LedgerMetadata, host: str = "recoverer-0", version: int = 0) -> None:
        self.history.metadata_written(host, "/ledgers" + short_path(0), encode_ledger_metadata(metadata), version)

    def store(self, entry_id: int, *bookies: str, payload: bytes = b"payload", recovery: bool = False) -> None:
        for name in bookies:
            self.bookies[name].held.add(entry_id)
            entry = DIGEST.encode(0, entry_id, entry_id - 1, 7, payload)
            self.history.stored(name, 0, entry_id, entry, recovery=recovery)

    def ack(self, entry_id: int) -> None:
        checks.acknowledged(self.history, self.ledger, entry_id)

    def deny(self, entry_id: int, *bookies: str) -> None:
        for name in bookies:
            self.history.denied(name, 0, entry_id)

    def fence(self, *bookies: str) -> None:
        for name in bookies:
            self.history.fenced(name, 0)

    def append(self, entry_id: int) -> None:
        self.history.appends(self.ledger, entry_id, b"payload")

    def end(self) -> None:
        checks.ledger_ended(self.history, self.ledger)

    @property
    def rules(self) -> list[str]:
        return [violation.split(" ")[0] for violation in self.history.violations]


@pytest.fixture
def told():
    return Told()


def test_a_good_life_breaks_no_rule(told):
    for entry_id in range(3):
        told.store(entry_id, "a", "b")
        told.ack(entry_id)
    told.write(OPEN.in_recovery())
    told.deny(3, "a", "b")
    told.write(OPEN.closed(2, 21))
    told.end()
    assert told.rules == []


def test_s1_the_state_never_goes_back(told):
    told.write(OPEN.in_recovery())
    told.write(OPEN)
    assert told.rules == ["S1"]


@pytest.mark.parametrize("other", [OPEN.closed(1, 7), OPEN.closed(0, 8), OPEN])
def test_s2_a_closed_ledger_stays_as_it_is(told, other):
    told.write(OPEN.closed(0, 7), "writer-0")
    told.write(other)
    assert told.rules == ["S2"]


def test_s2_a_writer_does_not_report_another_end_than_is_stored(told):
    told.write(OPEN.closed(-1, 0), "writer-0")
    checks.writer_closed(told.history, told.ledger, -1, 7)
    assert told.rules == ["S2"]


def test_s3_closing_cuts_nothing_off_that_was_acknowledged(told):
    told.store(0, "a", "b")
    told.ack(0)
    told.write(OPEN.closed(-1, 0), "writer-0")
    assert told.rules == ["S3"]


def test_s3_a_fenced_writer_gets_no_acknowledgement_behind_the_end(told):
    told.write(OPEN.closed(-1, 0), "writer-0")
    told.store(0, "a", "b")
    told.ack(0)
    assert "S3" in told.rules


def test_s4_every_entry_has_its_ack_quorum_in_the_end(told):
    told.store(0, "a")
    told.write(OPEN.closed(0, 7), "writer-0")
    told.end()
    assert told.rules == ["S4"]


def test_s5_an_acknowledged_entry_is_durable_on_its_ack_quorum(told):
    told.store(0, "a")
    told.ack(0)
    assert told.rules == ["S5"]


def test_s5_a_new_segment_does_not_take_copies_away(told):
    told.store(0, "a", "b")
    told.ack(0)
    told.write(replace(OPEN, ensembles={0: ("a", "d", "c")}))
    assert "S5" in told.rules


def test_s7_a_lac_never_goes_back_nor_ahead(told):
    told.store(0, "a", "b")
    told.ack(0)
    view = checks.ReaderView(told.history, told.ledger, "reader")
    view.lac(0)
    view.lac(-1)
    view.lac(1)
    assert told.rules == ["S7", "S7"]


def test_s7_what_a_reader_believed_is_part_of_the_ledger_in_the_end(told):
    told.write(OPEN.in_recovery())
    checks.ReaderView(told.history, told.ledger, "reader").lac(3)
    told.deny(0, "a", "b")
    told.write(OPEN.closed(-1, 0))
    told.end()
    assert told.rules == ["S7"]


def test_s8_a_bookie_and_a_reader_get_what_the_writer_gave(told):
    told.store(0, "a", payload=b"other")
    checks.ReaderView(told.history, told.ledger, "reader").entry(1, b"other")
    told.store(20, "a")
    assert told.rules == ["S8", "S8", "S8"]


def test_s9_a_bookie_that_has_fenced_takes_only_what_recoveries_send(told):
    told.write(OPEN.in_recovery())
    told.fence("a")
    told.store(0, "b", "c")
    told.store(0, "a", recovery=True)
    assert told.rules == []
    told.store(1, "a")
    assert told.rules == ["S9"]


def test_s9_a_bookie_that_lost_its_disk_and_does_not_know_it_has_forgotten_its_fences(told):
    told.write(OPEN.in_recovery())
    told.fence("a", "b")
    told.append(0)
    told.history.emptied("a")
    told.store(0, "a", "c")
    told.ack(0)
    assert told.rules == []


@pytest.mark.parametrize(
    ("quorums", "fences", "covered"),
    [
        ((3, 2), "a", False),  # b and c may still acknowledge together
        ((3, 2), "ab", True),
        ((3, 3), "a", True),
        ((3, 1), "ab", False),
        ((3, 1), "abc", True),
        ((2, 2), "a", False),  # who fenced stands in two write sets of the three
        ((2, 2), "ad", False),  # d is none of its bookies
        ((2, 2), "ac", True),
    ],
)
def test_s9_nothing_is_acknowledged_that_was_appended_after_coverage(quorums, fences, covered):
    write, ack = quorums
    told = Told(replace(OPEN, write_quorum_size=write, ack_quorum_size=ack))
    told.fence(*fences)  # nobody is cut off from a ledger that is open
    told.append(0)
    told.write(replace(told.ledger.metadata.in_recovery()))
    told.append(1)
    told.fence(*fences)
    told.append(2)
    for entry_id in range(3):
        told.store(entry_id, "a", "b", "c", recovery=True)
        told.ack(entry_id)
    assert told.rules == (["S9"] if covered else [])


@pytest.mark.parametrize(
    "ensembles",
    [
        {0: ("a", "b", "d"), 1: ABC},  # an earlier segment, too
        {0: ABC, 1: ("a", "b", "d"), 2: ABC},  # two at once
        {0: ABC, 5: ("a", "b", "d")},  # not behind the LAC
    ],
)
def test_s10_a_writer_changes_the_last_segment_or_adds_one_behind_its_lac(told, ensembles):
    told.store(0, "a", "b")
    told.ack(0)
    told.ledger.writer_lac = lambda: 0
    told.write(replace(OPEN, ensembles={0: ABC, 1: ABC}))
    assert told.rules == []
    told.write(replace(OPEN, ensembles=ensembles))
    assert "S10" in told.rules


def test_s11_nobody_gets_an_entry_before_the_metadata_name_him(told):
    told.store(0, "d")
    assert told.rules == ["S11"]
    told.write(OPEN.in_recovery())
    told.store(1, "d")  # a recovery may
    assert told.rules == ["S11"]


def test_s13_a_reader_gets_nothing_behind_the_end(told):
    view = checks.ReaderView(told.history, told.ledger, "reader")
    view.entry(1, b"payload")
    view.entry(2, b"payload", confirmed=False)
    told.write(OPEN.closed(-1, 0), "writer-0")
    told.end()
    assert told.rules == ["S13"]


@pytest.mark.parametrize(("answers", "broken"), [((), True), (("a",), True), (("a", "d"), True), (("a", "c"), False)])
def test_s14_recovery_ends_a_ledger_on_enough_explicit_answers_only(told, answers, broken):
    told.write(OPEN.in_recovery())
    told.deny(0, *answers)
    told.write(OPEN.closed(-1, 0))
    assert told.rules == (["S14"] if broken else [])


def test_s15_metadata_are_replaced_by_those_who_name_what_they_replace(told):
    told.write(OPEN.in_recovery(), version=7)
    assert told.rules == []
    told.write(OPEN.closed(-1, 0), "writer-0", version=ANY_VERSION)
    assert told.rules == ["S15"]


def test_s16_the_length_is_that_of_the_payloads_unless_it_was_said_to_be_inexact(told):
    told.store(0, "a", "b")
    told.write(OPEN.closed(0, 8), "writer-0")
    told.end()
    assert told.rules == ["S16"]
    told.history.violations.clear()
    told.history.inexact_lengths = {0: None}
    told.end()
    assert told.rules == []


def test_a_acknowledgements_come_in_order_and_none_after_a_failure(told):
    for entry_id in (0, 1, 2):
        told.store(entry_id, "a", "b")
    told.ack(1)
    assert told.rules == ["A"]
    told.ledger.writer_failed = True
    told.ack(1)
    assert told.rules == ["A", "A"]


def test_f_a_covered_question_is_answered_with_what_had_travelled(told):
    for entry_id in range(3):
        told.store(entry_id, "a", "b")
        told.ack(entry_id)
    assert checks.travelled_lac(told.ledger) == 1
    checks.ReaderView(told.history, told.ledger, "reader").lac(0, at_least=1)
    assert told.rules == ["F"]


def test_only_ledgers_are_taken_for_ledgers(told):
    told.history.metadata_written("writer-0", "/ledgers/idgen/ID-0000000000", b"", NEW_NODE)
    told.history.metadata_written("writer-0", "/other" + long_path(3), b"no metadata", NEW_NODE)
    assert list(told.history.ledgers) == [0]
    assert told.ledger.metadata.state is LedgerState.OPEN
