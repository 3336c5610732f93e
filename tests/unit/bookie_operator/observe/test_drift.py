"""Fields as an API server writes them down who answers for them, and what that says of an object that was applied."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bookie_operator.observe.drift import drift

SET: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {
        "name": "demo-bookie",
        "namespace": "storage",
        "labels": {"app.kubernetes.io/name": "podkeeper"},
        "annotations": {"podkeeper.dev/object-hash": "0f"},
        "ownerReferences": [{"uid": "u-1", "kind": "BookieCluster", "name": "demo", "controller": True}],
    },
    "spec": {
        "replicas": 3,
        "selector": {"matchLabels": {"app.kubernetes.io/name": "podkeeper"}},
        "template": {
            "metadata": {"labels": {"app.kubernetes.io/name": "podkeeper"}},
            "spec": {
                "automountServiceAccountToken": False,
                "containers": [
                    {
                        "name": "bookie",
                        "image": "podkeeper:1",
                        "args": ["serve"],
                        "env": [{"name": "POD", "value": "x"}],
                        "ports": [{"containerPort": 3181, "name": "bookie"}],
                        "resources": {"requests": {"memory": "2048Mi"}, "limits": {}},
                    }
                ],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
            },
        },
        "volumeClaimTemplates": [{"metadata": {"name": "journal-0"}}],
    },
}
CONTAINER = 'k:{"name":"bookie"}'
OWN: dict[str, Any] = {
    "f:metadata": {
        "f:labels": {"f:app.kubernetes.io/name": {}},
        "f:annotations": {"f:podkeeper.dev/object-hash": {}},
        "f:ownerReferences": {'k:{"uid":"u-1"}': {}},
    },
    "f:spec": {
        "f:selector": {},
        "f:template": {
            "f:metadata": {"f:labels": {"f:app.kubernetes.io/name": {}}},
            "f:spec": {
                "f:automountServiceAccountToken": {},
                "f:containers": {
                    CONTAINER: {
                        ".": {},
                        "f:name": {},
                        "f:image": {},
                        "f:args": {},
                        "f:env": {'k:{"name":"POD"}': {".": {}, "f:name": {}, "f:value": {}}},
                        "f:ports": {
                            'k:{"containerPort":3181,"protocol":"TCP"}': {
                                ".": {},
                                "f:containerPort": {},
                                "f:name": {},
                            }
                        },
                        "f:resources": {"f:limits": {}, "f:requests": {"f:memory": {}}},
                    }
                },
                "f:volumes": {'k:{"name":"tmp"}': {".": {}, "f:emptyDir": {}, "f:name": {}}},
            },
        },
        "f:volumeClaimTemplates": {},
    },
}


def metadata(own: dict[str, Any], *others: dict[str, Any], operation: str = "Apply") -> dict[str, Any]:
    entries = [{"manager": "podkeeper-operator", "operation": operation, "fieldsV1": own}, *others]
    return {"managedFields": entries}


def by(manager: str, fields: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "fieldsV1": fields, **more}


def without(*path: str) -> dict[str, Any]:
    """Whoever loses the last field of something loses that too."""
    own = copy.deepcopy(OWN)
    nodes = [own]
    for step in path[:-1]:
        nodes.append(nodes[-1][step])
    for node, step in zip(reversed(nodes), reversed(path), strict=True):
        del node[step]
        if node:
            break
    return own


def test_what_is_as_it_was_applied() -> None:
    """Replicas are scaled, keys of items have defaults, and what controllers add is theirs."""
    added = {"f:status": {"f:replicas": {}}, "f:metadata": {"f:annotations": {"f:their/own": {}}}}
    scaled = {"f:spec": {"f:replicas": {}}}
    assert drift(SET, metadata(OWN, by("kube-controller-manager", added), by("kubectl", scaled))) == ""


TEMPLATE = ("f:spec", "f:template", "f:spec")


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ((*TEMPLATE, "f:containers", CONTAINER, "f:image"), 'spec.template.spec.containers.[{"name":"bookie"}].image'),
        ((*TEMPLATE, "f:containers", CONTAINER), "spec.template.spec.containers"),
        ((*TEMPLATE, "f:containers", CONTAINER, "f:env", 'k:{"name":"POD"}'), "env"),
        ((*TEMPLATE, "f:containers", CONTAINER, "f:resources", "f:requests", "f:memory"), "resources.requests"),
        ((*TEMPLATE, "f:automountServiceAccountToken"), "spec.template.spec.automountServiceAccountToken"),
        (("f:metadata", "f:annotations", "f:podkeeper.dev/object-hash"), "metadata.annotations"),
        (("f:metadata", "f:ownerReferences"), "metadata.ownerReferences"),
        (("f:spec", "f:selector"), "spec.selector"),
    ],
)
def test_a_field_that_is_the_operators_no_more(path: tuple[str, ...], told: str) -> None:
    assert told in drift(SET, metadata(without(*path)))


def test_it_is_told_who_changed_it() -> None:
    path = (*TEMPLATE, "f:containers", CONTAINER, "f:image")
    theirs: dict[str, Any] = {}
    node = theirs
    for step in path:
        node = node.setdefault(step, {})
    words = drift(SET, metadata(without(*path), by("kubectl-set", theirs), by("helm", {"f:spec": {"f:x": {}}})))
    assert words.startswith("changed by kubectl-set: ")


def test_what_the_operator_changed_in_another_way_is_its_own() -> None:
    path = ("f:metadata", "f:annotations", "f:podkeeper.dev/object-hash")
    patched = {"f:metadata": {"f:annotations": {"f:podkeeper.dev/object-hash": {}}}}
    assert drift(SET, metadata(without(*path), by("podkeeper-operator", patched))) == ""


def test_many_fields_are_told_in_few_words() -> None:
    words = drift(SET, metadata({"f:metadata": OWN["f:metadata"], "f:spec": {"f:template": {"f:metadata": {}}}}))
    assert len(words) <= 500
    assert "spec.selector" in words


@pytest.mark.parametrize("entries", [None, [], [by("podkeeper-operator", {})], [by("kubectl", OWN)]])
def test_without_a_record_of_what_was_applied_nobody_can_tell(entries: list[dict[str, Any]] | None) -> None:
    assert drift(SET, {"managedFields": entries} if entries is not None else {}) == ""


def test_the_template_of_a_job_is_its_own_from_the_beginning() -> None:
    assert drift({**SET, "kind": "Job"}, metadata({})) == ""
