"""What the API server refuses by the definitions in `crds/`, with the words that a user sees; nothing but it is needed.

The resources are paused: an operator that runs beside leaves them alone.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.dynamic.exceptions import DynamicApiError, NotFoundError

from bookie_operator.crds.cluster_spec import BookieClusterSpec
from tests.e2e.support.kube import Kube, Object, condition_of
from tests.support.admission_cases import ALLOWED, CHANGED, CREATED, Case, resource
from tests.support.chart_files import OPERATOR
from tests.support.helm_charts import render
from tests.unit.bookie_operator.crds.examples import PARTIAL

_CRDS = Path(__file__).parents[2] / "crds"
_PAUSED = {"annotations": {"podkeeper.dev/paused": "true"}}
_SECONDS = 60
_numbers = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def definitions(kube: Kube) -> Iterator[None]:
    """Applied unless a chart did; what was made here goes again, so that a chart finds its place free."""
    made = []
    for file in sorted(_CRDS.glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        name = definition["metadata"]["name"]
        if kube.get("CustomResourceDefinition", name) is None:
            kube.apply(definition)
            made.append(name)
        kube.wait_for("CustomResourceDefinition", _established(name), _SECONDS, f"{name} to be served", name=name)
    yield
    for name in made:
        kube.delete("CustomResourceDefinition", name)
        kube.wait_gone("CustomResourceDefinition", name, _SECONDS)


def _established(name: str) -> Callable[[dict[str, Object]], bool]:
    return lambda found: name in found and condition_of(found[name], "Established")["status"] == "True"


@pytest.fixture
def stored(kube: Kube) -> Iterator[Callable[[Case], str]]:
    """Store a case's `before` with its status; gives the name."""
    made: list[tuple[str, str]] = []

    def store(case: Case) -> str:
        assert case.before is not None
        name = f"admission-{next(_numbers)}"
        kube.apply(_paused(resource(case.kind, name, case.before)))
        made.append((case.kind, name))
        if case.status:
            kube.patch(case.kind, name, {"status": case.status}, subresource="status")
        return name

    yield store
    for kind, name in made:
        kube.delete(kind, name)  # first: an operator that runs beside puts its finalizer back until then
        if kube.get(kind, name) is not None:
            with contextlib.suppress(NotFoundError):
                kube.patch(kind, name, {"metadata": {"finalizers": None}})
        kube.wait_gone(kind, name, _SECONDS)


def _paused(thing: Object) -> Object:
    return {**thing, "metadata": {**thing["metadata"], **_PAUSED}}


def _refusal(kube: Kube, thing: Object) -> str:
    """The message of the API server; fails the test if the object is taken. What the types forbid, and what makes a
    list ambiguous, ends a server-side apply before it is judged: with another status."""
    with pytest.raises(DynamicApiError) as refused:
        kube.apply(thing, dry_run=True)
    assert refused.value.status in (422, 500)
    return str(json.loads(refused.value.body)["message"])


@pytest.mark.parametrize("case", CREATED, ids=lambda case: case.name)
def test_what_is_refused_at_once(kube: Kube, case: Case) -> None:
    name = case.changes.get("metadata", {}).get("name", "demo")
    assert case.message in _refusal(kube, _paused(resource(case.kind, name, case.changes)))


@pytest.mark.parametrize("case", CHANGED, ids=lambda case: case.name)
def test_what_is_refused_as_a_change(kube: Kube, stored: Callable[[Case], str], case: Case) -> None:
    name = stored(case)
    thing = _paused(resource(case.kind, name, case.changes))
    assert case.message in _refusal(kube, thing)
    fresh = _paused(resource(case.kind, f"{name}-fresh", case.changes))
    kube.apply(fresh, dry_run=True)  # it is the change that is refused, not the outcome


