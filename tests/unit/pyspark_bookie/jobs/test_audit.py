"""Which placement policy an audit holds ensembles against.

Cookies against registrations against ledgers, and old marks, on a real metadata service.
"""

from __future__ import annotations

import pytest

from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BookieServiceInfo
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.ledger_ids import LedgerIds
from pyspark_bookie.jobs.audit import (
    KIND,
    NOTE,
    AuditArguments,
    NamedBookies,
    RegistryCheck,
    is_among,
    policy_held_against,
)
from pyspark_bookie.jobs.replicas.findings import NO_LEDGER, Finding, Verdict
from tests.support.ledger_shelf import LedgerShelf


@pytest.mark.parametrize(
    ("placed_by", "asked", "expected"),
    [
        ({}, None, "rack-aware"),
        ({"placement": "zone-aware"}, None, "zone-aware"),
        ({"placement": "zone-aware"}, "rack-aware", "rack-aware"),
        ({"placement": "zone-aware"}, "none", None),
    ],
)
def test_copies_are_held_against_what_places_them_unless_told_otherwise(
    placed_by: dict[str, str], asked: str | None, expected: str | None
) -> None:
    access = AccessOptions(metadata_service_uri="zk://one/ledgers", **placed_by)
    args = AuditArguments(metadata="zk://one/ledgers", placement=asked)
    assert policy_held_against(args, access) == expected


HOUR = 3600.0


@pytest.fixture
def shelf(tmp_path):
    with LedgerShelf(tmp_path) as made:
        yield made


class Audits:
    """Checks of one cluster at times of their own."""

    def __init__(self, shelf):
        self.shelf = shelf
        self.now = 1_800_000_000.0
        self.logged = []
        self.pauses = []
        self.in_pause = lambda: None

    def check(self, *, note=True):
        return RegistryCheck(
            self.shelf, self.logged.append, pause=7.0, note=note, clock=lambda: self.now, sleep=self._sleep
        )

    def bookies(self, *named, absent_after=HOUR, note=True):
        """Verdicts by bookie."""
        seen = NamedBookies()
        seen.add(named)
        found = self.check(note=note).bookies(seen, absent_after)
        assert all((each.ledger_id, each.entries) == (NO_LEDGER, 0) for each in found)
        return {each.bookie: each.verdict for each in found}

    def _sleep(self, seconds):
        self.pauses.append(seconds)
        self.in_pause()

    # --- the cluster

    def stamp(self, *bookies):
        for bookie in bookies:
            self.shelf.run(lambda c, bookie=bookie: c.metadata_service.cookies.create(bookie, b"cookie"))

    def register(self, bookie, group=BookieGroup.WRITABLE):
        self.shelf.run(lambda c: c.metadata_service.bookies.register(bookie, group, BookieServiceInfo(())))

    def unregister(self, bookie):
        self.shelf.run(lambda c: c.metadata_service.bookies.unregister(bookie, BookieGroup.WRITABLE))

    def note(self):
        return self.shelf.run(lambda c: c.metadata_service.records(KIND).read(NOTE)).value


@pytest.fixture
def audits(shelf):
    return Audits(shelf)


def lost(ledger_id, bookie, verdict=Verdict.LOST):
    return Finding(ledger_id, 0, 0, 9, 10, bookie, 0, verdict, "")


def test_a_healthy_cluster_costs_no_pause(audits):
    audits.stamp("a", "b")
    audits.register("a")
    audits.register("b", BookieGroup.READ_ONLY)
    assert audits.bookies() == {}
    assert audits.pauses == []


def test_bookies_without_a_cookie(audits):
    """One that ledgers name is gone for good, one that is registered will not start again; one with a cookie may."""
    audits.stamp("away")
    audits.register("bare")
    named = (lost(1, "gone"), lost(1, "gone"), lost(2, "gone"), lost(2, "away"), lost(3, "x", Verdict.UNREACHABLE))
    assert audits.bookies(*named) == {"bare": Verdict.NO_COOKIE, "gone": Verdict.NO_COOKIE}
    assert audits.pauses == [7.0]
    seen = NamedBookies()
    seen.add(named[:2])
    seen.add(named[2:])
    (_, gone) = audits.check().bookies(seen, None)
    assert gone.detail == "it is registered nowhere, and 2 ledgers name it, 2 the last"


def test_what_the_second_look_does_not_see_is_not_told(audits):
    audits.register("begins")
    audits.stamp("back")

    def meanwhile():
        audits.stamp("begins", "new")
        audits.register("back")
        audits.register("new")

    audits.in_pause = meanwhile
    assert audits.bookies(lost(1, "new"), absent_after=0.0) == {}
    assert audits.pauses == [7.0]


