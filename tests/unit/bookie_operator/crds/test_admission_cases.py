"""No rule goes without a case in the tests against an API server."""

from __future__ import annotations

import re

import pytest

from bookie_operator.crds.definitions import KINDS, Kind
from bookie_operator.crds.rules import Rule
from tests.support.admission_cases import ALLOWED, CHANGED, CREATED, Case, resource

_FIRST_KEY = re.compile(r"' \+ .*\[0\] \+ '")
_RULES = [(kind, rule) for kind in KINDS for rule in kind.rules]


def _says(case: Case, rule: Rule) -> bool:
    words = case.message.removeprefix(f"{rule.path}.{rule.field}: ")
    expressed = _FIRST_KEY.sub("ledgerDirectories", rule.expression)
    return words in rule.message or words in expressed


@pytest.mark.parametrize(
    ("kind", "rule"), _RULES, ids=[f"{kind.kind}-{rule.path}-{rule.field}" for kind, rule in _RULES]
)
def test_a_rule_has_a_case(kind: Kind, rule: Rule) -> None:
    cases = CHANGED if "oldSelf" in rule.rule else CREATED
    assert any(case.kind == kind.kind and _says(case, rule) for case in cases), rule.message


def test_cases_change_something() -> None:
    for case in (*CREATED, *CHANGED, *ALLOWED):
        before = resource(case.kind, "demo", case.before or {})
        assert resource(case.kind, "demo", case.changes) != before, case.name
    names = [case.name for case in (*CREATED, *CHANGED, *ALLOWED)]
    assert len(names) == len(set(names))