@pytest.mark.parametrize("case", ALLOWED, ids=lambda case: case.name)
def test_what_is_taken_as_a_change(kube: Kube, stored: Callable[[Case], str], case: Case) -> None:
    name = stored(case)
    kube.apply(_paused(resource(case.kind, name, case.changes)), dry_run=True)


@pytest.mark.parametrize("spec", PARTIAL)
def test_the_server_fills_in_the_defaults_of_the_typed_source(kube: Kube, spec: dict[str, Any]) -> None:
    thing = {"apiVersion": "podkeeper.dev/v1alpha1", "kind": "BookieCluster", "metadata": {"name": "demo"}}
    stored = kube.apply(_paused({**thing, "spec": spec}), dry_run=True)
    typed = BookieClusterSpec.model_validate(spec)
    assert stored["spec"] == typed.model_dump(by_alias=True, exclude_none=True, mode="json")
    assert BookieClusterSpec.model_validate(stored["spec"]) == typed


@pytest.fixture(scope="module")
def pod_policy(kube: Kube) -> Iterator[None]:
    """What the operator's chart adds where `podPolicy` is switched on, for the namespace of the tests."""
    switched = {"podPolicy": {"enabled": True, "serviceAccounts": ["known"]}, "namespaces": [kube.namespace]}
    objects = render(OPERATOR, release="admission", values={**switched, "uninstallCheck": {"enabled": False}})
    made = [each for each in objects if each["kind"].startswith("ValidatingAdmissionPolicy")]
    for each in made:
        kube.apply(each)
    yield
    for each in made:
        kube.delete(each["kind"], each["metadata"]["name"])


_SIDECAR = {"name": "beside", "image": "registry.example/beside:1"}
_REFUSED_PODS = (
    Case("sidecar", {"spec": {"pod": {"sidecars": [_SIDECAR]}}}, "spec.pod.sidecars: not allowed"),
    Case("init-container", {"spec": {"pod": {"initContainers": [_SIDECAR]}}}, "spec.pod.initContainers: not allowed"),
    Case("account", {"spec": {"pod": {"serviceAccountName": "foreign"}}}, "spec.pod.serviceAccountName: not allowed"),
)


def test_a_policy_of_the_chart_refuses_containers_and_accounts_of_others(
    kube: Kube, stored: Callable[[Case], str], request: pytest.FixtureRequest
) -> None:
    before = stored(Case("before", {}, "", before=_REFUSED_PODS[0].changes))
    request.getfixturevalue("pod_policy")
    end = time.monotonic() + _SECONDS
    while True:  # until the API server has read the policy
        try:
            kube.apply(_paused(resource("BookieCluster", "demo", _REFUSED_PODS[0].changes)), dry_run=True)
        except DynamicApiError:
            break
        assert time.monotonic() < end
    for case in _REFUSED_PODS:
        with pytest.raises(DynamicApiError) as refused:
            kube.apply(_paused(resource(case.kind, "demo", case.changes)), dry_run=True)
        assert case.message in json.loads(refused.value.body)["message"]
    kube.apply(
        _paused(resource("BookieCluster", "demo", {"spec": {"pod": {"serviceAccountName": "known"}}})), dry_run=True
    )
    kube.patch("BookieCluster", before, {"metadata": {"labels": {"changed": "true"}}})
    with pytest.raises(DynamicApiError):
        kube.patch("BookieCluster", before, {"spec": {"replicas": 5}})


def test_kubectl_scale_obeys_the_rules_too(kube: Kube, stored: Callable[[Case], str]) -> None:
    name = stored(Case("scaled", {}, "", before={}))
    kube.patch("BookieCluster", name, {"spec": {"replicas": 4}}, subresource="scale")
    found = kube.get("BookieCluster", name)
    assert found is not None
    assert found["spec"]["replicas"] == 4
    with pytest.raises(DynamicApiError) as refused:
        kube.patch("BookieCluster", name, {"spec": {"replicas": 2}}, subresource="scale")
    assert "must be at least durability.ensembleSize" in json.loads(refused.value.body)["message"]
