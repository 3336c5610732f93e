"""What the operator may do: all that it does, and nothing that would let it do more."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import yaml

from bookie_operator.api import kinds
from tests.support.chart_files import CLUSTER, OPERATOR

READ_BY_FLAG = {"nodes", "persistentvolumes", "storageclasses"}
NOT_MADE = {"roles", "rolebindings", "servicemonitors"}
"""Kinds that the operator knows by name and makes none of."""
WATCHED_CHILDREN = (kinds.STATEFUL_SET, kinds.POD, kinds.CLAIM, kinds.JOB, kinds.CRON_JOB, kinds.DEPLOYMENT)
WRITTEN = {
    *("configmaps", "services", "serviceaccounts", "secrets", "statefulsets", "deployments", "jobs", "cronjobs"),
    *(
        "persistentvolumeclaims",
        "poddisruptionbudgets",
        "networkpolicies",
        "podmonitors",
        "prometheusrules",
        "certificates",
    ),
}
"""What server-side apply makes and changes."""


@cache
def rules(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((OPERATOR / "files" / "rbac" / f"{name}.yaml").read_text(encoding="utf-8")))


def verbs(listed: list[dict[str, Any]], group: str, resource: str) -> set[str]:
    matching = [rule for rule in listed if group in rule["apiGroups"] and resource in rule["resources"]]
    return {verb for rule in matching for verb in rule["verbs"]}


def group_of(resource: kinds.Resource) -> str:
    return resource.api_version.rpartition("/")[0]


@pytest.mark.parametrize("name", ["clusters", "lease", "cluster-read"])
def test_nothing_is_granted_by_wildcard(name: str):
    for rule in rules(name):
        assert set(rule) - {"resourceNames"} == {"apiGroups", "resources", "verbs"}
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_neither_commands_in_pods_nor_other_peoples_secrets():
    found = rules("clusters")
    resources = {resource for rule in found for resource in rule["resources"]}
    assert not resources & {"pods/exec", "pods/attach", "pods/log", "pods/portforward", "pods/ephemeralcontainers"}
    assert not resources & {"roles", "rolebindings", "clusterroles", "clusterrolebindings", "nodes", "namespaces"}
    assert not verbs(found, "", "secrets") & {"list", "watch", "deletecollection"}
    assert not {verb for rule in found for verb in rule["verbs"]} & {
        "deletecollection",
        "impersonate",
        "escalate",
        "bind",
    }


def test_pods_are_never_made():
    found = rules("clusters")
    assert not verbs(found, "", "pods") & {"create", "update"}, "an annotation is patched: the zone of its node"


def test_every_kind_that_the_operator_knows_is_granted():
    for resource in kinds.ALL:
        if resource.plural in NOT_MADE:
            continue
        files = ["cluster-read"] if resource.plural in READ_BY_FLAG else ["clusters", "lease"]
        granted = {verb for name in files for verb in verbs(rules(name), group_of(resource), resource.plural)}
        assert granted, f"{resource.kind} is not granted"


def test_what_is_applied_may_be_made_changed_and_deleted():
    found = rules("clusters")
    for resource in kinds.ALL:
        if resource.plural in WRITTEN:
            assert {"get", "create", "patch"} <= verbs(found, group_of(resource), resource.plural), resource.kind


def test_deletions_and_subresources_of_the_flows():
    found = rules("clusters")
    assert {"get", "list", "delete", "patch"} <= verbs(found, "", "persistentvolumeclaims")
    assert {"get", "list", "delete"} <= verbs(found, "", "pods")
    assert verbs(found, "", "pods/eviction") == {"create"}
    assert "update" in verbs(found, "apps", "statefulsets/scale")
    assert "delete" in verbs(found, "apps", "statefulsets")
    for resource in ("bookieclusters", "bookiejobs", "bookietasks"):
        assert "patch" in verbs(found, "podkeeper.dev", f"{resource}/status")


def test_what_is_watched_may_be_watched_and_nothing_else():
    watched = {resource.plural for resource in (kinds.CLUSTER, kinds.TASK, kinds.BOOKIE_JOB, *WATCHED_CHILDREN)}
    found = {resource for rule in rules("clusters") if "watch" in rule["verbs"] for resource in rule["resources"]}
    assert found == watched
    assert all("list" in rule["verbs"] for rule in rules("clusters") if "watch" in rule["verbs"])


def test_a_driver_of_spark_may_make_pods_and_nothing_else():
    """Of its executors; the operator itself may not, and need not hand rights on."""
    (rule,) = yaml.safe_load((CLUSTER / "files" / "rbac" / "spark-driver.yaml").read_text(encoding="utf-8"))
    assert (rule["apiGroups"], rule["resources"]) == ([""], ["pods"])
    assert "*" not in rule["verbs"]


def test_spec_is_not_the_operators():
    """`patch` of a BookieCluster is for its finalizer; nobody may make or delete one but people."""
    assert not verbs(rules("clusters"), "podkeeper.dev", "bookieclusters") & {"create", "delete"}


def test_cluster_scoped_rights_are_reads():
    for rule in rules("cluster-read"):
        assert set(rule["verbs"]) <= {"get", "list", "watch"}
        assert set(rule["resources"]) <= READ_BY_FLAG
