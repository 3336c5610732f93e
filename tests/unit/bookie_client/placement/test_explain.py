"""The account of a choice."""

from random import Random

from bookie_client.distribution import Quorums
from bookie_client.placement.explain import Fate, explain, explain_cluster
from bookie_client.placement.policy import Adherence, EnsembleRequest
from bookie_client.placement.rack_aware import RackAwarePlacement
from bookie_client.placement.random_choice import RandomPlacement
from tests.unit.bookie_client.placement.clusters import choose, cluster_of, racks

CLUSTER = cluster_of(
    racks(a=3, b=2) | {"gone": "/c"},
    writable=frozenset({"a-0", "a-1", "b-0", "b-1"}),
    read_only=frozenset({"a-2"}),
    excluded={"b-1": "draining"},
    free_bytes={"a-0": 5000},
)


def fates(explanation):
    return {one.bookie: (one.fate, one.reason) for one in explanation.candidates}


def test_the_account_is_of_the_very_choice_that_is_made():
    for seed in range(20):
        account = explain_cluster(RackAwarePlacement(), Quorums(2, 2, 2), CLUSTER, seed)
        assert account.ensemble == choose(RackAwarePlacement(), CLUSTER, (2, 2, 2), seed).ensemble


def test_everybody_is_accounted_for():
    account = explain_cluster(RackAwarePlacement(), Quorums(2, 2, 2), CLUSTER, 3)
    told = fates(account)
    assert told.keys() == {"a-0", "a-1", "a-2", "b-0", "b-1"}
    assert told["b-0"] == (Fate.TAKEN, "chosen")
    assert sorted(told[b][0].value for b in ("a-0", "a-1")) == ["not drawn", "taken"]
    assert told["a-2"] == (Fate.REFUSED, "read-only")
    assert told["b-1"] == (Fate.REFUSED, "draining")
    assert account.report.adherence is Adherence.MEETS_STRICT
    assert account.error is None


class Jealous(RackAwarePlacement):
    def objection(self, ensemble, position, bookie, quorums, cluster):
        return None if bookie in ensemble else "too late"


def test_who_would_break_the_rule_is_told_why_unless_the_members_break_it_too():
    cluster = cluster_of(racks(a=3))
    for policy, wanted in (
        (RackAwarePlacement(), (Fate.NOT_DRAWN, "it could have been")),
        (Jealous(), (Fate.REFUSED, "next to the others: too late")),
    ):
        account = explain_cluster(policy, Quorums(2, 2, 2), cluster)
        assert account.relaxed
        assert [each for each in fates(account).values() if each[0] is not Fate.TAKEN] == [wanted]


def test_quarantine_is_told():
    cluster = cluster_of(racks(a=3), quarantined=frozenset({"a-1"}))
    account = explain_cluster(RandomPlacement(), Quorums(2, 2, 2), cluster)
    assert fates(account)["a-1"] == (Fate.NOT_DRAWN, "quarantined, and the others suffice")


def test_a_refusal_is_an_account_too():
    request = EnsembleRequest(quorums=Quorums(4, 2, 2), cluster=CLUSTER, random=Random(1))
    account = explain(RackAwarePlacement(), request)
    assert account.ensemble == ()
    assert "needs 4 writable bookies and there are 3" in account.error
    assert fates(account)["a-0"] == (Fate.NOT_DRAWN, "a candidate")


def test_the_account_prints():
    text = str(explain_cluster(RackAwarePlacement(min_racks=3), Quorums(3, 3, 2), CLUSTER, 1)).splitlines()
    assert text[:4] == [
        "policy   rack-aware: write sets on at least 3 racks, relaxed when it must be",
        "quorums  3/3/2",
        "ensemble b-0, a-1, a-0",
        "adheres  FAIL",
    ]
    assert "relaxed  write sets may lie on 2 instead of 3 racks" in text
    assert "taken [2]  a-0  /a  5000 B free  chosen" in text
    assert any(line.startswith("refused    b-1  /b") and line.endswith("draining") for line in text)