def test_a_bookie_that_is_away_is_told_when_no_audit_saw_it_for_long(audits):
    audits.stamp("a", "b")
    audits.register("b")
    assert audits.bookies() == {}
    audits.now += HOUR / 2
    assert audits.bookies() == {}
    audits.now += HOUR / 2
    assert audits.bookies(note=False) == {"a": Verdict.UNREGISTERED}
    assert audits.bookies() == {"a": Verdict.UNREGISTERED}
    # one audit that sees it begins anew
    audits.register("a")
    assert audits.bookies() == {}
    assert b'"a"' not in audits.note()
    audits.unregister("a")
    audits.now += HOUR
    assert audits.bookies() == {}
    audits.now += HOUR
    assert audits.bookies() == {"a": Verdict.UNREGISTERED}


def test_audits_of_some_ledgers_and_dry_runs_note_nothing(audits):
    audits.stamp("a")
    assert audits.bookies(absent_after=None) == {}
    assert audits.bookies(note=False) == {}
    audits.now += 2 * HOUR
    assert audits.bookies() == {}, "nobody noted before since when"
    assert audits.bookies(absent_after=0.0) == {"a": Verdict.UNREGISTERED}


def test_a_note_that_cannot_be_read_is_begun_anew(audits, shelf):
    audits.stamp("a")
    shelf.run(lambda c: c.metadata_service.records(KIND).create(NOTE, b'{"v": 2}'))
    assert audits.bookies() == {}
    assert audits.logged == [
        "the audits' note of absent bookies cannot be read: version 2 is not known; a new one is begun"
    ]
    audits.now += HOUR
    assert audits.bookies() == {"a": Verdict.UNREGISTERED}


def test_another_audit_that_notes_at_the_same_time_is_left_to_it(audits, shelf, monkeypatch):
    audits.stamp("a")
    records = type(shelf.run(_records))
    original = records.create

    async def beaten(self, name, data, **options):
        await original(self, name, b'{"v": 1, "since_ms": {"z": 1}}', **options)
        return await original(self, name, data, **options)

    monkeypatch.setattr(records, "create", beaten)
    assert audits.bookies(absent_after=0.0) == {"a": Verdict.UNREGISTERED}
    assert audits.note() == b'{"v": 1, "since_ms": {"z": 1}}'
    assert audits.logged == ["another audit notes which bookies are away; this one leaves it to that"]


async def _records(client):
    return client.metadata_service.records(KIND)


def test_old_marks(audits, shelf):
    now_ms = int(audits.now * 1000)

    async def prepare(client):
        tree = client.metadata_service.under_replication
        await tree.mark(1, ["b", "a"], ctime_ms=now_ms - 3_600_000)
        await tree.mark(2, ["a"], ctime_ms=now_ms - 3_599_000)
        await tree.mark(3, [], ctime_ms=now_ms - 7_200_000)
        await tree.mark(4, ["a"], ctime_ms=None)
        await tree.mark(5, ["a"], ctime_ms=0)
        await tree.mark(6, ["a"], ctime_ms=-(1 << 62))
        await tree.lock(3)

    shelf.run(prepare)
    check = audits.check()
    found = list(check.old_marks(lambda ledger_id: ledger_id != 5, HOUR))
    assert [(each.ledger_id, each.verdict) for each in found] == [(each, Verdict.OVERDUE) for each in (1, 3, 6)]
    assert check.marks_without_time == 1
    assert "nobody works on it" in found[0].detail
    assert {"a", "b"} <= set(found[0].detail.replace(",", " ").replace(";", " ").split())
    assert "a placement that the policy allows; locked by " in found[1].detail


def test_marks_that_cannot_be_read_are_told(audits, shelf, monkeypatch):
    from bookie_protocol.errors import MetadataDamaged

    async def damaged(self, *_args, **_options):
        raise MetadataDamaged("the mark of ledger 1 is no text")
        yield

    monkeypatch.setattr(type(shelf.run(_marks)), "list", damaged)
    (finding,) = audits.check().old_marks(lambda _: True, HOUR)
    assert (finding.verdict, finding.ledger_id) == (Verdict.UNKNOWN, NO_LEDGER)
    assert "the mark of ledger 1 is no text" in finding.detail


async def _marks(client):
    return client.metadata_service.under_replication


@pytest.mark.parametrize(
    ("given", "is_all"),
    [
        ({}, True),
        ({"all": True}, True),
        ({"all": True, "where": "bytes > 1"}, False),
        ({"older_than": 5.0}, False),
        ({"stream": ("s",)}, False),
        ({"ledger_pattern": "a=b"}, False),
        ({"ledgers": LedgerIds.parse("1-5")}, False),
    ],
)
def test_which_audits_are_of_all_ledgers(given, is_all):
    assert AuditArguments(metadata="m", **given).is_narrowed is not is_all


def test_whether_a_ledger_is_among_the_chosen_ones():
    assert [is_among([2, 5, 9], each) for each in (1, 2, 3, 9, 10)] == [False, True, False, True, False]
    assert not is_among([], 1)
