"""The validation of every pass stands in for the API server's, for what was stored before a rule was; and no spec,
however odd, makes it fail."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.job_rules import parse_job_spec, validate_job
from bookie_operator.crds.validation import parse_spec, validate
from tests.support.admission_cases import ALLOWED, CREATED, Case, resource
from tests.unit.bookie_operator.crds.examples import PARTIAL

_SPECS = [case for case in CREATED if case.kind != "BookieTask" and "spec" in case.changes]


def _faults(spec: dict[str, Any], kind: str = "BookieCluster") -> tuple[str, ...]:
    if kind == "BookieJob":
        job, faults = parse_job_spec(spec)
        return faults if job is None else validate_job(job)
    typed, faults = parse_spec(spec)
    return faults if typed is None else validate(typed, BookieClusterStatus())


@pytest.mark.parametrize("case", _SPECS, ids=lambda case: case.name)
def test_what_the_api_server_refuses_is_refused_here_too(case: Case) -> None:
    faults = _faults(resource(case.kind, "demo", case.changes)["spec"], case.kind)
    assert faults
    assert all(fault.startswith("spec.") for fault in faults)


@pytest.mark.parametrize("case", ALLOWED, ids=lambda case: case.name)
def test_what_it_takes_is_taken(case: Case) -> None:
    assert _faults(resource(case.kind, "demo", case.changes)["spec"], case.kind) == ()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of everything that is in it."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, child in value.items():
            found += _places(child, (*path, key))
    if isinstance(value, list):
        for number, child in enumerate(value):
            found += _places(child, (*path, number))
    return found


@given(st.data())
def test_no_spec_is_too_odd(data: st.DataObject) -> None:
    spec = copy.deepcopy(data.draw(st.sampled_from(PARTIAL)))
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(_places(spec)))
        place: Any = spec
        for part in parents:
            place = place[part]
        place[last] = data.draw(_JSON)
    for fault in _faults(spec):
        assert fault
        assert fault.isprintable()
